//! Priority of background work.

use std::panic::resume_unwind;
use std::thread;

/// Niceness of background work, which then gets about a tenth of the time that a search gets on the same core.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Runs `work` on a thread of low priority, so that searches come first, and waits for it. Threads that `work` starts
/// have the same priority. The caller's priority is not lowered, because a thread cannot raise its priority again.
pub(crate) fn at_low_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            lower_priority();
            work()
        });
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn lower_priority() {
    // SAFETY: `setpriority` takes no pointer. On Linux, 0 names the calling thread, not the process. A refusal leaves
    // the priority as it is, which does no harm.
    #[cfg(target_os = "linux")]
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
}
