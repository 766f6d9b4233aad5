//! What ties a server to the run that started it.

use std::{io, process, thread};

/// The status of a server whose run has gone.
const GONE: i32 = 3;

/// Ends this process once the other end of its standard input is closed. The run holds that end and never writes: it is
/// closed when the run is over, however that comes about, SIGKILL included.
///
/// # Errors
/// When the operating system refuses a thread.
pub(crate) fn tie() -> io::Result<()> {
    let wait = || {
        // An error is an end as well.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        process::exit(GONE);
    };
    thread::Builder::new().name("chaos-tether".into()).spawn(wait).map(|_| ())
}
