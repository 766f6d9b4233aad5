//! Flags for reading a corpus.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use waymark_index::{Corpus, CorpusOptions, FieldMap, SkippedFiles, TokenCounter};
use waymark_runtime::embedding::Embedding;
use waymark_runtime::embedding::TextEmbedder;

use super::triples::TripleProvider;

/// Flags for reading a corpus.
#[derive(Debug, clap::Args)]
pub(crate) struct CorpusArgs {
    /// Path to the corpus: a file or a folder. Files of records are JSONL, JSON lists, CSV, TSV and Parquet; files of
    /// text are Markdown, plain text, HTML, DOCX and PDF. All but Parquet may be compressed (.gz, .zst).
    #[arg(long, value_name = "PATH")]
    corpus: PathBuf,

    /// Name of the field that holds a part of a document, for example `text=body`; may be given several times. Parts are
    /// `id`, `title`, `text` and `metadata`.
    ///
    /// By default, `id` or `_id`, `title`, `text` or `contents`, and `metadata`. An empty name means that records have no
    /// such field: `id=` derives the IDs from the content.
    #[arg(long = "field", value_name = "PART=NAME")]
    fields: Vec<String>,

    /// Maximum size of a chunk in tokens of the embedder, its title included. Longer texts are split into chunks with the
    /// IDs `ID#1`, `ID#2` and so on.
    ///
    /// By default, files of text are split into chunks of 256 tokens, or fewer if the embedder reads fewer, with the file
    /// name as ID, and records stay whole. Use the same value with `waymark index add`: it takes the chunks of a text as
    /// complete, and removes other chunks of that text from the index.
    #[arg(long, value_name = "TOKENS")]
    chunk: Option<NonZeroUsize>,

    /// Number of tokens at the end of a chunk that the next chunk of the same section repeats; at most half a chunk.
    #[arg(long, value_name = "TOKENS", default_value_t = 32)]
    chunk_overlap: usize,

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
        let fields = FieldMap::parse(self.fields.iter().map(String::as_str)).map_err(anyhow::Error::msg);
        let fields = fields.context("invalid --field")?;
        let skip_bad = self.skip_bad;
        let options =
            CorpusOptions { skip_bad, chunk, overlap: self.chunk_overlap, fields, ..CorpusOptions::default() };
        let corpus = Corpus::open(&self.corpus, &options)?;
        ensure!(
            chunk.is_none() || corpus.is_prose() || !matches!(source, Some(TripleProvider::Import(_))),
            "--chunk splits records, but the triples in the file belong to whole records: split the records beforehand, or \
             use another source of triples"
        );
        Ok(corpus)
    }

    /// Measures the chunks of the corpus by the tokens of the embedder.
    ///
    /// # Errors
    /// If chunks would be larger than the embedder reads.
    pub(super) fn measure(&self, corpus: Corpus, embedder: &Arc<Embedding>) -> anyhow::Result<Corpus> {
        let limit = embedder.max_tokens();
        if let Some(chunk) = self.chunk.map(NonZeroUsize::get) {
            ensure!(chunk <= limit, "--chunk {chunk}: the embedder reads at most {limit} tokens of a chunk");
        }
        let counting = Arc::clone(embedder);
        Ok(corpus.measured(TokenCounter::new(limit, move |text| counting.count_tokens(text))))
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

/// Number of skipped files that are named.
const NAMED: usize = 5;

/// Prints which files of a folder were not read, and why.
pub(super) fn tell_skipped(skipped: &SkippedFiles, out: &mut dyn Write) -> io::Result<()> {
    let count = skipped.count();
    if count == 0 {
        return Ok(());
    }
    let types: Vec<String> = skipped.by_type.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    writeln!(out, "skipped {count} files: {}", types.join(", "))?;
    for (path, reason) in skipped.first.iter().take(NAMED) {
        writeln!(out, "  {}: {reason}", path.display())?;
    }
    let rest = count.saturating_sub(NAMED as u64);
    if rest > 0 { writeln!(out, "  … and {rest} more") } else { Ok(()) }
}
