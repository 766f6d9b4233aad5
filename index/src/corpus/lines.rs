//! Reads JSONL: one object per line.

use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use super::read_limits::unread;
use super::record::RecordParser;
use super::{CorpusRecord, LONGEST_RECORD};
use crate::error::IndexError;
use crate::location::Location;

/// Reads line by line. Skips blank lines; lines may end in LF or CRLF.
pub(super) fn read<R: BufRead + Send>(
    mut reader: R,
    path: &Path,
    parser: RecordParser,
) -> impl Iterator<Item = Result<CorpusRecord, IndexError>> + Send + use<R> {
    let file: Arc<Path> = path.into();
    let mut line = 0;
    let mut bytes = Vec::new();
    std::iter::from_fn(move || {
        loop {
            bytes.clear();
            line += 1;
            match reader.by_ref().take(LONGEST_RECORD as u64).read_until(b'\n', &mut bytes) {
                Ok(0) => return None,
                Ok(LONGEST_RECORD) => {
                    // Not a bad record to skip: the start of the next record is unknown.
                    let message = format!("the line is longer than {LONGEST_RECORD} bytes");
                    let location = Location { file: file.clone(), line };
                    return Some(Err(IndexError::BadCorpus { location, message }));
                }
                Ok(_) if bytes.iter().all(u8::is_ascii_whitespace) => {}
                Ok(_) => {
                    let location = Location { file: file.clone(), line };
                    return Some(parser.parse(bytes.trim_ascii_end(), location));
                }
                Err(error) => return Some(Err(unread(&file, error))),
            }
        }
    })
}
