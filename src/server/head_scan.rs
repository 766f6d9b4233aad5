//! Detection of request heads that state the length of the body twice.

/// Longest name to recognize, with its colon.
const NAME: usize = b"transfer-encoding:".len();

/// Looks for `content-length` and `transfer-encoding` in the bytes of a request's head. hyper follows
/// `transfer-encoding` and drops `content-length`, as RFC 9112 allows (§6.1), so the router cannot see that there were
/// two. A proxy in front of the server may follow `content-length` instead, and take the end of the body for another
/// request.
#[derive(Debug, Default)]
pub(super) struct HeadScan {
    /// Beginning of the current line, in lower case.
    line: [u8; NAME],
    /// Length of the current line, without its end.
    length: usize,
    /// If `true`, a line of the head has been read.
    begun: bool,
    /// If `true`, the head is complete.
    over: bool,
    has_length: bool,
    is_chunked: bool,
}

impl HeadScan {
    /// Reads further bytes. Those after the head are ignored.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.over {
                return;
            }
            match byte {
                b'\n' => self.end_line(),
                b'\r' => {}
                byte => {
                    if let Some(place) = self.line.get_mut(self.length) {
                        *place = byte.to_ascii_lowercase();
                    }
                    self.length += 1;
                }
            }
        }
    }

    fn end_line(&mut self) {
        let line = &self.line[..self.length.min(NAME)];
        self.has_length |= line.starts_with(b"content-length:");
        self.is_chunked |= line.starts_with(b"transfer-encoding:");
        // Empty lines before a request are allowed.
        self.over = self.begun && self.length == 0;
        self.begun |= self.length > 0;
        self.length = 0;
    }

    /// Returns `true` if the head states the length of the body in both ways.
    pub(super) fn is_contradictory(&self) -> bool {
        self.has_length && self.is_chunked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(head: &str, step: usize) -> bool {
        let mut scan = HeadScan::default();
        head.as_bytes().chunks(step).for_each(|bytes| scan.feed(bytes));
        scan.is_contradictory()
    }

    #[test]
    fn both_lengths_are_found_however_they_arrive() {
        let both = "\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\nhost: x\r\nTRANSFER-ENCODING: chunked\r\n\r\n";
        let one = "POST /content-length: HTTP/1.1\nx-content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n";
        let body = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n10\r\ncontent-length: 5\r\n0\r\n\r\n";
        for step in [1, 2, 7, 1000] {
            assert!(scanned(both, step) && !scanned(one, step) && !scanned(body, step), "{step}");
        }
    }
}
