//! `waymark index`: builds, changes, inspects and exports indexes.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use waymark_index::{BuildOptions, BuildPhase, BuildProgress, EmbedderInfo, GraphInfo, Manifest, build};
use waymark_models::kernel::Team;
use waymark_runtime::config::{LogFormat, cores};
use waymark_runtime::{assembly, logging, progress};

use super::corpus::{self, CorpusArgs};
use super::{change, export, snapshots, triples};

/// Subcommands of `waymark index`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum IndexCommand {
    Build(Box<BuildArgs>),
    Add(change::AddArgs),
    Remove(change::RemoveArgs),
    Export(export::ExportArgs),
    Info(InfoArgs),
    Snapshots(snapshots::SnapshotsArgs),
    Restore(snapshots::RestoreArgs),
    Repair(snapshots::RepairArgs),
}

/// Builds an index over a corpus: BM25, dense vectors and, from triples, a graph.
///
/// The corpus is JSONL with `id`, `title`, `text` and optionally `triples` (other keys are kept as metadata), a
/// HippoRAG or RouteRAG corpus (JSON), or a folder of Markdown and text files. The index appears at once when it is
/// finished; until then, and after any failure, what was there before stays.
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

    /// Directory to write the index to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Embedding model: a name in the catalog or a directory.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Replace an existing index.
    #[arg(long)]
    replace: bool,

    /// Number of compute threads; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    #[command(flatten)]
    triples: triples::Args,
}

/// Describes an index from its manifest.
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// Directory of the index.
    dir: PathBuf,

    /// Print the manifest as JSON.
    #[arg(long)]
    json: bool,
}

/// Default log filter: our progress, without messages of libraries.
const WORK: &str = "warn,waymark=info";

impl IndexCommand {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        // Reading a manifest has no progress to log.
        let quiet = if matches!(self, IndexCommand::Info(_)) { "warn" } else { WORK };
        logging::start(log, quiet, LogFormat::Text)?;
        match self {
            IndexCommand::Build(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Add(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Remove(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Export(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Info(args) => args.run(),
            IndexCommand::Snapshots(args) => args.run(),
            IndexCommand::Restore(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Repair(args) => tokio::task::block_in_place(|| args.run()),
        }
    }
}

impl BuildArgs {
    fn run(self) -> anyhow::Result<()> {
        let triples = self.triples.source(&self.out)?;
        // Everything that flags can get wrong fails before the embedder is loaded, or even downloaded.
        let corpus = self.corpus.open(Some(&triples))?;
        let threads = if self.threads == 0 { cores() } else { self.threads };
        let embedder = assembly::embedder(&self.embedder, self.cache, Arc::new(Team::new(threads)))?;
        let options =
            BuildOptions { replace: self.replace, threads, extract: triples.extract(), ..BuildOptions::default() };
        let bars = BuildBars::default();
        let report = build(corpus, &embedder, &self.out, &options, &bars)?;
        bars.clear();
        let mut out = io::stdout().lock();
        let Manifest { passages, snapshot, embedder: EmbedderInfo { id, .. }, graph, .. } = &report.manifest;
        writeln!(out, "{}: {passages} passages, snapshot {snapshot}, embedder {id}", self.out.display())?;
        graph.iter().try_for_each(|graph| writeln!(out, "graph of {}", described(graph)))?;
        if report.skipped > 0 {
            writeln!(out, "skipped {} unreadable records", report.skipped)?;
        }
        if report.collapsed > 0 {
            writeln!(out, "left out {} duplicate passages", report.collapsed)?;
        }
        corpus::warn_truncated(report.cut, &embedder, &mut out)?;
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

/// Formats the statistics of a graph.
fn described(graph: &GraphInfo) -> String {
    let GraphInfo { source, triples, phrases, facts, edges } = graph;
    format!("{triples} triples ({source}): {facts} facts between {phrases} phrases, {edges} edges")
}

/// Interval between log lines when no progress bar is visible.
pub(super) const PAUSE: Duration = Duration::from_secs(10);

/// Progress of a build: one bar per phase, or log lines if there is no terminal.
#[derive(Debug, Default)]
pub(crate) struct BuildBars(Mutex<Option<CurrentBar>>);

/// State of the current phase.
#[derive(Debug)]
struct CurrentBar {
    phase: BuildPhase,
    bar: ProgressBar,
    /// Time of the last log line about the phase.
    told: Option<Instant>,
}

impl BuildBars {
    /// Removes the last bar from the terminal.
    pub(crate) fn clear(&self) {
        if let Some(shown) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            shown.bar.finish_and_clear();
        }
    }
}

impl CurrentBar {
    fn update(&mut self, done: u64, total: Option<u64>) {
        if let Some(total) = total {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
        // A hidden bar means that standard error is no terminal.
        if self.bar.is_hidden() && self.told.is_none_or(|told| told.elapsed() >= PAUSE) {
            self.told = Some(Instant::now());
            tracing::info!(phase = %self.phase, done, total, "indexing");
        }
    }
}

impl BuildProgress for BuildBars {
    fn update(&self, phase: BuildPhase, done: u64, total: Option<u64>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(over) = shown.take_if(|shown| shown.phase != phase) {
            over.bar.finish_and_clear();
        }
        let begun = || CurrentBar { phase, bar: progress::things().with_message(phase.to_string()), told: None };
        shown.get_or_insert_with(begun).update(done, total);
    }
}
