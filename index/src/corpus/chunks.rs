//! Splits texts and records into chunks.

use serde_json::{Map, Value};
use text_splitter::{ChunkConfig, ChunkSizer, MarkdownSplitter, TextSplitter};

use super::prose::{Prose, Section, line_breaks};
use super::read_limits::ReadLimits;
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

/// Maximum bytes of these copies in all chunks of a text or a record. The chunks are made before the first of them is
/// indexed, and may be far smaller than what they copy.
const LARGEST_COPIES: usize = 256 << 20;

/// Size of the blocks that a long text is cut into before it is split, in bytes. For each chunk, the library reads the
/// rest of its text, so that its time grows with the square of the length.
const BLOCK: usize = 64 << 10;

/// Minimum size of a block, as a multiple of the size of a chunk. Each block ends with a chunk that may be smaller than the others.
const BLOCK_CHUNKS: usize = 64;

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
    /// Limits on the reading of the text. Counting its tokens may take longer than reading it.
    pub(super) limits: ReadLimits,
}

/// Chunk within a text: the offset of its first byte, and its own text.
type Piece<'a> = (usize, &'a str);

impl Chunker {
    /// Splits a text into chunks. Each chunk begins with the headings above it. Its metadata holds the headings and the
    /// page. Leaves out chunks without a word, such as the end of a fenced block.
    ///
    /// # Errors
    /// If the copies of the title and the headings in all chunks are too large, or the reading has to end.
    pub(super) fn prose(&self, prose: &Prose) -> Result<Chunks, IndexError> {
        let size =
            self.size.unwrap_or_else(|| self.tokens.as_ref().map_or(CHARACTERS, |tokens| tokens.limit().min(TOKENS)));
        let mut records = Vec::new();
        let mut copies = 0_usize;
        for section in &prose.sections {
            let headings = self.shown_headings(section, &prose.title, size);
            let metadata = metadata(section);
            let copied = prose.title.len() + headings.len() + json_len(metadata.as_ref());
            let room = self.room(size, &prose.title, &headings);
            let pieces = self.pieces(&section.text, section.markdown, room);
            self.limits.check().map_err(|stop| stop.of_file(&prose.file))?;
            copies = copies.saturating_add(copied.saturating_mul(pieces.len()));
            if copies > LARGEST_COPIES {
                let location = Location { file: prose.file.clone(), line: section.line };
                return Err(too_many_copies(location, &prose.name));
            }
            let mut line = section.line;
            let mut reached = 0;
            for (offset, text) in pieces {
                // Chunks may overlap, but begin in the order of the text.
                line += line_breaks(section.text.as_bytes().get(reached..offset).unwrap_or_default());
                reached = reached.max(offset);
                if !holds_words(text) {
                    continue;
                }
                let id = format!("{}#{}", prose.name, records.len() + 1);
                let text = if headings.is_empty() { text.to_owned() } else { format!("{headings}\n\n{text}") };
                let metadata = metadata.clone();
                let document = Document { id, title: prose.title.clone(), text, triples: None, metadata };
                let location = Location { file: prose.file.clone(), line };
                records.push(CorpusRecord { location, document, from_content: false });
            }
        }
        let count = records.len() as u64;
        Ok((records, Some((prose.name.clone(), count))))
    }

