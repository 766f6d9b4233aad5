//! Splits records into chunks.

use text_splitter::TextSplitter;

use super::{CorpusItem, CorpusRecord, Document};
use crate::error::IndexError;

/// Splits texts of more than `size` characters, and leaves the others whole. With `None`, leaves all texts whole and
/// reports no chunk counts.
pub(super) fn cut(
    records: impl Iterator<Item = Result<CorpusRecord, IndexError>> + Send,
    size: Option<usize>,
) -> impl Iterator<Item = Result<CorpusItem, IndexError>> + Send {
    records.flat_map(move |record| match (record, size) {
        (Ok(record), Some(size)) => match chunks(record, size.max(1)) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        },
        (record, _) => vec![record.map(CorpusItem::Record)],
    })
}

fn chunks(record: CorpusRecord, size: usize) -> Result<Vec<CorpusItem>, IndexError> {
    let CorpusRecord { location, document, from_content } = record;
    let name = document.id.clone();
    // Splitting trims the white space around chunks.
    if document.text.trim().chars().nth(size).is_none() {
        return Ok(vec![
            CorpusItem::Record(CorpusRecord { location, document, from_content }),
            CorpusItem::Chunked(name, 0),
        ]);
    }
    if document.triples.as_ref().is_some_and(|triples| !triples.is_empty()) {
        let message = format!(
            "{name:?} has more than {size} characters and brings triples, and which chunk states which is not known: cut \
             it and them beforehand, or leave out --chunk"
        );
        return Err(IndexError::BadCorpus { location, message });
    }
    let texts: Vec<String> = TextSplitter::new(size).chunks(&document.text).map(str::to_owned).collect();
    let count = texts.len() as u64;
    let Document { title, triples, metadata, .. } = document;
    let records = texts.into_iter().zip(1_u64..).map(|(text, number)| {
        let title = title.clone();
        let triples = triples.clone();
        let metadata = metadata.clone();
        let document = Document { id: format!("{name}#{number}"), title, text, triples, metadata };
        CorpusItem::Record(CorpusRecord { location: location.clone(), document, from_content })
    });
    let mut found: Vec<CorpusItem> = records.collect();
    found.push(CorpusItem::Chunked(name, count));
    Ok(found)
}
