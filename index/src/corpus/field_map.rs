//! Names of the fields of a record that hold its ID, title, text and metadata.

use serde_json::{Map, Value};

/// Names of the fields of a record. A part of a document without an assigned name is taken from the first of its usual
/// fields that has a value: `id` or `_id` (BEIR), `title`, `text` or `contents` (Search-R1), `metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldMap {
    id: Option<String>,
    title: Option<String>,
    text: Option<String>,
    metadata: Option<String>,
    /// If `true`, records without an ID get one from their content in every format.
    derived_ids: bool,
}

impl FieldMap {
    /// Parses assignments such as `text=body`. An empty name means that records have no such field: `id=` derives the
    /// IDs from the content.
    ///
    /// # Errors
    /// A message with the unknown or repeated assignment.
    pub fn parse<'a>(assignments: impl IntoIterator<Item = &'a str>) -> Result<FieldMap, String> {
        let mut map = FieldMap::default();
        for assignment in assignments {
            let Some((part, name)) = assignment.split_once('=') else {
                return Err(format!("unknown field assignment {assignment:?}: expected, for example, text=body"));
            };
            let slot = match part {
                "id" => &mut map.id,
                "title" => &mut map.title,
                "text" => &mut map.text,
                "metadata" => &mut map.metadata,
                _ => {
                    return Err(format!(
                        "unknown part of a document {part:?} in {assignment:?}: expected id, title, text or metadata"
                    ));
                }
            };
            if slot.replace(name.to_owned()).is_some() {
                return Err(format!("{part} is assigned twice"));
            }
        }
        if map.text.as_deref() == Some("") {
            return Err("a document needs a text: name its field, for example text=body".to_owned());
        }
        Ok(map)
    }

    /// Derives IDs that are missing from the content, in JSON lines as in the other formats.
    #[must_use]
    pub fn with_derived_ids(self) -> FieldMap {
        FieldMap { derived_ids: true, ..self }
    }

    /// Returns `true` if IDs that are missing are derived from the content in every format.
    pub(super) fn derives_ids(&self) -> bool {
        self.derived_ids || self.id.as_deref() == Some("")
    }

    /// Names of the fields that may hold the text, in order of preference.
    pub(super) fn text_names(&self) -> Vec<&str> {
        names(self.text.as_ref(), &["text", CONTENTS])
    }

    /// Returns `true` if the field holds the metadata or the triples, which a table has as JSON.
    pub(super) fn is_structured(&self, name: &str) -> bool {
        let is_text = [&self.id, &self.title, &self.text].into_iter().any(|own| own.as_deref() == Some(name));
        !is_text && (name == "triples" || names(self.metadata.as_ref(), &["metadata"]).contains(&name))
    }

    /// Returns `true` if the field may hold the ID, the title or the text.
    pub(super) fn holds_text(&self, name: &str) -> bool {
        [self.id_names(), self.title_names(), self.text_names()].iter().any(|names| names.contains(&name))
    }

    fn id_names(&self) -> Vec<&str> {
        names(self.id.as_ref(), &["id", "_id"])
    }

    fn title_names(&self) -> Vec<&str> {
        names(self.title.as_ref(), &["title"])
    }

    /// Removes the ID from the fields.
    pub(super) fn take_id(&self, fields: &mut Map<String, Value>) -> Option<Value> {
        take(fields, &self.id_names()).map(|(_, value)| value)
    }

    /// Removes the title from the fields.
    pub(super) fn take_title(&self, fields: &mut Map<String, Value>) -> Option<Value> {
        take(fields, &self.title_names()).map(|(_, value)| value)
    }

    /// Removes the text from the fields. Returns the name of its field as well.
    pub(super) fn take_text(&self, fields: &mut Map<String, Value>) -> Option<(String, Value)> {
        take(fields, &self.text_names())
    }

    /// Removes the object of metadata from the fields.
    pub(super) fn take_metadata(&self, fields: &mut Map<String, Value>) -> Option<Value> {
        take(fields, &names(self.metadata.as_ref(), &["metadata"])).map(|(_, value)| value)
    }
}

/// Field of Search-R1's corpora: the title in quotes, a line break, and the text.
pub(super) const CONTENTS: &str = "contents";

/// Names of a field. If `own` is empty, there are none, although a table may have a column with an empty name.
fn names<'a>(own: Option<&'a String>, usual: &[&'a str]) -> Vec<&'a str> {
    own.map_or_else(|| usual.to_vec(), |own| Some(own.as_str()).filter(|own| !own.is_empty()).into_iter().collect())
}

/// Removes the first of the fields that has a value. Fields before it that are null are removed as well.
fn take(fields: &mut Map<String, Value>, names: &[&str]) -> Option<(String, Value)> {
    // `shift_remove_entry` keeps the order of the other fields, which become metadata.
    let mut found = names.iter().filter_map(|&name| fields.shift_remove_entry(name));
    found.find(|(_, value)| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_name_takes_no_column_without_a_name() {
        // pandas's `to_csv` writes such a column for its index.
        let mut fields = Map::from_iter([(String::new(), Value::from(7)), ("text".to_owned(), "a".into())]);
        let map = FieldMap::parse(["id=", "title="]).unwrap_or_default();
        assert!(map.derives_ids() && !FieldMap::default().derives_ids());
        assert_eq!((map.take_id(&mut fields), map.take_title(&mut fields)), (None, None));
        assert_eq!(map.take_text(&mut fields), Some(("text".to_owned(), "a".into())));
    }

    #[test]
    fn assignments_are_understood_or_refused() {
        let map = FieldMap::parse(["text=body", "id="]);
        assert!(map.is_ok_and(|map| map.derives_ids() && map.text_names() == ["body"]));
        for (assignment, expected) in [
            ("body", "expected, for example"),
            ("body=text", "expected id, title, text or metadata"),
            ("text=", "a document needs a text"),
        ] {
            assert!(FieldMap::parse([assignment]).is_err_and(|message| message.contains(expected)), "{assignment}");
        }
        assert!(FieldMap::parse(["id=a", "id=b"]).is_err_and(|message| message.contains("assigned twice")));
    }
}