    /// Splits a record that is larger than a chunk, and leaves others whole. Without a size, leaves all whole and
    /// reports no number.
    ///
    /// # Errors
    /// If a record to split brings triples, because it is not known which chunk states which of them, if its title and
    /// metadata are too large to copy into every chunk, or into so many, or if the reading has to end.
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
                 text and its triples beforehand, or set no chunk size (--chunk)"
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
        let pieces = self.pieces(&whole, false, room);
        self.limits.check().map_err(|stop| stop.of_file(&location.file))?;
        if copied.saturating_mul(pieces.len()) > LARGEST_COPIES {
            return Err(too_many_copies(location, &name));
        }
        let records = pieces.into_iter().zip(1_u64..).map(|((_, text), number)| {
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

    /// Splits a text into pieces. Leaves out the rest of it once the reading has to end.
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
        let blocks = blocks(text, BLOCK.max(room.saturating_mul(BLOCK_CHUNKS)));
        let blocks = blocks.into_iter().take_while(|_| self.limits.check().is_ok());
        if markdown {
            let splitter = MarkdownSplitter::new(config);
            blocks.flat_map(|block| within(block, splitter.chunk_indices(block.1))).collect()
        } else {
            let splitter = TextSplitter::new(config);
            blocks.flat_map(|block| within(block, splitter.chunk_indices(block.1))).collect()
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

/// Cuts a text into blocks of about `size` bytes, at blank lines, line breaks or spaces where possible.
fn blocks(text: &str, size: usize) -> Vec<Piece<'_>> {
    let mut blocks = Vec::new();
    let mut offset = 0;
    while let Some(rest) = text.get(offset..).filter(|rest| !rest.is_empty()) {
        let block = &rest[..block_end(rest, size)];
        blocks.push((offset, block));
        offset += block.len();
    }
    blocks
}

/// Returns the length of the first block of a text.
fn block_end(text: &str, size: usize) -> usize {
    if text.len() <= size {
        return text.len();
    }
    let most = text.floor_char_boundary(size);
    let behind = |separator: &str| text[..most].rfind(separator).map(|at| at + separator.len());
    // Not in the first half, which would make many small blocks.
    ["\n\n", "\n", " "].into_iter().filter_map(behind).find(|end| *end > most / 2).unwrap_or(most)
}

/// Returns the pieces of a block by their offsets in the whole text.
fn within<'a>((start, _): Piece<'a>, pieces: impl Iterator<Item = Piece<'a>>) -> Vec<Piece<'a>> {
    pieces.map(|(offset, text)| (start + offset, text)).collect()
}

fn too_many_copies(location: Location, name: &str) -> IndexError {
    let message = format!(
        "the chunks of {name:?} would copy more than {LARGEST_COPIES} bytes of its title, headings and metadata: \
         choose larger chunks, or split it"
    );
    IndexError::BadRecord { location, message }
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
    #![allow(clippy::unwrap_used)]
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    use super::super::markdown;
    use super::super::read_limits::tests::steps;
    use super::*;

    /// Counter of words for an embedder that reads `limit` words.
    fn words(limit: usize) -> TokenCounter {
        TokenCounter::new(limit, |text| text.split_whitespace().count())
    }

    fn chunked(text: &str, chunker: &Chunker) -> Vec<Document> {
        let (title, sections) = markdown::sections(text).ok().unwrap();
        let prose = Prose { file: Path::new("a.md").into(), name: "a.md".to_owned(), title, sections };
        chunker.prose(&prose).unwrap().0.into_iter().map(|record| record.document).collect()
    }

    #[test]
    fn a_chunk_fits_into_the_embedder_with_its_title_and_headings() {
        let sentence = "one two three four five. ";
        let text =
            format!("# Title of it\n\n## A\n\n### B b\n\n{}\n\n## Alone\n\n## C\n\nshort\n", sentence.repeat(20));
        let chunker = Chunker { overlap: 5, tokens: Some(words(30)), ..Chunker::default() };
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
    fn chunks_that_would_copy_too_much_are_refused() {
        let chunker = Chunker { size: Some(8), ..Chunker::default() };
        let text = "a b c d\n".repeat(5000);
        let title = "t".repeat(60_000);
        let file: Arc<Path> = Path::new("a.txt").into();
        let section = Section { line: 1, text: text.clone(), ..Section::default() };
        let prose =
            Prose { file: file.clone(), name: "a.txt".to_owned(), title: title.clone(), sections: vec![section] };
        let document = Document { id: "b".to_owned(), title, text, triples: None, metadata: None };
        let record = CorpusRecord { location: Location { file, line: 1 }, document, from_content: false };
        for (refused, name) in [(chunker.prose(&prose), "\"a.txt\""), (chunker.record(record), "\"b\"")] {
            let message = refused.err().unwrap().to_string();
            assert!(message.contains(name) && message.contains("more than 268435456 bytes"), "{message}");
        }
    }

    #[test]
    fn a_text_is_split_as_long_as_its_reading_goes_on() {
        let file: Arc<Path> = Path::new("a.txt").into();
        let section = Section { line: 1, text: "a\n".repeat(2 * BLOCK), ..Section::default() };
        let prose = Prose { file, name: "a.txt".to_owned(), title: String::new(), sections: vec![section] };
        // A step for each of four blocks, and one for the section.
        for (most, is_read) in [(0, false), (3, false), (5, true)] {
            let (limits, count) = steps(most);
            let chunks = Chunker { limits, ..Chunker::default() }.prose(&prose);
            assert_eq!((chunks.is_ok(), count.load(SeqCst) <= most + 2), (is_read, true), "{most}");
        }
    }

    #[test]
    fn a_long_text_is_cut_into_blocks_before_it_is_split() {
        let chunker = Chunker::default();
        let text = "a\n".repeat(BLOCK + 100);
        let pieces = chunker.pieces(&text, false, 1000);
        // Without blocks, all chunks begin at multiples of 1000.
        assert!(pieces.iter().any(|(offset, _)| *offset == BLOCK));
        assert!(pieces.iter().all(|(offset, piece)| piece.len() < 1000 && text[*offset..].starts_with(*piece)));
        assert_eq!(pieces.iter().map(|(_, piece)| piece.matches('a').count()).sum::<usize>(), BLOCK + 100);
        for (text, first) in [
            ("word word word\n\nword\nword word", "word word word\n\n"),
            ("word word word\nword word word", "word word word\n"),
            ("\n\nword word word word word", "\n\nword word word "),
            ("\u{e9}".repeat(15).as_str(), "\u{e9}".repeat(10).as_str()),
        ] {
            let found = blocks(text, 21);
            assert_eq!(found[0], (0, first));
            assert_eq!(found.iter().map(|(_, block)| *block).collect::<String>(), text);
        }
    }

    #[test]
    fn no_chunk_is_a_bare_heading_or_fence() {
        let code = "let value = function_of(argument);\n".repeat(40);
        let text = format!("# Alone\n\n# T\n\n```\n```\n\n## A\n\nSee:\n\n```rust\n{code}```\n\n## B\n");
        for limit in [8, 12, 20, 50, 1000] {
            let chunks = chunked(&text, &Chunker { tokens: Some(words(limit)), ..Chunker::default() });
            assert!(!chunks.is_empty());
            for chunk in chunks {
                let code = ["See", "let", "value", "function"];
                assert!(code.iter().any(|word| chunk.text.contains(word)), "{limit}: {chunk:?}");
            }
        }
    }
}
