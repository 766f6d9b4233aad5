//! Rows of the data set files.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Triple of subject, relation and object.
pub type GoldTriple = [String; 3];

/// Question with its gold annotations.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct SourceQuestion {
    /// ID of the question.
    pub id: String,
    /// Text of the question.
    pub question: String,
    /// Accepted answers.
    pub answers: Vec<String>,
    /// IDs of the passages that hold the answer.
    #[serde(default)]
    pub supporting: Vec<String>,
    /// If `false`, `supporting` is incomplete. `None` means that it is complete.
    #[serde(default)]
    pub supporting_complete: Option<bool>,
    /// Kind of question, as the data set names it.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Gold triples, in the order of the hops.
    #[serde(default)]
    pub evidences: Vec<GoldTriple>,
    /// Sub-questions that lead to the answer. `#1` stands for the answer to the first one.
    #[serde(default)]
    pub decomposition: Vec<SubQuestion>,
    /// Triple whose object the question asks for. `None` if the data set does not give it.
    #[serde(default)]
    pub triple: Option<GoldTriple>,
}

impl SourceQuestion {
    /// Sub-questions with the answers to earlier ones filled in, each with its own answer.
    pub fn parts(&self) -> impl Iterator<Item = (String, &str)> {
        self.decomposition.iter().map(move |part| {
            let mut text = part.question.clone();
            // Later references are replaced first, because `#1` is a prefix of `#10`.
            for (at, earlier) in self.decomposition.iter().enumerate().rev() {
                text = text.replace(&format!("#{}", at + 1), &earlier.answer);
            }
            (text, part.answer.trim())
        })
    }
}

/// Sub-question of a decomposition.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SubQuestion {
    /// Text of the question, or `subject >> relation`.
    pub question: String,
    /// Answer to the question.
    pub answer: String,
}

/// Passage of a corpus.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CorpusPassage {
    /// ID of the passage.
    pub id: String,
    /// Title of the passage.
    pub title: String,
    /// Text of the passage.
    pub text: String,
}

/// Triples that were extracted from one passage.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExtractedTriples {
    /// ID of the passage.
    pub id: String,
    /// Extracted triples. A few have more or fewer than three parts.
    pub triples: Vec<Vec<String>>,
}

/// Error of reading a file of rows.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A line does not hold a valid row.
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Cause.
        source: serde_json::Error,
    },
}

/// Reads all rows of a JSON lines file.
///
/// # Errors
/// [`RowError`] if the file cannot be read or a line is invalid.
pub fn rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, RowError> {
    let text = fs::read_to_string(path).map_err(|source| RowError::Io { path: path.to_owned(), source })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let row = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| RowError::Line { path: path.to_owned(), line: at + 1, source })
    };
    lines.map(row).collect()
}
