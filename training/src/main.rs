//! The `train` program.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match waymark_training::cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough: that is no failure of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed as well; there is nobody left to tell.
            let _ = writeln!(io::stderr(), "error: {}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error with its causes, without those that it quotes already.
fn told(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io.map(io::Error::kind).any(|kind| kind == io::ErrorKind::BrokenPipe)
}
