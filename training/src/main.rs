//! The `train` program.

use std::process::ExitCode;

use clap::Parser;
use waymark::cli::end;
use waymark_training::cli::Cli;

fn main() -> ExitCode {
    end(Cli::parse().run())
}
