//! The `train` program.

use std::process::ExitCode;

use clap::Parser;
use waymark_runtime::{confine_name_lookups, exit_code};
use waymark_training::cli::TrainCli;

fn main() -> ExitCode {
    confine_name_lookups();
    exit_code(TrainCli::parse().run())
}
