//! How far a build has come.

use std::fmt;

/// A stretch of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BuildPhase {
    /// Passages are read, stored and indexed by their words. How many there are is not known yet.
    Reading,
    /// Passages are embedded.
    Embedding,
    /// Vectors are joined into the graph of nearest neighbours.
    Linking,
    /// Triples are found in the passages.
    Extracting,
    /// Phrases of the graph are embedded.
    Phrases,
    /// Facts of the graph are embedded.
    Facts,
    /// Phrases that mean the same are looked for.
    Synonyms,
    /// Files are checked and made durable.
    Sealing,
    /// The snapshot is put in place.
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

/// Is told how far a build has come. Phases come in order; within one, `done` grows to `total`.
pub trait BuildProgress: Sync {
    /// `done` of `total` units (passages, vectors, files, steps) are done. May be called from several threads at
    /// once, and then not strictly in order.
    fn update(&self, phase: BuildPhase, done: u64, total: Option<u64>);
}

/// Says nothing.
impl BuildProgress for () {
    fn update(&self, _: BuildPhase, _: u64, _: Option<u64>) {}
}
