//! Text of others in a terminal: what was retrieved, written by a policy or said by a server is shown, and never obeyed.

use std::io::{self, Write};

/// `text` without signs that a terminal would act on. Lines and tabs stay.
pub fn harmless(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        '\r' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(shown).collect()
}

/// A writer all of whose text is [harmless]. Nothing of our own that goes through it has colours.
pub(super) struct Harmless<W>(pub(super) W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // `write!` hands over whole strings, so that no character comes in halves.
        self.0.write_all(harmless(&String::from_utf8_lossy(text)).as_bytes())?;
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
        write!(Harmless(&mut out), "{hostile}").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\u{fffd}]52;c;cm0gLXJm\u{fffd}a \nb\u{fffd}2J\tü");
        assert_eq!(harmless("Größe, in\ntwo lines"), "Größe, in\ntwo lines");
    }
}
