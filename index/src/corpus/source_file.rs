//! Opens corpus files, decompressed and bounded.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::format::Compression;
use super::read_limits::{LimitedReader, ReadLimits, unread};
use crate::error::IndexError;

/// Size of a buffer over a file, in bytes. The content of the first one decides between a JSON list and JSONL.
const BUFFER: usize = 1 << 16;

/// Open file, decompressed and within its limits.
pub(super) type FileReader = BufReader<LimitedReader<Box<dyn Read + Send>>>;

/// Opens a file and consumes its byte order mark.
pub(super) fn open(path: &Path, compression: Compression, limits: &ReadLimits) -> Result<FileReader, IndexError> {
    let file = File::open(path).map_err(IndexError::io("open", path))?;
    let content: Box<dyn Read + Send> = match compression {
        Compression::None => Box::new(file),
        Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, file))),
        Compression::Zstandard => Box::new(Frames::Compressed(BufReader::with_capacity(BUFFER, file))),
    };
    let mut reader = BufReader::with_capacity(BUFFER, limits.reader(content));
    skip_mark(&mut reader).map_err(|error| unread(path, error))?;
    Ok(reader)
}

/// Reads a file that is parsed as a whole. Refuses files of more than `limit` bytes, decompressed.
pub(super) fn read_whole(
    path: &Path,
    compression: Compression,
    limit: usize,
    limits: &ReadLimits,
) -> Result<Vec<u8>, IndexError> {
    let mut bytes = Vec::new();
    let reader = open(path, compression, limits)?;
    reader.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|error| unread(path, error))?;
    if bytes.len() > limit {
        let message = format!("the file is longer than {limit} bytes: split it");
        return Err(IndexError::UnsupportedFile { path: path.to_owned(), message });
    }
    Ok(bytes)
}

/// Returns the first bytes of a file without white space before them. They stay unread.
pub(super) fn peek(reader: &mut FileReader) -> io::Result<&[u8]> {
    Ok(reader.fill_buf()?.trim_ascii_start())
}

fn skip_mark(reader: &mut FileReader) -> io::Result<()> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    if reader.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        reader.consume(BYTE_ORDER_MARK.len());
    }
    Ok(())
}

/// Frame and the rest of the file. The first four bytes of the frame were read before, to tell its kind.
type FrameSource = io::Chain<io::Cursor<[u8; 4]>, BufReader<File>>;

/// Zstandard frames one after the other, which the decoder does not join by itself.
enum Frames {
    /// Position before a frame or at the end.
    Compressed(BufReader<File>),
    Frame(Box<StreamingDecoder<FrameSource, ruzstd::decoding::FrameDecoder>>),
    /// End of the file, or an earlier error.
    Ended,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(self, Frames::Ended) {
                Frames::Ended => return Ok(0),
                Frames::Compressed(mut file) => {
                    if file.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let mut magic = [0; 4];
                    file.read_exact(&mut magic)?;
                    if is_skippable(magic) {
                        skip_frame(&mut file)?;
                        *self = Frames::Compressed(file);
                    } else {
                        let source = io::Cursor::new(magic).chain(file);
                        let decoder = StreamingDecoder::new(source).map_err(io::Error::other)?;
                        *self = Frames::Frame(Box::new(decoder));
                    }
                }
                Frames::Frame(mut decoder) => {
                    let read = decoder.read(buffer)?;
                    if read > 0 || buffer.is_empty() {
                        *self = Frames::Frame(decoder);
                        return Ok(read);
                    }
                    *self = Frames::Compressed(decoder.into_inner().into_inner().1);
                }
            }
        }
    }
}

/// Returns `true` for the first bytes of a frame without content (RFC 8878, section 3.1.2), which pzstd and the
/// seekable format write.
fn is_skippable(magic: [u8; 4]) -> bool {
    (0x184d_2a50..=0x184d_2a5f).contains(&u32::from_le_bytes(magic))
}

/// Skips the rest of a frame without content.
fn skip_frame(file: &mut BufReader<File>) -> io::Result<()> {
    let mut length = [0; 4];
    file.read_exact(&mut length)?;
    let length = u64::from(u32::from_le_bytes(length));
    let skipped = io::copy(&mut file.take(length), &mut io::sink())?;
    if skipped == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_compressed_is_read_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gz");
        let read = |compression, limit| read_whole(&path, compression, limit, &ReadLimits::default());
        let mut gzip = Vec::new();
        for part in ["\u{feff}one\n", "two\n"] {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(part.as_bytes()).unwrap();
            gzip.extend(encoder.finish().unwrap());
        }
        std::fs::write(&path, &gzip).unwrap();
        assert_eq!(read(Compression::Gzip, 8).unwrap(), b"one\ntwo\n", "both members, without the mark");
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let frames = ["one\n", "two\n"].map(|part| ruzstd::encoding::compress_to_vec(part.as_bytes(), level));
        std::fs::write(&path, frames.concat()).unwrap();
        assert_eq!(read(Compression::Zstandard, 8).unwrap(), b"one\ntwo\n", "both frames");
        let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
        let [one, two] = &frames;
        std::fs::write(&path, [&skipped[..], one, skipped, two, skipped].concat()).unwrap();
        assert_eq!(read(Compression::Zstandard, 8).unwrap(), b"one\ntwo\n", "beside frames without content");
        std::fs::write(&path, frames.concat()).unwrap();
        assert!(matches!(read(Compression::Zstandard, 7), Err(IndexError::UnsupportedFile { .. })));
        std::fs::write(&path, &gzip[..gzip.len() - 9]).unwrap();
        assert!(read(Compression::Gzip, 8).is_err(), "a file that is cut off");
        std::fs::write(&path, "plain").unwrap();
        assert!(read(Compression::Zstandard, 8).is_err());
    }
}
