//! `waymark index export`: the documents of an index, to build another one of.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use waymark_index::corpus::is_prose;
use waymark_index::openie::Builtin;
use waymark_index::{Contents, Extract, GraphInfo, Manifest};

use super::index::PAUSE;
use super::progress;

/// Writes the documents of an index as JSONL, to build another one of.
///
/// Each line has `id`, `title`, `text`, `metadata` and `triples`, in the order of the index, as `waymark index build` reads
/// them. So documents are kept that came over HTTP and stand nowhere else, when another embedder is to be used or a later
/// version reads another format. No embedder is needed, and of the index nothing but its passages and triples. A server
/// may go on searching and changing it: what is written is the snapshot that was there at the beginning.
///
/// Triples are written that a document brought, or that a file or a language model gave for it. Those of the built-in
/// extractor are not: the new index finds them again. Chunks are documents like others: leave --chunk out when they are
/// built again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index export corpus.index --out corpus.jsonl
  waymark index export corpus.index | gzip > corpus.jsonl.gz

The same documents under another embedder:
  waymark index export corpus.index --out corpus.jsonl
  waymark index build --corpus corpus.jsonl --out new.index --embedder NAME")]
pub(crate) struct ExportArgs {
    /// The index.
    dir: PathBuf,

    /// File to write, replaced at once when everything is written; standard output when not given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Write the triples of the built-in extractor too, as if the documents had brought them.
    #[arg(long)]
    all_triples: bool,
}

impl ExportArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if let Some(path) = self.out.as_deref().filter(|path| is_prose(path)) {
            bail!("--out {}: name it .jsonl: a file of this name is read as text", path.display());
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
        self.tell(contents.manifest(), &mut io::stderr().lock())?;
        Ok(())
    }

    fn write(&self, contents: &Contents, out: &mut dyn Write) -> anyhow::Result<()> {
        let total = contents.manifest().passages;
        // Beside lines on the same screen a bar would be torn.
        let seen = self.out.is_none() && io::stdout().is_terminal();
        let bar = if seen { ProgressBar::hidden() } else { progress::things().with_message("exporting") };
        bar.set_length(total);
        let mut told = Instant::now();
        for (document, done) in contents.documents(self.all_triples).zip(1_u64..) {
            serde_json::to_writer(&mut *out, &document?).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
            bar.set_position(done);
            if bar.is_hidden() && told.elapsed() >= PAUSE {
                told = Instant::now();
                tracing::info!(done, total, "exporting");
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Says what was written and how an index is made of it that answers as this one, on standard error: standard
    /// output may be the documents.
    fn tell(&self, manifest: &Manifest, out: &mut dyn Write) -> io::Result<()> {
        let Manifest { passages, snapshot, graph, .. } = manifest;
        let builtin = |graph: &GraphInfo| graph.extractors().any(|name| name == Builtin.id());
        let left_out = !self.all_triples && graph.as_ref().is_some_and(builtin);
        let triples = if left_out { "builtin" } else { "none" };
        let file = self.out.as_deref().unwrap_or(Path::new("FILE"));
        writeln!(out, "{}: {passages} documents, snapshot {snapshot}", self.dir.display())?;
        writeln!(
            out,
            "to build it again: waymark index build --corpus {} --out DIR --triples {triples}",
            file.display()
        )
    }
}

/// Puts what `fill` writes in the place of the file at `path`, whole or not at all: beside it, synced, then renamed.
fn replace(path: &Path, fill: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<()> {
    ensure!(path.is_file() || !path.exists(), "--out {} is no file that could be replaced", path.display());
    let mut name = OsString::from(".");
    name.push(path.file_name().with_context(|| format!("--out {} names no file", path.display()))?);
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let file = File::create(&part).with_context(|| format!("cannot create {}", part.display()))?;
    let mut file = BufWriter::new(file);
    let filled = fill(&mut file).and_then(|()| {
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(fs::rename(&part, path)?)
    });
    if filled.is_err() {
        // Of no use to anybody, and nobody else's.
        let _ = fs::remove_file(&part);
    }
    filled.with_context(|| format!("cannot write {}", path.display()))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(|| format!("cannot sync {}", folder.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
