//! Corpora: documents read one by one from JSONL, a JSON list, or a folder of Markdown and text.

mod array;
mod chunks;
mod folder;
mod lines;
mod record;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::IndexError;
use crate::location::Location;
use crate::triple::Triple;

pub use folder::is_prose;

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
    /// Maximum chunk size in characters. `None` splits Markdown and text files into chunks of 1000, and leaves JSON
    /// records whole.
    pub chunk: Option<usize>,
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
    /// End of a file or record: its name, and the number of its chunks. Chunk IDs are the name, `#`, and a number from
    /// 1. A record left whole has no chunks.
    Chunked(String, u64),
}

/// Maximum bytes of a record. Longer ones are mistakes that would only fill the memory.
const LONGEST_RECORD: usize = 64 << 20;

type Finds = Box<dyn Iterator<Item = Result<CorpusItem, IndexError>> + Send>;

/// Documents of a corpus, in order, read lazily. Iteration ends after an error.
pub struct Corpus {
    name: String,
    path: PathBuf,
    finds: Finds,
    prose: bool,
    seen: HashMap<String, Location>,
    chunked: Vec<(String, u64)>,
    skip_bad: bool,
    skipped: u64,
    collapsed: u64,
    ended: bool,
}

impl fmt::Debug for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Corpus").field("path", &self.path).field("read", &self.seen.len()).finish_non_exhaustive()
    }
}

impl Corpus {
    /// Opens the corpus at `path`: a folder of Markdown and text files, a single such file, a JSON list of `{title,
    /// text, …}` (HippoRAG, RouteRAG), or else JSONL of `{id, title, text, metadata?, …}`.
    ///
    /// Chunk IDs consist of the name of the file or the ID of the record, `#`, and a number from 1.
    ///
    /// # Errors
    /// If the path cannot be opened. Malformed content is reported while reading.
    pub fn open(path: &Path, options: &CorpusOptions) -> Result<Corpus, IndexError> {
        let prose = path.is_dir() || is_prose(path);
        let finds: Finds = if prose {
            Box::new(folder::read(path, options)?)
        } else {
            let file = std::fs::File::open(path).map_err(IndexError::io("open", path))?;
            // The content decides, not the extension: JSONL is often named `.json`.
            let mut reader = BufReader::with_capacity(1 << 16, file);
            if begins_list(&mut reader).map_err(IndexError::io("read", path))? {
                Box::new(chunks::cut(array::read(reader, path), options.chunk))
            } else {
                Box::new(chunks::cut(lines::read(reader, path), options.chunk))
            }
        };
        Ok(Corpus { prose, ..Corpus::over(name_of(path), path, finds, options.skip_bad) })
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

    fn over(name: String, path: &Path, finds: Finds, skip_bad: bool) -> Corpus {
        Corpus {
            name,
            path: path.to_owned(),
            finds,
            prose: false,
            seen: HashMap::new(),
            chunked: Vec::new(),
            skip_bad,
            skipped: 0,
            collapsed: 0,
            ended: false,
        }
    }

    /// Name of the file or folder without its extension.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `true` for Markdown and text, which are always split into chunks.
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

    /// Number of documents left out so far because they repeat an earlier one word for word and have no ID of their
    /// own.
    pub fn collapsed(&self) -> u64 {
        self.collapsed
    }

    fn advance(&mut self) -> Result<Option<Document>, IndexError> {
        loop {
            match self.finds.next() {
                None if self.seen.is_empty() => {
                    let path = self.path.clone();
                    let folder = self.path.is_dir();
                    return Err(IndexError::EmptyCorpus { path, skipped: self.skipped, folder });
                }
                None => return Ok(None),
                Some(Err(error @ IndexError::BadRecord { .. })) if self.skip_bad => {
                    tracing::warn!(%error, "record skipped");
                    self.skipped += 1;
                }
                Some(Err(error)) => return Err(error),
                Some(Ok(CorpusItem::Chunked(name, chunks))) => self.chunked.push((name, chunks)),
                Some(Ok(CorpusItem::Record(record))) => {
                    if let Some(document) = self.admit(record)? {
                        return Ok(Some(document));
                    }
                }
            }
        }
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

/// Returns `true` if the first character other than white space is `[`. Consumes only a byte order mark.
fn begins_list(reader: &mut impl BufRead) -> std::io::Result<bool> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    if reader.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        reader.consume(BYTE_ORDER_MARK.len());
    }
    Ok(reader.fill_buf()?.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['))
}

#[cfg(test)]
mod tests;
