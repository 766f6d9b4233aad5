//! `waymark index export`: writes the documents of an index for building another one.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use waymark_index::corpus::is_json;
use waymark_index::openie::Builtin;
use waymark_index::{Contents, Extract, GraphInfo, Manifest};
use waymark_models::durable_file;
use waymark_runtime::config::local_index;
use waymark_runtime::progress;

use super::build_bars::LOG_INTERVAL;

/// Writes the documents of an index as JSONL, from which another index can be built.
///
/// Each line has `id`, `title`, `text`, `metadata` and `triples`, in index order, as `waymark index build` reads them.
/// Use it to keep documents that came over HTTP when you change the embedder or upgrade to a new index format. Needs no
/// embedder, only the index's passages and triples. A server may keep searching and changing the index: the export is
/// the snapshot that was current at its start.
///
/// Triples are included if they came with the document, from a file or from a language model. Those of the built-in
/// extractor are left out, because the new index extracts them again. Chunks are exported as documents: leave out
/// --chunk when you build an index from them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index export corpus.index --out corpus.jsonl
  waymark index export corpus.index | gzip > corpus.jsonl.gz

The same documents under another embedder:
  waymark index export corpus.index --out corpus.jsonl
  waymark index build --corpus corpus.jsonl --out new.index --embedder NAME")]
pub(crate) struct ExportArgs {
    /// Directory of the index.
    #[arg(value_parser = local_index())]
    dir: PathBuf,

    /// File to write, replaced atomically at the end. The default is standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Include the triples of the built-in extractor, as if they had come with the documents.
    #[arg(long)]
    all_triples: bool,
}

impl ExportArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if let Some(path) = self.out.as_deref().filter(|path| !is_json(path)) {
            bail!("--out {}: use the extension .jsonl: `index build` would not read this file as JSON", path.display());
        }
        let contents = Contents::open(&self.dir)?;
        match &self.out {
            Some(path) => replace(path, |file| self.write(&contents, file))?,
            None => {
                let mut out = BufWriter::new(io::stdout().lock());
                self.write(&contents, &mut out)?;
                out.flush()?;
            }
        }
        self.print_summary(contents.manifest(), &mut io::stderr().lock())?;
        Ok(())
    }

    fn write(&self, contents: &Contents, out: &mut dyn Write) -> anyhow::Result<()> {
        let total = contents.manifest().passages;
        // Documents printed to the same terminal would tear the bar apart.
        let seen = self.out.is_none() && io::stdout().is_terminal();
        let bar = if seen { ProgressBar::hidden() } else { progress::things().with_message("exporting") };
        bar.set_length(total);
        let mut last_logged = Instant::now();
        for (document, done) in contents.documents(self.all_triples).zip(1_u64..) {
            serde_json::to_writer(&mut *out, &document?).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
            bar.set_position(done);
            if bar.is_hidden() && last_logged.elapsed() >= LOG_INTERVAL {
                last_logged = Instant::now();
                tracing::info!(done, total, "exporting");
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Prints a summary and the command that rebuilds an equal index to standard error, because standard output may
    /// hold the documents.
    fn print_summary(&self, manifest: &Manifest, out: &mut dyn Write) -> io::Result<()> {
        let Manifest { passages, snapshot, graph, .. } = manifest;
        let builtin = |graph: &GraphInfo| graph.extractors().any(|name| name == Builtin.id());
        // A rebuild makes the triples of the built-in extractor again, so they are not exported.
        let left_out = !self.all_triples && graph.as_ref().is_some_and(builtin);
        let triples = if left_out { "builtin" } else { "none" };
        let file = self.out.as_deref().unwrap_or(Path::new("FILE"));
        writeln!(out, "{}: {passages} documents, snapshot {snapshot}", self.dir.display())?;
        writeln!(out, "to rebuild it: waymark index build --corpus {} --out DIR --triples {triples}", file.display())
    }
}

/// Replaces the file at `path` atomically with what `fill` writes.
fn replace(path: &Path, fill: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<()> {
    // The rename would put a file in place of a device or a pipe, such as `/dev/stdout`.
    ensure!(path.is_file() || !path.exists(), "--out {}: not a regular file", path.display());
    durable_file::replace_with(path, |file| fill(file)).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn what_breaks_off_leaves_the_old_file_and_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("corpus.jsonl");
        fs::write(&path, "old").unwrap();
        let broken = replace(&path, |file| {
            file.write_all(b"ne")?;
            bail!("passage 3 cannot be read")
        });
        assert!(format!("{:#}", broken.unwrap_err()).contains("passage 3 cannot be read"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        replace(&path, |file| Ok(file.write_all(b"new")?)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
