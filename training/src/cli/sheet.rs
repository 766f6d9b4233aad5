//! The questions of a file: those to learn from, and those to measure with.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use waymark::evaluate::Question;
use waymark_index::Index;

use super::asked;
use super::field::Facts;

/// Of a file at most one question in so many is kept aside to measure with.
const ASIDE: usize = 4;

/// What is measured with.
#[derive(Debug, clap::Args)]
pub(super) struct Aside {
    /// Questions to measure with: one file for each --questions, in the same order, of which the first ones are asked
    /// (`grpo.validation` or `dpo.validation` of the recipe).
    ///
    /// Without it the last ones of each --questions, at most a quarter, are not learnt from, but measured with. Supervised
    /// training may have seen them.
    #[arg(long, value_name = "FILE")]
    validation: Vec<PathBuf>,
}

impl Aside {
    /// Gives each sheet what it is measured with: `measured` questions, as the recipe's `field` says.
    pub(super) fn divide(&self, sheets: Vec<Sheet>, field: &str, measured: usize) -> anyhow::Result<Vec<Sheet>> {
        let (files, kept) = (sheets.len(), self.validation.len());
        ensure!(kept == 0 || files == kept, "{files} --questions for {kept} --validation: give one file each, or none");
        ensure!(kept == 0 || measured > 0, "--validation: the recipe asks none of them, set {field} above 0");
        let divided = sheets.into_iter().enumerate().map(|(place, sheet)| match self.validation.get(place) {
            Some(apart) => sheet.apart(apart, measured),
            None => sheet.divided(field, measured),
        });
        let divided: Vec<Sheet> = divided.collect::<anyhow::Result<_>>()?;
        self.check(&divided)?;
        Ok(divided)
    }

    /// Refuses a question that would be learnt and measured with, whatever files it is in.
    fn check(&self, sheets: &[Sheet]) -> anyhow::Result<()> {
        let learnt =
            sheets.iter().flat_map(|sheet| sheet.questions.iter().map(|question| (text(question), &sheet.file)));
        let learnt: HashMap<&str, &PathBuf> = learnt.collect();
        for (place, sheet) in sheets.iter().enumerate() {
            let file = self.validation.get(place).unwrap_or(&sheet.file).display();
            for question in sheet.validation.iter().map(text) {
                if let Some(of) = learnt.get(question) {
                    let of = of.display();
                    bail!("{file}: {question:?} is learnt from ({of}) and measured with: take it out of one of both");
                }
            }
        }
        Ok(())
    }

    /// What a run is known by.
    pub(super) fn facts(&self) -> anyhow::Result<Facts> {
        Ok(vec![("validation", asked::hashes(&asked::fingerprints(&self.validation)?))])
    }
}

/// The questions of a file.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) questions: Vec<Question>,
    pub(super) validation: Vec<Question>,
}

impl Sheet {
    /// All of a file to learn from.
    pub(super) fn open(name: String, file: &Path) -> anyhow::Result<Sheet> {
        let questions = Question::read(file)?;
        ensure!(!questions.is_empty(), "{}: there is no question in it", file.display());
        Ok(Sheet { name, file: file.to_owned(), questions, validation: Vec::new() })
    }

    /// With the texts of the supporting passages.
    pub(super) fn support_from(mut self, index: &Index) -> Sheet {
        self.questions.iter_mut().chain(&mut self.validation).for_each(|question| question.support_from(index));
        self
    }

    /// Whether the support of a question to learn from is known.
    pub(super) fn is_supported(&self) -> bool {
        self.questions.iter().any(|question| !question.support.is_empty())
    }

    /// Keeps the last `measured` questions aside.
    fn divided(mut self, field: &str, measured: usize) -> anyhow::Result<Sheet> {
        let (all, most) = (self.questions.len(), self.questions.len() / ASIDE);
        ensure!(
            measured <= most,
            "{}: {field} = {measured} would keep more than a quarter of its {all} questions aside: set \
             {field} to at most {most}, or give others to measure with by --validation",
            self.file.display()
        );
        self.validation = self.questions.split_off(all - measured);
        Ok(self)
    }

