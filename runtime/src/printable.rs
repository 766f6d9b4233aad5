//! Untrusted text (retrieved, written by a policy or sent by a server) made safe to print on a terminal.

use std::io::{self, Write};

/// Replaces control characters that a terminal would act on. Line breaks and tabs stay.
pub fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        // A carriage return would let the rest of the line overwrite its beginning.
        '\r' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Writer that makes all text [`printable`]. Color codes written through it lose their effect too.
#[derive(Debug)]
pub struct PrintableWriter<W>(pub W);

impl<W: Write> Write for PrintableWriter<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // `write!` hands over whole strings, so that no character comes in halves.
        self.0.write_all(printable(&String::from_utf8_lossy(text)).as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_sequence_reaches_a_terminal() {
        let hostile = "\u{1b}]52;c;cm0gLXJm\u{7}a\r\nb\u{9b}2J\tü";
        let mut out = Vec::new();
        write!(PrintableWriter(&mut out), "{hostile}").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\u{fffd}]52;c;cm0gLXJm\u{fffd}a \nb\u{fffd}2J\tü");
        assert_eq!(printable("Größe, in\ntwo lines"), "Größe, in\ntwo lines");
    }
}
