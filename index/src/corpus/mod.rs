//! Corpora: documents read one by one from files of records, from texts, or from a folder of both. Each format has a
//! module of its own.

mod array;
mod chunks;
mod docx;
mod field_map;
mod file_reader;
mod folder;
mod format;
mod html;
mod html_references;
mod lines;
mod markdown;
mod outline;
mod parquet;
mod parquet_footer;
mod parquet_lists;
mod parquet_pages;
mod pdf;
mod pdf_fonts;
mod pdf_forms;
mod pdf_keys;
mod pdf_objects;
mod pdf_text;
mod prose;
mod read_limits;
mod record;
mod skipped;
mod source_file;
mod table;
mod tokens;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::IndexError;
use crate::location::Location;
use crate::triple::Triple;

pub use field_map::FieldMap;
pub(crate) use format::READABLE;
pub use format::{is_json, is_prose};
pub use read_limits::ReadLimits;
pub use skipped::SkippedFiles;
pub use tokens::TokenCounter;

use chunks::Chunker;
use file_reader::CorpusFile;
use prose::Prose;

/// Document of a corpus, which becomes one passage of an index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// ID, unique within the corpus.
    pub id: String,
    /// Title; may be empty.
    pub title: String,
    /// Text of the passage.
    pub text: String,
    /// Triples that the passage states. `None` leaves them to the extractor, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triples: Option<Vec<Triple>>,
    /// Further fields of the record, returned with the passage and read by a [`Condition`](crate::Condition). Not
    /// searched for words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
}

impl Document {
    /// Text to embed and search: `title`, a line break, `text`, as in HippoRAG.
    pub fn content(&self) -> String {
        content(&self.title, &self.text)
    }
}

pub(crate) fn content(title: &str, text: &str) -> String {
    if title.is_empty() { text.to_owned() } else { format!("{title}\n{text}") }
}

/// Options for [`Corpus::open`].
#[derive(Debug, Clone, Default)]
pub struct CorpusOptions {
    /// Skips and counts malformed records. If `false`, the first one is an error.
    pub skip_bad: bool,
    /// Maximum chunk size, in tokens if [`Corpus::measured`] sets a counter and else in characters. `None` splits texts
    /// into chunks of 256 tokens or 1000 characters, and leaves records whole.
    pub chunk: Option<usize>,
    /// Size of the end of a chunk that the next one repeats, in the same unit; at most half a chunk.
    pub overlap: usize,
    /// Names of the fields of records.
    pub fields: FieldMap,
    /// Limits on the reading of each file.
    pub limits: ReadLimits,
}

/// Document with its position in the corpus.
struct CorpusRecord {
    location: Location,
    document: Document,
    /// If `true`, the ID is a hash of the content, so a repeated ID means a repeated passage.
    from_content: bool,
}

/// Item of a corpus stream.
enum CorpusItem {
    Record(CorpusRecord),
    /// Text of a file, to be split.
    Prose(Prose),
    /// File of a folder that is not read, with the reason.
    Skipped(PathBuf, String),
}

/// Maximum bytes of a record. Longer ones are mistakes that would only fill the memory.
const LONGEST_RECORD: usize = 64 << 20;

/// Maximum bytes of a title. Extractors and citations read it again and again.
pub(crate) const LARGEST_TITLE: usize = 16 << 10;

type CorpusItems = Box<dyn Iterator<Item = Result<CorpusItem, IndexError>> + Send>;

/// Documents of a corpus, in order, read lazily. Iteration ends after an error.
pub struct Corpus {
    name: String,
    path: PathBuf,
    items: CorpusItems,
    chunker: Chunker,
    /// Chunks that were split and not yet returned.
    ready: VecDeque<CorpusRecord>,
    prose: bool,
    seen: HashMap<String, Location>,
    chunked: Vec<(String, u64)>,
    skip_bad: bool,
    skipped: u64,
    skipped_files: SkippedFiles,
    collapsed: u64,
    ended: bool,
}

impl fmt::Debug for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Corpus").field("path", &self.path).field("read", &self.seen.len()).finish_non_exhaustive()
    }
}

impl Corpus {
    /// Opens the corpus at `path`: a file or a folder of files. Files of records are JSONL, a JSON list, CSV, TSV and
    /// Parquet, with the fields that [`CorpusOptions::fields`] names. Files of text are Markdown, plain text, HTML,
    /// DOCX and PDF. All but Parquet may be compressed (`.gz`, `.zst`).
    ///
    /// Chunk IDs consist of the name of the file or the ID of the record, `#`, and a number from 1.
    ///
    /// # Errors
    /// If the path cannot be opened, or is a file of a type that is not read. Malformed content is reported while
    /// reading.
    pub fn open(path: &Path, options: &CorpusOptions) -> Result<Corpus, IndexError> {
        let fields = Arc::new(options.fields.clone());
        let limits = options.limits.clone();
        let folder = path.is_dir();
        let items = if folder {
            folder::read(path, &fields, &limits)?
        } else {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            CorpusFile { path, name, in_folder: false }.read(&fields, &limits)?
        };
        let size = options.chunk.map(|size| size.max(1));
        let chunker = Chunker { size, overlap: options.overlap, tokens: None, limits };
        let prose = folder || is_prose(path);
        Ok(Corpus { prose, chunker, ..Corpus::over(name_of(path), path, items, options.skip_bad) })
    }

