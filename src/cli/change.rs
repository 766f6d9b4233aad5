//! `waymark index add` and `waymark index remove`: changing an index, also while a server searches it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use waymark_index::{Changes, CommitOptions, CommitReport, GraphInfo, Manifest, commit};
use waymark_models::kernel::Team;

use super::assembly;
use super::corpus::{self, CorpusArgs};
use super::index::Bars;
use super::triples::{self, Source};
use crate::config::cores;

/// Adds documents to an index, or puts them in the place of those with their ids.
///
/// All of them go in at once when everything is ready; until then, and whatever happens, the index stays as it was. A
/// server that has it open goes on searching and takes the new state by itself. Of a file that has become shorter, the
/// chunks that it no longer has are removed; those of a file that is gone are removed with `--mirror`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index add --index corpus.index --corpus new.jsonl
  waymark index add --index docs.index --corpus docs --mirror
  waymark index add --index corpus.index --corpus new.jsonl --triples openie_results.json")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    corpus: CorpusArgs,

    /// Remove every document that the corpus does not hold.
    #[arg(long, conflicts_with = "skip_bad")]
    mirror: bool,

    #[command(flatten)]
    triples: triples::Args,
}

/// Removes documents from an index, by their ids.
///
/// All of them go at once when everything is ready; until then, and whatever happens, the index stays as it was. A
/// server that has it open goes on searching and takes the new state by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index remove --index corpus.index --id seine --id louvre
  waymark index remove --index corpus.index --ids gone.txt")]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    target: Target,

    /// Id of a document to remove; may be given several times.
    #[arg(long = "id", value_name = "ID", required_unless_present = "file")]
    ids: Vec<String>,

    /// File of ids to remove, one per line.
    #[arg(long = "ids", value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Which index is changed, and with what.
#[derive(Debug, clap::Args)]
struct Target {
    /// The index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    index: PathBuf,

    /// Embedding model: must be the one the index was built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Threads that compute; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl AddArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let manifest = Manifest::read(&self.target.index)?;
        let extractor = manifest.graph.as_ref().and_then(GraphInfo::extractor);
        let source = self.triples.source_of(&self.target.index, extractor)?;
        let mut corpus = self.corpus.open(source.as_ref())?;
        let changes = Changes { mirror: self.mirror, ..Changes::corpus(&mut corpus)? };
        let options = CommitOptions {
            extract: source.as_ref().and_then(Source::extract),
            bare: matches!(source, Some(Source::None)),
            ..CommitOptions::default()
        };
        self.target.commit(changes, options)?;
        let mut out = io::stdout().lock();
        if corpus.skipped() > 0 {
            writeln!(out, "{} records could not be read and were skipped", corpus.skipped())?;
        }
        source.map_or(Ok(()), |source| source.report(&mut out))?;
        Ok(())
    }
}

impl RemoveArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut ids = self.ids;
        if let Some(path) = &self.file {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            ids.extend(text.lines().map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned));
        }
        let report = self.target.commit(Changes::delete(ids), CommitOptions::default())?;
        let mut out = io::stdout().lock();
        report.absent.iter().try_for_each(|id| writeln!(out, "no document has the id {id}"))?;
        Ok(())
    }
}

impl Target {
    /// Makes the changes, and says on standard output what they came to.
    fn commit(&self, changes: Changes, options: CommitOptions) -> anyhow::Result<CommitReport> {
        let threads = if self.threads == 0 { cores() } else { self.threads };
        let embedder = assembly::embedder(&self.embedder, self.cache.clone(), Arc::new(Team::new(threads)))?;
        let bars = Bars::default();
        let report = commit(&self.index, &embedder, changes, &CommitOptions { threads, ..options }, &bars)?;
        bars.clear();
        let mut out = io::stdout().lock();
        tell(&report, &self.index, &mut out)?;
        corpus::tell_cut(report.cut, &embedder, &mut out)?;
        Ok(report)
    }
}

fn tell(report: &CommitReport, index: &Path, out: &mut dyn Write) -> io::Result<()> {
    let CommitReport { added, replaced, unchanged, removed, .. } = report;
    let Manifest { passages, snapshot, .. } = &report.manifest;
    let new = if report.published { "" } else { ", as before" };
    writeln!(out, "{}: {passages} passages, snapshot {snapshot}{new}", index.display())?;
    writeln!(out, "{added} added, {replaced} replaced, {unchanged} unchanged, {removed} removed")
}
