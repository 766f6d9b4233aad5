//! Limit of open files. Each connection takes one.

use super::refused_connections;

/// Maximum number of files kept free for commits, models, logs and outgoing connections.
const RESERVED: usize = 256;

/// Raises the process's limit of open files for `most` connections, as far as the system permits, and returns the
/// number of connections that fit into the limit.
pub fn fit_connections(most: usize) -> usize {
    let connections = fitting_connections(most);
    if connections < most {
        tracing::warn!(
            connections,
            wanted = most,
            "fewer connections than --max-connections: raise the limit of open files (`ulimit -n`)"
        );
    }
    connections
}

/// Raises the limit of open files as [`fit_connections`] does, and returns the number of connections without a log
/// line.
pub(crate) fn fitting_connections(most: usize) -> usize {
    let files = raise_file_limit(most.saturating_add(refused_connections::HELD + RESERVED));
    files.map_or(most, |files| connections_within(files, most))
}

/// Returns the number of connections, up to `most`, that leave enough of `files` open files for everything else.
fn connections_within(files: usize, most: usize) -> usize {
    let reserved = RESERVED.min(files / 4);
    let refused = refused_connections::HELD.min(files / 4);
    files.saturating_sub(reserved + refused).min(most).max(1)
}

/// Raises the soft limit of open files to `wanted`, at most to the hard limit, and returns it. `None` without a limit.
#[cfg(unix)]
fn raise_file_limit(wanted: usize) -> Option<usize> {
    use rlimit::{INFINITY, Resource};

    let (current, _) = Resource::NOFILE.get().ok()?;
    if current == INFINITY {
        return None;
    }
    // Unchanged if the limit is high enough already or cannot be raised.
    let raised = rlimit::increase_nofile_limit(wanted as u64).unwrap_or(current);
    usize::try_from(raised.max(current)).ok()
}

#[cfg(not(unix))]
fn raise_file_limit(_: usize) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_everything_else() {
        assert_eq!(connections_within(65_536, 1024), 1024);
        assert_eq!(connections_within(1024, 1024), 1024 - 256 - 64);
        assert_eq!(connections_within(256, 1024), 128);
        assert_eq!(connections_within(0, 1024), 1);
        assert_eq!(connections_within(1024, 1), 1);
    }
}