    /// Takes the first `measured` questions of `apart`.
    fn apart(mut self, apart: &Path, measured: usize) -> anyhow::Result<Sheet> {
        let mut validation = Question::read(apart)?;
        ensure!(!validation.is_empty(), "{}: there is no question in it", apart.display());
        validation.truncate(measured);
        self.validation = validation;
        Ok(self)
    }
}

/// What two files have in common where both ask it.
fn text(question: &Question) -> &str {
    question.question.trim()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::field::Asking;
    use super::*;

    fn file(dir: &Path, name: &str, first: usize, count: usize) -> PathBuf {
        let line = |at| format!("{{\"question\": \"question {at}?\", \"answers\": [\"a\"]}}\n");
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(name), (first..first + count).map(line).collect::<String>()).unwrap();
        dir.join(name)
    }

    fn asking(questions: &[&PathBuf]) -> Asking {
        let index = vec![PathBuf::from("index"); questions.len()];
        Asking { questions: questions.iter().copied().cloned().collect(), index, embedder: String::new() }
    }

    fn sheets(questions: &[&PathBuf], validation: &[&PathBuf], measured: usize) -> anyhow::Result<Vec<Sheet>> {
        let aside = Aside { validation: validation.iter().copied().cloned().collect() };
        aside.divide(asking(questions).sheets()?, "grpo.validation", measured)
    }

    fn refused(questions: &[&PathBuf], validation: &[&PathBuf], measured: usize) -> String {
        sheets(questions, validation, measured).unwrap_err().to_string()
    }

    #[test]
    fn questions_are_named_by_their_file_and_divided() {
        let temp = tempfile::tempdir().unwrap();
        let (one, two) = (file(temp.path(), "single.jsonl", 0, 8), file(temp.path(), "2wiki.jsonl", 20, 9));
        let divided = sheets(&[&one, &two], &[], 2).unwrap();
        let told: Vec<_> =
            divided.iter().map(|sheet| (sheet.name.as_str(), sheet.questions.len(), sheet.validation.len())).collect();
        assert_eq!(told, [("single", 6, 2), ("2wiki", 7, 2)]);
        assert_eq!(divided[0].validation[0].question, "question 6?");
        let kept = [file(temp.path(), "a.jsonl", 100, 3), file(temp.path(), "b.jsonl", 200, 9)];
        let divided = sheets(&[&one, &two], &[&kept[0], &kept[1]], 4).unwrap();
        let told: Vec<_> = divided.iter().map(|sheet| (sheet.questions.len(), sheet.validation.len())).collect();
        assert_eq!(told, [(8, 3), (9, 4)]);
        assert_eq!(divided[1].validation[0].question, "question 200?");
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_name() {
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
        assert!(refused(&[&empty], &[], 0).contains("empty.jsonl: there is no question"));
        let apart = file(temp.path(), "apart.jsonl", 7, 3);
        let error = refused(&[&one], &[&apart], 3);
        assert!(
            error.contains("apart.jsonl: \"question 7?\" is learnt from") && error.contains("single.jsonl"),
            "{error}"
        );
        // Crosswise: each file is apart from its own, and learnt all the same.
        let other = file(temp.path(), "other.jsonl", 100, 8);
        let error = refused(&[&one, &other], &[&other, &one], 2);
        assert!(error.contains("other.jsonl: \"question 100?\" is learnt from"), "{error}");
        let twice = temp.path().join("twice.jsonl");
        let all: String = [&one, &one].map(|file| std::fs::read_to_string(file).unwrap()).concat();
        std::fs::write(&twice, all).unwrap();
        assert!(refused(&[&twice], &[], 2).contains("twice.jsonl: \"question 6?\""));
        assert!(refused(&[&one], &[&apart], 0).contains("grpo.validation"));
        assert!(refused(&[&one], &[&apart, &one], 1).contains("2 --validation"));
        let mut unpaired = asking(&[&one]);
        unpaired.index.clear();
        assert!(unpaired.sheets().unwrap_err().to_string().contains("0 --index"));
    }
}
