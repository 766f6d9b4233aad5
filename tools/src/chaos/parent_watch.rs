//! Ends the server when the run that started it has gone.

use std::{io, process, thread};

/// Exit status of a server whose run has gone.
const PARENT_GONE: i32 = 3;

/// Ends this process once the other end of its standard input is closed. The run holds that end and never writes; the
/// operating system closes it when the run ends for any reason, SIGKILL included.
///
/// # Errors
/// If the operating system refuses a thread.
pub(crate) fn exit_with_parent() -> io::Result<()> {
    let wait = || {
        // A read error also means that the other end is gone.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        process::exit(PARENT_GONE);
    };
    thread::Builder::new().name("chaos-parent".into()).spawn(wait).map(|_| ())
}
