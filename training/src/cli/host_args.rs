//! Threads and cache directory of a command.

use std::path::PathBuf;
use std::sync::Arc;

use waymark_models::kernel::Team;
use waymark_runtime::config::or_cores;

/// Options of the host machine. They do not change any result.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct HostArgs {
    /// Number of compute threads. 0 uses one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    pub(super) threads: usize,

    /// Directory for downloaded weights. Defaults to the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    pub(super) cache: Option<PathBuf>,
}

impl HostArgs {
    /// Creates the thread pool.
    pub(super) fn team(&self) -> Arc<Team> {
        Arc::new(Team::new(or_cores(self.threads)))
    }
}
