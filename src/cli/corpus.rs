//! Flags for reading a corpus.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::ensure;
use waymark_index::{Corpus, CorpusOptions};
use waymark_runtime::embedding::Embedding;
use waymark_runtime::embedding::TextEmbedder;

use super::triples::TripleProvider;

/// Flags for reading a corpus.
#[derive(Debug, clap::Args)]
pub(crate) struct CorpusArgs {
    /// Path to the corpus: a file or a folder.
    #[arg(long, value_name = "PATH")]
    corpus: PathBuf,

    /// Maximum size of a chunk in characters. Longer texts are split into chunks with the IDs `ID#1`, `ID#2` and so on.
    ///
    /// By default, Markdown and text files are split into chunks of 1000 with the file name as ID, and records stay
    /// whole. Use the same value with `waymark index add`: it takes the chunks of a text as complete, and removes other
    /// chunks of that text from the index.
    #[arg(long, value_name = "CHARS")]
    chunk: Option<NonZeroUsize>,

    /// Count unreadable records and continue instead of stopping at the first one.
    #[arg(long)]
    skip_bad: bool,
}

impl CorpusArgs {
    /// Opens the corpus; its triples will come from `source`.
    ///
    /// # Errors
    /// If the corpus cannot be opened, or records are split while a file of triples refers to whole ones.
    pub(super) fn open(&self, source: Option<&TripleProvider>) -> anyhow::Result<Corpus> {
        let chunk = self.chunk.map(NonZeroUsize::get);
        let corpus = Corpus::open(&self.corpus, &CorpusOptions { skip_bad: self.skip_bad, chunk })?;
        ensure!(
            chunk.is_none() || corpus.is_prose() || !matches!(source, Some(TripleProvider::Import(_))),
            "--chunk splits records, but the triples in the file belong to whole records: split the records beforehand, or \
             use another source of triples"
        );
        Ok(corpus)
    }
}

/// Warns that `cut` passages exceed the embedder's limit and are truncated, if there are any.
pub(super) fn warn_truncated(cut: u64, embedder: &Embedding, out: &mut dyn Write) -> io::Result<()> {
    if cut == 0 {
        return Ok(());
    }
    let most = embedder.max_tokens();
    writeln!(
        out,
        "{cut} passages exceed the embedder's limit of {most} word pieces: dense search sees only their beginning; \
         split them with --chunk"
    )
}
