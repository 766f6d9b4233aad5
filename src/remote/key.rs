//! Keys of endpoints.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// What an endpoint knows its customers by. Is shown to nobody but the endpoint.
#[derive(Clone)]
pub struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Nothing but white space was given.
    #[error("the key is empty")]
    Empty,
    /// It could not be sent.
    #[error("the key holds characters that no key has: give the key alone, without quotes")]
    Characters,
    /// Its file cannot be read.
    #[error("cannot read the key in {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Key {
    /// A key out of a text, which may have white space around it.
    ///
    /// # Errors
    /// If there is none in it, or it has characters that a header cannot hold.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(KeyError::Characters);
        }
        Ok(Self(text.to_owned()))
    }

    /// The key in the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read or holds no key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = std::fs::read_to_string(path);
        Self::new(&text.map_err(|source| KeyError::File { path: path.to_owned(), source })?)
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }

    /// `text` without the key: some endpoints repeat what they were given.
    pub(super) fn hide(&self, text: &str) -> String {
        text.replace(&self.0, "…")
    }
}
