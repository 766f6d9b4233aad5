//! Memory of the machine, as far as this process may take it.

use std::fs;
use std::path::Path;

/// Memory that this process may take, in bytes: of the machine, or of a control group of the process that has less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineMemory {
    /// Memory in all.
    pub limit: u64,
    /// Memory that is not in use.
    pub available: u64,
}

impl MachineMemory {
    /// Reads `/proc` and the control groups. `None` on systems other than Linux.
    pub fn read() -> Option<Self> {
        let machine = Self::of_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Some(machine.within_groups(Path::new("/sys/fs/cgroup"), &groups))
    }

    fn of_meminfo(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
        };
        Some(Self { limit: bytes("MemTotal:")?, available: bytes("MemAvailable:")? })
    }

    /// Returns the memory within the control groups below `root` that `groups`, the text of `/proc/self/cgroup`, names.
    fn within_groups(self, root: &Path, groups: &str) -> Self {
        groups.lines().filter_map(GroupFiles::of_line).fold(self, |memory, (files, path)| {
            let root = root.join(files.folder);
            // The groups around a group limit it as well. In a container, the root itself is the group.
            let groups = Path::new(path.trim_start_matches('/')).ancestors();
            groups.fold(memory, |memory, group| memory.within_group(&root.join(group), files))
        })
    }

    fn within_group(self, folder: &Path, files: &GroupFiles) -> Self {
        let text = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
        // The file holds `max` if the group has no limit.
        let limit = number(files.limit);
        let used = number(files.used).unwrap_or(0);
        let cache = text("memory.stat").and_then(|text| reclaimable(&text, files.cache));
        self.within(limit, used.saturating_sub(cache.unwrap_or(0)))
    }

    /// Returns the memory within a control group that has this limit and uses `used` bytes. `None` is no limit.
    fn within(self, limit: Option<u64>, used: u64) -> Self {
        let Some(limit) = limit else { return self };
        Self { limit: self.limit.min(limit), available: self.available.min(limit.saturating_sub(used)) }
    }
}

/// Names of the files of a control group.
struct GroupFiles {
    /// Folder of the groups that limit the memory.
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Name in `memory.stat` of the size of the files that the kernel reclaims first.
    cache: &'static str,
}

/// Files of version 2 of control groups.
const VERSION_2: GroupFiles =
    GroupFiles { folder: "", limit: "memory.max", used: "memory.current", cache: "inactive_file" };

/// Files of version 1 of control groups.
const VERSION_1: GroupFiles = GroupFiles {
    folder: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: "total_inactive_file",
};

impl GroupFiles {
    /// Returns the files and the path of the group in a line of `/proc/self/cgroup`. `None` if the line names a group
    /// that does not limit the memory.
    fn of_line(line: &str) -> Option<(&'static GroupFiles, &str)> {
        let (number, rest) = line.split_once(':')?;
        let (resources, path) = rest.split_once(':')?;
        match number {
            "0" => Some((&VERSION_2, path)),
            _ => resources.split(',').any(|resource| resource == "memory").then_some((&VERSION_1, path)),
        }
    }
}

/// Returns the size of the cached files that the kernel reclaims first, in bytes, from `memory.stat`. The control group
/// counts them as used.
fn reclaimable(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
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
        assert_eq!(reclaimable("file 9\ninactive_file 4096\nactive_file 1\n", VERSION_2.cache), Some(4096));
        assert_eq!(reclaimable("total_inactive_file 1\n", VERSION_2.cache), None);
    }

    #[test]
    fn the_tightest_of_the_groups_around_a_process_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |folder: &str, files: &[(&str, &str)]| {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in files {
                fs::write(folder.join(name), text).unwrap();
            }
        };
        let machine = MachineMemory { limit: 1000, available: 900 };
        let within = |groups: &str| {
            let MachineMemory { limit, available } = machine.within_groups(root.path(), groups);
            (limit, available)
        };
        assert_eq!(within("0::/system.slice/waymark.service\n"), (1000, 900), "no files");
        write("system.slice", &[("memory.max", "600\n"), ("memory.current", "590\n")]);
        let stat = ("memory.stat", "inactive_file 50\n");
        write("system.slice/waymark.service", &[("memory.max", "500\n"), ("memory.current", "300\n"), stat]);
        assert_eq!(within("0::/system.slice/waymark.service\n"), (500, 10));
        assert_eq!(within("0::/user.slice\n"), (1000, 900));
        write("memory", &[("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.usage_in_bytes", "700\n")]);
        write("memory/a", &[("memory.limit_in_bytes", "400\n"), ("memory.usage_in_bytes", "100\n")]);
        assert_eq!(within("4:cpu,memory:/a\n1:name=systemd:/a\n"), (400, 300));
        // A container has its own group at the root, whatever its name is outside.
        write("", &[("memory.max", "200\n"), ("memory.current", "150\n")]);
        assert_eq!(within("0::/\n"), (200, 50));
        assert_eq!(within(""), (1000, 900));
    }
}
