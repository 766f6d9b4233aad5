//! Output of a build: one file of training samples and one of held-out samples.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::sample_balance::SampleTraits;
use crate::lessons::text::normalized;
use crate::run::RunError;
use crate::sample::Sample;
use crate::sample_file::{SampleFile, SampleFileError, SampleFileLock, folder};
use crate::sample_lines::{SampleLinesError, SampleReader};

/// Error of opening or writing the sample files.
#[derive(Debug, thiserror::Error)]
pub enum BuildOutputError {
    /// One of the two files cannot be opened or written.
    #[error(transparent)]
    SampleFile(#[from] SampleFileError),
    /// A sample file cannot be read or written.
    #[error(transparent)]
    Samples(#[from] SampleLinesError),
    /// A directory or a companion file cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Both paths name the same file, or their companion files would.
    #[error("{} and {} are the same file or share a name: give the held-out samples a name of their own", out.display(), held.display())]
    Same {
        /// Path of the training samples.
        out: PathBuf,
        /// Path of the held-out samples.
        held: PathBuf,
    },
    /// A question ID occurs in both files.
    #[error("question {question} of {dataset} is in {} and in {}", out.display(), held.display())]
    Leak {
        /// Data set of the question.
        dataset: String,
        /// ID of the question.
        question: String,
        /// Path of the training samples.
        out: PathBuf,
        /// Path of the held-out samples.
        held: PathBuf,
    },
    /// The same words are asked in both files, possibly under different IDs.
    #[error("{question:?} is asked in {} and in {}", out.display(), held.display())]
    Asked {
        /// Normalized text of the question.
        question: String,
        /// Path of the training samples.
        out: PathBuf,
        /// Path of the held-out samples.
        held: PathBuf,
    },
}

/// File that a sample belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleSplit {
    /// Training samples.
    Learned,
    /// Held-out samples.
    Held,
}

/// Questions by file: IDs of one data set, or the words of all questions.
#[derive(Debug, Default)]
struct SplitQuestions {
    learned: HashSet<String>,
    held: HashSet<String>,
}

impl SplitQuestions {
    fn note(&mut self, question: String, place: SampleSplit) {
        match place {
            SampleSplit::Learned => self.learned.insert(question),
            SampleSplit::Held => self.held.insert(question),
        };
    }

    /// First question in both files, in alphabetical order.
    fn both(&self) -> Option<&String> {
        self.learned.intersection(&self.held).min()
    }
}

/// The two sample files, locked by this process. No question is ever in both, neither by ID nor by its words.
#[derive(Debug)]
pub struct BuildOutput {
    out: SampleFile,
    held: SampleFile,
    /// IDs of all samples, with their properties.
    samples: HashMap<String, SampleTraits>,
    questions: HashMap<String, SplitQuestions>,
    /// Normalized questions of all data sets.
    asked: SplitQuestions,
}

impl BuildOutput {
    /// Opens both files for appending and creates their directories.
    ///
    /// # Errors
    /// [`BuildOutputError`] if both are the same file, are in use, belong to another program, were made with other
    /// facts, or share a question.
    pub fn open(out: &Path, held: &Path, facts: &Table) -> Result<BuildOutput, BuildOutputError> {
        for path in [out, held] {
            fs::create_dir_all(folder(path)).map_err(RunError::io("create", folder(path)))?;
        }
        // Companion files share the name without its extension, so those names must differ too.
        if whole(out)? == whole(held)? || whole(&out.with_extension(""))? == whole(&held.with_extension(""))? {
            return Err(BuildOutputError::Same { out: out.to_owned(), held: held.to_owned() });
        }
        // Both locks are taken before anything is written.
        let [out_lock, held_lock] = [SampleFileLock::take(out)?, SampleFileLock::take(held)?];
        let open = |lock: SampleFileLock, kind: &str| {
            let mut facts = facts.clone();
            facts.insert("kind".into(), Value::String(kind.into()));
            lock.open(&facts)
        };
        let mut output = BuildOutput {
            // Spelled as in the files of earlier builds, which this one may go on with.
            out: open(out_lock, "learnt")?,
            held: open(held_lock, "held out")?,
            samples: HashMap::new(),
            questions: HashMap::new(),
            asked: SplitQuestions::default(),
        };
        for (path, place) in [(out, SampleSplit::Learned), (held, SampleSplit::Held)] {
            for sample in SampleReader::open(path)? {
                output.note(&sample?, place);
            }
        }
        output.leak(out, held).map_or(Ok(output), Err)
    }

