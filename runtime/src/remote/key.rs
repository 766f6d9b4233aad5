//! API keys of endpoints.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// API key of an endpoint. Its value is sent to the endpoint only and never printed.
#[derive(Clone)]
pub struct EndpointKey(String);

impl fmt::Debug for EndpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndpointKey(…)")
    }
}

/// Error returned for an invalid key.
#[derive(Debug, thiserror::Error)]
pub enum EndpointKeyError {
    /// The text is blank.
    #[error("the key is empty")]
    Empty,
    /// The key has characters that an HTTP header cannot hold.
    #[error("the key contains spaces or non-ASCII characters: give the key alone, without quotes")]
    Characters,
    /// The file of the key cannot be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl EndpointKey {
    /// Validates a key. Surrounding white space is ignored.
    ///
    /// # Errors
    /// If the text is blank or has characters that a header cannot hold.
    pub fn new(text: &str) -> Result<Self, EndpointKeyError> {
        // Keys pasted into files and secrets usually end in a line break.
        let text = text.trim();
        if text.is_empty() {
            return Err(EndpointKeyError::Empty);
        }
        // Checked here, where the variable or file can still be named; the HTTP client would only refuse the header.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(EndpointKeyError::Characters);
        }
        Ok(Self(text.to_owned()))
    }

    /// Reads the key from the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read or holds no valid key.
    pub fn read(path: &Path) -> Result<Self, EndpointKeyError> {
        let text = std::fs::read_to_string(path);
        Self::new(&text.map_err(|source| EndpointKeyError::File { path: path.to_owned(), source })?)
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Masks the key in `text`, because some endpoints quote the key in their errors.
    pub(crate) fn hide(&self, text: &str) -> String {
        // The whole key, not a prefix: providers quote it in full or mask it themselves.
        text.replace(&self.0, "…")
    }
}
