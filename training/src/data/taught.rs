//! The questions that samples are about, for learning from rewards: `train grpo --questions` reads them.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::output::OutputError;
use crate::run::durable;
use crate::sample::Sample;
use crate::store::Samples;

/// A question as a line.
#[derive(Debug, Serialize)]
struct Line<'s> {
    id: &'s str,
    question: &'s str,
    answers: &'s [String],
    supporting: &'s [String],
    dataset: &'s str,
}

/// Where the questions of `samples.jsonl` lie: in the folder `samples.questions`.
pub fn beside(samples: &Path) -> PathBuf {
    samples.with_extension("questions")
}

/// Writes the questions of a file of samples, each once, in the order in which they come first and in the words of that
/// time. Each data set has a file of its own, `<dataset>.jsonl`, for its questions are asked over its own index.
///
/// # Errors
/// When the samples cannot be read, or the file system refuses.
pub fn write(samples: &Path) -> Result<(), OutputError> {
    let mut seen = HashSet::new();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for sample in Samples::open(samples)? {
        let sample = sample?;
        if seen.insert((sample.dataset.clone(), sample.question_id.clone())) {
            let lines = files.entry(sample.dataset.clone()).or_default();
            line(&sample, lines).map_err(OutputError::io(samples))?;
        }
    }
    let folder = beside(samples);
    fs::create_dir_all(&folder).map_err(OutputError::io(&folder))?;
    for (dataset, lines) in &files {
        durable::write(&folder.join(format!("{dataset}.jsonl")), lines)?;
    }
    Ok(())
}

fn line(sample: &Sample, lines: &mut Vec<u8>) -> std::io::Result<()> {
    let line = Line {
        id: &sample.question_id,
        question: &sample.question,
        answers: &sample.golds,
        supporting: &sample.supporting,
        dataset: &sample.dataset,
    };
    serde_json::to_writer(&mut *lines, &line)?;
    lines.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark::evaluate::Question;

    use super::*;
    use crate::sample::{Task, tests::trajectory};
    use crate::store::Writer;

    #[test]
    fn each_question_is_written_once_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.jsonl");
        let mut writer = Writer::open(&path).unwrap();
        for (dataset, id, question) in
            [("a", "1", "Who?"), ("b", "1", "Where?"), ("a", "1", "What?"), ("a", "2", "When?")]
        {
            let task = Task {
                question_id: id.into(),
                question: question.into(),
                golds: vec!["x".into(), "y".into()],
                supporting: vec!["p".into()],
                dataset: dataset.into(),
                ..Task::default()
            };
            writer.append(&Sample::from_trajectory(trajectory(Vec::new(), 0, ""), task)).unwrap();
        }
        write(&path).unwrap();
        let read = |name: &str| Question::read(&dir.path().join("samples.questions").join(name)).unwrap();
        let told = |questions: Vec<Question>| questions.into_iter().map(|one| one.question).collect::<Vec<_>>();
        assert_eq!(read("a.jsonl")[0].answers, ["x", "y"]);
        assert_eq!(read("a.jsonl")[0].supporting, ["p"]);
        assert_eq!(
            (told(read("a.jsonl")), told(read("b.jsonl"))),
            (vec!["Who?".to_owned(), "When?".to_owned()], vec!["Where?".to_owned()])
        );
    }
}
