//! Corpus in, evidence out: passage store, BM25, dense vectors, fusion, snapshots.
//!
//! [`build`] makes an index of a [`Corpus`]; [`Index::open`] opens it and [`Index::search`] answers queries with
//! [`Evidence`]. What turns text into vectors is not known here: see [`Embed`].

#[cfg(test)]
extern crate self as waymark_index;

mod build;
mod commit;
mod complete;
mod condition;
mod contents;
pub mod corpus;
mod dense;
mod embed;
mod embedding;
mod error;
mod evidence;
mod extract;
mod filter;
mod folder;
pub mod fusion;
#[cfg(test)]
mod golden;
pub mod graph;
mod index;
mod journal;
mod kag;
mod lexical;
mod live;
mod manifest;
mod memory;
pub mod openie;
pub mod pagerank;
mod progress;
mod python;
mod query;
mod recognition;
mod scored;
mod search;
mod snapshot;
mod store;
mod triple;
mod walk;

pub use build::{BuildOptions, BuildReport, build};
pub use commit::{Changes, CommitOptions, CommitReport, commit};
pub use complete::{Complete, CompleteError, Completion, Message, Role};
pub use condition::{Comparison, Condition};
pub use contents::Contents;
pub use corpus::{Corpus, CorpusOptions, Document, Location};
pub use embed::{Embed, EmbedError};
pub use error::IndexError;
pub use evidence::{Arrival, Evidence, Hit, Passage, Path, Place, SeedFact, SeedPhrase, Step, TripleHit, Walk};
pub use extract::{Extract, ExtractError, Passages, TripleSink};
pub use filter::{FactFilter, FilterError};
pub use index::{Index, Info, OpenOptions};
pub use kag::{Associated, AssociatedChunk, AssociatedTriple, FoundPhrase, KagOptions, KeyEntity, Relevance};
pub use live::{LiveIndex, LiveState};
pub use manifest::{Build, Embedder, FORMAT, GraphInfo, MANIFEST, Manifest, Sum};
pub use progress::{BuildProgress, Phase};
pub use query::{ENTITIES, GraphOptions, GraphVariant, Mode, Query, Ranking, TRIPLES, UnknownName};
pub use recognition::ModelFilter;
pub use triple::Triple;
