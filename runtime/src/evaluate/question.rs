//! Questions with known answers.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use waymark_agent::MAX_WITHOUT;
use waymark_index::Index;

/// A question with its accepted answers and supporting passages.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Question {
    /// ID of the question; empty if the file gives none.
    #[serde(default)]
    pub id: String,
    /// Text of the question.
    pub question: String,
    /// Accepted answers.
    #[serde(default)]
    pub answers: Vec<String>,
    /// IDs of the supporting passages; empty if unknown.
    #[serde(default, deserialize_with = "or_none")]
    pub supporting: Vec<String>,
    /// If `true`, `supporting` lists all supporting passages.
    #[serde(default = "yes")]
    pub supporting_complete: bool,
    /// IDs of passages that are withheld from every search, so that the question cannot be answered from them.
    #[serde(default, deserialize_with = "or_none")]
    pub without: Vec<String>,
    /// Kind of the question, as its data set names it, for example `bridge`. `None` if the file gives none.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Texts of the supporting passages, title first: [`Question::support_from`] fills them in.
    #[serde(skip)]
    pub support: Vec<String>,
}

/// Error returned when questions cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum QuestionError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A line is not a question.
    #[error("{path}, line {line}: {reason}")]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Reason the line was refused.
        reason: String,
    },
}

impl Question {
    /// Returns the key of the question: its ID, or its text if it has none.
    pub fn key(&self) -> &str {
        if self.id.is_empty() { &self.question } else { &self.id }
    }

    /// Returns `true` if the question lists all of its supporting passages.
    pub fn lists_support(&self) -> bool {
        self.supporting_complete && !self.supporting.is_empty()
    }

    /// Reads JSON lines with `question` and `answers`, and optionally `id`, `type`, `supporting` (IDs),
    /// `supporting_complete` and `without` (IDs). Other keys are ignored.
    ///
    /// # Errors
    /// [`QuestionError`] if the file cannot be read, or a line is not a question, has no answer, or withholds more than
    /// [`MAX_WITHOUT`] passages.
    pub fn read(path: &Path) -> Result<Vec<Question>, QuestionError> {
        let text = std::fs::read_to_string(path).map_err(|error| QuestionError::Io { path: path.into(), error })?;
        let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        lines.map(|(text, line)| Question::parse(text).map_err(|reason| refuse(path, line, reason))).collect()
    }

    fn parse(line: &str) -> Result<Question, String> {
        let question: Question = serde_json::from_str(line).map_err(|error| error.to_string())?;
        // Without answers, every score would be zero and the policy would look bad.
        if question.answers.is_empty() {
            return Err("the question has no answers".to_owned());
        }
        let withheld = question.without.len();
        if withheld > MAX_WITHOUT {
            return Err(format!(
                "without: {withheld} passages are more than the {MAX_WITHOUT} that a search can leave out"
            ));
        }
        Ok(question.with_distinct_support())
    }

    /// Removes repeated supporting passages, which would count twice in scores.
    #[must_use]
    pub fn with_distinct_support(self) -> Question {
        Question { supporting: distinct(self.supporting), support: distinct(self.support), ..self }
    }

    /// Fills in the texts of the supporting passages from `index`. If the list of passages is incomplete, or a passage
    /// is missing from the index, no text is filled in, because a support score would be misleading.
    pub fn support_from(&mut self, index: &Index) {
        self.support(|id| index.passage(id).ok().flatten().map(|found| compared(&found.title, &found.text)));
    }

    fn support(&mut self, mut text: impl FnMut(&str) -> Option<String>) {
        let known = self.supporting_complete;
        let texts: Option<Vec<String>> = self.supporting.iter().map(|id| text(id)).collect();
        self.support = texts.filter(|_| known).unwrap_or_default();
    }
}

/// Joins a passage's title and text, the form in which retrieved and supporting passages are compared.
pub(super) fn compared(title: &str, text: &str) -> String {
    format!("{title} {text}")
}

/// Returns each of `names` once, in the order of their first occurrences.
pub(super) fn distinct(names: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    names.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

fn refuse(path: &Path, line: usize, reason: String) -> QuestionError {
    QuestionError::Line { path: path.into(), line, reason }
}

fn yes() -> bool {
    true
}

fn or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_supporting_passage_that_is_listed_twice_counts_once() {
        let line = r#"{"question": "q", "answers": ["a"], "supporting": ["x", "y", "x"]}"#;
        let mut question = Question::parse(line).unwrap();
        assert_eq!(question.supporting, ["x", "y"]);
        question.support(|id| Some(format!("text of {id}")));
        assert_eq!(question.support, ["text of x", "text of y"]);
    }

    #[test]
    fn lines_are_read_and_errors_name_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("questions.jsonl");
        let line = r#"{"id": "1", "question": "q", "answers": ["a", "b"], "supporting": ["x"], "hops": 2}"#;
        std::fs::write(&path, format!("{line}\n\n{}\n", r#"{"question": "r", "answers": ["c"], "supporting": null}"#))
            .unwrap();
        let mut questions = Question::read(&path).unwrap();
        assert_eq!(questions.len(), 2);
        assert!(questions[1].supporting.is_empty() && questions[1].id.is_empty());
        questions[0].support(|id| Some(format!("text of {id}")));
        assert_eq!(questions[0].support, ["text of x"]);
        questions[0].support(|_| None);
        assert!(questions[0].support.is_empty());
        let partly = Question { supporting_complete: false, ..questions[0].clone() };
        let support = |mut question: Question| {
            question.support(|id| Some(id.to_owned()));
            question.support
        };
        assert!(support(partly).is_empty());
        let withheld = |count: usize| {
            let ids: Vec<String> = (0..count).map(|id| format!("\"{id}\"")).collect();
            format!(r#"{{"question": "q", "answers": ["a"], "without": [{}]}}"#, ids.join(", "))
        };
        assert_eq!(Question::parse(&withheld(MAX_WITHOUT)).unwrap().without.len(), MAX_WITHOUT);
        let many = withheld(MAX_WITHOUT + 1);
        for (text, words) in [
            ("{\"answers\": [\"a\"]}", "question"),
            ("{\"question\": \"q\"}", "no answers"),
            (many.as_str(), "without: 65 passages"),
        ] {
            std::fs::write(&path, format!("{line}\n{text}")).unwrap();
            let message = Question::read(&path).unwrap_err().to_string();
            assert!(message.contains("line 2") && message.contains(words), "{message}");
        }
    }
}
