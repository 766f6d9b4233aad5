//! Prompts: texts that some embedders expect before queries and before documents.

use serde::{Deserialize, Serialize};

/// Texts put before other texts when these are embedded. An index keeps those that it was built with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Prompts {
    /// Text before every query. Empty puts nothing before queries.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub query: String,
    /// Text before every passage, phrase and fact. Empty puts nothing before them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub document: String,
}

impl Prompts {
    /// Returns `true` if nothing is put before any text.
    pub fn is_empty(&self) -> bool {
        self.query.is_empty() && self.document.is_empty()
    }
}
