//! Statements: subject, relation, object.

use serde::{Deserialize, Serialize};

/// One statement of a passage, as it was extracted or given: not yet normalised. In JSON an array of three strings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "[String; 3]", into = "[String; 3]")]
pub struct Triple {
    /// What the statement is about.
    pub subject: String,
    /// What it says of the two.
    pub relation: String,
    /// What the subject is related to.
    pub object: String,
}

impl Triple {
    /// A triple of its three parts.
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
