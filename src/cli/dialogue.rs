//! Conversation of a terminal: its questions and answers, and the file that keeps them between two commands.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use waymark_models::durable_file;

/// Maximum number of exchanges; the oldest are dropped first.
const MOST: usize = 32;

/// Maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Questions of a conversation and their answers, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dialogue {
    exchanges: VecDeque<Exchange>,
}

/// Question and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exchange {
    question: String,
    answer: String,
}

impl Dialogue {
    /// Returns the body of a request to `/v1/agent` that asks `question` after the conversation so far.
    pub(super) fn request(&self, question: &str) -> Map<String, Value> {
        let mut request = Map::new();
        request.insert("question".to_owned(), json!(question));
        request.insert("stream".to_owned(), json!(true));
        if !self.exchanges.is_empty() {
            let said = self.exchanges.iter().flat_map(|exchange| {
                [
                    json!({ "role": "user", "content": exchange.question }),
                    json!({ "role": "assistant", "content": exchange.answer }),
                ]
            });
            request.insert("history".to_owned(), said.collect());
        }
        request
    }

    /// Appends an exchange.
    pub(super) fn push(&mut self, question: String, answer: String) {
        self.exchanges.push_back(Exchange { question, answer });
        if self.exchanges.len() > MOST {
            self.exchanges.pop_front();
        }
    }

    /// Drops the oldest exchange. Returns `false` if there is none.
    pub(super) fn forget_oldest(&mut self) -> bool {
        self.exchanges.pop_front().is_some()
    }

    /// Returns the number of exchanges.
    pub(super) fn len(&self) -> usize {
        self.exchanges.len()
    }

    /// Reads a conversation. `None` if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read, is too large, or holds something else.
    pub(super) fn open(path: &Path) -> anyhow::Result<Option<Self>> {
        let about = || format!("cannot read the conversation in {}", path.display());
        let size = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            // A device such as /dev/null keeps nothing.
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(about),
        };
        ensure!(size <= MAX_FILE_BYTES, "{}: it has {size} bytes, more than {MAX_FILE_BYTES}", about());
        let text = fs::read(path).with_context(about)?;
        serde_json::from_slice(&text).map(Some).with_context(about)
    }

    /// Writes the conversation, readable by its owner only. A path that is no regular file, such as `/dev/null`, is
    /// left alone.
    ///
    /// # Errors
    /// If the file cannot be written; an earlier one then stays.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        // The rename would replace a device such as /dev/null with a file.
        if path.exists() && !path.is_file() {
            return Ok(());
        }
        let about = || format!("cannot write the conversation to {}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(about)?;
        }
        let json = serde_json::to_vec(self)?;
        durable_file::replace_private(path, &json).with_context(about)
    }
}

/// Returns the file that `ask` keeps its conversation in: `asked`, or one in the user's state folder
/// (`$XDG_STATE_HOME/waymark`, else `~/.local/state/waymark`). `None` without a home directory. `variable` returns the
/// value of an environment variable.
pub(super) fn conversation_file(asked: Option<PathBuf>, variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    // The XDG base directory specification says to ignore relative paths.
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    asked.or_else(|| {
        let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
        Some(state.join("waymark/conversation.json"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_question_is_asked_after_what_was_said() {
        let mut dialogue = Dialogue::default();
        let alone = json!({ "question": "Where is it?", "stream": true });
        assert_eq!(Value::Object(dialogue.request("Where is it?")), alone);
        dialogue.push("Where is it?".to_owned(), "In the Louvre.".to_owned());
        let said = json!([
            { "role": "user", "content": "Where is it?" },
            { "role": "assistant", "content": "In the Louvre." },
        ]);
        assert_eq!(dialogue.request("In which city?")["history"], said);
    }

    #[test]
    fn the_oldest_exchanges_are_dropped() {
        let mut dialogue = Dialogue::default();
        for number in 0..MOST + 2 {
            dialogue.push(number.to_string(), String::new());
        }
        assert_eq!(dialogue.len(), MOST);
        assert_eq!(dialogue.request("?")["history"][0]["content"], "2");
    }

    #[test]
    fn a_conversation_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/conversation.json");
        assert_eq!(Dialogue::open(&path).unwrap(), None);
        let mut dialogue = Dialogue::default();
        dialogue.push("Who?".to_owned(), "Leonardo".to_owned());
        dialogue.save(&path).unwrap();
        dialogue.save(&path).unwrap();
        assert_eq!(Dialogue::open(&path).unwrap(), Some(dialogue));
        assert_eq!(fs::read_dir(dir.path().join("state")).unwrap().count(), 1, "no drafts are left");
        fs::write(&path, "[]").unwrap();
        let refused = format!("{:#}", Dialogue::open(&path).unwrap_err());
        assert!(refused.contains("conversation.json"), "{refused}");
    }

    #[test]
    fn the_file_is_in_the_state_folder() {
        let file = |set: &[(&str, &str)]| {
            conversation_file(None, |name| {
                set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let home = ("HOME", "/home/a");
        assert_eq!(file(&[home]).unwrap(), Path::new("/home/a/.local/state/waymark/conversation.json"));
        assert_eq!(file(&[home, ("XDG_STATE_HOME", "/s")]).unwrap(), Path::new("/s/waymark/conversation.json"));
        assert_eq!(file(&[("XDG_STATE_HOME", "relative")]), None);
        assert_eq!(conversation_file(Some("x.json".into()), |_| None).unwrap(), Path::new("x.json"));
    }
}
