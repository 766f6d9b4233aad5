//! What is searched, and how.

use std::path::PathBuf;
use std::time::Duration;

use super::{ConfigError, FactFilterArgs, FactFilterConfig, or_cores};

/// What is searched, and how, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct RetrievalArgs {
    /// Directory of the index to search, as `waymark index build` leaves it.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    pub index: Option<PathBuf>,

    /// Only read the index: refuse to change documents over HTTP.
    #[arg(long, env = "WAYMARK_READ_ONLY_INDEX")]
    pub read_only_index: bool,

    /// Embedding model for the index and for `/v1/embeddings`: a name in the catalog or a directory.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    pub embedder: String,

    /// Threads that search; 0 takes one per core.
    #[arg(long, env = "WAYMARK_SEARCH_THREADS", default_value_t = 0)]
    pub search_threads: usize,

    /// Milliseconds one search may take.
    #[arg(long, env = "WAYMARK_SEARCH_DEADLINE_MS", default_value_t = 5000)]
    pub search_deadline_ms: u64,

    /// Which language model says which facts graph search follows.
    #[command(flatten)]
    pub fact_filter: FactFilterArgs,
}

/// What is searched, and how.
#[derive(Debug, Clone)]
pub struct RetrievalConfig {
    /// The index, if there is one.
    pub index: Option<PathBuf>,
    /// Whether its documents can be changed over HTTP.
    pub writable: bool,
    /// The embedder's catalog name or directory.
    pub embedder: String,
    /// Threads that search.
    pub threads: usize,
    /// How long one search may take.
    pub deadline: Duration,
    /// What says which facts graph search follows.
    pub fact_filter: Option<FactFilterConfig>,
}

impl RetrievalArgs {
    /// What the flags mean together.
    ///
    /// # Errors
    /// If the filter of facts is given no time.
    pub fn resolve(self) -> Result<RetrievalConfig, ConfigError> {
        Ok(RetrievalConfig {
            index: self.index,
            writable: !self.read_only_index,
            embedder: self.embedder,
            threads: or_cores(self.search_threads),
            deadline: Duration::from_millis(self.search_deadline_ms),
            fact_filter: self.fact_filter.resolve()?,
        })
    }
}
