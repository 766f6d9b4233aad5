//! The two files that a build writes: samples to learn from, and samples held out.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::text::plain;
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
    /// The same is asked in what is held out and in what is learnt, whatever it is called there.
    #[error("{question:?} is asked in {} and in {}", out.display(), held.display())]
    Asked {
        /// The question, as it is compared.
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

/// Questions by where they went: ids of one data set, or the words of all.
#[derive(Debug, Default)]
struct Questions {
    learnt: HashSet<String>,
    held: HashSet<String>,
}

impl Questions {
    fn note(&mut self, question: String, place: Place) {
        match place {
            Place::Learnt => self.learnt.insert(question),
            Place::Held => self.held.insert(question),
        };
    }

    /// The first in both.
    fn both(&self) -> Option<&String> {
        self.learnt.intersection(&self.held).min()
    }
}

/// The two files, held by this process alone. No question is ever in both, by its id or by its words.
#[derive(Debug)]
pub struct Output {
    out: Shelf,
    held: Shelf,
    /// Ids of all samples.
    samples: HashSet<String>,
    questions: HashMap<String, Questions>,
    /// What is asked in any data set, in the words in which it is asked.
    asked: Questions,
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
            asked: Questions::default(),
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

    /// Where a new sample of the question `id` goes that is asked in the words `question`, if so many questions of its data set
    /// are to be held out; nowhere when it is held out already and they are enough, or when another question is that is asked in
    /// the same words. What has no place now has none later, so that a build that was broken off goes on the same.
    pub fn place(&self, dataset: &str, id: &str, question: &str, held_out: usize) -> Option<Place> {
        let none = Questions::default();
        let known = self.questions.get(dataset).unwrap_or(&none);
        let words = plain(question);
        match (known.held.len() < held_out, known.held.contains(id)) {
            (true, _) if !known.learnt.contains(id) && !self.asked.learnt.contains(&words) => Some(Place::Held),
            (_, true) => None,
            _ => Some(Place::Learnt).filter(|_| !self.asked.held.contains(&words)),
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
        self.questions.entry(sample.dataset.clone()).or_default().note(sample.question_id.clone(), place);
        self.asked.note(plain(&sample.question), place);
        self.samples.insert(sample.id.clone());
    }

    /// A question in both files.
    fn leak(&self, out: &Path, held: &Path) -> Option<OutputError> {
        let (out, held) = (out.to_owned(), held.to_owned());
        let both = |(dataset, known): (&String, &Questions)| Some((dataset.clone(), known.both()?.clone()));
        if let Some((dataset, question)) = self.questions.iter().filter_map(both).min() {
            return Some(OutputError::Leak { dataset, question, out, held });
        }
        let question = self.asked.both()?.clone();
        Some(OutputError::Asked { question, out, held })
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
        of("d", question, &format!("What of {question}?"), variant)
    }

    fn of(dataset: &str, id: &str, question: &str, variant: usize) -> Sample {
        let (question_id, dataset, question) = (id.to_owned(), dataset.to_owned(), question.to_owned());
        let task = Task { question_id, dataset, question, ..Task::default() };
        Sample { id: format!("{id}-{variant}"), ..Sample::from_trajectory(trajectory(Vec::new(), 0, ""), task) }
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
        let place = |output: &Output, id: &str, held| output.place("d", id, &format!("What of {id}?"), held);
        assert_eq!(place(&output, "a", 2), Some(Place::Held));
        assert_eq!(place(&output, "a", 0), Some(Place::Learnt));
        output.append(&sample("a", 0), Place::Held).unwrap();
        output.append(&sample("b", 0), Place::Learnt).unwrap();
        // More are wanted now than when b was learnt.
        assert_eq!(place(&output, "b", 2), Some(Place::Learnt));
        assert_eq!(place(&output, "c", 2), Some(Place::Held));
        assert_eq!(place(&output, "a", 2), Some(Place::Held));
        assert_eq!(place(&output, "a", 1), None);
        drop(output);

        let output = Output::open(&out, &held, &facts(1)).unwrap();
        assert_eq!((place(&output, "a", 1), place(&output, "b", 9)), (None, Some(Place::Learnt)));
        drop(output);
        Writer::open(&out).unwrap().append(&sample("a", 1)).unwrap();
        let error = Output::open(&out, &held, &facts(1)).unwrap_err().to_string();
        assert!(error.contains("question a of d"), "{error}");
    }

    #[test]
    fn the_same_words_are_not_learnt_and_held_out_whatever_the_data_set() {
        let dir = tempfile::tempdir().unwrap();
        let (out, held) = (dir.path().join("samples.jsonl"), dir.path().join("held.jsonl"));
        let mut output = Output::open(&out, &held, &facts(1)).unwrap();
        output.append(&of("d", "a", "Who was Ann Lee?", 0), Place::Held).unwrap();
        output.append(&of("d", "b", "Who was Bob Ray?", 0), Place::Learnt).unwrap();
        drop(output);
        // The same before and after a build was broken off.
        let mut output = Output::open(&out, &held, &facts(1)).unwrap();
        assert_eq!(output.place("e", "1", "who was ann lee", 0), None);
        assert_eq!(output.place("e", "1", "Who was Ann Lee?", 1), Some(Place::Held));
        assert_eq!(output.place("e", "2", "Who was Bob Ray ?", 1), Some(Place::Learnt));
        assert_eq!(output.place("e", "3", "Who was Tom Lee?", 0), Some(Place::Learnt));
        // One that is learnt gets none of its samples in words that are held out, and one that is held out none in words that
        // are learnt.
        assert_eq!(output.place("d", "b", "Who was Ann Lee?", 1), None);
        assert_eq!(output.place("d", "a", "Who was Bob Ray?", 2), None);
        output.append(&of("e", "1", "Who was Ann Lee?", 1), Place::Learnt).unwrap();
        drop(output);
        let error = Output::open(&out, &held, &facts(1)).unwrap_err().to_string();
        assert!(error.contains("\"who was ann lee\" is asked in") && error.contains("held.jsonl"), "{error}");
    }
}
