//! How a program ends, and what it says then.

use std::io::{self, Write};
use std::process::ExitCode;

use super::harmless::harmless;

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

/// The error with its causes, without those that it quotes already. A server may have written some of it.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    harmless(&text)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::told;

    #[test]
    fn what_is_told_steers_no_terminal_and_says_nothing_twice() {
        let error = anyhow!("no\u{1b}]52;c;cm0gLXJm\u{7}").context("it refused").context("it refused: sorry");
        assert_eq!(told(&error), "it refused: sorry: no\u{fffd}]52;c;cm0gLXJm\u{fffd}");
    }
}
