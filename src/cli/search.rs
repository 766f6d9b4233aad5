//! `waymark search`: one search over an index.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use waymark_index::{Index, SearchOptions};
use waymark_models::kernel::Team;
use waymark_runtime::PrintableWriter;
use waymark_runtime::config::{FactFilterArgs, LogFormat, cores};
use waymark_runtime::{assembly, filter, logging};

use super::explain;

/// Searches an index once and prints the results and how they were found.
#[derive(Debug, clap::Args)]
#[command(mut_arg("mode", |mode| mode.default_value("passage")), mut_arg("k", |k| k.default_value("3")))]
#[command(after_help = "\
Examples:
  waymark search --index corpus.index --k 5 \"capital of France\"
  waymark search --index corpus.index --mode graph --explain \"Where was the director of Solaris born?\"")]
pub(crate) struct Args {
    /// Search query.
    query: String,

    /// Directory of the index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    index: PathBuf,

    #[command(flatten)]
    search: SearchOptions,

    /// Print JSON, with the explanation.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fact_filter: FactFilterArgs,

    /// Embedding model: must be the one the index was built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        tokio::task::block_in_place(|| self.search())
    }

    /// Refuses flags that have no effect in the chosen mode.
    fn check_used(&self) -> anyhow::Result<()> {
        match self.search.unused(self.search.mode()) {
            Some((option, reason)) => bail!("{} {reason}", flag(self.first_part(option.name))),
            None => Ok(()),
        }
    }

    /// Returns the name of the part of an option that was given: the options of the graph search have a flag each.
    fn first_part(&self, option: &'static str) -> &'static str {
        let graph = self.search.graph.filter(|_| option == "graph").unwrap_or_default();
        let parts = [
            ("graph.linking_top_k", graph.linking_top_k.is_some()),
            ("graph.damping", graph.damping.is_some()),
            ("graph.passage_weight", graph.passage_weight.is_some()),
        ];
        let part = parts.into_iter().find(|(_, given)| *given && graph.variant.is_none());
        part.map_or(option, |(name, _)| name)
    }

    fn search(mut self) -> anyhow::Result<()> {
        self.check_used()?;
        self.search.explain = Some(self.search.explain == Some(true) || self.json);
        let query = self.search.query(self.query);
        query.check().map_err(|invalid| anyhow!("{} {}", flag(invalid.name), invalid.reason()))?;
        let embedder = assembly::embedder(&self.embedder, self.cache, Arc::new(Team::new(cores())))?;
        let mut index = Index::open(&self.index, Arc::new(embedder))?;
        if let Some(config) = self.fact_filter.resolve()? {
            index = index.with_fact_filter(filter::fact_filter(&config)?);
        }
        let evidence = index.search(&query)?;
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &evidence).map_err(io::Error::from)?;
            writeln!(out)?;
            return Ok(());
        }
        let mut out = PrintableWriter(out);
        if query.explain {
            explain::print(&query, &evidence, &mut out)?;
            return Ok(());
        }
        for hit in &evidence.hits {
            writeln!(out, "{} {}  {}", hit.rank, hit.passage.title, super::trace::route(hit))?;
            writeln!(out, "  {}", hit.passage.text)?;
        }
        for triple in &evidence.triples {
            writeln!(out, "{} {}  {:.4}", triple.rank, explain::statement(triple), triple.score)?;
        }
        Ok(())
    }
}

/// Returns the flag of a search option.
fn flag(option: &str) -> String {
    match option {
        "entities" => "--entity".to_owned(),
        option => format!("--{}", option.rsplit('.').next().unwrap_or(option).replace('_', "-")),
    }
}
