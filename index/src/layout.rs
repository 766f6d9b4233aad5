//! Names of the files and folders of an index.

/// Name of the manifest in the folder of an index.
pub const MANIFEST: &str = "manifest.json";

/// Name of the lock file of an index, locked by its only writer.
pub const LOCK: &str = ".waymark.lock";

/// Beginning of the names of the folders of snapshots.
pub const SNAPSHOT: &str = "snapshot-";

/// Name of the folder of the manifests of earlier snapshots.
pub const HISTORY: &str = "history";

/// Beginning of the names of the logs of changes.
pub const DELTA: &str = "delta-";

pub(crate) const MERGE_LOCK: &str = ".waymark.merge.lock";
pub(crate) const MERGE: &str = "merge-";
pub(crate) const PENDING: &str = "pending";
pub(crate) const FINISHED: &str = "finished.json";
pub(crate) const FINISHED_PART: &str = "finished.json.new";
pub(crate) const LOG: &str = ".log";
pub(crate) const PARTIAL: &str = ".part";
pub(crate) const MANIFEST_PART: &str = "manifest.json.part";

/// Name of the journal of embeddings.
pub(crate) const JOURNAL: &str = ".embeddings";

/// Names of the files and folders of a snapshot, relative to its folder.
pub(crate) mod snapshot_file {
    pub(crate) const STORE: &str = "passages.bin";
    pub(crate) const VECTORS: &str = "vectors.bin";
    pub(crate) const VECTOR_GRAPH: &str = "vectors.usearch";
    pub(crate) const NODE_PASSAGES: &str = "vectors.keys";
    pub(crate) const LEXICAL: &str = "lexical";
    pub(crate) const GRAPH: &str = "graph";
}

/// Returns the name of the folder of a snapshot.
pub(crate) fn snapshot_name(number: u64) -> String {
    format!("{SNAPSHOT}{number}")
}

/// Returns the name of the log of changes that begins with this snapshot.
pub(crate) fn delta_name(number: u64) -> String {
    format!("{DELTA}{number}{LOG}")
}

/// Parses the number of the first snapshot from the name of a log of changes.
pub(crate) fn delta_number(name: &str) -> Option<u64> {
    name.strip_prefix(DELTA)?.strip_suffix(LOG)?.parse().ok()
}

/// Parses the number of a snapshot from the name of its folder, complete or partial.
pub(crate) fn snapshot_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix(SNAPSHOT)?;
    number.strip_suffix(PARTIAL).unwrap_or(number).parse().ok()
}

/// Names of the files of a graph, relative to its folder.
pub(crate) mod graph_file {
    pub(crate) const TRIPLES: &str = "triples.bin";
    pub(crate) const PHRASES: &str = "phrases.bin";
    pub(crate) const RELATIONS: &str = "relations.bin";
    pub(crate) const FACTS: &str = "facts.bin";
    pub(crate) const MENTIONS: &str = "mentions.bin";
    pub(crate) const PHRASE_VECTORS: &str = "phrase_vectors.bin";
    pub(crate) const FACT_VECTORS: &str = "fact_vectors.bin";
    pub(crate) const FACT_CODES: &str = "fact_codes.bin";
    pub(crate) const SYNONYMS: &str = "synonyms.bin";
    pub(crate) const ADJACENCY: &str = "adjacency.bin";

    /// All files that opening a graph reads.
    pub(crate) const ALL: [&str; 10] =
        [TRIPLES, PHRASES, RELATIONS, FACTS, MENTIONS, PHRASE_VECTORS, FACT_VECTORS, FACT_CODES, SYNONYMS, ADJACENCY];
}
