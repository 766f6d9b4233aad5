//! Writing the lexical index, one passage after the other.

use std::fmt;
use std::path::{Path, PathBuf};

use tantivy::directory::MmapDirectory;
use tantivy::indexer::SingleSegmentIndexWriter;
use tantivy::schema::Field;
use tantivy::tokenizer::TokenizerManager;
use tantivy::{Index, TantivyDocument};

use super::{CONTENT, analyzer, schema};
use crate::error::IndexError;

/// Sizes tantivy's first hash table of terms; it grows by itself.
const MEMORY_BUDGET: usize = 64 << 20;

/// Bytes that a segment in the making may take. tantivy finds what it holds by addresses of 32 bits, and beyond them
/// writes over what came first without a word; its own writer of several segments keeps below them.
const MOST_MEMORY: usize = 3900 << 20;

/// A lexical index in the making.
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
    /// Begins in an empty folder, which is created.
    pub(crate) fn create(dir: &Path) -> Result<LexicalWriter, IndexError> {
        std::fs::create_dir(dir).map_err(IndexError::io("create", dir))?;
        let creating = || IndexError::lexical("create", dir);
        let files = MmapDirectory::open(dir).map_err(|error| creating()(error.into()))?;
        let content = schema().get_field(CONTENT).map_err(creating())?;
        let writer = Index::builder()
            .schema(schema())
            .tokenizers(tokenizers())
            .single_segment_index_writer(files, MEMORY_BUDGET)
            .map_err(creating())?;
        Ok(LexicalWriter { dir: dir.to_owned(), writer, content })
    }

    /// Whether nothing more should be added.
    pub(crate) fn is_full(&self) -> bool {
        self.writer.mem_usage() > MOST_MEMORY
    }

    /// Appends a passage, whose document id is how many came before it.
    ///
    /// The title goes in twice, so that a word in it counts as two in the text (BM25F with weight 2): measured on four
    /// question sets, that finds one to two more supporting passages in a hundred.
    pub(crate) fn add(&mut self, title: &str, text: &str) -> Result<(), IndexError> {
        let mut document = TantivyDocument::default();
        for part in [title, title, text] {
            document.add_text(self.content, part);
        }
        self.writer.add_document(document).map_err(IndexError::lexical("write", &self.dir))
    }

    /// Writes the segment.
    pub(crate) fn finish(self) -> Result<(), IndexError> {
        self.writer.finalize().map(drop).map_err(IndexError::lexical("write", &self.dir))
    }
}

fn tokenizers() -> TokenizerManager {
    let tokenizers = TokenizerManager::new();
    tokenizers.register(analyzer::NAME, analyzer::analyzer());
    tokenizers
}
