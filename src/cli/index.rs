//! `waymark index`: builds, changes, inspects and exports indexes.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use waymark_index::{BuildOptions, Embed as _, EmbedderInfo, GraphInfo, Manifest, Prompts, build};
use waymark_models::kernel::Team;
use waymark_runtime::config::{EmbedderArgs, LogFormat, local_index, or_cores};
use waymark_runtime::{assembly, logging};

use super::build_bars::{BuildBars, mebibytes};
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
        let started = Instant::now();
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
        writeln!(out, "{} in {:.1} s", mebibytes(report.manifest.bytes()), started.elapsed().as_secs_f64())?;
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
