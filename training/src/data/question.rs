//! The rows of the data sets.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A subject, a relation, an object.
pub type Triple = [String; 3];

/// A question with what is known about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Question {
    /// Its id.
    pub id: String,
    /// The question.
    pub question: String,
    /// Answers that count as right.
    pub answers: Vec<String>,
    /// Passages that hold the answer.
    #[serde(default)]
    pub supporting: Vec<String>,
    /// What kind of question it is, in the data set's words.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Gold triples, in the order of the hops.
    #[serde(default)]
    pub evidences: Vec<Triple>,
    /// Smaller questions that lead to the answer; `#1` stands for the answer of the first.
    #[serde(default)]
    pub decomposition: Vec<Part>,
    /// The triple that it asks for the object of.
    #[serde(default)]
    pub triple: Option<Triple>,
}

impl Question {
    /// The smaller questions with the answers of earlier ones in them, each with its own answer.
    pub fn parts(&self) -> impl Iterator<Item = (String, &str)> {
        self.decomposition.iter().map(move |part| {
            let mut text = part.question.clone();
            // From the last one on, for `#1` is the beginning of `#10`.
            for (at, earlier) in self.decomposition.iter().enumerate().rev() {
                text = text.replace(&format!("#{}", at + 1), &earlier.answer);
            }
            (text, part.answer.trim())
        })
    }
}

/// One smaller question.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Part {
    /// In words, or as `subject >> relation`.
    pub question: String,
    /// Its answer.
    pub answer: String,
}

/// A passage of a corpus.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Document {
    /// Its id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its text.
    pub text: String,
}

/// What was extracted from one passage.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Extracted {
    /// The passage.
    pub id: String,
    /// Triples; a few are of another length than three.
    pub triples: Vec<Vec<String>>,
}

/// Why a file of rows could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is no row.
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}

/// All rows of a file of JSON lines.
///
/// # Errors
/// [`RowError`] for a file that cannot be read, or a line that is no such row.
pub fn rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, RowError> {
    let text = fs::read_to_string(path).map_err(|source| RowError::Io { path: path.to_owned(), source })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let row = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| RowError::Line { path: path.to_owned(), line: at + 1, source })
    };
    lines.map(row).collect()
}
