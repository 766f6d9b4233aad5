//! Memory of the machine, as far as this process may take it.

use std::fs;

/// Memory that this process may take, in bytes: of the machine, or of its control group if that has less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineMemory {
    /// Memory in all.
    pub limit: u64,
    /// Memory that is not in use.
    pub available: u64,
}

impl MachineMemory {
    /// Reads `/proc` and the control group. `None` on systems other than Linux.
    pub fn read() -> Option<Self> {
        let machine = Self::of_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
        let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        // The file holds `max` if the group has no limit.
        let group = number("/sys/fs/cgroup/memory.max");
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        let cache = fs::read_to_string("/sys/fs/cgroup/memory.stat").ok().and_then(|text| reclaimable(&text));
        Some(machine.within(group, used.saturating_sub(cache.unwrap_or(0))))
    }

    fn of_meminfo(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
        };
        Some(Self { limit: bytes("MemTotal:")?, available: bytes("MemAvailable:")? })
    }

    /// Returns the memory within a control group that has this limit and uses `used` bytes. `None` is no limit.
    fn within(self, limit: Option<u64>, used: u64) -> Self {
        let Some(limit) = limit else { return self };
        Self { limit: self.limit.min(limit), available: self.available.min(limit.saturating_sub(used)) }
    }
}

/// Returns the size of the cached files that the kernel reclaims first, in bytes. The control group counts them as
/// used.
fn reclaimable(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("inactive_file "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_tighter_limit_counts() {
        let text = "MemTotal:       16 kB\nMemFree:        1 kB\nMemAvailable:    8 kB\n";
        let machine = MachineMemory::of_meminfo(text).unwrap();
        assert_eq!(machine, MachineMemory { limit: 16 * 1024, available: 8 * 1024 });
        assert_eq!(machine.within(None, 4096), machine);
        assert_eq!(machine.within(Some(4096), 1024), MachineMemory { limit: 4096, available: 3072 });
        assert_eq!(machine.within(Some(4096), 9000).available, 0);
        assert_eq!(MachineMemory::of_meminfo("MemTotal: 16 kB\n"), None);
        assert_eq!(reclaimable("file 9\ninactive_file 4096\nactive_file 1\n"), Some(4096));
        assert_eq!(reclaimable("total_inactive_file 1\n"), None);
    }
}
