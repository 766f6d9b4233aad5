//! Corpus in, evidence out: passage store, BM25, dense vectors, fusion, snapshots.

mod evidence;

pub use evidence::{Evidence, Hit, Mode, Passage, Path, Place, Query, Ranking, UnknownName};
