//! Errors of building, opening and searching an index.

use std::io;
use std::path::{Path, PathBuf};

use crate::corpus::READABLE;
use crate::embed::EmbedError;
use crate::filter::FilterError;
use crate::invalid_option::InvalidOption;
use crate::location::Location;
use crate::mode::Mode;
use crate::rerank::RerankError;

/// Error returned by an [`Extract`](crate::Extract).
pub type ExtractError = Box<dyn std::error::Error + Send + Sync>;

/// Error of building, opening or searching an index. Messages name the file or field and, where possible, the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// An operation of the operating system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Attempted operation, as a verb.
        action: &'static str,
        /// File or folder concerned.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A record of a corpus cannot be read.
    #[error("{location}: {message} (fix it, or skip such records with --skip-bad)")]
    BadRecord {
        /// First line of the record.
        location: Location,
        /// Reason.
        message: String,
    },
    /// The rest of a corpus cannot be read.
    #[error("{location}: {message}")]
    BadCorpus {
        /// Position where reading stopped.
        location: Location,
        /// Reason.
        message: String,
    },
    /// A file of a corpus is of a type that is not read.
    #[error("{}: {message}", path.display())]
    UnsupportedFile {
        /// The file.
        path: PathBuf,
        /// Type of the file, and the remedy.
        message: String,
    },
    /// A file of triples cannot be used.
    #[error("{location}: {message}")]
    BadTriples {
        /// Position where reading stopped.
        location: Location,
        /// Reason, and the remedy.
        message: String,
    },
    /// Triples could not be extracted.
    #[error("cannot extract triples ({what}): {source}")]
    Extract {
        /// Name of the extractor, as [`Extract::id`](crate::Extract::id) returns it.
        what: String,
        /// Error of the extractor.
        source: ExtractError,
    },
    /// Two records of a corpus have the same ID.
    #[error("{second}: id {id:?} was already used at {first}: ids must be unique")]
    DuplicateId {
        /// The repeated ID.
        id: String,
        /// Position of its first use.
        first: Location,
        /// Position of its second use.
        second: Location,
    },
    /// A corpus holds no passage.
    #[error("{} holds no passages ({skipped} records skipped){}", path.display(), files_skipped(files))]
    EmptyCorpus {
        /// Path of the corpus.
        path: PathBuf,
        /// Number of malformed records skipped.
        skipped: u64,
        /// First files of the folder that were not read, with the reasons.
        files: String,
    },
    /// A corpus is too large for one index.
    #[error("the corpus holds more than {limit} passages: split it into several indexes")]
    TooLarge {
        /// Maximum number of passages in an index.
        limit: u64,
    },
    /// The folder already holds an index.
    #[error("{} already holds an index: choose another folder, or replace it with --replace", dir.display())]
    Exists {
        /// Folder of the index.
        dir: PathBuf,
    },
    /// A change to a document is invalid.
    #[error("the change to document {id:?} is refused: {message}")]
    BadChange {
        /// ID of the document.
        id: String,
        /// Reason.
        message: &'static str,
    },
    /// A document brings no triples, and the extractor used for the other documents is not available.
    #[error(
        "document {id:?} brings no triples, and those of this index are from {extractor}, which cannot be asked here: give \
         the document its `triples`, or name what finds them"
    )]
    NoTriples {
        /// ID of the document.
        id: String,
        /// Extractor of the other documents' triples.
        extractor: String,
    },
    /// Another process has taken an accepted change.
    #[error("another process has taken the change {id}, which it has made or refused: look at the documents")]
    Taken {
        /// ID of the change.
        id: String,
    },
    /// The changes would remove every document.
    #[error("the changes would leave {} without a document: remove the folder instead", dir.display())]
    Emptied {
        /// Folder of the index.
        dir: PathBuf,
    },
    /// The target folder holds files that belong to no index.
    #[error("{} is neither empty nor an index: nothing was written, choose another folder", dir.display())]
    Foreign {
        /// The folder.
        dir: PathBuf,
    },
    /// Snapshot numbers are exhausted.
    #[error("{} has no number left for another snapshot: build in another folder", dir.display())]
    Numbers {
        /// Folder of the index.
        dir: PathBuf,
    },
    /// Another process is writing to the folder.
    #[error("{} is being written by another process: wait until it is done", dir.display())]
    Locked {
        /// Folder of the index.
        dir: PathBuf,
    },
    /// A snapshot is not kept.
    #[error("{} keeps no snapshot {number}: keep earlier snapshots with --keep-snapshots", dir.display())]
    NoSnapshot {
        /// Folder of the index.
        dir: PathBuf,
        /// Number of the snapshot.
        number: u64,
    },
    /// Another index replaced this one during a commit.
    #[error("{} was replaced by another index while it was being changed: nothing was changed, try again", dir.display())]
    Replaced {
        /// Folder of the index.
        dir: PathBuf,
    },
    /// The folder holds no index.
    #[error("{} holds no index (manifest.json is missing): build one with `waymark index build`", dir.display())]
    NoIndex {
        /// The folder.
        dir: PathBuf,
    },
    /// The index has a format version that this program does not read.
    #[error(
        "{} has index format {found}, this program reads format {expected}: build the index again{}",
        dir.display(), from_what(*found)
    )]
    Version {
        /// Folder of the index.
        dir: PathBuf,
        /// Format version of the index.
        found: u64,
        /// Format version that this program reads.
        expected: u32,
    },
    /// A file differs from what was written.
    #[error("{} is damaged: {message}: restore it from a copy or build the index again", file.display())]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// The mismatch.
        message: String,
    },
    /// The index was built with another embedder.
    #[error(
        "{} was built with the embedder {built} ({built_dims} dimensions), not with {given} ({given_dims}): \
         serve it with that embedder or build it again, from its corpus or from the output of `waymark index export`",
        dir.display()
    )]
    Embedder {
        /// Folder of the index.
        dir: PathBuf,
        /// ID of the embedder at build time.
        built: String,
        /// Vector length of the embedder at build time.
        built_dims: usize,
        /// ID of the given embedder.
        given: String,
        /// Vector length of the given embedder.
        given_dims: usize,
    },
    /// The embedder failed.
    #[error("cannot embed {what}: {source}")]
    Embed {
        /// Texts being embedded.
        what: String,
        /// Error of the embedder.
        source: EmbedError,
    },
    /// The fact filter failed.
    #[error("cannot filter the facts found for the query: {source}")]
    Filter {
        /// Error of the filter.
        source: FilterError,
    },
    /// The reranker failed.
    #[error("cannot rerank the candidates found for the query: {source}")]
    Rerank {
        /// Error of the reranker.
        source: RerankError,
    },
    /// The query asks for a reranker, and the index has none.
    #[error("`rerank` needs a reranker: name one with --reranker, or leave `rerank` out")]
    NoReranker,
    /// The index does not support the search mode.
    #[error("mode `{mode}` is not available: this index holds no graph, use mode `passage`")]
    Unsupported {
        /// The requested mode.
        mode: Mode,
    },
    /// A field of a query has an invalid value.
    #[error(transparent)]
    BadQuery(InvalidOption),
    /// The deadline of a query passed.
    #[error("the deadline passed before {stage}")]
    Deadline {
        /// Stage of the search that was not started.
        stage: &'static str,
    },
    /// The lexical index failed.
    #[error("cannot {action} the lexical index {}: {source}", path.display())]
    Lexical {
        /// Attempted operation.
        action: &'static str,
        /// Folder of the lexical index.
        path: PathBuf,
        /// Error of tantivy.
        source: tantivy::TantivyError,
    },
    /// The vector index failed.
    #[error("cannot {action} the vector index: {message}")]
    Dense {
        /// Attempted operation.
        action: &'static str,
        /// Message of usearch.
        message: String,
    },
}

fn files_skipped(files: &str) -> String {
    if files.is_empty() { String::new() } else { format!(": files read are {READABLE}; not read were {files}") }
}

/// First format whose programs provide `waymark index export`.
const EXPORTED: u64 = 2;

fn from_what(format: u64) -> &'static str {
    let known = ", from its corpus or from what `waymark index export` of a version that reads it gives";
    if format >= EXPORTED { known } else { "" }
}

impl IndexError {
    /// Returns a closure for `map_err` after an operation on `path`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IndexError + use<> {
        let path = path.to_owned();
        move |source| IndexError::Io { action, path, source }
    }

    pub(crate) fn corrupt(file: &Path, message: impl Into<String>) -> IndexError {
        IndexError::Corrupt { file: file.to_owned(), message: message.into() }
    }

    /// Returns a closure for `map_err` after a call to tantivy on the index in `dir`.
    pub(crate) fn lexical(
        action: &'static str,
        dir: &Path,
    ) -> impl FnOnce(tantivy::TantivyError) -> IndexError + use<> {
        let path = dir.to_owned();
        move |source| IndexError::Lexical { action, path, source }
    }
}
