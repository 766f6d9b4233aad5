//! Writer of the lexical index.

use std::fmt;
use std::path::{Path, PathBuf};

use tantivy::directory::{MmapDirectory, RamDirectory};
use tantivy::indexer::SingleSegmentIndexWriter;
use tantivy::schema::Field;
use tantivy::tokenizer::TokenizerManager;
use tantivy::{Directory, Index, TantivyDocument};

use super::analyzer::Analysis;
use super::{CONTENT, schema};
use crate::error::IndexError;

/// Initial size of tantivy's hash table of terms; the table grows by itself.
const MEMORY_BUDGET: usize = 64 << 20;

/// Initial size of the table for a segment in memory.
const SMALL_BUDGET: usize = 1 << 20;

/// Maximum bytes of a segment being written. tantivy addresses its buffer with 32 bits and silently overwrites the
/// beginning of a larger buffer; its own multi-segment writer stays below that size.
const MOST_MEMORY: usize = 3900 << 20;

/// Lexical index being written.
pub(crate) struct LexicalWriter {
    dir: PathBuf,
    writer: SingleSegmentIndexWriter,
    content: Field,
}

impl fmt::Debug for LexicalWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LexicalWriter").finish_non_exhaustive()
    }
}

impl LexicalWriter {
    /// Creates the folder and starts an empty index in it.
    pub(crate) fn create(dir: &Path) -> Result<LexicalWriter, IndexError> {
        LexicalWriter::create_with(dir, Analysis::default())
    }

    pub(super) fn create_with(dir: &Path, analysis: Analysis) -> Result<LexicalWriter, IndexError> {
        std::fs::create_dir(dir).map_err(IndexError::io("create", dir))?;
        let files = MmapDirectory::open(dir).map_err(|error| IndexError::lexical("create", dir)(error.into()))?;
        LexicalWriter::start(dir, files, analysis, MEMORY_BUDGET)
    }

    /// Starts an empty index in memory, for few documents. Messages name `dir`.
    pub(super) fn in_memory(dir: &Path, files: RamDirectory, analysis: Analysis) -> Result<LexicalWriter, IndexError> {
        LexicalWriter::start(dir, files, analysis, SMALL_BUDGET)
    }

    fn start(
        dir: &Path,
        files: impl Into<Box<dyn Directory>>,
        analysis: Analysis,
        budget: usize,
    ) -> Result<LexicalWriter, IndexError> {
        let creating = || IndexError::lexical("create", dir);
        let content = schema(analysis).get_field(CONTENT).map_err(creating())?;
        let writer = Index::builder()
            .schema(schema(analysis))
            .tokenizers(tokenizers(analysis))
            .single_segment_index_writer(files, budget)
            .map_err(creating())?;
        Ok(LexicalWriter { dir: dir.to_owned(), writer, content })
    }

    /// Returns `true` if no more passages should be added.
    pub(crate) fn is_full(&self) -> bool {
        self.writer.mem_usage() > MOST_MEMORY
    }

    /// Appends a passage, whose document ID is the count of earlier passages.
    ///
    /// The title is added twice, so that a word in it counts as two in the text (BM25F with weight 2). On four question
    /// sets this finds one to two more supporting passages in a hundred.
    pub(crate) fn add(&mut self, title: &str, text: &str) -> Result<(), IndexError> {
        let mut document = TantivyDocument::default();
        for part in parts(title, text) {
            document.add_text(self.content, part);
        }
        self.writer.add_document(document).map_err(IndexError::lexical("write", &self.dir))
    }

    /// Writes the segment.
    pub(crate) fn finish(self) -> Result<(), IndexError> {
        self.finish_index().map(drop)
    }

    /// Writes the segment and returns the index.
    pub(super) fn finish_index(self) -> Result<Index, IndexError> {
        self.writer.finalize().map_err(IndexError::lexical("write", &self.dir))
    }
}

/// Returns the texts of a passage as indexed.
pub(super) fn parts<'a>(title: &'a str, text: &'a str) -> [&'a str; 3] {
    [title, title, text]
}

fn tokenizers(analysis: Analysis) -> TokenizerManager {
    let tokenizers = TokenizerManager::new();
    tokenizers.register(analysis.name(), analysis.analyzer());
    tokenizers
}
