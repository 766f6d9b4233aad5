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

/// One passage to be: what a corpus holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Unique within the corpus.
    pub id: String,
    /// May be empty.
    pub title: String,
    /// The passage.
    pub text: String,
    /// What it states, where the corpus says so; otherwise an extractor is asked, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triples: Option<Vec<Triple>>,
    /// Whatever else the corpus says about it: shown with it, and what a [`Condition`](crate::Condition) reads. No words of
    /// it are searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
}

impl Document {
    /// What is embedded and searched: `title`, a line break, `text`, as HippoRAG has it.
    pub fn content(&self) -> String {
        content(&self.title, &self.text)
    }
}

pub(crate) fn content(title: &str, text: &str) -> String {
    if title.is_empty() { text.to_owned() } else { format!("{title}\n{text}") }
}

/// How a corpus is read.
#[derive(Debug, Clone, Default)]
pub struct CorpusOptions {
    /// Count records that cannot be read and go on, instead of stopping at the first.
    pub skip_bad: bool,
    /// Largest chunk that texts are cut into, in characters. When not given, Markdown and text files are cut into chunks
    /// of 1000, and records of JSON are left whole.
    pub chunk: Option<usize>,
}

/// A document and where it came from.
struct CorpusRecord {
    location: Location,
    document: Document,
    /// The id was made from the content, so a second one means the same passage again.
    from_content: bool,
}

/// What is come upon in a corpus.
enum CorpusItem {
    CorpusRecord(CorpusRecord),
    /// A file or a record that was looked through to its end, by its name, and the number of chunks that it was cut
    /// into: their ids are the name, `#`, and their numbers from 1. A record that is left whole has none.
    Chunked(String, u64),
}

/// A record with more bytes than this is not a passage; reading it whole would only fill the memory.
const LONGEST_RECORD: usize = 64 << 20;

type Finds = Box<dyn Iterator<Item = Result<CorpusItem, IndexError>> + Send>;

/// The documents of a corpus, in order, read as they are asked for. After an error nothing follows.
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
    /// Opens what lies at `path`: a folder (Markdown and text files in it), a single such file, a JSON list of
    /// `{title, text, …}` (HippoRAG, RouteRAG), or else JSONL of `{id, title, text, metadata?, …}`.
    ///
    /// The chunks of a file, or of a record that is cut, have its name or its id, `#` and a number from 1 as their ids.
    ///
    /// # Errors
    /// If the path cannot be opened. What is wrong inside comes while reading.
    pub fn open(path: &Path, options: &CorpusOptions) -> Result<Corpus, IndexError> {
        let prose = path.is_dir() || is_prose(path);
        let finds: Finds = if prose {
            Box::new(folder::read(path, options)?)
        } else {
            let file = std::fs::File::open(path).map_err(IndexError::io("open", path))?;
            let mut reader = BufReader::with_capacity(1 << 16, file);
            if begins_list(&mut reader).map_err(IndexError::io("read", path))? {
                Box::new(chunks::cut(array::read(reader, path), options.chunk))
            } else {
                Box::new(chunks::cut(lines::read(reader, path), options.chunk))
            }
        };
        Ok(Corpus { prose, ..Corpus::over(name_of(path), path, finds, options.skip_bad) })
    }

    /// A corpus out of memory, for tests and for programs that have their documents already.
    pub fn from_documents(name: &str, documents: Vec<Document>) -> Corpus {
        let path = PathBuf::from(name);
        let file: Arc<Path> = path.as_path().into();
        let records = documents.into_iter().zip(1..).map(move |(document, line)| {
            Ok(CorpusItem::CorpusRecord(CorpusRecord {
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

    /// A short name: the file or folder without its ending.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is Markdown and text, which is always cut into chunks, and not records.
    pub fn is_prose(&self) -> bool {
        self.prose
    }

    /// What was looked through so far and cut, or could have been, with the number of its chunks. Gives each once.
    pub(crate) fn take_chunked(&mut self) -> Vec<(String, u64)> {
        std::mem::take(&mut self.chunked)
    }

    /// Records passed over so far because they could not be read.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Documents so far that repeated an earlier one word for word and had no id of their own.
    pub fn collapsed(&self) -> u64 {
        self.collapsed
    }

    fn advance(&mut self) -> Result<Option<Document>, IndexError> {
        loop {
            match self.finds.next() {
                None if self.seen.is_empty() => {
                    let (path, folder) = (self.path.clone(), self.path.is_dir());
                    return Err(IndexError::EmptyCorpus { path, skipped: self.skipped, folder });
                }
                None => return Ok(None),
                Some(Err(error @ IndexError::BadRecord { .. })) if self.skip_bad => {
                    tracing::warn!(%error, "record skipped");
                    self.skipped += 1;
                }
                Some(Err(error)) => return Err(error),
                Some(Ok(CorpusItem::Chunked(name, chunks))) => self.chunked.push((name, chunks)),
                Some(Ok(CorpusItem::CorpusRecord(record))) => {
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
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let stem = if absolute.is_dir() { absolute.file_name() } else { absolute.file_stem() };
    stem.map_or_else(|| "corpus".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Whether the first character that means anything is `[`. Consumes a byte order mark and nothing else.
fn begins_list(reader: &mut impl BufRead) -> std::io::Result<bool> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    if reader.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        reader.consume(BYTE_ORDER_MARK.len());
    }
    Ok(reader.fill_buf()?.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['))
}

#[cfg(test)]
mod tests;
