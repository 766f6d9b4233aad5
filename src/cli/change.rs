//! `waymark index add` and `waymark index remove`: changing an index, also while a server searches it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use waymark_index::{Changes, CommitOptions, CommitReport, Contents, GraphInfo, Manifest, commit, snapshots};
use waymark_models::kernel::Team;
use waymark_runtime::assembly;
use waymark_runtime::config::{EmbedderArgs, local_index, or_cores};
use waymark_runtime::embedding::Embedding;
use waymark_runtime::printable;

use super::build_bars::{BuildBars, mebibytes};
use super::corpus::{self, CorpusArgs};
use super::documents::SUGGESTED;
use super::triples::{self, TripleProvider};

/// Adds documents to an index, or replaces those with the same IDs.
///
/// All changes are published at once when everything is ready; until then, and after any failure, the index stays as it
/// was. A server that has it open keeps searching and picks up the new snapshot by itself. If a file has become
/// shorter, its surplus chunks are removed; the chunks of a deleted file are removed only with `--mirror`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index add --index corpus.index --corpus new.jsonl
  waymark index add --index docs.index --corpus docs --mirror
  waymark index add --index corpus.index --corpus new.jsonl \\
      --triples openie_results.json")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    target: IndexTarget,

    #[command(flatten)]
    corpus: CorpusArgs,

    /// Remove every document that is not in the corpus.
    #[arg(long, conflicts_with = "skip_bad")]
    mirror: bool,

    #[command(flatten)]
    triples: triples::Args,
}

/// Removes documents from an index by ID.
///
/// All removals are published at once; until then, and after any failure, the index stays as it was. A server that has
/// it open keeps searching and picks up the new snapshot by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index remove --index corpus.index --id seine --id louvre
  waymark index remove --index corpus.index --ids gone.txt")]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    target: IndexTarget,

    /// ID of a document to remove; may be given several times.
    #[arg(long = "id", value_name = "ID", required_unless_present = "file")]
    ids: Vec<String>,

    /// File of IDs to remove, one per line.
    #[arg(long = "ids", value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Flags shared by the commands that change an index.
#[derive(Debug, clap::Args)]
struct IndexTarget {
    /// Directory of the index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR", value_parser = local_index())]
    index: PathBuf,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Number of compute threads; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Number of earlier snapshots to keep. The default is the number that the index keeps already.
    #[arg(long, env = "WAYMARK_KEEP_SNAPSHOTS", value_name = "N")]
    keep_snapshots: Option<usize>,
}

impl AddArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let manifest = Manifest::read(&self.target.index)?;
        let extractor = manifest.graph.as_ref().and_then(GraphInfo::extractor);
        let source = self.triples.source_of(&self.target.index, extractor)?;
        let corpus = self.corpus.open(source.as_ref())?;
        let embedder = self.target.embedder()?;
        let mut corpus = self.corpus.measure(corpus, &embedder)?;
        let changes = Changes { mirror: self.mirror, ..Changes::corpus(&mut corpus)? };
        let options = CommitOptions {
            extract: source.as_ref().and_then(TripleProvider::extract),
            bare: matches!(source, Some(TripleProvider::None)),
            ..CommitOptions::default()
        };
        let report = self.target.commit(&embedder, changes, options)?;
        let mut out = io::stdout().lock();
        self.tell_added(&report, &mut out)?;
        corpus::tell_skipped(corpus.skipped_files(), &mut out)?;
        if corpus.skipped() > 0 {
            writeln!(out, "skipped {} unreadable records", corpus.skipped())?;
        }
        source.map_or(Ok(()), |source| source.report(&mut out))?;
        Ok(())
    }

    /// Prints the IDs of new documents, or the first of them.
    fn tell_added(&self, report: &CommitReport, out: &mut dyn Write) -> io::Result<()> {
        let CommitReport { added, added_ids, .. } = report;
        let shown = added_ids.len().min(SHOWN);
        // IDs come from outside, and may contain escape sequences for the terminal.
        added_ids[..shown].iter().try_for_each(|id| writeln!(out, "  + {}", printable(id)))?;
        let rest = added.saturating_sub(shown as u64);
        if rest == 0 {
            return Ok(());
        }
        writeln!(out, "  … and {rest} more: `waymark index documents {}` lists them", self.target.index.display())
    }
}

/// Number of IDs of new documents that are printed.
const SHOWN: usize = 20;

impl RemoveArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut ids = self.ids;
        if let Some(path) = &self.file {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            ids.extend(text.lines().map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned));
        }
        let embedder = self.target.embedder()?;
        let report = self.target.commit(&embedder, Changes::delete(ids), CommitOptions::default())?;
        if report.absent.is_empty() {
            return Ok(());
        }
        let contents = Contents::open(&self.target.index)?;
        let mut out = io::stdout().lock();
        for (number, id) in report.absent.iter().enumerate() {
            write!(out, "no document has the ID {id}")?;
            // A search for near IDs reads all of them.
            let near = if number < SUGGESTED { contents.near_ids(id, SUGGESTED)? } else { Vec::new() };
            writeln!(
                out,
                "{}",
                if near.is_empty() { String::new() } else { format!(": near are {}", printable(&near.join(", "))) }
            )?;
        }
        Ok(())
    }
}

impl IndexTarget {
    fn threads(&self) -> usize {
        or_cores(self.threads)
    }

    fn embedder(&self) -> anyhow::Result<Arc<Embedding>> {
        let team = Arc::new(Team::new(self.threads()));
        Ok(Arc::new(assembly::embedder(&self.embedder.resolve_for(&self.index)?, self.cache.clone(), team)?))
    }

    /// Commits the changes and prints their summary to standard output.
    fn commit(&self, embedder: &Embedding, changes: Changes, options: CommitOptions) -> anyhow::Result<CommitReport> {
        let started = Instant::now();
        let before = Manifest::read(&self.index)?;
        let bars = BuildBars::default();
        // Without the flag, a commit drops no snapshot. The current one is not counted among those kept.
        let kept = || snapshots(&self.index).map(|snapshots| snapshots.len() - 1);
        let keep = self.keep_snapshots.map_or_else(kept, Ok)?;
        let options = CommitOptions { threads: self.threads(), keep, ..options };
        let report = commit(&self.index, embedder, changes, &options, &bars)?;
        bars.clear();
        let mut out = io::stdout().lock();
        tell(&report, &self.index, &mut out)?;
        let after = &report.manifest;
        writeln!(
            out,
            "{} passages and {} before, {} and {} after, in {:.1} s",
            before.passages,
            mebibytes(before.bytes()),
            after.passages,
            mebibytes(after.bytes()),
            started.elapsed().as_secs_f64()
        )?;
        corpus::warn_truncated(report.cut, embedder, &mut out)?;
        Ok(report)
    }
}

fn tell(report: &CommitReport, index: &Path, out: &mut dyn Write) -> io::Result<()> {
    let CommitReport { added, replaced, unchanged, removed, .. } = report;
    let Manifest { passages, snapshot, .. } = &report.manifest;
    let new = if report.published { "" } else { ", unchanged" };
    writeln!(out, "{}: {passages} passages, snapshot {snapshot}{new}", index.display())?;
    writeln!(out, "{added} added, {replaced} replaced, {unchanged} unchanged, {removed} removed")
}
