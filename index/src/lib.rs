//! Retrieval index: passage store, BM25, dense vectors, graph of triples, rank fusion, snapshots.
//!
//! [`build`] makes an index of a [`Corpus`], [`Index::open`] opens it, and [`Index::search`] answers queries with
//! [`Evidence`]. The crate knows no embedding model: callers supply one through [`Embed`].

#[cfg(test)]
extern crate self as waymark_index;

mod answer_room;
mod background;
mod batch_embedder;
mod build;
mod checksum;
mod commit;
mod complete;
mod condition;
mod contents;
pub mod corpus;
mod delta;
mod dense;
mod embed;
mod embedding_cache;
mod embedding_journal;
mod error;
mod evidence;
mod explore;
mod extract;
mod filter;
mod finished_changes;
mod folder;
pub mod fusion;
#[cfg(test)]
mod golden;
pub mod graph;
mod graph_ranking;
mod history;
mod hits;
mod index;
mod invalid_option;
mod kag;
pub mod layout;
mod lexical;
mod live;
mod location;
mod manifest;
mod mapped_faults;
mod mapped_files;
mod merge;
mod mode;
mod model_filter;
mod near_ids;
#[cfg(feature = "openapi")]
mod openapi;
pub mod openie;
mod options;
pub mod pagerank;
mod partition_point;
mod pending;
mod prepare;
mod progress;
mod prompts;
pub mod python;
mod query;
mod repair;
mod rerank;
mod scored;
mod scrub;
mod search;
mod search_options;
mod snapshot;
mod split_mix;
mod store;
mod triple;

pub use answer_room::{AnswerCut, AnswerRoom};
pub use build::{BuildOptions, BuildReport, build};
pub use checksum::FileChecksum;
pub use commit::{Changes, CommitOptions, CommitReport, commit};
pub use complete::{Complete, CompleteError, ModelMessage, ModelReply, ModelRole};
pub use condition::{Comparison, Condition};
pub use contents::Contents;
pub use corpus::{Corpus, CorpusOptions, Document, FieldMap, ReadLimits, SkippedFiles, TokenCounter};
pub use embed::{Embed, EmbedError, QueryAnnouncement, QueryContext};
pub use error::{ExtractError, IndexError};
pub use evidence::{
    Evidence, GraphRank, GraphTrace, Hit, HitPath, HitRank, KagChunk, KagTrace, KagTriple, KeyEntity, LinkedPhrase,
    Passage, PathEdge, RerankRank, SeedFact, SeedPhrase, TripleHit,
};
pub use explore::{
    ChunkSiblings, EdgeKind, ExampleQuestion, GraphNode, Neighborhood, NodeEdge, NodeKind, PhraseLookup, PhraseMatch,
    PhraseMatchKind, QuestionFact, TripleSource,
};
pub use extract::{Extract, Passages, TripleSink};
pub use filter::{FactFilter, FilterError};
pub use history::{SnapshotSummary, restore_snapshot, snapshots};
pub use index::{Index, IndexInfo};
pub use invalid_option::InvalidOption;
pub use layout::MANIFEST;
pub use live::{LiveIndex, LiveState};
pub use location::Location;
pub use manifest::{BuildInfo, DeltaInfo, EmbedderInfo, FORMAT, GraphInfo, Manifest};
pub use mapped_faults::catch_mapped_faults;
pub use mode::{GraphVariant, Mode, Ranking, UnknownName};
pub use model_filter::ModelFilter;
pub use options::{GraphOptions, KagOptions, MAX_K, OpenOptions, Relevance, RerankOptions};
pub use pending::{PendingChange, PendingChanges, PendingFile};
pub use prepare::PreparedVectors;
pub use progress::{BuildPhase, BuildProgress, EmbeddingEstimate, UnreadScript};
pub use prompts::Prompts;
pub use query::{ENTITIES, Query, TRIPLES};
pub use repair::{RepairReport, repair};
pub use rerank::{Rerank, RerankError, RerankScore};
pub use search_options::{GraphOverrides, SearchField, SearchFields, SearchOptions, SearchScope, WithSearch};
pub use store::PassageName;
pub use triple::Triple;
