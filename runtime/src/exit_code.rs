//! Exit code and final error message of a program.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::printable;

/// Returns the exit code for `result` and prints an error with its causes to standard error.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output, such as `head`, closed its end of the pipe. That is not a failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed as well; then the exit code is the only report.
            let _ = writeln!(io::stderr(), "error: {}", format_error(&error));
            ExitCode::FAILURE
        }
    }
}

/// Formats the error with its causes, leaving out causes that the text already quotes. Control characters are replaced,
/// because a server may have written parts of the text.
fn format_error(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    printable(&text)
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

    use super::format_error;

    #[test]
    fn errors_are_printable_and_repeat_no_cause() {
        let error = anyhow!("no\u{1b}]52;c;cm0gLXJm\u{7}").context("it refused").context("it refused: sorry");
        assert_eq!(format_error(&error), "it refused: sorry: no\u{fffd}]52;c;cm0gLXJm\u{fffd}");
    }
}
