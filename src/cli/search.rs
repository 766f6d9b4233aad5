//! `waymark search`: one search over an index.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use waymark_index::{Index, Mode, Query, Ranking};
use waymark_models::kernel::Team;

use super::{assembly, filter, logging};
use crate::config::{FactFilterArgs, LogFormat, cores};

/// Searches an index once and prints what was found, and how.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  waymark search --index corpus.index --k 5 \"capital of France\"")]
pub(crate) struct Args {
    /// What to look for.
    query: String,

    /// The index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    index: PathBuf,

    /// Which search: passage, graph or hybrid.
    #[arg(long, default_value_t)]
    mode: Mode,

    /// How passages are ranked: dense, bm25 or fused.
    #[arg(long, default_value_t)]
    ranking: Ranking,

    /// How many passages.
    #[arg(long, short, default_value_t = 3)]
    k: usize,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fact_filter: FactFilterArgs,

    /// Embedding model: must be the one the index was built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        tokio::task::block_in_place(|| self.search())
    }

    fn search(self) -> anyhow::Result<()> {
        let embedder = assembly::embedder(&self.embedder, self.cache, Arc::new(Team::new(cores())))?;
        let mut index = Index::open(&self.index, Arc::new(embedder))?;
        if let Some(config) = self.fact_filter.resolve()? {
            index = index.with_fact_filter(filter::fact_filter(&config)?);
        }
        let evidence = index.search(&Query::new(self.query, self.mode, self.k).ranking(self.ranking))?;
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &evidence).map_err(io::Error::from)?;
            writeln!(out)?;
            return Ok(());
        }
        for hit in &evidence.hits {
            writeln!(out, "{} {}  {}", hit.rank, hit.passage.title, super::trace::route(hit))?;
            writeln!(out, "  {}", hit.passage.text)?;
        }
        Ok(())
    }
}
