//! Question files of a training, split into training and validation questions.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use waymark_index::Index;
use waymark_runtime::evaluate::Question;

/// At most one in this many questions of a file is set aside for validation.
const ASIDE: usize = 4;

/// Questions of a file.
#[derive(Debug)]
pub(crate) struct QuestionFile {
    /// Name of the questions in metrics and samples: that of the file, without its extension.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Questions for training.
    pub(crate) questions: Vec<Question>,
    /// Questions for validation.
    pub(crate) validation: Vec<Question>,
}

/// Splits off the validation questions of each file: `measured` questions, the value of the recipe's `field`. They come
/// from the files `validation`, one for each file, or from the files themselves if there are none.
///
/// # Errors
/// If the numbers of files or of questions do not fit, or a question is used for training and for validation.
pub(crate) fn split(
    files: Vec<QuestionFile>,
    validation: &[PathBuf],
    field: &str,
    measured: usize,
) -> anyhow::Result<Vec<QuestionFile>> {
    let given = files.len();
    let kept = validation.len();
    ensure!(
        kept == 0 || given == kept,
        "{given} --questions but {kept} --validation: give one --validation for each --questions, or none"
    );
    ensure!(kept == 0 || measured > 0, "--validation is unused: set {field} of the recipe above 0");
    let split = files.into_iter().enumerate().map(|(index, file)| match validation.get(index) {
        Some(path) => file.with_validation_file(path, measured),
        None => file.with_last_set_aside(field, measured),
    });
    let split: Vec<QuestionFile> = split.collect::<anyhow::Result<_>>()?;
    // Checked over all files at once: corpora overlap, and a question may stand in two of them.
    check(&split, validation)?;
    Ok(split)
}

/// Fails if a question is used both for training and for validation, in the same or in different files.
fn check(files: &[QuestionFile], validation: &[PathBuf]) -> anyhow::Result<()> {
    let trained = files.iter().flat_map(|file| file.questions.iter().map(|question| (text(question), &file.path)));
    let trained: HashMap<&str, &PathBuf> = trained.collect();
    for (index, file) in files.iter().enumerate() {
        let path = validation.get(index).unwrap_or(&file.path);
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

/// Leaves out questions whose passages are withheld. Under rewards that do not pay for refusals, these questions would
/// teach the policy to guess.
///
/// # Errors
/// If no question of a file is left.
pub(crate) fn answerable(files: Vec<QuestionFile>) -> anyhow::Result<Vec<QuestionFile>> {
    files.into_iter().map(QuestionFile::answerable).collect()
}

impl QuestionFile {
    /// Reads files, all of whose questions are for training.
    ///
    /// # Errors
    /// If a file cannot be read or has no questions, or two files share a name.
    pub(crate) fn open_all(paths: &[PathBuf]) -> anyhow::Result<Vec<QuestionFile>> {
        let mut names: BTreeMap<String, &Path> = BTreeMap::new();
        let mut files = Vec::new();
        for path in paths {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(other) = names.insert(name.clone(), path) {
                bail!(
                    "{} and {} would share the name {name} in metrics and samples: rename one of them",
                    other.display(),
                    path.display()
                );
            }
            files.push(QuestionFile::open(name, path)?);
        }
        Ok(files)
    }

    fn open(name: String, path: &Path) -> anyhow::Result<QuestionFile> {
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
    pub(crate) fn support_from(mut self, index: &Index) -> QuestionFile {
        self.questions.iter_mut().chain(&mut self.validation).for_each(|question| question.support_from(index));
        self
    }

    /// Returns `true` if the support of at least one training question is known.
    pub(crate) fn is_supported(&self) -> bool {
        self.questions.iter().any(|question| !question.support.is_empty())
    }

    /// Returns `false` if no training question lists its supporting passages, so that no index makes them known.
    pub(crate) fn may_be_supported(&self) -> bool {
        self.questions.iter().any(Question::lists_support)
    }

    /// Sets aside the last `measured` questions for validation.
    fn with_last_set_aside(mut self, field: &str, measured: usize) -> anyhow::Result<QuestionFile> {
        let all = self.questions.len();
        let most = all / ASIDE;
        ensure!(
            measured <= most,
            "{}: {field} = {measured} is more than a quarter of the {all} questions: set {field} to at most {most}, or give \
             validation questions with --validation (`validation` of [[training]] in an experiment)",
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
    use super::*;

    #[test]
    fn withheld_questions_are_left_out() {
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
        let mixed = vec![file(vec![question("a", &["p"]), question("b", &[])])];
        let files = answerable(mixed).unwrap();
        assert_eq!((files[0].questions.len(), files[0].validation.len()), (1, 1));
        let error = answerable(vec![file(vec![question("a", &["p"])])]).unwrap_err().to_string();
        assert!(error.starts_with("set.jsonl: the passages of all questions are withheld"), "{error}");
    }
}
