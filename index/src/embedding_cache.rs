//! Cache of vectors embedded earlier, so that no text is embedded twice.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dense::VectorFile;
use crate::embed::Embed;
use crate::embedding_journal::{EmbeddingJournal, TextHash};
use crate::error::IndexError;
use crate::layout::JOURNAL;
use crate::prompts::Prompts;

/// Vectors by the hash of their text, from the published snapshot and from the journal.
pub(crate) struct EmbeddingCache<'a> {
    /// ID of the embedder, and the prompt put before the texts.
    id: String,
    published: HashMap<TextHash, &'a [f32]>,
    journal: Option<Mutex<EmbeddingJournal>>,
}

impl fmt::Debug for EmbeddingCache<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("published", &self.published.len()).finish_non_exhaustive()
    }
}

impl<'a> EmbeddingCache<'a> {
    /// Opens the cache with the journal of the index in `dir`, which holds vectors of texts with these prompts. If
    /// `journal` is `false`, the journal is neither read nor written.
    pub(crate) fn open(
        dir: &Path,
        embed: &dyn Embed,
        prompts: &Prompts,
        journal: bool,
    ) -> Result<EmbeddingCache<'a>, IndexError> {
        // The same text has another vector after another prompt.
        let id = format!("{}{}", embed.id(), prompts.document);
        let open = || EmbeddingJournal::open(&dir.join(JOURNAL), &id, embed.dims()).map(Mutex::new);
        let journal = journal.then(open).transpose()?;
        Ok(EmbeddingCache { id, published: HashMap::new(), journal })
    }

    /// Identity of the vectors. The same text has the same vector in caches of the same identity.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Adds the rows of `vectors`, where `text` returns the text of each row. They must come from the same embedder.
    pub(crate) fn publish(
        &mut self,
        vectors: &'a VectorFile,
        text: impl Fn(u32) -> Result<String, IndexError>,
    ) -> Result<(), IndexError> {
        self.published.reserve(vectors.count());
        for (row, number) in vectors.rows().zip(0..) {
            self.published.insert(TextHash::of(&text(number)?), row);
        }
        Ok(())
    }

    /// Adds one vector.
    pub(crate) fn publish_row(&mut self, text: &str, row: &'a [f32]) {
        self.published.insert(TextHash::of(text), row);
    }

    /// Adds one vector by the hash of its text.
    pub(crate) fn publish_hashed(&mut self, key: TextHash, row: &'a [f32]) {
        self.published.insert(key, row);
    }

    /// Returns the vector of length 1 of the text with the hash `key`.
    pub(crate) fn get(&self, key: TextHash) -> Result<Option<Vec<f32>>, IndexError> {
        // The snapshot first: its vectors lie in mapped memory, those of the journal must be read.
        match self.published.get(&key) {
            Some(row) => Ok(Some(row.to_vec())),
            None => self.journal().map_or(Ok(None), |mut journal| journal.get(key)),
        }
    }

    /// Appends new vectors to the journal, for the next process in case this one is killed.
    pub(crate) fn keep(&self, vectors: &[(TextHash, &[f32])]) -> Result<(), IndexError> {
        self.journal().map_or(Ok(()), |mut journal| journal.add(vectors))
    }

    fn journal(&self) -> Option<MutexGuard<'_, EmbeddingJournal>> {
        // A panic while holding the lock leaves at most a torn record, which the next write replaces.
        self.journal.as_ref().map(|journal| journal.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
