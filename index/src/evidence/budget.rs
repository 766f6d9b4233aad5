//! Limit on the memory that the results of a search take.

use serde_json::{Map, Value};

use super::{Hit, TripleHit};
use crate::error::IndexError;

/// Upper bound of the size of the fields around the texts of a result.
const FIELDS: usize = 512;

/// Number of bytes that the results of a search may still take, counted while the results are read.
#[derive(Debug)]
pub(crate) struct EvidenceBudget {
    bytes: usize,
    left_out: usize,
}

impl EvidenceBudget {
    pub(crate) fn new(bytes: usize) -> EvidenceBudget {
        EvidenceBudget { bytes, left_out: 0 }
    }

    /// Number of results left out.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Reads the next passage. `None` if there is no room for it, or there was none for an earlier result: the results
    /// that are read are a prefix of those found.
    pub(crate) fn hit(&mut self, read: impl FnOnce() -> Result<Hit, IndexError>) -> Result<Option<Hit>, IndexError> {
        self.read(read, Hit::bytes)
    }

    /// Reads the next triple, as [`EvidenceBudget::hit`] does.
    pub(crate) fn triple(
        &mut self,
        read: impl FnOnce() -> Result<TripleHit, IndexError>,
    ) -> Result<Option<TripleHit>, IndexError> {
        self.read(read, TripleHit::bytes)
    }

    fn read<T>(
        &mut self,
        read: impl FnOnce() -> Result<T, IndexError>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Result<Option<T>, IndexError> {
        // A result behind one that was left out is not even read.
        if self.left_out > 0 {
            self.left_out += 1;
            return Ok(None);
        }
        let result = read()?;
        match self.bytes.checked_sub(bytes(&result)) {
            Some(left) => {
                self.bytes = left;
                Ok(Some(result))
            }
            None => {
                self.left_out = 1;
                Ok(None)
            }
        }
    }
}

impl Hit {
    /// Approximate size of the passage with its metadata and path in JSON. Escaping is not counted.
    pub fn bytes(&self) -> usize {
        let metadata = self.metadata.as_ref().map_or(0, map_bytes);
        let via = self.path.graph.iter().flat_map(|rank| &rank.via).map(|edge| edge.phrase.len() + 32).sum::<usize>();
        FIELDS + self.passage.id.len() + self.passage.title.len() + self.passage.text.len() + metadata + via
    }
}

impl TripleHit {
    /// Approximate size of the triple in JSON. Escaping is not counted.
    pub fn bytes(&self) -> usize {
        let TripleHit { subject, relation, object, passages, .. } = self;
        FIELDS + subject.len() + relation.len() + object.len() + passages.iter().map(|id| id.len() + 3).sum::<usize>()
    }
}

fn map_bytes(map: &Map<String, Value>) -> usize {
    map.iter().map(|(name, value)| name.len() + value_bytes(value) + 4).sum()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| value_bytes(item) + 1).sum(),
        Value::Object(map) => map_bytes(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}
