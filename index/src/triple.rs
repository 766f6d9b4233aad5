//! Statement of a passage: subject, relation, object.

use serde::{Deserialize, Serialize};

/// Statement of a passage as extracted or given, before normalization. Serialized as an array of three strings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "[String; 3]", into = "[String; 3]")]
pub struct Triple {
    /// Subject of the statement.
    pub subject: String,
    /// Relation between subject and object.
    pub relation: String,
    /// Object of the statement.
    pub object: String,
}

impl Triple {
    /// Builds a triple from its three parts.
    pub fn new(subject: impl Into<String>, relation: impl Into<String>, object: impl Into<String>) -> Triple {
        Triple { subject: subject.into(), relation: relation.into(), object: object.into() }
    }
}

impl From<[String; 3]> for Triple {
    fn from([subject, relation, object]: [String; 3]) -> Triple {
        Triple { subject, relation, object }
    }
}

impl From<Triple> for [String; 3] {
    fn from(Triple { subject, relation, object }: Triple) -> [String; 3] {
        [subject, relation, object]
    }
}
