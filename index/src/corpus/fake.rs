//! Documents for unit tests.

use super::Document;

/// Document without a title, whose text names its ID.
pub(crate) fn document(id: &str) -> Document {
    let text = format!("the text of {id}");
    Document { id: id.to_owned(), title: String::new(), text, triples: None, metadata: None }
}
