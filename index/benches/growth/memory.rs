//! Memory of this process.

/// The largest it has been, in MiB (`VmHWM`); 0 where the system does not say.
pub fn peak() -> f64 {
    field("VmHWM:")
}

/// Forgets the peak so far.
pub fn forget() {
    // Not every system lets one; then the peak goes on from before, and is too high rather than too low.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn field(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}