    /// Returns the properties of the sample with this ID. `None` if there is no such sample.
    pub fn traits(&self, id: &str) -> Option<SampleTraits> {
        self.samples.get(id).copied()
    }

    /// File for a new sample of the question `id` with the words `question`, if `held_out` questions of its data set
    /// are to be held out. `None` if the question is held out and enough are held out already, or if a held-out
    /// question has the same words. A sample without a place never gets one later, so an interrupted build resumes
    /// identically.
    pub fn split_for(&self, dataset: &str, id: &str, question: &str, held_out: usize) -> Option<SampleSplit> {
        let none = SplitQuestions::default();
        let known = self.questions.get(dataset).unwrap_or(&none);
        let words = normalized(question);
        match (known.held.len() < held_out, known.held.contains(id)) {
            (true, _) if !known.learned.contains(id) && !self.asked.learned.contains(&words) => Some(SampleSplit::Held),
            // The question is held out, but enough are, or its words are trained on. A training sample would leak it.
            (_, true) => None,
            _ => Some(SampleSplit::Learned).filter(|_| !self.asked.held.contains(&words)),
        }
    }

    /// Appends a sample to the file `place`.
    ///
    /// # Errors
    /// [`SampleLinesError::Io`].
    pub fn append(&mut self, sample: &Sample, place: SampleSplit) -> Result<(), SampleLinesError> {
        match place {
            SampleSplit::Learned => self.out.append(sample)?,
            SampleSplit::Held => self.held.append(sample)?,
        }
        self.note(sample, place);
        Ok(())
    }

    /// Flushes both files to disk.
    ///
    /// # Errors
    /// [`SampleLinesError::Io`].
    pub fn sync(&self) -> Result<(), SampleLinesError> {
        self.out.sync()?;
        self.held.sync()
    }

    fn note(&mut self, sample: &Sample, place: SampleSplit) {
        self.questions.entry(sample.dataset.clone()).or_default().note(sample.question_id.clone(), place);
        self.asked.note(normalized(&sample.question), place);
        self.samples.insert(sample.id.clone(), SampleTraits::of(sample));
    }

    /// Error for a question in both files, if there is one.
    fn leak(&self, out: &Path, held: &Path) -> Option<BuildOutputError> {
        let out = out.to_owned();
        let held = held.to_owned();
        let both = |(dataset, known): (&String, &SplitQuestions)| Some((dataset.clone(), known.both()?.clone()));
        // The smallest one, because a hash map has no order of its own.
        if let Some((dataset, question)) = self.questions.iter().filter_map(both).min() {
            return Some(BuildOutputError::Leak { dataset, question, out, held });
        }
        let question = self.asked.both()?.clone();
        Some(BuildOutputError::Asked { question, out, held })
    }
}

/// Canonical path, even if the file does not exist.
fn whole(path: &Path) -> Result<PathBuf, BuildOutputError> {
    if let Ok(path) = path.canonicalize() {
        return Ok(path);
    }
    let folder = folder(path).canonicalize().map_err(RunError::io("open the directory of", path))?;
    Ok(folder.join(path.file_name().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sample::{SampleTask, tests::trajectory};
    use crate::sample_lines::SampleWriter;

    fn sample(question: &str, variant: usize) -> Sample {
        of("d", question, &format!("What of {question}?"), variant)
    }

    fn of(dataset: &str, id: &str, question: &str, variant: usize) -> Sample {
        let question_id = id.to_owned();
        let dataset = dataset.to_owned();
        let question = question.to_owned();
        let task = SampleTask { question_id, dataset, question, ..SampleTask::default() };
        Sample { id: format!("{id}-{variant}"), ..Sample::from_trajectory(trajectory(Vec::new(), 0, ""), task) }
    }

    fn facts(seed: i64) -> Table {
        [("seed".to_owned(), Value::Integer(seed))].into_iter().collect()
    }

    #[test]
    fn other_facts_and_a_second_process_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new/samples.jsonl");
        let held = dir.path().join("held.jsonl");
        let mut output = BuildOutput::open(&out, &held, &facts(1)).unwrap();
        let busy = BuildOutput::open(&dir.path().join("other.jsonl"), &held, &facts(1)).unwrap_err();
        assert!(matches!(busy, BuildOutputError::SampleFile(SampleFileError::Busy { .. })), "{busy}");
        assert!(!dir.path().join("other.jsonl").exists(), "nothing was written");
        output.append(&sample("a", 0), SampleSplit::Learned).unwrap();
        output.append(&sample("b", 0), SampleSplit::Held).unwrap();
        drop(output);

        let error = BuildOutput::open(&out, &held, &facts(2)).unwrap_err().to_string();
        assert!(error.contains("samples.jsonl") && error.contains("seed was 1, now it is 2"), "{error}");
        let error = BuildOutput::open(&held, &out, &facts(1)).unwrap_err().to_string();
        assert!(error.contains("kind was"), "{error}");
        assert!(BuildOutput::open(&out, &held, &facts(1)).unwrap().traits("a-0").is_some());
    }

    #[test]
    fn both_files_must_differ() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let out = dir.path().join("samples.jsonl");
        for held in ["samples.jsonl", "sub/../samples.jsonl", "samples.json"] {
            let error = BuildOutput::open(&out, &dir.path().join(held), &facts(1)).unwrap_err();
            assert!(matches!(error, BuildOutputError::Same { .. }), "{held}: {error}");
        }
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 1, "nothing was written");
    }

