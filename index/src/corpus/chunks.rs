//! Splits texts and records into chunks.

use serde_json::{Map, Value};
use text_splitter::{ChunkConfig, ChunkSizer, MarkdownSplitter, TextSplitter};

use super::prose::{Prose, Section, line_breaks};
use super::tokens::TokenCounter;
use super::{CorpusRecord, Document};
use crate::error::IndexError;
use crate::location::Location;

/// Default size of a chunk of a text in tokens, if the embedder reads as many.
const TOKENS: usize = 256;

/// Default size of a chunk of a text in characters, if tokens cannot be counted.
const CHARACTERS: usize = 1000;

/// Divisor of the chunk size: the headings above a chunk may take at most a third of it.
const HEADINGS_SHARE: usize = 3;

/// Rough upper bound of the bytes per token. The tokens of a text beyond this bound are estimated, not counted.
const TOKEN_BYTES: usize = 32;

/// Maximum bytes of the title and metadata of a record that is split: every chunk has a copy.
const LARGEST_COPY: usize = 64 << 10;

/// Separator of the headings above a chunk.
const BELOW: &str = " > ";

/// Chunks, with the name of their text and their number: 0 for a record left whole. `None` for records if no chunk size
/// is set.
type Chunks = (Vec<CorpusRecord>, Option<(String, u64)>);

/// Sizes of chunks.
#[derive(Debug, Clone, Default)]
pub(super) struct Chunker {
    /// Maximum size of a chunk. `None` splits texts into chunks of the default size, and leaves records whole.
    pub(super) size: Option<usize>,
    /// Size of the end of a chunk that the next one repeats, at most half a chunk.
    pub(super) overlap: usize,
    /// Counter of the tokens in which sizes are given. `None` measures in characters.
    pub(super) tokens: Option<TokenCounter>,
}

/// Chunk within a text: the offset of its first byte, and its own text.
type Piece<'a> = (usize, &'a str);

impl Chunker {
    /// Splits a text into chunks. Each chunk begins with the headings above it. Its metadata holds the headings and the
    /// page. Leaves out chunks without a word, such as the end of a fenced block.
    pub(super) fn prose(&self, prose: &Prose) -> Chunks {
        let size =
            self.size.unwrap_or_else(|| self.tokens.as_ref().map_or(CHARACTERS, |tokens| tokens.limit().min(TOKENS)));
        let mut records = Vec::new();
        for section in &prose.sections {
            let headings = self.shown_headings(section, &prose.title, size);
            let room = self.room(size, &prose.title, &headings);
            let mut line = section.line;
            let mut reached = 0;
            for (offset, text) in self.pieces(&section.text, section.markdown, room) {
                // Chunks may overlap, but begin in the order of the text.
                line += line_breaks(section.text.as_bytes().get(reached..offset).unwrap_or_default());
                reached = reached.max(offset);
                if !holds_words(text) {
                    continue;
                }
                let id = format!("{}#{}", prose.name, records.len() + 1);
                let text = if headings.is_empty() { text.to_owned() } else { format!("{headings}\n\n{text}") };
                let metadata = metadata(section);
                let document = Document { id, title: prose.title.clone(), text, triples: None, metadata };
                let location = Location { file: prose.file.clone(), line };
                records.push(CorpusRecord { location, document, from_content: false });
            }
        }
        let count = records.len() as u64;
        (records, Some((prose.name.clone(), count)))
    }

    /// Splits a record that is larger than a chunk, and leaves others whole. Without a size, leaves all whole and
    /// reports no number.
    ///
    /// # Errors
    /// If a record to split brings triples, because it is not known which chunk states which of them, or if its title
    /// and metadata are too large to copy into every chunk.
    pub(super) fn record(&self, record: CorpusRecord) -> Result<Chunks, IndexError> {
        let Some(size) = self.size else { return Ok((vec![record], None)) };
        let name = record.document.id.clone();
        let room = self.room(size, &record.document.title, "");
        // Splitting trims the white space around chunks.
        if self.measure(record.document.text.trim(), room) <= room {
            return Ok((vec![record], Some((name, 0))));
        }
        let CorpusRecord { location, mut document, from_content } = record;
        if document.triples.as_ref().is_some_and(|triples| !triples.is_empty()) {
            let unit = if self.tokens.is_some() { "tokens" } else { "characters" };
            let message = format!(
                "{name:?} has more than {size} {unit} and brings triples, which cannot be assigned to chunks: split the \
                 text and its triples beforehand, or leave out --chunk"
            );
            return Err(IndexError::BadCorpus { location, message });
        }
        let copied = document.title.len() + json_len(document.metadata.as_ref());
        if copied > LARGEST_COPY {
            let message = format!(
                "{name:?} is split into chunks, and each would copy the {copied} bytes of its title and metadata: expected \
                 at most {LARGEST_COPY}; leave large fields out with --field"
            );
            return Err(IndexError::BadRecord { location, message });
        }
        // Taken out, so that no chunk copies the whole text.
        let whole = std::mem::take(&mut document.text);
        let records = self.pieces(&whole, false, room).into_iter().zip(1_u64..).map(|((_, text), number)| {
            let id = format!("{name}#{number}");
            let document = Document { id, text: text.to_owned(), ..document.clone() };
            CorpusRecord { location: location.clone(), document, from_content }
        });
        let records: Vec<CorpusRecord> = records.collect();
        let count = records.len() as u64;
        Ok((records, Some((name, count))))
    }

    /// Size left for the text of a chunk after its title and headings.
    fn room(&self, size: usize, title: &str, headings: &str) -> usize {
        // A size in characters does not count the title. A size in tokens counts everything that is embedded.
        let title = if self.tokens.is_some() { self.measure(title, size) } else { 0 };
        let headings = if headings.is_empty() { 0 } else { self.measure(headings, size) + "\n\n".len() };
        size.saturating_sub(title + headings).max(size / 4).max(1)
    }

