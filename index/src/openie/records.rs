//! Finds the records of a file of triples in a stream, looking only for their bounds.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use crate::error::IndexError;
use crate::location::Location;

/// Maximum bytes of a record. Longer ones are mistakes that would only fill the memory.
const LONGEST: usize = 64 << 20;

/// Unparsed record of the file.
pub(super) struct RawRecord {
    pub(super) location: Location,
    /// Byte offset in the file.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// Records of a file, in order. Iteration ends after an error.
pub(super) struct RecordReader {
    scanner: RecordScanner,
    form: RecordLayout,
    first: bool,
    ended: bool,
}

/// Arrangement of the records in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordLayout {
    /// Elements of a list: HippoRAG's `docs`, or the whole file.
    List,
    /// One record after the other.
    Lines,
}

impl RecordReader {
    /// Opens the file and detects the arrangement of its records.
    pub(super) fn open(path: &Path) -> Result<RecordReader, IndexError> {
        let mut scanner = RecordScanner::open(path)?;
        let form = match scanner.past_white()? {
            Some(b'[') => RecordLayout::List,
            Some(b'{') if scanner.enter_docs()? => RecordLayout::List,
            Some(b'{') => {
                // The object was the first record of JSONL: it is read again, from its start.
                scanner = RecordScanner::open(path)?;
                RecordLayout::Lines
            }
            None => return Err(scanner.bad("the file is empty")),
            Some(_) => return Err(scanner.bad(NEITHER)),
        };
        Ok(RecordReader { scanner, form, first: true, ended: false })
    }

    fn advance(&mut self) -> Result<Option<RawRecord>, IndexError> {
        let mut byte = self.scanner.past_white()?;
        if self.form == RecordLayout::List {
            match byte {
                Some(b']') => return Ok(None),
                Some(b',') if !self.first => byte = self.scanner.past_white()?,
                Some(_) if !self.first => return Err(self.scanner.bad("a comma or `]` is missing before this")),
                None => return Err(self.scanner.bad("the list is not closed: the file ends too early")),
                Some(_) => {}
            }
        }
        self.first = false;
        match byte {
            Some(b'{') => self.scanner.object().map(Some),
            None => Ok(None),
            Some(_) => Err(self.scanner.bad("a record is not an object")),
        }
    }
}

const NEITHER: &str = "neither HippoRAG's `{\"docs\": [{\"passage\", \"extracted_triples\"}, …]}` nor JSONL of \
                       `{\"id\", \"triples\"}` begins here";

impl Iterator for RecordReader {
    type Item = Result<RawRecord, IndexError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance().transpose();
        // After an error the position in the file is unknown.
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

struct RecordScanner {
    reader: BufReader<File>,
    path: Arc<Path>,
    /// Number of bytes read.
    offset: u64,
    /// Current line, from 1.
    line: u64,
}

impl RecordScanner {
    fn open(path: &Path) -> Result<RecordScanner, IndexError> {
        let file = File::open(path).map_err(IndexError::io("open", path))?;
        let mut scanner =
            RecordScanner { reader: BufReader::with_capacity(1 << 16, file), path: path.into(), offset: 0, line: 1 };
        // Some editors write a byte order mark, which is not JSON.
        if scanner.fill()?.starts_with(b"\xef\xbb\xbf") {
            scanner.reader.consume(3);
            scanner.offset = 3;
        }
        Ok(scanner)
    }

    fn fill(&mut self) -> Result<&[u8], IndexError> {
        self.reader.fill_buf().map_err(IndexError::io("read", &self.path))
    }

    fn peek(&mut self) -> Result<Option<u8>, IndexError> {
        Ok(self.fill()?.first().copied())
    }

    fn byte(&mut self) -> Result<Option<u8>, IndexError> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            self.reader.consume(1);
            self.offset += 1;
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    fn past_white(&mut self) -> Result<Option<u8>, IndexError> {
        loop {
            match self.byte()? {
                Some(byte) if byte.is_ascii_whitespace() => {}
                other => return Ok(other),
            }
        }
    }

    fn bad(&self, message: impl Into<String>) -> IndexError {
        IndexError::BadTriples { location: self.here(), message: message.into() }
    }

    fn here(&self) -> Location {
        Location { file: Arc::clone(&self.path), line: self.line }
    }

    /// Skips the fields of an object after its opening brace, up to the content of its list `docs`. Returns `false` if
    /// there is no such list; the position is then undefined.
    fn enter_docs(&mut self) -> Result<bool, IndexError> {
        loop {
            match self.past_white()? {
                Some(b'"') => {}
                Some(b',') => continue,
                _ => return Ok(false),
            }
            let mut key = Vec::new();
            self.string(&mut key)?;
            if self.past_white()? != Some(b':') {
                return Ok(false);
            }
            let first = self.past_white()?;
            // `string` includes the closing quote.
            if key == b"docs\"" {
                return if first == Some(b'[') { Ok(true) } else { Err(self.bad("field `docs` is not a list")) };
            }
            match first {
                Some(b'"') => self.string(&mut Vec::new())?,
                Some(b'{' | b'[') => self.nested(&mut Vec::new())?,
                _ => {
                    while self.peek()?.is_some_and(|byte| !matches!(byte, b',' | b'}')) {
                        self.byte()?;
                    }
                }
            }
        }
    }

    /// Reads the rest of an object after its opening brace.
    fn object(&mut self) -> Result<RawRecord, IndexError> {
        let location = self.here();
        let offset = self.offset - 1;
        let mut bytes = vec![b'{'];
        self.nested(&mut bytes).map_err(|error| match error {
            // Reports the start of the record; the end of the file would not help to find the mistake.
            IndexError::BadTriples { message, .. } => IndexError::BadTriples { location: location.clone(), message },
            error => error,
        })?;
        Ok(RawRecord { location, offset, bytes })
    }

    /// Reads everything after an opening brace or bracket, up to the closing one.
    fn nested(&mut self, out: &mut Vec<u8>) -> Result<(), IndexError> {
        // Brackets are only counted here. The JSON parser, which gets the whole record, finds out whether they match.
        let mut depth = 1_u32;
        while depth > 0 {
            let byte = self.more(out)?;
            match byte {
                b'"' => self.string(out)?,
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads everything after an opening quote, up to the closing one.
    fn string(&mut self, out: &mut Vec<u8>) -> Result<(), IndexError> {
        loop {
            match self.more(out)? {
                // The escaped byte may be a quote, which then ends nothing.
                b'\\' => _ = self.more(out)?,
                b'"' => return Ok(()),
                _ => {}
            }
        }
    }

    fn more(&mut self, out: &mut Vec<u8>) -> Result<u8, IndexError> {
        if out.len() == LONGEST {
            return Err(self.bad(format!("the record that begins here is longer than {LONGEST} bytes")));
        }
        let byte =
            self.byte()?.ok_or_else(|| self.bad("the record that begins here does not end: the file was cut"))?;
        out.push(byte);
        Ok(byte)
    }
}
