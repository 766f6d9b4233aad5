//! Makes documents from records: JSON objects of a corpus, or rows of a table.

use std::sync::Arc;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::field_map::{CONTENTS, FieldMap};
use super::{CorpusRecord, Document, LARGEST_TITLE};
use crate::error::IndexError;
use crate::location::Location;
use crate::triple::Triple;

/// Source of a record's ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdSource {
    /// The record must bring an ID, as in JSONL, unless [`FieldMap::derives_ids`] says otherwise.
    Required,
    /// A missing ID is derived from the content, as in HippoRAG's lists.
    FromContent,
}

/// Parser of records with the names of their fields.
#[derive(Debug, Clone)]
pub(super) struct RecordParser {
    pub(super) names: Arc<FieldMap>,
    pub(super) ids: IdSource,
}

impl RecordParser {
    /// Parses a record from JSON. Fields other than ID, title, text, `triples` and the object of metadata become part
    /// of the metadata.
    pub(super) fn parse(&self, bytes: &[u8], location: Location) -> Result<CorpusRecord, IndexError> {
        let fields = object(bytes);
        self.finish(fields.and_then(|fields| self.document(fields)), location)
    }

    /// Makes a record from fields that are already parsed.
    pub(super) fn record(&self, fields: Map<String, Value>, location: Location) -> Result<CorpusRecord, IndexError> {
        self.finish(self.document(fields), location)
    }

    fn finish(&self, parsed: Result<(Document, bool), String>, location: Location) -> Result<CorpusRecord, IndexError> {
        match parsed {
            Ok((document, from_content)) => Ok(CorpusRecord { location, document, from_content }),
            Err(message) => Err(IndexError::BadRecord { location, message }),
        }
    }

    fn document(&self, mut fields: Map<String, Value>) -> Result<(Document, bool), String> {
        let names = &self.names;
        let id = id(names.take_id(&mut fields))?;
        let title = names.take_title(&mut fields).map(|title| string(title, "title")).transpose()?;
        let missing = || format!("field `{}` is missing", names.text_names()[0]);
        let (name, text) = names.take_text(&mut fields).ok_or_else(missing)?;
        let text = string(text, &name)?;
        if text.trim().is_empty() {
            return Err(format!("field `{name}` is empty"));
        }
        let (title, text) = match title {
            None if name == CONTENTS => split_contents(&text),
            title => (title.unwrap_or_default(), text),
        };
        let triples = triples(&mut fields)?;
        let metadata = metadata(names.take_metadata(&mut fields), fields)?;
        let (id, from_content) = match id {
            Some(id) => (id, false),
            None if self.ids == IdSource::FromContent || names.derives_ids() => (content_id(&title, &text), true),
            None => {
                return Err(
                    "field `id` is missing: name its field with --field id=NAME, or derive IDs from the content with \
                     --field id="
                        .to_owned(),
                );
            }
        };
        if title.len() > LARGEST_TITLE {
            return Err(format!("the title of {id:?} has {} bytes: expected at most {LARGEST_TITLE}", title.len()));
        }
        Ok((Document { id, title, text, triples, metadata }, from_content))
    }
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("invalid UTF-8 after {} bytes of the record", error.valid_up_to()))?;
    serde_json::from_str(text).map_err(|error| broken(&error))
}

/// Formats the parser's message without its "at line 1", because the line of the file is reported already.
fn broken(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(head, _)| head);
    format!("not a JSON object: {message} (column {})", error.column())
}

fn id(value: Option<Value>) -> Result<Option<String>, String> {
    match value {
        None => Ok(None),
        Some(Value::String(id)) if id.is_empty() => Err("field `id` is empty".to_owned()),
        Some(Value::String(id)) => Ok(Some(id)),
        // Corpora often number their passages.
        Some(Value::Number(id)) => Ok(Some(id.to_string())),
        Some(_) => Err("field `id` is neither a string nor a number".to_owned()),
    }
}

fn string(value: Value, name: &str) -> Result<String, String> {
    match value {
        Value::String(value) => Ok(value),
        _ => Err(format!("field `{name}` is not a string")),
    }
}

/// Splits the contents of a Search-R1 record into title and text. Without a quoted title, all is text.
fn split_contents(contents: &str) -> (String, String) {
    let quoted = |line: &str| Some(line.trim().strip_prefix('"')?.strip_suffix('"')?.trim().to_owned());
    match contents.split_once('\n').and_then(|(first, rest)| Some((quoted(first)?, rest))) {
        Some((title, text)) if !text.trim().is_empty() => (title, text.to_owned()),
        _ => (String::new(), contents.to_owned()),
    }
}

fn triples(fields: &mut Map<String, Value>) -> Result<Option<Vec<Triple>>, String> {
    match fields.shift_remove("triples") {
        None | Some(Value::Null) => Ok(None),
        Some(list) => serde_json::from_value(list)
            .map_err(|_| "field `triples` is not a list of [subject, relation, object], all strings".to_owned()),
    }
}

fn metadata(object: Option<Value>, mut rest: Map<String, Value>) -> Result<Option<Map<String, Value>>, String> {
    let mut metadata = match object {
        None => Map::new(),
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
