//! The two files that a build writes: samples to learn from, and samples held out.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::run::RunError;
use crate::sample::Sample;
use crate::shelf::{Lock, Shelf, ShelfError, folder};
use crate::store::{Samples, StoreError};

/// Why samples cannot be written where they should be.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// One of the two files cannot be written.
    #[error(transparent)]
    Shelf(#[from] ShelfError),
    /// A file of samples cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file beside them cannot be written.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Both files are one.
    #[error("{} and {} are called the same: what is held out needs a name of its own", out.display(), held.display())]
    Same {
        /// The one.
        out: PathBuf,
        /// The other.
        held: PathBuf,
    },
    /// A question that is held out is learnt as well.
    #[error("question {question} of {dataset} is in {} and in {}", out.display(), held.display())]
    Leak {
        /// The data set.
        dataset: String,
        /// The question's id.
        question: String,
        /// What is learnt.
        out: PathBuf,
        /// What is held out.
        held: PathBuf,
    },
}

impl OutputError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> OutputError {
        let path = path.to_owned();
        move |source| OutputError::Io { path, source }
    }
}

/// Where a sample goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is learnt.
    Learnt,
    /// It is held out.
    Held,
}

/// Ids of questions of one data set.
#[derive(Debug, Default)]
struct Questions {
    learnt: HashSet<String>,
    held: HashSet<String>,
}

/// The two files, held by this process alone. No question is ever in both.
#[derive(Debug)]
pub struct Output {
    out: Shelf,
    held: Shelf,
    /// Ids of all samples.
    samples: HashSet<String>,
    questions: HashMap<String, Questions>,
}

impl Output {
    /// Opens both, with their folders, to go on behind what they hold.
    ///
    /// # Errors
    /// [`OutputError`]: they are one file, in use, foreign, made by other facts, or have a question in common.
    pub fn open(out: &Path, held: &Path, facts: &Table) -> Result<Output, OutputError> {
        for path in [out, held] {
            fs::create_dir_all(folder(path)).map_err(OutputError::io(path))?;
        }
        // What lies beside them is called after them, without their endings.
        if whole(out)? == whole(held)? || whole(&out.with_extension(""))? == whole(&held.with_extension(""))? {
            return Err(OutputError::Same { out: out.to_owned(), held: held.to_owned() });
        }
        // Both before anything is written.
        let [out_lock, held_lock] = [Lock::take(out)?, Lock::take(held)?];
        let open = |lock: Lock, kind: &str| {
            let mut facts = facts.clone();
            facts.insert("kind".into(), Value::String(kind.into()));
            lock.open(&facts)
        };
        let mut output = Output {
            out: open(out_lock, "learnt")?,
            held: open(held_lock, "held out")?,
            samples: HashSet::new(),
            questions: HashMap::new(),
        };
        for (path, place) in [(out, Place::Learnt), (held, Place::Held)] {
            for sample in Samples::open(path)? {
                output.note(&sample?, place);
            }
        }
        output.leak(out, held).map_or(Ok(output), Err)
    }

    /// Whether there is a sample of this id.
    pub fn has(&self, id: &str) -> bool {
        self.samples.contains(id)
    }

    /// Where a new sample of a question goes, if so many questions of its data set are to be held out; nowhere when it is
    /// held out already and they are enough.
    pub fn place(&self, dataset: &str, question: &str, held_out: usize) -> Option<Place> {
        let Some(known) = self.questions.get(dataset) else {
            return Some(if held_out > 0 { Place::Held } else { Place::Learnt });
        };
        match (known.held.len() < held_out, known.held.contains(question)) {
            (true, _) if !known.learnt.contains(question) => Some(Place::Held),
            (_, true) => None,
            _ => Some(Place::Learnt),
        }
    }

    /// Appends a sample.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn append(&mut self, sample: &Sample, place: Place) -> Result<(), StoreError> {
        match place {
            Place::Learnt => self.out.append(sample)?,
            Place::Held => self.held.append(sample)?,
        }
        self.note(sample, place);
        Ok(())
    }

    /// Waits until everything is on the disk.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn sync(&self) -> Result<(), StoreError> {
        self.out.sync()?;
        self.held.sync()
    }

    fn note(&mut self, sample: &Sample, place: Place) {
        let questions = self.questions.entry(sample.dataset.clone()).or_default();
        match place {
            Place::Learnt => questions.learnt.insert(sample.question_id.clone()),
            Place::Held => questions.held.insert(sample.question_id.clone()),
        };
        self.samples.insert(sample.id.clone());
    }

    /// A question in both files.
    fn leak(&self, out: &Path, held: &Path) -> Option<OutputError> {
        let both = |(dataset, known): (&String, &Questions)| {
            known.learnt.intersection(&known.held).min().map(|question| (dataset.clone(), question.clone()))
        };
        let (dataset, question) = self.questions.iter().filter_map(both).min()?;
        Some(OutputError::Leak { dataset, question, out: out.to_owned(), held: held.to_owned() })
    }
}

