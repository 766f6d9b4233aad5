//! The `waymark` program.

use std::process::ExitCode;

use clap::Parser;
use waymark::cli::{Cli, end};

fn main() -> ExitCode {
    end(Cli::parse().run())
}
