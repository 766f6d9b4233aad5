//! Split of question files into training and validation questions.

use std::path::PathBuf;

use super::question_args::RunFacts;
use super::run_facts;
use crate::question_file::{self, QuestionFile};

/// Validation questions.
#[derive(Debug, clap::Args)]
pub(super) struct ValidationArgs {
    /// Path to validation questions: one file for each --questions, in the same order. The first questions of each are
    /// used, as many as `grpo.validation` or `dpo.validation` of the recipe says.
    ///
    /// By default the last questions of each --questions, at most a quarter, are used for validation instead of
    /// training. Supervised training may have seen them.
    #[arg(long, value_name = "FILE")]
    validation: Vec<PathBuf>,
}

impl ValidationArgs {
    /// Splits off the validation questions of each file: `measured` questions, the value of the recipe's `field`.
    pub(super) fn split(
        &self,
        files: Vec<QuestionFile>,
        field: &str,
        measured: usize,
    ) -> anyhow::Result<Vec<QuestionFile>> {
        question_file::split(files, &self.validation, field, measured)
    }

    /// Facts that identify a run.
    pub(super) fn facts(&self) -> anyhow::Result<RunFacts> {
        Ok(vec![("validation", run_facts::hash_list(&run_facts::fingerprints(&self.validation)?))])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use waymark_runtime::config::EmbedderArgs;

    use super::super::question_args::QuestionArgs;
    use super::*;

    fn file(dir: &Path, name: &str, first: usize, count: usize) -> PathBuf {
        let line = |at| format!("{{\"question\": \"question {at}?\", \"answers\": [\"a\"]}}\n");
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(name), (first..first + count).map(line).collect::<String>()).unwrap();
        dir.join(name)
    }

    fn asking(questions: &[&PathBuf]) -> QuestionArgs {
        let index = vec![PathBuf::from("index"); questions.len()];
        let questions = questions.iter().copied().cloned().collect();
        QuestionArgs { questions, index, embedder: EmbedderArgs::weights("mock") }
    }

    fn files(questions: &[&PathBuf], validation: &[&PathBuf], measured: usize) -> anyhow::Result<Vec<QuestionFile>> {
        let aside = ValidationArgs { validation: validation.iter().copied().cloned().collect() };
        aside.split(asking(questions).files()?, "grpo.validation", measured)
    }

    fn refused(questions: &[&PathBuf], validation: &[&PathBuf], measured: usize) -> String {
        files(questions, validation, measured).unwrap_err().to_string()
    }

    #[test]
    fn questions_are_named_after_their_file_and_split() {
        let temp = tempfile::tempdir().unwrap();
        let one = file(temp.path(), "single.jsonl", 0, 8);
        let two = file(temp.path(), "2wiki.jsonl", 20, 9);
        let divided = files(&[&one, &two], &[], 2).unwrap();
        let told: Vec<_> =
            divided.iter().map(|file| (file.name.as_str(), file.questions.len(), file.validation.len())).collect();
        assert_eq!(told, [("single", 6, 2), ("2wiki", 7, 2)]);
        assert_eq!(divided[0].validation[0].question, "question 6?");
        let kept = [file(temp.path(), "a.jsonl", 100, 3), file(temp.path(), "b.jsonl", 200, 9)];
        let divided = files(&[&one, &two], &[&kept[0], &kept[1]], 4).unwrap();
        let told: Vec<_> = divided.iter().map(|file| (file.questions.len(), file.validation.len())).collect();
        assert_eq!(told, [(8, 3), (9, 4)]);
        assert_eq!(divided[1].validation[0].question, "question 200?");
    }

    #[test]
    fn invalid_question_files_are_refused_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let one = file(temp.path(), "single.jsonl", 0, 8);
        let two = file(&temp.path().join("other"), "single.jsonl", 0, 8);
        let error = refused(&[&one, &two], &[], 1);
        assert!(error.contains(&one.display().to_string()) && error.contains(&two.display().to_string()), "{error}");
        let error = refused(&[&one], &[], 3);
        for words in ["single.jsonl", "grpo.validation = 3", "8 questions", "at most 2", "--validation"] {
            assert!(error.contains(words), "{error}");
        }
        let empty = file(temp.path(), "empty.jsonl", 0, 0);
        assert!(refused(&[&empty], &[], 0).contains("empty.jsonl: the file has no questions"));
        let apart = file(temp.path(), "apart.jsonl", 7, 3);
        let error = refused(&[&one], &[&apart], 3);
        assert!(
            error.contains("apart.jsonl: the validation question \"question 7?\" is a training question too")
                && error.contains("single.jsonl"),
            "{error}"
        );
        // Each file differs from its own validation file, yet its questions are validation questions of the other file.
        let other = file(temp.path(), "other.jsonl", 100, 8);
        let error = refused(&[&one, &other], &[&other, &one], 2);
        assert!(error.contains("other.jsonl: the validation question \"question 100?\" is a training"), "{error}");
        let twice = temp.path().join("twice.jsonl");
        let all: String = [&one, &one].map(|file| std::fs::read_to_string(file).unwrap()).concat();
        std::fs::write(&twice, all).unwrap();
        assert!(refused(&[&twice], &[], 2).contains("twice.jsonl: the validation question \"question 6?\""));
        assert!(refused(&[&one], &[&apart], 0).contains("grpo.validation"));
        assert!(refused(&[&one], &[&apart, &one], 1).contains("2 --validation"));
        let mut unpaired = asking(&[&one]);
        unpaired.index.clear();
        assert!(unpaired.files().unwrap_err().to_string().contains("0 --index"));
    }
}