/// A path without detours, whether the file is there or not.
fn whole(path: &Path) -> Result<PathBuf, OutputError> {
    if let Ok(path) = path.canonicalize() {
        return Ok(path);
    }
    let folder = folder(path).canonicalize().map_err(OutputError::io(path))?;
    Ok(folder.join(path.file_name().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sample::{Task, tests::trajectory};
    use crate::store::Writer;

    fn sample(question: &str, variant: usize) -> Sample {
        let task = Task { question_id: question.into(), dataset: "d".into(), ..Task::default() };
        Sample { id: format!("{question}-{variant}"), ..Sample::from_trajectory(trajectory(Vec::new(), 0, ""), task) }
    }

    fn facts(seed: i64) -> Table {
        [("seed".to_owned(), Value::Integer(seed))].into_iter().collect()
    }

    #[test]
    fn another_configuration_and_another_process_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (out, held) = (dir.path().join("new/samples.jsonl"), dir.path().join("held.jsonl"));
        let mut output = Output::open(&out, &held, &facts(1)).unwrap();
        let busy = Output::open(&dir.path().join("other.jsonl"), &held, &facts(1)).unwrap_err();
        assert!(matches!(busy, OutputError::Shelf(ShelfError::Busy { .. })), "{busy}");
        assert!(!dir.path().join("other.jsonl").exists(), "nothing was written");
        output.append(&sample("a", 0), Place::Learnt).unwrap();
        output.append(&sample("b", 0), Place::Held).unwrap();
        drop(output);

        let error = Output::open(&out, &held, &facts(2)).unwrap_err().to_string();
        assert!(error.contains("samples.jsonl") && error.contains("seed was 1, now it is 2"), "{error}");
        let error = Output::open(&held, &out, &facts(1)).unwrap_err().to_string();
        assert!(error.contains("kind was"), "{error}");
        assert!(Output::open(&out, &held, &facts(1)).unwrap().has("a-0"));
    }

    #[test]
    fn both_files_may_not_be_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let out = dir.path().join("samples.jsonl");
        for held in ["samples.jsonl", "sub/../samples.jsonl", "samples.json"] {
            let error = Output::open(&out, &dir.path().join(held), &facts(1)).unwrap_err();
            assert!(matches!(error, OutputError::Same { .. }), "{held}: {error}");
        }
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 1, "nothing was written");
    }

    #[test]
    fn what_is_learnt_is_never_held_out_and_the_other_way_round() {
        let dir = tempfile::tempdir().unwrap();
        let (out, held) = (dir.path().join("samples.jsonl"), dir.path().join("held.jsonl"));
        let mut output = Output::open(&out, &held, &facts(1)).unwrap();
        assert_eq!(output.place("d", "a", 2), Some(Place::Held));
        assert_eq!(output.place("d", "a", 0), Some(Place::Learnt));
        output.append(&sample("a", 0), Place::Held).unwrap();
        output.append(&sample("b", 0), Place::Learnt).unwrap();
        // More are wanted now than when b was learnt.
        assert_eq!(output.place("d", "b", 2), Some(Place::Learnt));
        assert_eq!(output.place("d", "c", 2), Some(Place::Held));
        assert_eq!(output.place("d", "a", 2), Some(Place::Held));
        assert_eq!(output.place("d", "a", 1), None);
        drop(output);

        let output = Output::open(&out, &held, &facts(1)).unwrap();
        assert_eq!((output.place("d", "a", 1), output.place("d", "b", 9)), (None, Some(Place::Learnt)));
        drop(output);
        Writer::open(&out).unwrap().append(&sample("a", 1)).unwrap();
        let error = Output::open(&out, &held, &facts(1)).unwrap_err().to_string();
        assert!(error.contains("question a of d"), "{error}");
    }
}