    /// Headings above a section, without the title. The outermost ones are left out if they take too much of a chunk.
    fn shown_headings(&self, section: &Section, title: &str, size: usize) -> String {
        let mut headings = section.headings.as_slice();
        if headings.first().is_some_and(|first| first == title) {
            headings = &headings[1..];
        }
        while let [_, rest @ ..] = headings {
            let shown = headings.join(BELOW);
            if self.measure(&shown, size) <= size / HEADINGS_SHARE {
                return shown;
            }
            headings = rest;
        }
        String::new()
    }

    fn pieces<'a>(&self, text: &'a str, markdown: bool, room: usize) -> Vec<Piece<'a>> {
        let trimmed = text.trim();
        if self.measure(trimmed, room) <= room {
            return vec![(text.len() - text.trim_start().len(), trimmed)];
        }
        let sizer = RoomSizer { chunker: self, room };
        let config = ChunkConfig::new(room).with_sizer(sizer);
        let config = match config.with_overlap(self.overlap.min(room / 2)) {
            Ok(config) => config,
            Err(_) => ChunkConfig::new(room).with_sizer(sizer),
        };
        if markdown {
            MarkdownSplitter::new(config).chunk_indices(text).collect()
        } else {
            TextSplitter::new(config).chunk_indices(text).collect()
        }
    }

    /// Size of a text. A text that is far larger than `room` is only estimated.
    fn measure(&self, text: &str, room: usize) -> usize {
        match &self.tokens {
            None => text.chars().count(),
            Some(_) if text.len() > TOKEN_BYTES.saturating_mul(room.max(64)) => text.len() / 2,
            Some(tokens) => tokens.count(text),
        }
    }
}

/// Measures chunks that should fit into `room`.
#[derive(Clone, Copy)]
struct RoomSizer<'a> {
    chunker: &'a Chunker,
    room: usize,
}

impl ChunkSizer for RoomSizer<'_> {
    fn size(&self, chunk: &str) -> usize {
        self.chunker.measure(chunk, self.room)
    }
}

/// Returns `true` if a chunk has a word outside of the lines that begin and end fenced blocks.
fn holds_words(text: &str) -> bool {
    let fence = |line: &str| line.starts_with("```") || line.starts_with("~~~");
    text.lines().map(str::trim_start).any(|line| !fence(line) && line.chars().any(char::is_alphanumeric))
}

/// Number of bytes of metadata as JSON.
fn json_len(metadata: Option<&Map<String, Value>>) -> usize {
    metadata.and_then(|metadata| serde_json::to_string(metadata).ok()).map_or(0, |json| json.len())
}

fn metadata(section: &Section) -> Option<Map<String, Value>> {
    let mut metadata = Map::new();
    if !section.headings.is_empty() {
        metadata.insert("headings".to_owned(), section.headings.join(BELOW).into());
    }
    if let Some(page) = section.page {
        metadata.insert("page".to_owned(), page.into());
    }
    (!metadata.is_empty()).then_some(metadata)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::markdown;
    use super::*;

    /// Counter of words for an embedder that reads `limit` words.
    fn words(limit: usize) -> TokenCounter {
        TokenCounter::new(limit, |text| text.split_whitespace().count())
    }

    fn chunked(text: &str, chunker: &Chunker) -> Vec<Document> {
        let (title, sections) = markdown::sections(text);
        let prose = Prose { file: Path::new("a.md").into(), name: "a.md".to_owned(), title, sections };
        chunker.prose(&prose).0.into_iter().map(|record| record.document).collect()
    }

    #[test]
    fn a_chunk_fits_into_the_embedder_with_its_title_and_headings() {
        let sentence = "one two three four five. ";
        let text =
            format!("# Title of it\n\n## A\n\n### B b\n\n{}\n\n## Alone\n\n## C\n\nshort\n", sentence.repeat(20));
        let chunker = Chunker { size: None, overlap: 5, tokens: Some(words(30)) };
        let chunks = chunked(&text, &chunker);
        let (last, long) = chunks.split_last().map_or((None, &[][..]), |(last, long)| (Some(last), long));
        assert!(long.len() > 4, "{chunks:?}");
        for chunk in long {
            assert!(chunk.content().split_whitespace().count() <= 30, "{chunk:?}");
            assert!(chunk.text.starts_with("A > B b\n\n"), "{chunk:?}");
            assert_eq!(
                chunk.metadata.as_ref().map(|metadata| &metadata["headings"]),
                Some(&"Title of it > A > B b".into())
            );
        }
        let total: usize = long.iter().map(|chunk| chunk.text.split_whitespace().count() - 4).sum();
        assert!(total > 100, "chunks overlap: {total} words instead of 100");
        assert_eq!(last.map(|chunk| chunk.text.as_str()), Some("C\n\nshort"));
    }

    #[test]
    fn no_chunk_is_a_bare_heading_or_fence() {
        let code = "let value = function_of(argument);\n".repeat(40);
        let text = format!("# Alone\n\n# T\n\n```\n```\n\n## A\n\nSee:\n\n```rust\n{code}```\n\n## B\n");
        for limit in [8, 12, 20, 50, 1000] {
            let chunks = chunked(&text, &Chunker { size: None, overlap: 0, tokens: Some(words(limit)) });
            assert!(!chunks.is_empty());
            for chunk in chunks {
                let code = ["See", "let", "value", "function"];
                assert!(code.iter().any(|word| chunk.text.contains(word)), "{limit}: {chunk:?}");
            }
        }
    }
}
