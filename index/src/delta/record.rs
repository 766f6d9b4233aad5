//! Records of a delta log: the changes of one commit and everything derived from them that is expensive to compute.
//!
//! A record is the length of its JSON as a little-endian `u32`, the JSON, and the vectors and scores as little-endian
//! `f32`, in the order in which the JSON counts them.

use std::num::TryFromIntError;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::corpus::Document;
use crate::evidence::Passage;
use crate::graph::{DerivedGraph, TripleOrigin};
use crate::triple::Triple;

/// Document of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecordDocument {
    pub(crate) id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) title: String,
    pub(crate) text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Map<String, Value>>,
    /// Triples, given or extracted, without repetitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) triples: Vec<Triple>,
    pub(crate) origin: TripleOrigin,
    /// Vector of length 1.
    #[serde(skip)]
    pub(crate) vector: Vec<f32>,
}

impl RecordDocument {
    pub(crate) fn passage(&self) -> Passage {
        Passage { id: self.id.clone(), title: self.title.clone(), text: self.text.clone() }
    }

    pub(crate) fn content(&self) -> String {
        crate::corpus::content(&self.title, &self.text)
    }

    /// Returns the document without triples, as the passage store does.
    pub(crate) fn document(&self) -> Document {
        Document {
            id: self.id.clone(),
            title: self.title.clone(),
            text: self.text.clone(),
            triples: None,
            metadata: self.metadata.clone(),
        }
    }
}

/// Changes of one commit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DeltaRecord {
    /// Number of the snapshot that the record makes.
    pub(crate) snapshot: u64,
    /// IDs of removed documents.
    pub(crate) deleted: Vec<String>,
    /// Added and replacing documents, in order.
    pub(crate) upserted: Vec<Arc<RecordDocument>>,
    /// Vectors and synonyms of new phrases and facts.
    pub(crate) derived: DerivedGraph,
}

/// JSON part of a record.
#[derive(Serialize, Deserialize)]
struct RecordHead<D> {
    snapshot: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deleted: Vec<String>,
    upserted: Vec<D>,
    dims: usize,
    phrases: usize,
    facts: usize,
    /// Phrases whose synonyms changed, with their new synonyms.
    synonyms: Vec<(u32, Vec<u32>)>,
}

impl DeltaRecord {
    /// Encodes the record. Fails if its JSON is 4 GiB or longer.
    pub(crate) fn encode(&self, dims: usize) -> Result<Vec<u8>, TryFromIntError> {
        let synonyms = self.derived.synonyms.iter();
        let head = RecordHead {
            snapshot: self.snapshot,
            deleted: self.deleted.clone(),
            upserted: self.upserted.iter().map(Arc::as_ref).collect::<Vec<&RecordDocument>>(),
            dims,
            phrases: self.derived.phrases.len(),
            facts: self.derived.facts.len(),
            synonyms: synonyms.map(|(p, list)| (*p, list.iter().map(|(number, _)| *number).collect())).collect(),
        };
        // Serialization fails only for non-string map keys and failing writers; neither occurs here.
        #[allow(clippy::expect_used)]
        let json = serde_json::to_vec(&head).expect("plain data");
        let mut bytes = length_bytes(json.len())?.to_vec();
        bytes.extend_from_slice(&json);
        let mut floats = |values: &[f32]| bytes.extend_from_slice(bytemuck::cast_slice(values));
        self.upserted.iter().for_each(|document| floats(&document.vector));
        self.derived.phrases.iter().chain(&self.derived.facts).for_each(|vector| floats(vector));
        self.derived.synonyms.iter().flat_map(|(_, list)| list).for_each(|(_, score)| floats(&[*score]));
        Ok(bytes)
    }

    /// Decodes a record of vectors of `dims` numbers. `None` if the bytes are not such a record.
    pub(crate) fn decode(bytes: &[u8], dims: usize) -> Option<DeltaRecord> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (json, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let head: RecordHead<RecordDocument> = serde_json::from_slice(json).ok()?;
        let (numbers, over) = rest.as_chunks();
        let mut numbers = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes));
        if head.dims != dims || !over.is_empty() {
            return None;
        }
        let mut vector = || -> Option<Vec<f32>> {
            let vector: Vec<f32> = numbers.by_ref().take(dims).collect();
            (vector.len() == dims).then_some(vector)
        };
        let mut upserted = Vec::with_capacity(head.upserted.len());
        for document in head.upserted {
            upserted.push(Arc::new(RecordDocument { vector: vector()?, ..document }));
        }
        // Collecting checks each vector, so a huge count ends with the first one that is missing.
        let phrases = (0..head.phrases).map(|_| vector().map(Arc::from)).collect::<Option<_>>()?;
        let facts = (0..head.facts).map(|_| vector().map(Arc::from)).collect::<Option<_>>()?;
        let mut synonyms = Vec::with_capacity(head.synonyms.len());
        for (phrase, list) in head.synonyms {
            let list = list.into_iter().map(|number| Some((number, numbers.next()?))).collect::<Option<Vec<_>>>()?;
            synonyms.push((phrase, list));
        }
        if numbers.next().is_some() {
            return None;
        }
        let derived = DerivedGraph { phrases, facts, synonyms };
        Some(DeltaRecord { snapshot: head.snapshot, deleted: head.deleted, upserted, derived })
    }
}

/// Encodes the length of the JSON of a record.
fn length_bytes(length: usize) -> Result<[u8; 4], TryFromIntError> {
    u32::try_from(length).map(u32::to_le_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_record_is_read_as_written_and_no_prefix_is() {
        let document = RecordDocument {
            id: "a".to_owned(),
            title: String::new(),
            text: "text".to_owned(),
            metadata: Some([("n".to_owned(), 1.into())].into_iter().collect()),
            triples: vec![Triple::new("a", "b", "c")],
            origin: TripleOrigin::Given,
            vector: vec![0.5, -1.0],
        };
        let derived = DerivedGraph {
            phrases: vec![vec![1.0, 0.0].into(), vec![0.0, 1.0].into()],
            facts: vec![vec![0.25, 0.75].into()],
            synonyms: vec![(7, vec![(1, 0.9), (3, 0.8)]), (1, Vec::new())],
        };
        let deleted = vec!["gone".to_owned()];
        let record = DeltaRecord { snapshot: 3, deleted, upserted: vec![Arc::new(document)], derived };
        let bytes = record.encode(2).unwrap();
        assert_eq!(DeltaRecord::decode(&bytes, 2).unwrap(), record);
        assert!((0..bytes.len()).all(|end| DeltaRecord::decode(&bytes[..end], 2).is_none()));
        assert!(DeltaRecord::decode(&bytes, 3).is_none());
    }

    #[test]
    fn a_length_that_does_not_fit_is_refused() {
        assert_eq!(length_bytes(0x0102).unwrap(), [2, 1, 0, 0]);
        assert!(length_bytes(u32::MAX as usize + 1).is_err());
    }
}