    /// Corpus of documents in memory.
    pub fn from_documents(name: &str, documents: Vec<Document>) -> Corpus {
        let path = PathBuf::from(name);
        let file: Arc<Path> = path.as_path().into();
        let records = documents.into_iter().zip(1..).map(move |(document, line)| {
            Ok(CorpusItem::Record(CorpusRecord {
                location: Location { file: file.clone(), line },
                document,
                from_content: false,
            }))
        });
        Corpus::over(name.to_owned(), &path, Box::new(records), false)
    }

    fn over(name: String, path: &Path, items: CorpusItems, skip_bad: bool) -> Corpus {
        Corpus {
            name,
            path: path.to_owned(),
            items,
            chunker: Chunker::default(),
            ready: VecDeque::new(),
            prose: false,
            seen: HashMap::new(),
            chunked: Vec::new(),
            skip_bad,
            skipped: 0,
            skipped_files: SkippedFiles::default(),
            collapsed: 0,
            ended: false,
        }
    }

    /// Measures chunks in tokens instead of characters.
    #[must_use]
    pub fn measured(mut self, tokens: TokenCounter) -> Corpus {
        self.chunker.tokens = Some(tokens);
        self
    }

    /// Name of the file or folder without its extension.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `true` for texts and folders. Texts are always split into chunks.
    pub fn is_prose(&self) -> bool {
        self.prose
    }

    /// Returns the names of texts read completely so far that were split into chunks, or could have been, with their
    /// numbers of chunks. Returns each once.
    pub(crate) fn take_chunked(&mut self) -> Vec<(String, u64)> {
        std::mem::take(&mut self.chunked)
    }

    /// Number of malformed records skipped so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Files of the folder that were not read so far.
    pub fn skipped_files(&self) -> &SkippedFiles {
        &self.skipped_files
    }

    /// Number of documents left out so far because they repeat an earlier one word for word and have no ID of their
    /// own.
    pub fn collapsed(&self) -> u64 {
        self.collapsed
    }

    fn advance(&mut self) -> Result<Option<Document>, IndexError> {
        loop {
            while let Some(record) = self.ready.pop_front() {
                if let Some(document) = self.admit(record)? {
                    return Ok(Some(document));
                }
            }
            // Records that repeat earlier ones give no document, however many there are.
            self.chunker.limits.check().map_err(|stop| stop.of_file(&self.path))?;
            let chunks = match self.items.next() {
                None if self.seen.is_empty() => {
                    let path = self.path.clone();
                    let files = self.skipped_files.summary();
                    return Err(IndexError::EmptyCorpus { path, skipped: self.skipped, files });
                }
                None => return Ok(None),
                Some(Err(error)) => {
                    self.skip(error)?;
                    continue;
                }
                Some(Ok(CorpusItem::Skipped(path, reason))) => {
                    self.skipped_files.add(&path, reason);
                    continue;
                }
                Some(Ok(CorpusItem::Prose(prose))) => self.chunker.prose(&prose),
                Some(Ok(CorpusItem::Record(record))) => self.chunker.record(record),
            };
            match chunks {
                Ok((records, chunked)) => {
                    self.ready.extend(records);
                    self.chunked.extend(chunked);
                }
                Err(error) => self.skip(error)?,
            }
        }
    }

    /// Counts a bad record, if such records are skipped. Returns any other error.
    fn skip(&mut self, error: IndexError) -> Result<(), IndexError> {
        if !(self.skip_bad && matches!(error, IndexError::BadRecord { .. })) {
            return Err(error);
        }
        tracing::warn!(%error, "record skipped");
        self.skipped += 1;
        Ok(())
    }

    fn admit(&mut self, record: CorpusRecord) -> Result<Option<Document>, IndexError> {
        let CorpusRecord { location, document, from_content } = record;
        match self.seen.entry(document.id.clone()) {
            Entry::Vacant(free) => {
                free.insert(location);
                Ok(Some(document))
            }
            // An ID from the content repeats only if the passage does.
            Entry::Occupied(_) if from_content => {
                self.collapsed += 1;
                Ok(None)
            }
            Entry::Occupied(taken) => {
                Err(IndexError::DuplicateId { id: document.id, first: taken.get().clone(), second: location })
            }
        }
    }
}

impl Iterator for Corpus {
    type Item = Result<Document, IndexError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

fn name_of(path: &Path) -> String {
    // Canonical, so that `.` and `..` have a name too.
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let stem = if absolute.is_dir() { absolute.file_name() } else { absolute.file_stem() };
    stem.map_or_else(|| "corpus".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod own_docs;
#[cfg(test)]
mod tests;
