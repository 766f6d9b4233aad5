//! Reads a JSON list of objects, the form of HippoRAG's and RouteRAG's corpora, one element at a time.

use std::io::{BufRead, Bytes};
use std::path::Path;
use std::sync::Arc;

use super::read_limits::unread;
use super::record::RecordParser;
use super::{CorpusRecord, LONGEST_RECORD};
use crate::error::IndexError;
use crate::location::Location;

/// Reads element by element. This module only finds the bounds of an element; the record parser parses its content.
pub(super) fn read<R: BufRead + Send>(
    reader: R,
    path: &Path,
    parser: RecordParser,
) -> impl Iterator<Item = Result<CorpusRecord, IndexError>> + Send + use<R> {
    let mut elements = Elements {
        bytes: reader.bytes(),
        line: 1,
        file: path.into(),
        place: ListPosition::Before,
        longest: LONGEST_RECORD,
    };
    std::iter::from_fn(move || {
        let element = elements.next_element().transpose()?;
        Some(element.and_then(|(bytes, location)| parser.parse(&bytes, location)))
    })
}

/// Position of the reader: before the list, or behind one of its elements.
#[derive(PartialEq, Eq)]
enum ListPosition {
    Before,
    Behind,
}

struct Elements<R: BufRead> {
    bytes: Bytes<R>,
    line: u64,
    file: Arc<Path>,
    place: ListPosition,
    /// Maximum bytes of an element.
    longest: usize,
}

impl<R: BufRead> Elements<R> {
    /// Returns the next element with the line on which it begins. `None` after the closing bracket.
    fn next_element(&mut self) -> Result<Option<(Vec<u8>, Location)>, IndexError> {
        if self.place == ListPosition::Before {
            // Skips the opening bracket, which the caller has checked.
            self.past_whitespace()?;
        }
        let mut first = self.past_whitespace()?;
        match first {
            Some(b']') => return self.expect_end().map(|()| None),
            Some(b',') if self.place == ListPosition::Behind => first = self.past_whitespace()?,
            Some(_) if self.place == ListPosition::Behind => {
                return Err(self.malformed("a comma or `]` is missing before this"));
            }
            _ => {}
        }
        match first {
            Some(b'{') => {
                let location = self.here();
                let bytes = self.object()?;
                self.place = ListPosition::Behind;
                Ok(Some((bytes, location)))
            }
            Some(_) => Err(self.malformed("the list holds something that is not an object")),
            None => Err(self.malformed("the list is not closed: the file ends too early")),
        }
    }

    /// Reads an object up to its closing brace. The opening brace was already read.
    fn object(&mut self) -> Result<Vec<u8>, IndexError> {
        let start = self.here();
        let mut bytes = vec![b'{'];
        let mut depth = 1_u32;
        let mut in_string = false;
        let mut escaped = false;
        while let Some(byte) = self.byte()? {
            // A missing brace would read the rest of the file into memory.
            if bytes.len() == self.longest {
                let message = format!("the passage that begins here is longer than {} bytes", self.longest);
                return Err(IndexError::BadCorpus { location: start, message });
            }
            bytes.push(byte);
            match byte {
                _ if escaped => escaped = false,
                // Outside of strings a backslash is an error, which the parser reports.
                b'\\' => escaped = in_string,
                b'"' => in_string = !in_string,
                b'{' if !in_string => depth += 1,
                b'}' if !in_string => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(bytes);
            }
        }
        let message = "the passage that begins here is not closed: the file ends too early".to_owned();
        Err(IndexError::BadCorpus { location: start, message })
    }

    fn expect_end(&mut self) -> Result<(), IndexError> {
        match self.past_whitespace()? {
            None => Ok(()),
            Some(_) => Err(self.malformed("something follows the end of the list")),
        }
    }

    fn past_whitespace(&mut self) -> Result<Option<u8>, IndexError> {
        loop {
            match self.byte()? {
                Some(byte) if byte.is_ascii_whitespace() => {}
                other => return Ok(other),
            }
        }
    }

    fn byte(&mut self) -> Result<Option<u8>, IndexError> {
        let byte = self.bytes.next().transpose().map_err(|error| unread(&self.file, error))?;
        self.line += u64::from(byte == Some(b'\n'));
        Ok(byte)
    }

    fn here(&self) -> Location {
        Location { file: self.file.clone(), line: self.line }
    }

    fn malformed(&self, message: &str) -> IndexError {
        IndexError::BadCorpus { location: self.here(), message: message.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use super::*;

    #[test]
    fn an_element_without_end_is_refused_where_it_begins() {
        let list = format!("[{{\"a\":1}},\n\n{{\"b\":\"{}", "x\n".repeat(1 << 16));
        let mut elements = Elements {
            bytes: list.as_bytes().bytes(),
            line: 1,
            file: Path::new("c.json").into(),
            place: ListPosition::Before,
            longest: 7,
        };
        assert_eq!(elements.next_element().unwrap().unwrap().0, b"{\"a\":1}", "one of just that length is read");
        let error = elements.next_element().unwrap_err();
        assert!(matches!(error, IndexError::BadCorpus { .. }));
        assert_eq!(error.to_string(), "c.json:3: the passage that begins here is longer than 7 bytes");
    }
}
