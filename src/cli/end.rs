//! How a program ends, and what it says then.

use std::io::{self, Write};
use std::process::ExitCode;

/// The exit code of a program that came to `result`; an error is told on standard error with its causes.
pub fn end(result: anyhow::Result<()>) -> ExitCode {
    match result {
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
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
