//! Bodies of records: JSON, compressed with gzip.

use std::io::{self, BufWriter, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum size of the JSON text of a body, in bytes. A damaged database must not exhaust the memory.
const MAX_BODY: u64 = 256 << 20;

/// Encodes a value.
///
/// # Errors
/// If the value has no JSON form, or one that is larger than any that is read.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> io::Result<Vec<u8>> {
    encode_within(value, MAX_BODY)
}

fn encode_within<T: Serialize + ?Sized>(value: &T, limit: u64) -> io::Result<Vec<u8>> {
    // Traces and responses are mostly text. The fastest level compresses text nearly as well as the others.
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut writer = BufWriter::new(BoundedWriter { inner: encoder, left: limit });
    serde_json::to_writer(&mut writer, value)?;
    writer.into_inner()?.inner.finish()
}

/// Writer that fails when it is given more than a number of bytes.
struct BoundedWriter<W> {
    inner: W,
    /// Number of bytes that it still takes.
    left: u64,
}

impl<W: Write> Write for BoundedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(too_large)?;
        self.inner.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the body is larger than {MAX_BODY} bytes"))
}

/// Decodes a value.
///
/// # Errors
/// If the body is damaged, or holds another type.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(&decompress(body)?)?)
}

/// Returns the JSON text of a body.
///
/// # Errors
/// If the body is damaged.
fn decompress(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut json = Vec::new();
    let read = GzDecoder::new(body).take(MAX_BODY + 1).read_to_end(&mut json)?;
    if read as u64 > MAX_BODY {
        return Err(too_large());
    }
    Ok(json)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let value = serde_json::json!({"text": "ä".repeat(1000), "score": 0.1f32, "list": [1, null]});
        let body = encode(&value).unwrap();
        assert!(body.len() < 200, "{}", body.len());
        assert_eq!(decode::<serde_json::Value>(&body).unwrap(), value);
    }

    #[test]
    fn damaged_bodies_are_errors() {
        let body = encode("text").unwrap();
        assert!(decode::<String>(&body[..body.len() - 9]).is_err());
        assert!(decode::<String>(b"text").is_err());
        assert!(decode::<u32>(&body).is_err());
    }

    #[test]
    fn a_body_that_could_not_be_read_is_not_written() {
        let json = serde_json::to_string("text").unwrap();
        let limit = json.len() as u64;
        assert_eq!(decode::<String>(&encode_within("text", limit).unwrap()).unwrap(), "text");
        assert!(encode_within("text", limit - 1).is_err());
    }
}
