//! `waymark index`: building indexes and looking at them.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use waymark_index::{BuildOptions, BuildProgress, Embedder, GraphInfo, Manifest, Phase, build};
use waymark_models::kernel::Team;

use super::corpus::{self, CorpusArgs};
use super::{assembly, change, export, logging, progress, triples};
use crate::config::{LogFormat, cores};

/// What to do with an index.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Build(Box<BuildArgs>),
    Add(change::AddArgs),
    Remove(change::RemoveArgs),
    Export(export::ExportArgs),
    Info(InfoArgs),
}

/// Builds an index: BM25, dense vectors and, of triples, a graph over the passages of a corpus.
///
/// The corpus is JSONL with `id`, `title`, `text`, maybe `triples` (other keys are kept as metadata), a HippoRAG or RouteRAG corpus
/// (JSON), or a folder of Markdown and text files. The index appears at once when it is finished; until then, and
/// whatever happens, what was there before stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index build --corpus corpus.jsonl --out corpus.index
  waymark index build --corpus corpus.json --triples openie_results.json --out corpus.index
  waymark index build --corpus corpus.jsonl --out corpus.index --triples endpoint \\
    --openie-url https://api.openai.com/v1 --openie-model gpt-4o-mini")]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    corpus: CorpusArgs,

    /// Where the index is to lie.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Embedding model: a name in the catalog or a directory.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Replace an index that is already there.
    #[arg(long)]
    replace: bool,

    /// Threads that compute; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    #[command(flatten)]
    triples: triples::Args,
}

/// Says what an index holds, from its manifest.
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// The index.
    dir: PathBuf,

    /// Print the manifest as JSON.
    #[arg(long)]
    json: bool,
}

/// What is logged where nothing else is asked for: how far the work is, but not what libraries say of theirs.
const WORK: &str = "warn,waymark=info";

impl Command {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        let quiet = if matches!(self, Command::Info(_)) { "warn" } else { WORK };
        logging::start(log, quiet, LogFormat::Text)?;
        match self {
            Command::Build(args) => tokio::task::block_in_place(|| args.run()),
            Command::Add(args) => tokio::task::block_in_place(|| args.run()),
            Command::Remove(args) => tokio::task::block_in_place(|| args.run()),
            Command::Export(args) => tokio::task::block_in_place(|| args.run()),
            Command::Info(args) => args.run(),
        }
    }
}

impl BuildArgs {
    fn run(self) -> anyhow::Result<()> {
        let triples = self.triples.source(&self.out)?;
        let corpus = self.corpus.open(Some(&triples))?;
        let threads = if self.threads == 0 { cores() } else { self.threads };
        let embedder = assembly::embedder(&self.embedder, self.cache, Arc::new(Team::new(threads)))?;
        let options =
            BuildOptions { replace: self.replace, threads, extract: triples.extract(), ..BuildOptions::default() };
        let bars = Bars::default();
        let report = build(corpus, &embedder, &self.out, &options, &bars)?;
        bars.clear();
        let mut out = io::stdout().lock();
        let Manifest { passages, snapshot, embedder: Embedder { id, .. }, graph, .. } = &report.manifest;
        writeln!(out, "{}: {passages} passages, snapshot {snapshot}, embedder {id}", self.out.display())?;
        graph.iter().try_for_each(|graph| writeln!(out, "graph of {}", described(graph)))?;
        if report.skipped > 0 {
            writeln!(out, "{} records could not be read and were skipped", report.skipped)?;
        }
        if report.collapsed > 0 {
            writeln!(out, "{} passages repeated an earlier one and were left out", report.collapsed)?;
        }
        corpus::tell_cut(report.cut, &embedder, &mut out)?;
        triples.report(&mut out)?;
        Ok(())
    }
}

impl InfoArgs {
    fn run(self) -> anyhow::Result<()> {
        let manifest = Manifest::read(&self.dir)?;
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&manifest)?)?;
            return Ok(());
        }
        let graph = manifest.graph.as_ref().map_or_else(|| "none: search in mode passage only".to_owned(), described);
        let bytes: u64 = manifest.files.values().map(|file| file.bytes).sum();
        writeln!(out, "corpus    {}", manifest.corpus)?;
        writeln!(out, "passages  {}", manifest.passages)?;
        writeln!(out, "snapshot  {}", manifest.snapshot)?;
        writeln!(out, "embedder  {} ({} dimensions)", manifest.embedder.id, manifest.embedder.dims)?;
        writeln!(out, "graph     {graph}")?;
        writeln!(out, "size      {:.1} MiB in {} files", bytes as f64 / f64::from(1 << 20), manifest.files.len())?;
        writeln!(out, "format    {}, built by waymark {}", manifest.format, manifest.build.version)?;
        Ok(())
    }
}

/// The numbers of a graph.
fn described(graph: &GraphInfo) -> String {
    let GraphInfo { source, triples, phrases, facts, edges } = graph;
    format!("{triples} triples ({source}): {facts} facts between {phrases} phrases, {edges} edges")
}

/// Time from one line to the next where no bar is seen.
pub(super) const PAUSE: Duration = Duration::from_secs(10);

/// One bar per phase of a build; where there is no terminal, lines of the log.
#[derive(Debug, Default)]
pub(crate) struct Bars(Mutex<Option<Shown>>);

/// The phase that is under way.
#[derive(Debug)]
struct Shown {
    phase: Phase,
    bar: ProgressBar,
    /// When a line last told of it.
    told: Option<Instant>,
}

impl Bars {
    /// Takes the last bar off the screen.
    pub(crate) fn clear(&self) {
        if let Some(shown) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            shown.bar.finish_and_clear();
        }
    }
}

impl Shown {
    fn update(&mut self, done: u64, total: Option<u64>) {
        if let Some(total) = total {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
        if self.bar.is_hidden() && self.told.is_none_or(|told| told.elapsed() >= PAUSE) {
            self.told = Some(Instant::now());
            tracing::info!(phase = %self.phase, done, total, "indexing");
        }
    }
}

impl BuildProgress for Bars {
    fn update(&self, phase: Phase, done: u64, total: Option<u64>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(over) = shown.take_if(|shown| shown.phase != phase) {
            over.bar.finish_and_clear();
        }
        let begun = || Shown { phase, bar: progress::things().with_message(phase.to_string()), told: None };
        shown.get_or_insert_with(begun).update(done, total);
    }
}
