//! Questions with known supporting passages, for evaluating retrieval.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::question::distinct;

/// A question with known supporting passages.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrievalQuestion {
    /// Text of the question.
    pub text: String,
    /// IDs of the supporting passages; at least one, without duplicates.
    pub supporting: Vec<String>,
}

/// The questions of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Questions {
    /// Questions with known support, in file order.
    pub known: Vec<RetrievalQuestion>,
    /// Number of further questions, whose support is unknown or incomplete.
    pub left_out: usize,
}

/// A line of the file. Other keys are ignored.
#[derive(Deserialize)]
struct QuestionRecord {
    question: String,
    #[serde(default)]
    supporting: Option<Vec<String>>,
    supporting_complete: Option<bool>,
}

impl Questions {
    /// Reads JSON lines with `question`, `supporting` and, if that list is incomplete, `supporting_complete: false`.
    pub fn read(path: &Path) -> anyhow::Result<Questions> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let questions = Questions::parse(&text).with_context(|| path.display().to_string())?;
        ensure!(
            !questions.known.is_empty(),
            "{}: no question with known support among {}",
            path.display(),
            questions.left_out
        );
        Ok(questions)
    }

    /// Reads the texts of all questions of a file, with or without known support. Returns at least one.
    pub fn texts(path: &Path) -> anyhow::Result<Vec<String>> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let rows = rows(&text).map(|row| Ok(row?.question)).collect::<anyhow::Result<Vec<_>>>();
        let texts = rows.with_context(|| path.display().to_string())?;
        ensure!(!texts.is_empty(), "no questions in {}", path.display());
        Ok(texts)
    }

    fn parse(text: &str) -> anyhow::Result<Questions> {
        let mut questions = Questions { known: Vec::new(), left_out: 0 };
        for row in rows(text) {
            let row = row?;
            // A duplicate would count twice in the denominator of recall, so that 1.0 could not be reached.
            let supporting = distinct(row.supporting.unwrap_or_default());
            // An incomplete list cannot tell a miss from a passage that supports but was not listed.
            if supporting.is_empty() || row.supporting_complete == Some(false) {
                questions.left_out += 1;
            } else {
                questions.known.push(RetrievalQuestion { text: row.question, supporting });
            }
        }
        Ok(questions)
    }
}

fn rows(text: &str) -> impl Iterator<Item = anyhow::Result<QuestionRecord>> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    lines.map(|(line, number)| serde_json::from_str(line).with_context(|| format!("line {number}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_without_known_support_are_left_out_and_counted() {
        let text = r#"
            {"question": "a", "supporting": ["1", "2", "1"], "answers": []}
            {"question": "b", "supporting": ["1"], "supporting_complete": false}
            {"question": "c", "supporting": [], "supporting_complete": true}
            {"question": "d", "supporting": null}
            {"question": "e"}
            {"question": "f", "supporting": ["3"], "supporting_complete": true}
        "#;
        let questions = Questions::parse(text).unwrap();
        let question = |text: &str, supporting: &[&str]| RetrievalQuestion {
            text: text.to_owned(),
            supporting: supporting.iter().map(|&id| id.to_owned()).collect(),
        };
        assert_eq!(questions.known, [question("a", &["1", "2"]), question("f", &["3"])]);
        assert_eq!(questions.left_out, 4);
        let error = Questions::parse("{\"question\": \"a\"}\n{\"supporting\": []}").unwrap_err();
        assert_eq!(error.to_string(), "line 2");
    }
}
