//! A short chaos run over the mock: `docs/reliability.md` says what a long one found.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;

#[test]
fn a_short_run_keeps_every_promise() {
    let output = Command::new(env!("CARGO_BIN_EXE_chaos")).args(["--minutes", "0.25", "--seed", "7"]).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    assert!(report.contains("every promise was kept") && report.contains("* lost: 0\n"), "{report}");
    let terms = report.lines().find(|line| line.contains("times SIGTERM")).unwrap();
    assert!(!terms.starts_with("* 1 times"), "it was to be ended in the middle: {report}");
}
