//! Files of the questions behind the samples, for `train grpo --questions`.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::build_output::BuildOutputError;
use crate::run::{RunError, durable};
use crate::sample::Sample;
use crate::sample_lines::SampleReader;

/// Question as a JSON line.
#[derive(Debug, Serialize)]
struct QuestionLine<'s> {
    id: &'s str,
    question: &'s str,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'s str>,
    answers: &'s [String],
    supporting: &'s [String],
    #[serde(skip_serializing_if = "is_true")]
    supporting_complete: bool,
    dataset: &'s str,
    /// IDs of passages to withhold from every search, under which the question has no answer.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    without: &'s [String],
}

fn is_true(value: &bool) -> bool {
    *value
}

/// Directory of the questions of `samples.jsonl`: `samples.questions`.
pub fn questions_dir(samples: &Path) -> PathBuf {
    samples.with_extension("questions")
}

/// Writes the questions of a sample file. Each question is written once, in the order and wording of its first sample.
/// Each data set has a file of its own, `<dataset>.jsonl`, because its questions need its own index.
///
/// # Errors
/// If the samples cannot be read or the file system returns an error.
pub fn write(samples: &Path) -> Result<(), BuildOutputError> {
    let mut seen = HashSet::new();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for sample in SampleReader::open(samples)? {
        let sample = sample?;
        // The same ID may occur in several data sets with different questions.
        if seen.insert((sample.dataset.clone(), sample.question_id.clone())) {
            let lines = files.entry(sample.dataset.clone()).or_default();
            line(&sample, lines).map_err(RunError::io("copy a question of", samples))?;
        }
    }
    let folder = questions_dir(samples);
    fs::create_dir_all(&folder).map_err(RunError::io("create", &folder))?;
    for (dataset, lines) in &files {
        durable::write(&folder.join(format!("{dataset}.jsonl")), lines)?;
    }
    Ok(())
}

fn line(sample: &Sample, lines: &mut Vec<u8>) -> std::io::Result<()> {
    let line = QuestionLine {
        id: &sample.question_id,
        question: &sample.question,
        kind: sample.kind.as_deref(),
        answers: &sample.golds,
        supporting: &sample.supporting,
        supporting_complete: !sample.partly,
        dataset: &sample.dataset,
        without: &sample.without,
    };
    serde_json::to_writer(&mut *lines, &line)?;
    lines.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_runtime::evaluate::Question;

    use super::*;
    use crate::sample::{SampleTask, tests::trajectory};
    use crate::sample_lines::SampleWriter;

    #[test]
    fn each_question_is_written_once_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.jsonl");
        let mut writer = SampleWriter::open(&path).unwrap();
        for (dataset, id, question) in
            [("a", "1", "Who?"), ("b", "1", "Where?"), ("a", "1", "What?"), ("a", "2", "When?")]
        {
            let task = SampleTask {
                question_id: id.into(),
                question: question.into(),
                kind: Some("place of birth".into()),
                golds: vec!["x".into(), "y".into()],
                supporting: vec!["p".into()],
                partly: dataset == "b",
                dataset: dataset.into(),
                ..SampleTask::default()
            };
            writer.append(&Sample::from_trajectory(trajectory(Vec::new(), 0, ""), task)).unwrap();
        }
        write(&path).unwrap();
        let read = |name: &str| Question::read(&dir.path().join("samples.questions").join(name)).unwrap();
        let told = |questions: Vec<Question>| questions.into_iter().map(|one| one.question).collect::<Vec<_>>();
        assert_eq!(read("a.jsonl")[0].answers, ["x", "y"]);
        assert_eq!(read("a.jsonl")[0].supporting, ["p"]);
        assert!(read("a.jsonl")[0].supporting_complete && !read("b.jsonl")[0].supporting_complete);
        assert_eq!(read("a.jsonl")[0].kind.as_deref(), Some("place of birth"));
        assert_eq!(
            (told(read("a.jsonl")), told(read("b.jsonl"))),
            (vec!["Who?".to_owned(), "When?".to_owned()], vec!["Where?".to_owned()])
        );
    }
}
