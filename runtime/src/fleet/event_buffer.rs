//! Decoder of server-sent events: the `data:` lines of a stream.

/// Maximum length of a line, in bytes.
const MAX_LINE: usize = 16 << 20;

/// Bytes of a stream that are not decoded yet.
#[derive(Debug, Default)]
pub(super) struct EventBuffer {
    bytes: Vec<u8>,
    /// Position of the first line that was not taken.
    line: usize,
    /// Position up to which no line break was found.
    seen: usize,
}

/// Error returned for a line that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of the stream is longer than {MAX_LINE} bytes")]
pub(super) struct LineTooLong;

impl EventBuffer {
    /// Adds received bytes.
    ///
    /// # Errors
    /// If more than [`MAX_LINE`] bytes are buffered without a line break.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), LineTooLong> {
        // Drained once per push and not per line, because a push may bring many lines.
        self.bytes.drain(..self.line);
        self.seen -= self.line;
        self.line = 0;
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > MAX_LINE && !self.bytes.contains(&b'\n') { Err(LineTooLong) } else { Ok(()) }
    }

    /// Takes the content of the next complete `data:` line. Comments and other fields are skipped.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let Some(length) = self.bytes[self.seen..].iter().position(|byte| *byte == b'\n') else {
                self.seen = self.bytes.len();
                return None;
            };
            let end = self.seen + length;
            let line = &self.bytes[self.line..end];
            self.line = end + 1;
            self.seen = end + 1;
            if let Some(data) = line.strip_prefix(b"data:") {
                return Some(data.trim_ascii().to_vec());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_found_however_the_stream_is_cut() {
        let stream = b": ping\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:[DONE]\n\ndata: never end";
        for size in 1..stream.len() {
            let mut buffer = EventBuffer::default();
            let mut found = Vec::new();
            for part in stream.chunks(size) {
                buffer.push(part).unwrap();
                while let Some(data) = buffer.next() {
                    found.push(String::from_utf8(data).unwrap());
                }
            }
            assert_eq!(found, ["{\"a\":1}", "[DONE]"], "{size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut buffer = EventBuffer::default();
        assert_eq!(buffer.push(&vec![b'a'; MAX_LINE]), Ok(()));
        assert_eq!(buffer.next(), None);
        assert_eq!(buffer.push(b"a"), Err(LineTooLong));
    }
}
