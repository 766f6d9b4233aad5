//! Sizes of documents: in the storage of vector stores, and in memory.

use serde_json::{Map, Value};
use waymark_index::{Document, Triple};

/// Memory that a document takes besides what it holds, in bytes.
const DOCUMENT_BYTES: usize = 512;

/// Memory that a string or a value in a document takes besides its characters, in bytes.
const ENTRY_BYTES: usize = 128;

/// Returns the size of the title, the text, the triples and the metadata of a document, in bytes. Metadata count as JSON.
pub(super) fn stored_bytes(document: &Document) -> u64 {
    let metadata = serde_json::to_vec(&document.metadata).map_or(0, |json| json.len());
    let triples: usize = triples(document).iter().map(characters).sum();
    (document.title.len() + document.text.len() + triples + metadata) as u64
}

/// Returns the memory that a document takes, in bytes. Small values take many times their size as JSON.
pub(super) fn memory_bytes(document: &Document) -> u64 {
    let metadata = document.metadata.as_ref().map_or(0, memory_of_fields);
    let triples: usize = triples(document).iter().map(|triple| 2 * ENTRY_BYTES + characters(triple)).sum();
    (DOCUMENT_BYTES + document.title.len() + document.text.len() + triples + metadata) as u64
}

fn triples(document: &Document) -> &[Triple] {
    document.triples.as_deref().unwrap_or_default()
}

fn characters(triple: &Triple) -> usize {
    triple.subject.len() + triple.relation.len() + triple.object.len()
}

fn memory_of_fields(fields: &Map<String, Value>) -> usize {
    fields.iter().map(|(name, value)| ENTRY_BYTES + name.len() + memory_of(value)).sum()
}

fn memory_of(value: &Value) -> usize {
    let content = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(memory_of).sum(),
        Value::Object(fields) => memory_of_fields(fields),
    };
    ENTRY_BYTES + content
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn small_values_take_more_memory_than_storage() {
        let metadata = json!({"list": vec![1; 1000], "name": "x"});
        let triples = Some(vec![Triple::new("a", "b", "c"); 10]);
        let document = Document {
            id: "a".to_owned(),
            title: "T".to_owned(),
            text: "text".to_owned(),
            triples,
            metadata: metadata.as_object().cloned(),
        };
        assert_eq!(stored_bytes(&document), 5 + 30 + metadata.to_string().len() as u64);
        let list = ENTRY_BYTES + 4 + 1001 * ENTRY_BYTES;
        let name = ENTRY_BYTES + 4 + ENTRY_BYTES + 1;
        assert_eq!(memory_bytes(&document), (DOCUMENT_BYTES + 5 + 10 * (2 * ENTRY_BYTES + 3) + list + name) as u64);
    }
}
