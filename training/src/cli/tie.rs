//! Termination of a job together with the experiment that started it.

use std::io;
use std::process;
use std::thread;

use anyhow::Context;

/// Exit status of a process whose experiment has ended.
const ABANDONED: i32 = 75;

/// Ends this process when its standard input ends. The system closes the input when the experiment's process ends, even
/// if that process was killed. Otherwise the job would go on alone, and its lock would keep a resumed experiment from
/// its run.
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
