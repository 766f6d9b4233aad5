//! Flags for retrieval.

use std::path::PathBuf;
use std::time::Duration;

use super::{ConfigError, FactFilterArgs, FactFilterConfig, or_cores, seconds};

/// Pause between two scrubs of an index.
pub const DEFAULT_SCRUB: Duration = Duration::from_secs(3600);

/// Flags for retrieval.
#[derive(Debug, Clone, clap::Args)]
pub struct RetrievalArgs {
    /// Directory of the index to search, made by `waymark index build`.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    pub index: Option<PathBuf>,

    /// Open the index read-only: refuse changes of documents over HTTP.
    #[arg(long, env = "WAYMARK_READ_ONLY_INDEX")]
    pub read_only_index: bool,

    /// Number of earlier snapshots of the index to keep, for `waymark index snapshots` and `waymark index restore`.
    #[arg(long, env = "WAYMARK_KEEP_SNAPSHOTS", value_name = "N", default_value_t = 0)]
    pub keep_snapshots: usize,

    /// Seconds between two scrubs, which read the files of the index and compare their checksums.
    #[arg(long, env = "WAYMARK_SCRUB_SECONDS", value_name = "SECONDS", default_value_t = DEFAULT_SCRUB.as_secs_f64(), value_parser = seconds)]
    pub scrub_seconds: f64,

    /// Embedding model for the index and for `/v1/embeddings`: a name in the catalog, a directory, or `mock`, which
    /// needs no weights and captures little meaning.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    pub embedder: String,

    /// Number of search threads; 0 takes one per core.
    #[arg(long, env = "WAYMARK_SEARCH_THREADS", default_value_t = 0)]
    pub search_threads: usize,

    /// Timeout of one search, in milliseconds.
    #[arg(long, env = "WAYMARK_SEARCH_DEADLINE_MS", default_value_t = 5000)]
    pub search_deadline_ms: u64,

    /// Flags for the fact filter.
    #[command(flatten)]
    pub fact_filter: FactFilterArgs,
}

/// Configuration of retrieval.
#[derive(Debug, Clone)]
pub struct RetrievalConfig {
    /// Directory of the index. `None` serves without one.
    pub index: Option<PathBuf>,
    /// If `true`, documents can be changed over HTTP.
    pub writable: bool,
    /// Number of earlier snapshots to keep.
    pub keep_snapshots: usize,
    /// Pause between two scrubs.
    pub scrub: Duration,
    /// Catalog name or directory of the embedder.
    pub embedder: String,
    /// Number of search threads.
    pub threads: usize,
    /// Timeout of one search.
    pub deadline: Duration,
    /// Configuration of the fact filter. `None` keeps all facts.
    pub fact_filter: Option<FactFilterConfig>,
}

impl RetrievalArgs {
    /// Resolves the flags.
    ///
    /// # Errors
    /// If the timeout of the fact filter is zero.
    pub fn resolve(self) -> Result<RetrievalConfig, ConfigError> {
        Ok(RetrievalConfig {
            index: self.index,
            writable: !self.read_only_index,
            keep_snapshots: self.keep_snapshots,
            // Without any pause, scrubs would take a core.
            scrub: Duration::from_secs_f64(self.scrub_seconds.max(0.1)),
            embedder: self.embedder,
            threads: or_cores(self.search_threads),
            deadline: Duration::from_millis(self.search_deadline_ms),
            fact_filter: self.fact_filter.resolve()?,
        })
    }
}
