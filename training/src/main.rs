//! The `train` program.

use std::process::ExitCode;

use clap::Parser;
use waymark_runtime::exit_code;
use waymark_training::cli::TrainCli;

fn main() -> ExitCode {
    exit_code(TrainCli::parse().run())
}
