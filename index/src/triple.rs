//! Statements: subject, relation, object.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::graph::python;

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

    /// The triples among what a model gave as such (HippoRAG 2, `llm_utils.py:filter_invalid_triples`): lists of
    /// exactly three, each member as Python's `str()` shows it, what is said twice only once.
    pub fn valid(rows: &[Value]) -> Vec<Triple> {
        let mut seen = HashSet::new();
        let triple = |row: &Value| match row.as_array()?.as_slice() {
            [subject, relation, object] => {
                Some(Triple::new(python::str(subject), python::str(relation), python::str(object)))
            }
            _ => None,
        };
        rows.iter().filter_map(triple).filter(|triple| seen.insert(triple.clone())).collect()
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
