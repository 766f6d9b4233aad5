//! Writes the passages of a snapshot: their text, their terms, and the triples that documents bring.

use std::path::Path;

use crate::corpus::Document;
use crate::error::IndexError;
use crate::graph::{TripleOrigin, TripleWriter};
use crate::layout::snapshot_file;
use crate::lexical::LexicalWriter;
use crate::progress::{BuildPhase, BuildProgress};
use crate::store::StoreWriter;

/// Writes the store, the lexical index and the given triples in one pass over `documents`.
pub(super) fn write(
    documents: &mut dyn Iterator<Item = Result<Document, IndexError>>,
    dir: &Path,
    triples: &mut TripleWriter,
    progress: &dyn BuildProgress,
) -> Result<(), IndexError> {
    let mut store = StoreWriter::create(&dir.join(snapshot_file::STORE))?;
    let mut lexical = LexicalWriter::create(&dir.join(snapshot_file::LEXICAL))?;
    let mut done = 0;
    progress.update(BuildPhase::Reading, 0, None);
    for document in documents {
        let document = document?;
        if done == u64::from(u32::MAX) || lexical.is_full() {
            return Err(IndexError::TooLarge { limit: done });
        }
        if let Some(given) = &document.triples {
            // Lossless: the check above bounds `done` by `u32::MAX`.
            triples.add(done as u32, given, TripleOrigin::Given)?;
        }
        store.add(&document)?;
        lexical.add(&document.title, &document.text)?;
        done += 1;
        progress.update(BuildPhase::Reading, done, None);
    }
    store.finish()?;
    lexical.finish()?;
    progress.update(BuildPhase::Reading, done, Some(done));
    Ok(())
}
