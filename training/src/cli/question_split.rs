//! Split of a question file into training and validation questions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use waymark_index::Index;
use waymark_runtime::evaluate::Question;

use super::question_args::RunFacts;
use super::run_facts;

/// At most one in this many questions of a file is set aside for validation.
const ASIDE: usize = 4;

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
        let given = files.len();
        let kept = self.validation.len();
        ensure!(
            kept == 0 || given == kept,
            "{given} --questions but {kept} --validation: give one --validation for each --questions, or none"
        );
        ensure!(kept == 0 || measured > 0, "--validation is unused: set {field} of the recipe above 0");
        let split = files.into_iter().enumerate().map(|(index, file)| match self.validation.get(index) {
            Some(path) => file.with_validation_file(path, measured),
            None => file.with_last_set_aside(field, measured),
        });
        let split: Vec<QuestionFile> = split.collect::<anyhow::Result<_>>()?;
        // Checked over all files at once: corpora overlap, and a question may stand in two of them.
        self.check(&split)?;
        Ok(split)
    }

    /// Fails if a question is used both for training and for validation, in the same or in different files.
    fn check(&self, files: &[QuestionFile]) -> anyhow::Result<()> {
        let trained = files.iter().flat_map(|file| file.questions.iter().map(|question| (text(question), &file.path)));
        let trained: HashMap<&str, &PathBuf> = trained.collect();
        for (index, file) in files.iter().enumerate() {
            let path = self.validation.get(index).unwrap_or(&file.path);
            for question in file.validation.iter().map(text) {
                if let Some(other) = trained.get(question) {
                    bail!(
                        "{}: the validation question {question:?} is a training question too ({}): remove it from one of them",
                        path.display(),
                        other.display()
                    );
                }
            }
        }
        Ok(())
    }

    /// Facts that identify a run.
    pub(super) fn facts(&self) -> anyhow::Result<RunFacts> {
        Ok(vec![("validation", run_facts::hash_list(&run_facts::fingerprints(&self.validation)?))])
    }
}

/// Leaves out questions whose passages are withheld, unless `refusals` earn a reward: under other rewards, these
/// questions would teach the policy to guess.
pub(super) fn rewarded(files: Vec<QuestionFile>, refusals: bool) -> anyhow::Result<Vec<QuestionFile>> {
    if refusals {
        return Ok(files);
    }
    files.into_iter().map(QuestionFile::answerable).collect()
}

/// Questions of a file.
#[derive(Debug)]
pub(super) struct QuestionFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) questions: Vec<Question>,
    pub(super) validation: Vec<Question>,
}

impl QuestionFile {
    /// Reads a file, all of whose questions are for training.
    pub(super) fn open(name: String, path: &Path) -> anyhow::Result<QuestionFile> {
        let questions = Question::read(path)?;
        ensure!(!questions.is_empty(), "{}: the file has no questions", path.display());
        Ok(QuestionFile { name, path: path.to_owned(), questions, validation: Vec::new() })
    }

    /// Leaves out questions whose passages are withheld, of training and of validation.
    fn answerable(mut self) -> anyhow::Result<QuestionFile> {
        let measured = self.validation.len();
        let all = self.questions.len() + measured;
        self.questions.retain(|question| question.without.is_empty());
        self.validation.retain(|question| question.without.is_empty());
        let left_out = all - self.questions.len() - self.validation.len();
        if left_out > 0 {
            let name = &self.name;
            tracing::info!(questions = name, left_out, "questions with withheld passages: the reward has no refusals");
        }
        let some = !self.questions.is_empty() && (measured == 0 || !self.validation.is_empty());
        ensure!(
            some,
            "{}: the passages of all questions are withheld: add questions that can be answered, or use the reward evo_rag, \
             which pays for refusals",
            self.path.display()
        );
        Ok(self)
    }

    /// Looks up the texts of the supporting passages in the index.
    pub(super) fn support_from(mut self, index: &Index) -> QuestionFile {
        self.questions.iter_mut().chain(&mut self.validation).for_each(|question| question.support_from(index));
        self
    }

    /// Returns `true` if the support of at least one training question is known.
    pub(super) fn is_supported(&self) -> bool {
        self.questions.iter().any(|question| !question.support.is_empty())
    }

    /// Sets aside the last `measured` questions for validation.
    fn with_last_set_aside(mut self, field: &str, measured: usize) -> anyhow::Result<QuestionFile> {
        let all = self.questions.len();
        let most = all / ASIDE;
        ensure!(
            measured <= most,
            "{}: {field} = {measured} is more than a quarter of the {all} questions: set {field} to at most {most}, or give \
             validation questions with --validation",
            self.path.display()
        );
        // The last ones: a recipe that raises its number of questions still trains on the same first ones.
        self.validation = self.questions.split_off(all - measured);
        Ok(self)
    }

    /// Takes the first `measured` questions of the file `path` for validation.
    fn with_validation_file(mut self, path: &Path, measured: usize) -> anyhow::Result<QuestionFile> {
        let mut validation = Question::read(path)?;
        ensure!(!validation.is_empty(), "{}: the file has no questions", path.display());
        // The first ones, so that a smaller setting measures on a subset of a larger one.
        validation.truncate(measured);
        self.validation = validation;
        Ok(self)
    }
}

/// Text by which two files are compared for the same question.
fn text(question: &Question) -> &str {
    // Not by ID: exports of one data set number their questions anew.
    question.question.trim()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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

    #[test]
    fn withheld_questions_are_left_out_unless_refusals_pay() {
        let question = |name: &str, without: &[&str]| Question {
            question: name.to_owned(),
            without: without.iter().map(|id| (*id).to_owned()).collect(),
            ..Question::default()
        };
        let file = |questions: Vec<Question>| QuestionFile {
            name: "set".to_owned(),
            path: PathBuf::from("set.jsonl"),
            questions,
            validation: vec![question("c", &[]), question("d", &["p"])],
        };
        let mixed = || vec![file(vec![question("a", &["p"]), question("b", &[])])];
        let counts = |refusals| {
            let files = rewarded(mixed(), refusals).unwrap();
            (files[0].questions.len(), files[0].validation.len())
        };
        assert_eq!((counts(true), counts(false)), ((2, 2), (1, 1)));
        let error = rewarded(vec![file(vec![question("a", &["p"])])], false).unwrap_err().to_string();
        assert!(error.starts_with("set.jsonl: the passages of all questions are withheld"), "{error}");
    }
}
