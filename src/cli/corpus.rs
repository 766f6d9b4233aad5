//! Which corpus is read, and how: the flags of the commands that read one.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::ensure;
use waymark_index::{Corpus, CorpusOptions};

use super::embedding::Embedding;
use super::triples::Source;
use crate::api::TextEmbedder;

/// A corpus, and how it is read.
#[derive(Debug, clap::Args)]
pub(crate) struct CorpusArgs {
    /// The corpus: a file or a folder.
    #[arg(long, value_name = "PATH")]
    corpus: PathBuf,

    /// Cut texts into chunks of at most so many characters, with the ids `ID#1`, `ID#2` and so on; records that have no
    /// more stay whole.
    ///
    /// When not given, Markdown and text files are cut into chunks of 1000, with the name of the file for ID, and records
    /// are left whole. Give it to `waymark index add` as well: it takes the chunks of a text for all that there are, and
    /// removes others that the index has of it.
    #[arg(long, value_name = "CHARS")]
    chunk: Option<NonZeroUsize>,

    /// Count records that cannot be read and go on, instead of stopping at the first.
    #[arg(long)]
    skip_bad: bool,
}

impl CorpusArgs {
    /// Opens the corpus, whose triples are to come from `source`.
    ///
    /// # Errors
    /// If it cannot be opened, or its records are cut and a file tells of them whole.
    pub(super) fn open(&self, source: Option<&Source>) -> anyhow::Result<Corpus> {
        let chunk = self.chunk.map(NonZeroUsize::get);
        let corpus = Corpus::open(&self.corpus, &CorpusOptions { skip_bad: self.skip_bad, chunk })?;
        ensure!(
            chunk.is_none() || corpus.is_prose() || !matches!(source, Some(Source::Import(_))),
            "--chunk cuts records, and a file of triples tells of whole ones: cut the records beforehand, or find the \
             triples otherwise"
        );
        Ok(corpus)
    }
}

/// Says that `cut` passages are not read to their end, if any are.
pub(super) fn tell_cut(cut: u64, embedder: &Embedding, out: &mut dyn Write) -> io::Result<()> {
    if cut == 0 {
        return Ok(());
    }
    let most = embedder.max_tokens();
    writeln!(
        out,
        "{cut} passages are longer than the {most} word pieces that the embedder reads: dense search sees their beginning; \
         cut them with --chunk"
    )
}
