//! `waymark search`: one search over an index.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use waymark_agent::QueryField;
use waymark_index::{GraphOptions, GraphVariant, Index, KagOptions, Mode, Query, Ranking, TRIPLES};
use waymark_models::kernel::Team;
use waymark_runtime::PrintableWriter;
use waymark_runtime::config::{FactFilterArgs, LogFormat, cores};
use waymark_runtime::{assembly, filter, logging};

use super::explain;

/// Searches an index once and prints the results and how they were found.
#[derive(Debug, clap::Args)]
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

    /// Mode: passage, graph, hybrid, triples or kag; all but passage need an index with a graph.
    #[arg(long, default_value_t)]
    mode: Mode,

    /// Ranking of passages: dense, bm25 or fused. The default is fused in the mode passage and dense in hybrid.
    #[arg(long)]
    ranking: Option<Ranking>,

    /// Number of passages.
    #[arg(long, short, default_value_t = 3)]
    k: usize,

    /// Explain the results: the facts linked to the query, the seed phrases of the walk over the graph, and the path to
    /// each passage.
    #[arg(long)]
    explain: bool,

    /// Print JSON, with the explanation.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    graph: GraphArgs,

    #[command(flatten)]
    fact_filter: FactFilterArgs,

    /// Embedding model: must be the one the index was built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Flags for graph search. Unset ones take the values published for the variant.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Graph search")]
struct GraphArgs {
    /// Variant of graph search: route_rag, hippo_rag or graph_r1. [default: route_rag]
    #[arg(long = "graph", value_name = "VARIANT")]
    variant: Option<GraphVariant>,

    /// Number of facts linked to the query, and of seed phrases of the walk.
    #[arg(long, value_name = "N")]
    linking_top_k: Option<usize>,

    /// Damping: probability of following an edge rather than restarting.
    #[arg(long, value_name = "P")]
    damping: Option<f64>,

    /// Weight of passage similarity in the reset vector of the walk.
    #[arg(long, value_name = "W")]
    passage_weight: Option<f64>,

    /// Number of triples, in the mode `triples`. [default: 10]
    #[arg(long, value_name = "N")]
    triples: Option<usize>,

    /// Entity that the query is about, for the mode `kag`; may be given several times.
    #[arg(long = "entity", value_name = "NAME")]
    entities: Vec<String>,

    /// Joint ranking of passages and triples in the mode `kag`, as JSON with any of these fields: `{"chunks": 10,
    /// "entities": 5, "triples": 10, "damping": 0.5, "threshold": 0.5, "iterations": 20, "relevance": {"kind": "sigmoid",
    /// "slope": 10, "centre": 0.4}}`.
    #[arg(long, value_name = "JSON", value_parser = kag_options)]
    kag: Option<KagOptions>,
}

fn kag_options(json: &str) -> Result<KagOptions, String> {
    let options: KagOptions = serde_json::from_str(json).map_err(|error| error.to_string())?;
    options.check()?;
    Ok(options)
}

impl GraphArgs {
    fn options(&self) -> GraphOptions {
        let own = GraphOptions::from(self.variant.unwrap_or_default());
        GraphOptions {
            variant: own.variant,
            linking_top_k: self.linking_top_k.unwrap_or(own.linking_top_k),
            damping: self.damping.unwrap_or(own.damping),
            passage_weight: self.passage_weight.unwrap_or(own.passage_weight),
        }
    }
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        tokio::task::block_in_place(|| self.search())
    }

    /// Refuses flags that have no effect in this mode.
    fn check_read(&self) -> anyhow::Result<()> {
        let GraphArgs { variant, linking_top_k, damping, passage_weight, triples, entities, kag } = &self.graph;
        let given = [
            ("--ranking", QueryField::Ranking, self.ranking.is_some()),
            ("--graph", QueryField::Graph, variant.is_some()),
            ("--linking-top-k", QueryField::Graph, linking_top_k.is_some()),
            ("--damping", QueryField::Graph, damping.is_some()),
            ("--passage-weight", QueryField::Graph, passage_weight.is_some()),
            ("--triples", QueryField::Triples, triples.is_some()),
            ("--entity", QueryField::Entities, !entities.is_empty()),
            ("--kag", QueryField::Kag, kag.is_some()),
        ];
        for (flag, part, _) in given.into_iter().filter(|(.., given)| *given) {
            if let Some(reason) = part.unused_reason(self.mode) {
                bail!("{flag} {reason}");
            }
        }
        Ok(())
    }

    fn search(self) -> anyhow::Result<()> {
        self.check_read()?;
        let embedder = assembly::embedder(&self.embedder, self.cache, Arc::new(Team::new(cores())))?;
        let mut index = Index::open(&self.index, Arc::new(embedder))?;
        if let Some(config) = self.fact_filter.resolve()? {
            index = index.with_fact_filter(filter::fact_filter(&config)?);
        }
        let query = Query {
            ranking: self.ranking.unwrap_or(self.mode.ranking()),
            graph: self.graph.options(),
            triples: self.graph.triples.unwrap_or(TRIPLES),
            entities: self.graph.entities,
            kag: self.graph.kag.unwrap_or_default(),
            explain: self.explain || self.json,
            ..Query::new(self.query, self.mode, self.k)
        };
        let evidence = index.search(&query)?;
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &evidence).map_err(io::Error::from)?;
            writeln!(out)?;
            return Ok(());
        }
        let mut out = PrintableWriter(out);
        if self.explain {
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
