//! Signal handler for SIGBUS. Calls only what a signal handler may call: no allocation, no lock of the library.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::folders::{DELETED, count_fault};
use super::mapping::Mapping;
use crate::layout::snapshot_file::VECTOR_GRAPH;

/// Number of replaced ranges that are remembered.
const REMEMBERED: usize = 64;

/// Handler that was installed before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Size of a page of memory.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// If `true`, a thread is handling a fault. Several threads that read the same file may fault at the same time.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Start and end of the ranges replaced last.
static REPLACED: [(AtomicUsize, AtomicUsize); REMEMBERED] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; REMEMBERED];

/// Number of ranges replaced so far.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Decision about a fault.
enum FaultAnswer {
    /// The access can be repeated.
    Repeat,
    /// The thread must not go on.
    Park,
    /// The fault is not in a file of an index.
    PassOn,
}

/// Handler that takes the signal, its cause, and the state of the thread.
type InfoHandler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Installs the handler, once.
pub(super) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| try_install().map_err(|error| error.raw_os_error().unwrap_or(0)));
    (*installed).map_err(io::Error::from_raw_os_error)
}

fn try_install() -> io::Result<()> {
    // SAFETY: `sysconf` takes no pointer.
    if let Ok(page @ 1..) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) {
        PAGE.store(page, Ordering::Relaxed);
    }
    // SAFETY: zeros are a valid `sigaction`.
    let mut previous: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the pointer is valid for the call, which only reads the present handler.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Stored before the handler is installed, which may need it at once.
    let _ = PREVIOUS.set(previous);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let handler: InfoHandler = handle;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler has the signature that `SA_SIGINFO` requires, and lives as long as the process.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a valid `siginfo_t`, and every thread has an `errno`.
    let (code, address, errno) = unsafe { ((*info).si_code, (*info).si_addr() as usize, *libc::__errno_location()) };
    // Other codes are hardware errors, misaligned accesses, and signals sent by a process.
    let answer = if code == libc::BUS_ADRERR { locked(|| answer(address)) } else { FaultAnswer::PassOn };
    // SAFETY: as above. The interrupted code may be about to read `errno`.
    unsafe { *libc::__errno_location() = errno };
    match answer {
        FaultAnswer::Repeat => {}
        FaultAnswer::Park => park(),
        FaultAnswer::PassOn => pass_on(signal, info, context),
    }
}

/// Stops the thread for good. Callers that wait for its search give up at the deadline.
fn park() -> ! {
    loop {
        // SAFETY: takes no argument.
        unsafe { libc::pause() };
    }
}

/// Runs `work` in one thread at a time.
fn locked<T>(work: impl FnOnce() -> T) -> T {
    // The holder is another thread, since the signal is blocked in a thread that handles it.
    while BUSY.swap(true, Ordering::Acquire) {
        // SAFETY: takes no argument.
        unsafe { libc::sched_yield() };
    }
    let done = work();
    BUSY.store(false, Ordering::Release);
    done
}

/// Returns `true` if another thread has replaced the page meanwhile, so that the access can be repeated.
fn is_replaced(address: usize) -> bool {
    REPLACED.iter().any(|(start, end)| (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address))
}

/// Decides about a fault at `address`. Counts it if it is in a file of a watched folder, and puts zeros in place of the
/// mapping from the faulting page to its end, unless the file's reader cannot handle zeros.
fn answer(address: usize) -> FaultAnswer {
    let Some(mapping) = look_up(address) else { return FaultAnswer::PassOn };
    // The addresses of a replaced range may hold another file by now, so `REPLACED` counts only for memory without a
    // file.
    if mapping.path().is_empty() {
        return if is_replaced(address) { FaultAnswer::Repeat } else { FaultAnswer::PassOn };
    }
    if !count_fault(mapping.path()) {
        return FaultAnswer::PassOn;
    }
    if is_vector_graph(mapping.path()) {
        return FaultAnswer::Park;
    }
    if replace(address, mapping.end) { FaultAnswer::Repeat } else { FaultAnswer::PassOn }
}

/// Recognizes the file of a vector graph. usearch follows the links in it unchecked, and ends the process when it meets
/// a node whose level it does not expect.
fn is_vector_graph(path: &[u8]) -> bool {
    path.strip_suffix(DELETED).unwrap_or(path).ends_with(VECTOR_GRAPH.as_bytes())
}

/// Puts zeros in place of the mapping from the page of `address` to `end`.
fn replace(address: usize, end: usize) -> bool {
    let start = address - address % PAGE.load(Ordering::Relaxed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is the rest of one mapping of a file, read-only, that the faulting thread is reading: it stays
    // mapped for as long as that thread borrows it, and its owner unmaps the same addresses later. The pages from the
    // faulting one on cannot be read, so no valid content is replaced by the zeros, except where a failing disk has
    // spared later pages; the fault is counted, and everything read here is discarded.
    let mapped = unsafe { libc::mmap(start as *mut c_void, end - start, libc::PROT_READ, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    let (from, to) = &REPLACED[COUNT.fetch_add(1, Ordering::Relaxed) % REMEMBERED];
    from.store(start, Ordering::Relaxed);
    to.store(end, Ordering::Relaxed);
    true
}

/// Finds the mapping that holds `address`.
fn look_up(address: usize) -> Option<Mapping> {
    // SAFETY: the path ends with a zero. `open`, `read` and `close` are allowed in a signal handler.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let read = |buffer: &mut [u8]| {
        // SAFETY: the buffer is as long as stated.
        let count = unsafe { libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) };
        usize::try_from(count).unwrap_or(0)
    };
    let mapping = Mapping::holding(address, read);
    // SAFETY: the descriptor was opened above and is not used afterwards.
    unsafe { libc::close(file) };
    mapping
}

/// Leaves the signal to the handler that was installed before. Without one, the process ends as it would have.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get().filter(|action| !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN));
    match previous {
        Some(action) if action.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with `SA_SIGINFO`, the address is that of a function of this type.
            let handler = unsafe { mem::transmute::<usize, InfoHandler>(action.sa_sigaction) };
            handler(signal, info, context);
        }
        Some(action) => {
            // SAFETY: without `SA_SIGINFO`, the address is that of a function that takes the signal only.
            let handler = unsafe { mem::transmute::<usize, extern "C" fn(c_int)>(action.sa_sigaction) };
            handler(signal);
        }
        None => {
            // The access is repeated after the handler, and its signal then has the default effect. A signal that was
            // sent by a process would not occur again, so it is raised.
            // SAFETY: `signal` and `raise` take no pointer here.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
}
