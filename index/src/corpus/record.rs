//! Parses one JSON object of a corpus as a document.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{CorpusRecord, Document};
use crate::error::IndexError;
use crate::location::Location;
use crate::triple::Triple;

/// Source of a record's ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdSource {
    /// The record must bring an ID, as in JSONL.
    Required,
    /// A missing ID is derived from the content, as in HippoRAG's lists.
    FromContent,
}

/// Parses one record. Keys other than `id`, `title`, `text`, `triples` and `metadata` become part of the metadata.
pub(super) fn parse(bytes: &[u8], location: Location, ids: IdSource) -> Result<CorpusRecord, IndexError> {
    match document(bytes, ids) {
        Ok((document, from_content)) => Ok(CorpusRecord { location, document, from_content }),
        Err(message) => Err(IndexError::BadRecord { location, message }),
    }
}

fn document(bytes: &[u8], ids: IdSource) -> Result<(Document, bool), String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("invalid UTF-8 after {} bytes of the record", error.valid_up_to()))?;
    let mut fields: Map<String, Value> = serde_json::from_str(text).map_err(|error| broken(&error))?;
    let id = id(&mut fields)?;
    let title = string(&mut fields, "title")?.unwrap_or_default();
    let text = string(&mut fields, "text")?.ok_or("field `text` is missing")?;
    if text.trim().is_empty() {
        return Err("field `text` is empty".to_owned());
    }
    let triples = triples(&mut fields)?;
    let metadata = metadata(fields)?;
    let (id, from_content) = match (id, ids) {
        (Some(id), _) => (id, false),
        (None, IdSource::FromContent) => (content_id(&title, &text), true),
        (None, IdSource::Required) => return Err("field `id` is missing".to_owned()),
    };
    Ok((Document { id, title, text, triples, metadata }, from_content))
}

/// Formats the parser's message without its "at line 1", because the line of the file is reported already.
fn broken(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(head, _)| head);
    format!("not a JSON object: {message} (column {})", error.column())
}

fn id(fields: &mut Map<String, Value>) -> Result<Option<String>, String> {
    // `shift_remove` keeps the order of the other fields, which become metadata.
    match fields.shift_remove("id") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) if id.is_empty() => Err("field `id` is empty".to_owned()),
        Some(Value::String(id)) => Ok(Some(id)),
        // Corpora often number their passages.
        Some(Value::Number(id)) => Ok(Some(id.to_string())),
        Some(_) => Err("field `id` is neither a string nor a number".to_owned()),
    }
}

fn string(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match fields.shift_remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(value)) => Ok(Some(value)),
        Some(_) => Err(format!("field `{name}` is not a string")),
    }
}

fn triples(fields: &mut Map<String, Value>) -> Result<Option<Vec<Triple>>, String> {
    match fields.shift_remove("triples") {
        None | Some(Value::Null) => Ok(None),
        Some(list) => serde_json::from_value(list)
            .map_err(|_| "field `triples` is not a list of [subject, relation, object], all strings".to_owned()),
    }
}

fn metadata(mut rest: Map<String, Value>) -> Result<Option<Map<String, Value>>, String> {
    let mut metadata = match rest.shift_remove("metadata") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(metadata)) => metadata,
        Some(_) => return Err("field `metadata` is not an object".to_owned()),
    };
    // A field next to `metadata` replaces one of the same name in it.
    metadata.append(&mut rest);
    Ok((!metadata.is_empty()).then_some(metadata))
}

/// Hashes content to an ID: `chunk-` and the first 24 hexadecimal digits of a SHA-256 over title, line break and text.
/// HippoRAG uses the MD5 of the passage, but existing indexes contain these IDs, and with others a later commit would
/// treat every passage as new.
fn content_id(title: &str, text: &str) -> String {
    let digest = Sha256::digest(format!("{title}\n{text}").as_bytes());
    let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("chunk-{hex}")
}
