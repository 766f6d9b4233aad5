//! The tie of a job to the experiment that started it.

use std::io;
use std::process;
use std::thread;

use anyhow::Context;

/// Exit status of a process whose experiment has ended.
const ABANDONED: i32 = 75;

/// Ends this process when its standard input ends, which the system closes with the process at its other end, even if
/// that one was killed. Otherwise a job would go on alone, and hold the lock of its run against a resumed experiment.
pub(super) fn to_standard_input() -> anyhow::Result<()> {
    let wait = || {
        let mut input = io::stdin().lock();
        // An error is an end too.
        drop(io::copy(&mut input, &mut io::sink()));
        process::exit(ABANDONED);
    };
    thread::Builder::new().name("tie".to_owned()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}
