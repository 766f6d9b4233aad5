//! Peak memory of this process.

/// Peak memory in MiB (`VmHWM`). 0 if the system does not report it.
pub fn peak() -> f64 {
    field("VmHWM:")
}

/// Resets the peak.
pub fn forget() {
    // Some systems do not allow a reset; the reported peak is then too high rather than too low.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn field(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}
