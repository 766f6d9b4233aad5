//! The passages of a snapshot: what they say, and which words are in them.

use std::path::Path;

use crate::corpus::Document;
use crate::error::IndexError;
use crate::folder::part;
use crate::lexical::LexicalWriter;
use crate::progress::{BuildProgress, Phase};
use crate::store::StoreWriter;

/// Writes the store and the lexical index in one pass over `documents`.
pub(super) fn write(
    documents: &mut dyn Iterator<Item = Result<Document, IndexError>>,
    dir: &Path,
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    let mut store = StoreWriter::create(&dir.join(part::STORE))?;
    let mut lexical = LexicalWriter::create(&dir.join(part::LEXICAL))?;
    let mut done = 0;
    progress.update(Phase::Reading, 0, None);
    for document in documents {
        let document = document?;
        if done == u64::from(u32::MAX) {
            return Err(IndexError::TooLarge { limit: done });
        }
        store.add(&document)?;
        lexical.add(&document.title, &document.text)?;
        done += 1;
        progress.update(Phase::Reading, done, None);
    }
    store.finish()?;
    lexical.finish()?;
    progress.update(Phase::Reading, done, Some(done));
    Ok(())
}
