//! `waymark index`: builds, changes, inspects and exports indexes.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar};
use waymark_index::{
    BuildOptions, BuildPhase, BuildProgress, Embed as _, EmbedderInfo, EmbeddingEstimate, GraphInfo, Manifest, Prompts,
    UnreadScript, build,
};
use waymark_models::kernel::Team;
use waymark_runtime::config::{EmbedderArgs, LogFormat, local_index, or_cores};
use waymark_runtime::{assembly, logging, progress};

use super::corpus::{self, CorpusArgs};
use super::{change, documents, export, publish, snapshots, triples};

/// Subcommands of `waymark index`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum IndexCommand {
    Build(Box<BuildArgs>),
    Add(Box<change::AddArgs>),
    Remove(change::RemoveArgs),
    Show(documents::ShowArgs),
    Documents(documents::DocumentsArgs),
    Export(export::ExportArgs),
    Info(InfoArgs),
    Snapshots(snapshots::SnapshotsArgs),
    Restore(snapshots::RestoreArgs),
    Repair(snapshots::RepairArgs),
    Push(publish::PushArgs),
    Pull(publish::PullArgs),
}

/// Builds an index over a corpus: BM25, dense vectors and, from triples, a graph.
///
/// The corpus is a file of records (JSONL, a JSON list, CSV, TSV or Parquet) with `id`, `title`, `text` and optionally
/// `triples`, whose other fields are kept as metadata; or a file of text (Markdown, plain text, HTML, DOCX or PDF),
/// which is split into chunks; or a folder of such files. The index replaces an earlier one atomically when it is
/// finished; until then, and after any failure, the earlier one stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index build --corpus corpus.jsonl --out corpus.index
  waymark index build --corpus docs --out docs.index
  waymark index build --corpus articles.csv.gz --out articles.index \\
      --field id=key --field text=body
  waymark index build --corpus corpus.json --triples openie_results.json \\
      --out corpus.index
  waymark index build --corpus corpus.jsonl --out corpus.index \\
      --triples endpoint --openie-url https://api.openai.com/v1 \\
      --openie-model gpt-4o-mini
  waymark index build --corpus corpus.jsonl --out corpus.index \\
      --embedder http://embedder:8080/embed \\
      --embedder-model BAAI/bge-small-en-v1.5")]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    corpus: CorpusArgs,

    /// Directory to write the index to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Text to put before every query, such as `query: `, stored in the index. The default is that of the embedding
    /// model.
    #[arg(long, value_name = "TEXT")]
    query_prefix: Option<String>,

    /// Text to put before every passage, phrase and fact, such as `passage: `, stored in the index. The default is that
    /// of the embedding model.
    #[arg(long, value_name = "TEXT")]
    document_prefix: Option<String>,

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
    #[arg(value_parser = local_index())]
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
            IndexCommand::Show(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Documents(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Export(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Info(args) => args.run(),
            IndexCommand::Snapshots(args) => args.run(),
            IndexCommand::Restore(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Repair(args) => tokio::task::block_in_place(|| args.run()),
            IndexCommand::Push(args) => args.run().await,
            IndexCommand::Pull(args) => args.run().await,
        }
    }
}

impl BuildArgs {
    fn run(self) -> anyhow::Result<()> {
        let triples = self.triples.source(&self.out)?;
        // Everything that flags can get wrong fails before the embedder is loaded, or even downloaded.
        let corpus = self.corpus.open(Some(&triples))?;
        let embedder = self.embedder.resolve()?;
        let began = Instant::now();
        let threads = or_cores(self.threads);
        let embedder = Arc::new(assembly::embedder(&embedder, self.cache, Arc::new(Team::new(threads)))?);
        let corpus = self.corpus.measure(corpus, &embedder)?;
        let Prompts { query, document } = embedder.prompts();
        let prompts =
            Prompts { query: self.query_prefix.unwrap_or(query), document: self.document_prefix.unwrap_or(document) };
        let options = BuildOptions {
            replace: self.replace,
            threads,
            extract: triples.extract(),
            prompts: Some(prompts),
            ..BuildOptions::default()
        };
        let bars = BuildBars::default();
        let report = build(corpus, embedder.as_ref(), &self.out, &options, &bars)?;
        bars.clear();
        let mut out = io::stdout().lock();
        let Manifest { passages, snapshot, embedder: EmbedderInfo { id, .. }, graph, .. } = &report.manifest;
        writeln!(out, "{}: {passages} passages, snapshot {snapshot}, embedder {id}", self.out.display())?;
        graph.iter().try_for_each(|graph| writeln!(out, "graph of {}", described(graph)))?;
        writeln!(out, "{} in {:.1} s", mebibytes(report.manifest.bytes()), began.elapsed().as_secs_f64())?;
        corpus::tell_skipped(&report.skipped_files, &mut out)?;
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
        writeln!(out, "corpus    {}", manifest.corpus)?;
        writeln!(out, "passages  {}", manifest.passages)?;
        writeln!(out, "snapshot  {}", manifest.snapshot)?;
        let opened = manifest.embedder.source.as_ref().map_or_else(String::new, |source| format!("{source}, "));
        writeln!(out, "embedder  {opened}{} ({} dimensions)", manifest.embedder.id, manifest.embedder.dims)?;
        let Prompts { query, document } = &manifest.embedder.prompts;
        if !manifest.embedder.prompts.is_empty() {
            writeln!(out, "prompts   {query:?} before queries, {document:?} before documents")?;
        }
        writeln!(out, "graph     {graph}")?;
        writeln!(out, "size      {} in {} files", mebibytes(manifest.bytes()), manifest.files.len())?;
        writeln!(out, "format    {}, built by waymark {}", manifest.format, manifest.build.version)?;
        Ok(())
    }
}

/// Formats the statistics of a graph.
fn described(graph: &GraphInfo) -> String {
    let GraphInfo { source, triples, phrases, facts, edges } = graph;
    format!("{triples} triples ({source}): {facts} facts between {phrases} phrases, {edges} edges")
}

/// Formats a size.
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
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

    fn truncated(&self, passages: u64) {
        tracing::warn!(
            passages,
            "passages are longer than the embedder reads: dense search will see only their beginning; stop here and split \
             them with --chunk, or go on"
        );
    }

    fn unread(&self, found: &UnreadScript) {
        let UnreadScript { script, passages, unread } = *found;
        tracing::warn!(
            "{unread} of {passages} passages in {script} letters gave no facts, so that graph search follows none from them: the \
             built-in extractor reads English; `--triples` takes those of a language model"
        );
    }

    fn estimated(&self, estimate: EmbeddingEstimate) {
        let passages = HumanDuration(estimate.passages);
        if estimate.graph.is_zero() {
            tracing::info!("embedding the passages will take about {passages}");
            return;
        }
        let graph = HumanDuration(estimate.graph);
        tracing::info!(
            "embedding the passages will take about {passages}, the phrases and facts of the graph about {graph} more; \
             `--triples none` builds no graph"
        );
    }
}
