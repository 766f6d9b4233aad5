//! Everything that can go wrong between a corpus and its evidence.

use std::io;
use std::path::{Path, PathBuf};

use crate::embed::EmbedError;
use crate::filter::FilterError;
use crate::location::Location;
use crate::mode::Mode;

/// Error returned by an [`Extract`](crate::Extract).
pub type ExtractError = Box<dyn std::error::Error + Send + Sync>;

/// Why an index could not be built, opened or searched. Each names the file or field, and what to do where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A record of a corpus cannot be read.
    #[error("{location}: {message} (mend it, or skip such records with --skip-bad)")]
    BadRecord {
        /// Where the record begins.
        location: Location,
        /// What is wrong with it.
        message: String,
    },
    /// A corpus cannot be read any further.
    #[error("{location}: {message}")]
    BadCorpus {
        /// Where reading ended.
        location: Location,
        /// What is wrong there.
        message: String,
    },
    /// A file of triples cannot be used.
    #[error("{location}: {message}")]
    BadTriples {
        /// Where reading ended.
        location: Location,
        /// What is wrong there, and what to do.
        message: String,
    },
    /// No triples could be extracted.
    #[error("cannot extract triples ({what}): {source}")]
    Extract {
        /// What was extracting, as [`Extract::id`](crate::Extract::id) names it.
        what: String,
        /// What it said.
        source: ExtractError,
    },
    /// Two records of a corpus have the same id.
    #[error("{second}: id {id:?} was already used at {first}: ids must be unique")]
    DuplicateId {
        /// The id.
        id: String,
        /// Its first use.
        first: Location,
        /// Its second use.
        second: Location,
    },
    /// A corpus holds no passage at all.
    #[error("{} holds no passages ({skipped} records skipped){}", path.display(), what_is_read(*folder))]
    EmptyCorpus {
        /// The corpus.
        path: PathBuf,
        /// Records passed over as bad.
        skipped: u64,
        /// Whether it is a folder, where only prose is read.
        folder: bool,
    },
    /// A corpus is too large for one index.
    #[error("the corpus holds more than {limit} passages: split it into several indexes")]
    TooLarge {
        /// How many passages one index can hold.
        limit: u64,
    },
    /// An index is already there.
    #[error("{} already holds an index: choose another folder, or replace it with --replace", dir.display())]
    Exists {
        /// The folder.
        dir: PathBuf,
    },
    /// A change makes no sense.
    #[error("the change to document {id:?} is refused: {message}")]
    BadChange {
        /// The id of the document.
        id: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// A document brings no triples, and what found those of the others cannot be asked.
    #[error(
        "document {id:?} brings no triples, and those of this index are from {extractor}, which cannot be asked here: give \
         the document its `triples`, or name what finds them"
    )]
    NoTriples {
        /// The id of the document.
        id: String,
        /// What found the triples of the others.
        extractor: String,
    },
    /// The changes would leave no document.
    #[error("the changes would leave {} without a document: remove the folder instead", dir.display())]
    Emptied {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder to build in holds something else.
    #[error("{} is neither empty nor an index: nothing was written, choose another folder", dir.display())]
    Foreign {
        /// The folder.
        dir: PathBuf,
    },
    /// The last number a snapshot can have is taken.
    #[error("{} has no number left for another snapshot: build in another folder", dir.display())]
    Numbers {
        /// The folder.
        dir: PathBuf,
    },
    /// Another process is writing there.
    #[error("{} is being written by another process: wait until it is done", dir.display())]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
    /// Something else was put in the place of the index while it was being changed.
    #[error("{} was replaced by another index while it was being changed: nothing was changed, try again", dir.display())]
    Replaced {
        /// The folder.
        dir: PathBuf,
    },
    /// There is no index to open.
    #[error("{} holds no index (manifest.json is missing): build one with `waymark index build`", dir.display())]
    NoIndex {
        /// The folder.
        dir: PathBuf,
    },
    /// The index was written by a version of the format that this program does not read.
    #[error(
        "{} has index format {found}, this program reads format {expected}: build the index again{}",
        dir.display(), from_what(*found)
    )]
    Version {
        /// The folder.
        dir: PathBuf,
        /// The format it has.
        found: u64,
        /// The format that is read here.
        expected: u32,
    },
    /// A file is not as it was written.
    #[error("{} is damaged: {message}: restore it from a copy or build the index again", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// What does not fit.
        message: String,
    },
    /// The index was made with another embedder.
    #[error(
        "{} was built with the embedder {built} ({built_dims} dimensions), not with {given} ({given_dims}): \
         serve it with that embedder or build it again, from its corpus or from what `waymark index export` gives",
        dir.display()
    )]
    Embedder {
        /// The folder.
        dir: PathBuf,
        /// The embedder it was built with.
        built: String,
        /// Its dimensions.
        built_dims: usize,
        /// The embedder it was opened with.
        given: String,
        /// Its dimensions.
        given_dims: usize,
    },
    /// The embedder failed.
    #[error("cannot embed {what}: {source}")]
    Embed {
        /// What was being embedded.
        what: String,
        /// What the embedder said.
        source: EmbedError,
    },
    /// The filter of facts failed.
    #[error("cannot filter the facts found for the query: {source}")]
    Filter {
        /// What the filter said.
        source: FilterError,
    },
    /// This index cannot search in that mode.
    #[error("mode `{mode}` is not available: this index holds no graph, use mode `passage`")]
    Unsupported {
        /// The mode asked for.
        mode: Mode,
    },
    /// A field of a query has a value that makes no sense.
    #[error("`{field}` {message}")]
    BadQuery {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        message: &'static str,
    },
    /// The deadline of a query passed.
    #[error("the deadline passed before {stage}")]
    Deadline {
        /// The stage that was not begun.
        stage: &'static str,
    },
    /// The lexical index failed.
    #[error("cannot {action} the lexical index {}: {source}", path.display())]
    Lexical {
        /// What was tried.
        action: &'static str,
        /// Its folder.
        path: PathBuf,
        /// What tantivy said.
        source: tantivy::TantivyError,
    },
    /// The vector index failed.
    #[error("cannot {action} the vector index: {message}")]
    Dense {
        /// What was tried.
        action: &'static str,
        /// What usearch said.
        message: String,
    },
}

fn what_is_read(folder: bool) -> &'static str {
    if folder { ": only Markdown and text files in it are read; name a JSONL or JSON file itself" } else { "" }
}

/// The first format whose programs have `waymark index export`.
const EXPORTED: u64 = 2;

fn from_what(format: u64) -> &'static str {
    let known = ", from its corpus or from what `waymark index export` of a version that reads it gives";
    if format >= EXPORTED { known } else { "" }
}

impl IndexError {
    /// For `map_err` after a call to the operating system.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IndexError + use<> {
        let path = path.to_owned();
        move |source| IndexError::Io { action, path, source }
    }

    pub(crate) fn corrupt(file: &Path, message: impl Into<String>) -> IndexError {
        IndexError::Corrupt { file: file.to_owned(), message: message.into() }
    }

    /// For `map_err` after a call to tantivy about the index in `dir`.
    pub(crate) fn lexical(
        action: &'static str,
        dir: &Path,
    ) -> impl FnOnce(tantivy::TantivyError) -> IndexError + use<> {
        let path = dir.to_owned();
        move |source| IndexError::Lexical { action, path, source }
    }
}
