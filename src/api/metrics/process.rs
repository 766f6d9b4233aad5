//! Metrics of the process, under the names that Prometheus's client libraries use. Not exposed on systems other than
//! Linux.

use std::fmt::Write;

use super::recorder::MetricsRecorder;

/// Ticks per second in `/proc`, which Linux reports in this unit on all current architectures (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Resources that the process uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ProcessUsage {
    /// User and system time of all threads, in seconds.
    cpu_seconds: f64,
    /// Resident memory, in bytes.
    resident: u64,
    /// Virtual memory, in bytes.
    reserved: u64,
    /// Number of threads.
    threads: u64,
    /// Open file descriptors.
    open_files: usize,
    /// Limit of open file descriptors. `None` if there is none.
    max_files: Option<u64>,
    /// Start of the process, in seconds since 1970.
    started: f64,
}

impl ProcessUsage {
    /// Reads `/proc`. `None` if it cannot be read.
    pub(super) fn read() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The second field is the name of the program, in parentheses, and may hold spaces and parentheses itself.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // Numbered from 1 as in proc_pid_stat(5); the first field after the name is the third.
        let seconds = |number: usize| Some(fields.get(number - 3)?.parse::<f64>().ok()? / TICKS);
        let booted: f64 = entry("/proc/stat", "btime ")?.parse().ok()?;
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let kilobytes = |name: &str| line(&status, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok();
        let limits = entry("/proc/self/limits", "Max open files")?;
        Some(Self {
            cpu_seconds: seconds(14)? + seconds(15)?,
            resident: kilobytes("VmRSS:")? * 1024,
            reserved: kilobytes("VmSize:")? * 1024,
            threads: line(&status, "Threads:")?.parse().ok()?,
            open_files: std::fs::read_dir("/proc/self/fd").ok()?.count(),
            max_files: limits.split_whitespace().next()?.parse().ok(),
            started: booted + seconds(22)?,
        })
    }

    /// Records the gauges of the process.
    pub(super) fn record(&self, recorder: &MetricsRecorder) {
        let Self { resident, reserved, threads, open_files, max_files, started, .. } = *self;
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory of the process in bytes", Some(resident as f64)),
            ("process_virtual_memory_bytes", "Virtual memory of the process in bytes", Some(reserved as f64)),
            ("process_threads", "Threads of the process", Some(threads as f64)),
            ("process_open_fds", "Open files and sockets of the process", Some(open_files as f64)),
            ("process_max_fds", "Limit of open files and sockets", max_files.map(|files| files as f64)),
            ("process_start_time_seconds", "Start of the process in seconds since 1970", Some(started)),
        ] {
            if let Some(value) = value {
                recorder.gauge(name, help).set(value);
            }
        }
    }

    /// Appends the CPU time in the classic text format, because a recorder's counters are whole numbers.
    pub(super) fn write_cpu_seconds(&self, text: &mut String) -> std::fmt::Result {
        let name = "process_cpu_seconds_total";
        let help = "Seconds of CPU time that the process has used";
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}\n", self.cpu_seconds)
    }
}

/// Returns the rest of the first line of a file that begins with `name`.
fn entry(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    line(&text, name).map(str::to_owned)
}

/// Returns the rest of the first line of `text` that begins with `name`.
fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn usage_is_plausible_and_grows() {
        let before = ProcessUsage::read().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(before.started <= now + 2.0 && now - before.started < 86_400.0, "{before:?}");
        assert!(before.resident > 1 << 20 && before.reserved >= before.resident, "{before:?}");
        assert!(before.threads >= 1, "{before:?}");
        let files: Vec<_> = (0..20).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let started = std::time::Instant::now();
        let mut after = ProcessUsage::read().unwrap();
        // The system counts steps of 0.01 s, and other processes may take the CPU for longer.
        while after.cpu_seconds <= before.cpu_seconds && started.elapsed().as_secs() < 60 {
            after = ProcessUsage::read().unwrap();
        }
        assert!(after.cpu_seconds > before.cpu_seconds, "{before:?} {after:?}");
        assert!(after.open_files >= files.len() + 3, "{after:?}");
        assert!(after.max_files.is_none_or(|most| most as usize >= after.open_files), "{after:?}");
    }
}
