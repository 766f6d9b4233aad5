//! `waymark search`: one search over an index.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use waymark_index::{GraphOptions, GraphVariant, Index, KagOptions, Mode, Query, Ranking, TRIPLES};
use waymark_models::kernel::Team;

use super::harmless::Harmless;
use super::{assembly, explain, filter, logging};
use crate::agent::Part;
use crate::config::{FactFilterArgs, LogFormat, cores};

/// Searches an index once and prints what was found, and how.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark search --index corpus.index --k 5 \"capital of France\"
  waymark search --index corpus.index --mode graph --explain \"Where was the director of Solaris born?\"")]
pub(crate) struct Args {
    /// What to look for.
    query: String,

    /// The index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    index: PathBuf,

    /// Which search: passage, graph, hybrid, triples or kag; those after the first need an index with a graph.
    #[arg(long, default_value_t)]
    mode: Mode,

    /// How passages are ranked: dense, bm25 or fused; when not given fused in the mode passage, dense in hybrid.
    #[arg(long)]
    ranking: Option<Ranking>,

    /// How many passages.
    #[arg(long, short, default_value_t = 3)]
    k: usize,

    /// Say how it was found: the facts that the query was linked to, the phrases that the walk over the graph started
    /// from, and the way to each passage.
    #[arg(long)]
    explain: bool,

    /// Print JSON, always with the explanation.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    graph: GraphArgs,

    #[command(flatten)]
    fact_filter: FactFilterArgs,

    /// Embedding model: must be the one the index was built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// How the graph is searched; what is not given is as published for the variant.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Graph search")]
struct GraphArgs {
    /// Whose search: route_rag, hippo_rag or graph_r1. [default: route_rag]
    #[arg(long = "graph", value_name = "VARIANT")]
    variant: Option<GraphVariant>,

    /// Facts taken from the query, and phrases the walk starts from.
    #[arg(long, value_name = "N")]
    linking_top_k: Option<usize>,

    /// Probability of following an edge rather than starting again.
    #[arg(long, value_name = "P")]
    damping: Option<f64>,

    /// Weight of the passages' own similarity in where the walk starts.
    #[arg(long, value_name = "W")]
    passage_weight: Option<f64>,

    /// How many triples, in the mode `triples`. [default: 10]
    #[arg(long, value_name = "N")]
    triples: Option<usize>,

    /// A name the query is about, for the mode `kag`; may be given several times.
    #[arg(long = "entity", value_name = "NAME")]
    entities: Vec<String>,

    /// How passages and triples are ranked together in the mode `kag`, as JSON: `{"chunks": 10, "entities": 5,
    /// "triples": 10, "damping": 0.5, "threshold": 0.5, "iterations": 20, "relevance": {"kind": "sigmoid", "slope": 10,
    /// "centre": 0.4}}`, any of it.
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

    /// Refuses flags that a search in this mode would pass over.
    fn check_read(&self) -> anyhow::Result<()> {
        let GraphArgs { variant, linking_top_k, damping, passage_weight, triples, entities, kag } = &self.graph;
        let given = [
            ("--ranking", Part::Ranking, self.ranking.is_some()),
            ("--graph", Part::Graph, variant.is_some()),
            ("--linking-top-k", Part::Graph, linking_top_k.is_some()),
            ("--damping", Part::Graph, damping.is_some()),
            ("--passage-weight", Part::Graph, passage_weight.is_some()),
            ("--triples", Part::Triples, triples.is_some()),
            ("--entity", Part::Entities, !entities.is_empty()),
            ("--kag", Part::Kag, kag.is_some()),
        ];
        for (flag, part, _) in given.into_iter().filter(|(.., given)| *given) {
            if let Some(reason) = part.unread(self.mode) {
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
        let mut out = Harmless(out);
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
