//! Progress of a build.

use std::fmt;
use std::time::Duration;

/// Phase of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BuildPhase {
    /// Reads passages, stores them and indexes their words. The total is unknown until the end.
    Reading,
    /// Embeds passages.
    Embedding,
    /// Links vectors into the nearest-neighbor graph.
    Linking,
    /// Extracts triples from passages.
    Extracting,
    /// Embeds the phrases of the graph.
    Phrases,
    /// Embeds the facts of the graph.
    Facts,
    /// Finds synonymous phrases.
    Synonyms,
    /// Syncs and checksums files.
    Sealing,
    /// Publishes the snapshot.
    Publishing,
}

impl fmt::Display for BuildPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BuildPhase::Reading => "reading",
            BuildPhase::Embedding => "embedding",
            BuildPhase::Linking => "linking",
            BuildPhase::Extracting => "extracting",
            BuildPhase::Phrases => "phrases",
            BuildPhase::Facts => "facts",
            BuildPhase::Synonyms => "synonyms",
            BuildPhase::Sealing => "sealing",
            BuildPhase::Publishing => "publishing",
        })
    }
}

/// Estimated time that a build spends on embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingEstimate {
    /// Time to embed the passages.
    pub passages: Duration,
    /// Time to embed the phrases and facts of the graph. Zero without a graph.
    pub graph: Duration,
}

/// Script with no extracted triples in most of its passages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadScript {
    /// Name of the script.
    pub script: &'static str,
    /// Number of passages in this script.
    pub passages: u64,
    /// Number of those without triples.
    pub unread: u64,
}

/// Receives the progress of a build. Phases come in order; within a phase, `done` grows to `total`.
pub trait BuildProgress: Sync {
    /// Reports that `done` of `total` units (passages, vectors, files, steps) are done. May be called from several
    /// threads at once, and then slightly out of order.
    fn update(&self, phase: BuildPhase, done: u64, total: Option<u64>);

    /// Reports, before anything is embedded, the number of passages that are longer than the embedder reads. Not called
    /// for 0.
    fn truncated(&self, _passages: u64) {}

    /// Reports, before the embedding of many new passages begins, how long it will take. The estimate is rough, above
    /// all that of the graph, whose texts are not known yet.
    fn estimated(&self, _estimate: EmbeddingEstimate) {}

    /// Reports, after triples were extracted, a script with no triples in most of its passages.
    fn unread(&self, _script: &UnreadScript) {}
}

/// Ignores all progress.
impl BuildProgress for () {
    fn update(&self, _: BuildPhase, _: u64, _: Option<u64>) {}
}
