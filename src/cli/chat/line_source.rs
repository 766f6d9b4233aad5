//! Source of the lines of a conversation: a line editor in a terminal, or standard input.

use std::io::{self, BufRead, Read};

use anyhow::ensure;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

/// Maximum length of a line of standard input, in bytes.
const MAX_LINE: u64 = 1 << 20;

/// Source of lines.
#[derive(Debug)]
pub(super) enum LineSource {
    /// Line editor with the history of this conversation.
    Editor(Box<DefaultEditor>),
    /// Standard input.
    Plain,
}

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadLine {
    /// Complete line.
    Line(String),
    /// Ctrl-C: the line was given up.
    Interrupted,
    /// Ctrl-D, or the end of standard input.
    End,
}

impl LineSource {
    /// Opens the line editor if the session is interactive, and otherwise standard input.
    ///
    /// # Errors
    /// If the terminal cannot be edited in.
    pub(super) fn open(interactive: bool) -> anyhow::Result<Self> {
        Ok(if interactive { Self::Editor(Box::new(DefaultEditor::new()?)) } else { Self::Plain })
    }

    /// Waits for the next line.
    ///
    /// # Errors
    /// If it cannot be read, or is too long.
    pub(super) fn next(&mut self) -> anyhow::Result<ReadLine> {
        match self {
            Self::Plain => read_line(&mut io::stdin().lock()),
            Self::Editor(editor) => match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    Ok(ReadLine::Line(line))
                }
                Err(ReadlineError::Interrupted) => Ok(ReadLine::Interrupted),
                Err(ReadlineError::Eof) => Ok(ReadLine::End),
                Err(error) => Err(error.into()),
            },
        }
    }
}

fn read_line(input: &mut impl BufRead) -> anyhow::Result<ReadLine> {
    let mut line = String::new();
    // Bounded, because a pipe may hold no line break at all.
    if input.take(MAX_LINE).read_line(&mut line)? == 0 {
        return Ok(ReadLine::End);
    }
    ensure!((line.len() as u64) < MAX_LINE, "a line has at most {MAX_LINE} bytes");
    Ok(ReadLine::Line(line))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_end_with_the_input_and_have_a_bound() {
        let mut input: &[u8] = b"Who?\nWhen?";
        for line in ["Who?\n", "When?"] {
            assert_eq!(read_line(&mut input).unwrap(), ReadLine::Line(line.to_owned()));
        }
        assert_eq!(read_line(&mut input).unwrap(), ReadLine::End);
        let endless = vec![b'a'; MAX_LINE as usize + 1];
        assert!(read_line(&mut endless.as_slice()).is_err());
    }
}
