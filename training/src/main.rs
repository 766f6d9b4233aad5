//! The `train` program.

use std::process::ExitCode;

use clap::Parser;
use waymark_runtime::end;
use waymark_training::cli::TrainCli;

fn main() -> ExitCode {
    end(TrainCli::parse().run())
}
