//! Report of tests that cannot run on this machine.

use std::io::{self, Write};

/// Prints the reason past the test harness, which hides the output of passing tests.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(io::stderr(), "skipped: {why}");
}
