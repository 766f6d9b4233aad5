//! The machine that a command runs on.

use std::path::PathBuf;
use std::sync::Arc;

use waymark::config::cores;
use waymark_models::kernel::Team;

/// Threads, and where downloaded weights are. Neither changes a result.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Host {
    /// Threads that compute; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    pub(super) threads: usize,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    pub(super) cache: Option<PathBuf>,
}

impl Host {
    /// Its threads.
    pub(super) fn team(&self) -> Arc<Team> {
        Arc::new(Team::new(if self.threads == 0 { cores() } else { self.threads }))
    }
}
