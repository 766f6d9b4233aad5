//! Journal of an extraction: every answer of a model, as soon as it arrives.
//!
//! JSONL, appended one whole line at a time, so that a crash truncates at most the last line; the next write replaces a
//! truncated line. A file of another kind is left alone. Answers are found by the text of the passage, the model and
//! the version of the prompts, so a journal may contain answers of several models. Each line is also a record that can
//! be imported.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::prompter::Answer;
use crate::embedding_journal::{SYNC_EVERY, TextHash};
use crate::error::IndexError;
use crate::openie::prompt;
use crate::triple::Triple;

/// First bytes of every line.
const BEGINNING: &[u8] = br#"{"model":"#;

#[derive(Debug, Serialize, Deserialize)]
struct JournalLine {
    model: String,
    prompts: u32,
    passage: String,
    extracted_entities: Vec<String>,
    extracted_triples: Vec<Triple>,
}

/// Journal of one model's answers, for one writer at a time.
#[derive(Debug)]
pub(super) struct AnswerJournal {
    path: PathBuf,
    model: String,
    file: File,
    /// Offset and length of each answer's line.
    places: HashMap<TextHash, (u64, usize)>,
    /// Byte offset of the next line.
    end: u64,
    synced: Instant,
}

impl AnswerJournal {
    /// Opens the journal at `path`, creating it if needed, and indexes the complete answers of `model`.
    pub(super) fn open(path: &Path, model: &str) -> Result<AnswerJournal, IndexError> {
        // An existing file is not truncated: it may be no journal at all, and answers cost money.
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(IndexError::io("open", path))?;
        let model = model.to_owned();
        let places = HashMap::new();
        let mut journal = AnswerJournal { path: path.to_owned(), model, file, places, end: 0, synced: Instant::now() };
        journal.load()?;
        Ok(journal)
    }

    fn load(&mut self) -> Result<(), IndexError> {
        let mut reader = BufReader::with_capacity(1 << 18, &self.file);
        let mut bytes = Vec::new();
        let mut ours = false;
        loop {
            bytes.clear();
            let read = reader.read_until(b'\n', &mut bytes).map_err(IndexError::io("read", &self.path))?;
            if !bytes.ends_with(b"\n") {
                break;
            }
            match serde_json::from_slice::<JournalLine>(&bytes) {
                Ok(line) if line.model == self.model && line.prompts == prompt::VERSION => {
                    ours = true;
                    self.places.insert(self.key(&line.passage), (self.end, read));
                }
                Ok(_) => ours = true,
                Err(error) => {
                    tracing::warn!(file = %self.path.display(), %error, "skipping a malformed line of the journal")
                }
            }
            self.end += read as u64;
        }
        // An empty file, or one with the beginning of a line, may become a journal.
        if !ours && (self.end > 0 || !begins_line(&bytes)) {
            let path = self.path.display();
            let message = format!(
                "{path} is not a journal of answers and was left unchanged: choose another file, or one that does not exist yet"
            );
            return Err(IndexError::Extract { what: self.model.clone(), source: message.into() });
        }
        // The rest is the beginning of a line that a killed process did not finish.
        self.file.set_len(self.end).map_err(IndexError::io("truncate", &self.path))
    }

    /// Returns the answer for a passage. `None` if the journal has none.
    pub(super) fn find(&mut self, passage: &str) -> Result<Option<Vec<Triple>>, IndexError> {
        let Some(&(start, length)) = self.places.get(&self.key(passage)) else { return Ok(None) };
        let mut bytes = vec![0; length];
        let read = self.file.seek(SeekFrom::Start(start)).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(IndexError::io("read", &self.path))?;
        let line = serde_json::from_slice::<JournalLine>(&bytes);
        // Keys are half a hash, so the text itself is compared.
        Ok(line.ok().filter(|line| line.passage == passage).map(|line| line.extracted_triples))
    }

    /// Appends an answer.
    pub(super) fn add(&mut self, passage: &str, answer: &Answer) -> Result<(), IndexError> {
        let line = JournalLine {
            model: self.model.clone(),
            prompts: prompt::VERSION,
            passage: passage.to_owned(),
            extracted_entities: answer.entities.clone(),
            extracted_triples: answer.triples.clone(),
        };
        let mut bytes = serde_json::to_vec(&line).map_err(|error| IndexError::io("write", &self.path)(error.into()))?;
        bytes.push(b'\n');
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(&bytes));
        written.map_err(IndexError::io("write", &self.path))?;
        self.places.insert(self.key(passage), (self.end, bytes.len()));
        self.end += bytes.len() as u64;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.sync()?;
        }
        Ok(())
    }

    /// Makes the written answers durable.
    pub(super) fn sync(&mut self) -> Result<(), IndexError> {
        self.synced = Instant::now();
        self.file.sync_data().map_err(IndexError::io("sync", &self.path))
    }

    fn key(&self, passage: &str) -> TextHash {
        TextHash::with_model(&self.model, passage)
    }
}

/// Returns `true` if `bytes` can be the beginning of a journal line.
fn begins_line(bytes: &[u8]) -> bool {
    bytes.starts_with(BEGINNING) || BEGINNING.starts_with(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn answer(word: &str) -> Answer {
        Answer { entities: vec![word.into()], triples: vec![Triple::new(word, "is", "é\n\"x\"")], ..Answer::default() }
    }

    #[test]
    fn cut_anywhere_the_whole_answers_before_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let mut journal = AnswerJournal::open(&path, "m").unwrap();
        for word in ["one", "two"] {
            journal.add(word, &answer(word)).unwrap();
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let mut journal = AnswerJournal::open(&path, "m").unwrap();
            assert_eq!(journal.find("one").unwrap().is_some(), length >= first, "{length}");
            assert_eq!(journal.find("two").unwrap().is_some(), length == whole.len(), "{length}");
            journal.add("three", &answer("three")).unwrap();
            let mut again = AnswerJournal::open(&path, "m").unwrap();
            assert_eq!(again.find("three").unwrap(), Some(answer("three").triples), "{length}");
        }
    }

    #[test]
    fn a_file_of_something_else_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("openie.json");
        for text in [r#"{"docs": [{"idx": "a", "passage": "b"}]}"#, "{\"docs\": []}\n", "some\nnotes"] {
            std::fs::write(&path, text).unwrap();
            let message = AnswerJournal::open(&path, "m").unwrap_err().to_string();
            assert!(message.contains("openie.json"), "{message}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn answers_of_other_models_and_prompts_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        AnswerJournal::open(&path, "m").unwrap().add("text", &answer("m")).unwrap();
        let mut other = AnswerJournal::open(&path, "n").unwrap();
        assert_eq!(other.find("text").unwrap(), None);
        other.add("text", &answer("n")).unwrap();
        assert_eq!(AnswerJournal::open(&path, "m").unwrap().find("text").unwrap(), Some(answer("m").triples));
        assert_eq!(AnswerJournal::open(&path, "n").unwrap().find("text").unwrap(), Some(answer("n").triples));
        let text = std::fs::read_to_string(&path).unwrap().replace("\"prompts\":1", "\"prompts\":0") + "broken\n";
        std::fs::write(&path, text).unwrap();
        assert_eq!(AnswerJournal::open(&path, "m").unwrap().find("text").unwrap(), None);
    }
}
