//! Exit code and final error message of a program.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::printable;

/// Exit code for any other error.
const FAILURE: u8 = 1;

/// Exit code for an invalid configuration, which the parser of the command line uses as well.
const INVALID: u8 = 2;

/// Error in flags, or in a small file that they name. The program ends with exit code 2, after which a service manager
/// need not start it again.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct InvalidConfiguration(anyhow::Error);

impl InvalidConfiguration {
    /// Marks an error as one of the configuration.
    pub fn new(error: impl Into<anyhow::Error>) -> Self {
        Self(error.into())
    }
}

/// Returns the exit code for `result` and prints an error with its causes to standard error: 2 if the configuration is
/// [invalid](InvalidConfiguration), 1 for other errors.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output, such as `head`, closed its end of the pipe. That is not a failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed as well; then the exit code is the only report.
            let _ = writeln!(io::stderr(), "error: {}", format_error(&error));
            ExitCode::from(code(&error))
        }
    }
}

fn code(error: &anyhow::Error) -> u8 {
    if error.chain().any(<dyn std::error::Error>::is::<InvalidConfiguration>) { INVALID } else { FAILURE }
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
    #![allow(clippy::unwrap_used)]
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn errors_are_printable_and_repeat_no_cause() {
        let error = anyhow!("no\u{1b}]52;c;cm0gLXJm\u{7}").context("it refused").context("it refused: sorry");
        assert_eq!(format_error(&error), "it refused: sorry: no\u{fffd}]52;c;cm0gLXJm\u{fffd}");
    }

    #[test]
    fn an_invalid_configuration_has_a_code_of_its_own() {
        let invalid = || InvalidConfiguration::new(anyhow!("no such file").context("--api-keys keys.toml"));
        let error = anyhow::Error::new(invalid());
        assert_eq!((code(&error), format_error(&error).as_str()), (INVALID, "--api-keys keys.toml: no such file"));
        assert_eq!(code(&Err::<(), _>(invalid()).context("cannot start").unwrap_err()), INVALID);
        assert_eq!(code(&anyhow!("the port is in use")), FAILURE);
    }
}
