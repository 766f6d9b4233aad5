//! Corpus in, evidence out: passage store, BM25, dense vectors, fusion, snapshots.

pub mod corpus;
mod embed;
mod error;
mod evidence;

pub use corpus::{Corpus, CorpusOptions, Document, Location};
pub use embed::{Embed, EmbedError};
pub use error::IndexError;
pub use evidence::{Evidence, Hit, Mode, Passage, Path, Place, Query, Ranking, UnknownName};