    #[test]
    fn a_question_is_never_in_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("samples.jsonl");
        let held = dir.path().join("held.jsonl");
        let mut output = BuildOutput::open(&out, &held, &facts(1)).unwrap();
        let place = |output: &BuildOutput, id: &str, held| output.split_for("d", id, &format!("What of {id}?"), held);
        assert_eq!(place(&output, "a", 2), Some(SampleSplit::Held));
        assert_eq!(place(&output, "a", 0), Some(SampleSplit::Learned));
        output.append(&sample("a", 0), SampleSplit::Held).unwrap();
        output.append(&sample("b", 0), SampleSplit::Learned).unwrap();
        // More held-out questions are wanted now than when b was added.
        assert_eq!(place(&output, "b", 2), Some(SampleSplit::Learned));
        assert_eq!(place(&output, "c", 2), Some(SampleSplit::Held));
        assert_eq!(place(&output, "a", 2), Some(SampleSplit::Held));
        assert_eq!(place(&output, "a", 1), None);
        drop(output);

        let output = BuildOutput::open(&out, &held, &facts(1)).unwrap();
        assert_eq!((place(&output, "a", 1), place(&output, "b", 9)), (None, Some(SampleSplit::Learned)));
        drop(output);
        SampleWriter::open(&out).unwrap().append(&sample("a", 1)).unwrap();
        let error = BuildOutput::open(&out, &held, &facts(1)).unwrap_err().to_string();
        assert!(error.contains("question a of d"), "{error}");
    }

    #[test]
    fn the_same_words_are_never_in_both_files_across_data_sets() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("samples.jsonl");
        let held = dir.path().join("held.jsonl");
        let mut output = BuildOutput::open(&out, &held, &facts(1)).unwrap();
        output.append(&of("d", "a", "Who was Ann Lee?", 0), SampleSplit::Held).unwrap();
        output.append(&of("d", "b", "Who was Bob Ray?", 0), SampleSplit::Learned).unwrap();
        drop(output);
        // The decisions are the same before and after an interruption.
        let mut output = BuildOutput::open(&out, &held, &facts(1)).unwrap();
        assert_eq!(output.split_for("e", "1", "who was ann lee", 0), None);
        assert_eq!(output.split_for("e", "1", "Who was Ann Lee?", 1), Some(SampleSplit::Held));
        assert_eq!(output.split_for("e", "2", "Who was Bob Ray ?", 1), Some(SampleSplit::Learned));
        assert_eq!(output.split_for("e", "3", "Who was Tom Lee?", 0), Some(SampleSplit::Learned));
        // A training question gets no sample with held-out words, and a held-out question none with training words.
        assert_eq!(output.split_for("d", "b", "Who was Ann Lee?", 1), None);
        assert_eq!(output.split_for("d", "a", "Who was Bob Ray?", 2), None);
        output.append(&of("e", "1", "Who was Ann Lee?", 1), SampleSplit::Learned).unwrap();
        drop(output);
        let error = BuildOutput::open(&out, &held, &facts(1)).unwrap_err().to_string();
        assert!(error.contains("\"who was ann lee\" is asked in") && error.contains("held.jsonl"), "{error}");
    }
}
