//! The file that keys are kept in.
//!
//! ```toml
//! [[key]]
//! id = "alice"                  # names the key in logs; of one name at most one
//! hash = "blake3:…"             # as `waymark key new` prints it
//! scopes = ["infer", "index"]   # infer, index, admin; none includes another
//! requests_per_minute = 600     # not bounded when not given
//! concurrent = 16               # not bounded when not given
//! private_cache = true          # its cached prefixes are its own; all keys' are under `--private-cache`
//! ```

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;

use super::caller::KeyId;
use super::keys::Entry;
use super::meter::Limits;
use super::scope::Scope;
use super::secret::SecretError;

/// Why a file of keys cannot be used. None of these shows what is in the file: a key might stand where its hash should.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the keys in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no such file.
    #[error("{}:{line}: {reason}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// One of its keys makes no sense.
    #[error("{}: key `{id}`: {reason}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(default)]
    key: Vec<Line>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    hash: String,
    scopes: Vec<Scope>,
    requests_per_minute: Option<u32>,
    concurrent: Option<u32>,
    #[serde(default)]
    private_cache: bool,
}

/// The keys in the file at `path`.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>, FileError> {
    let text = fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let content: Content = toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        // The message alone: the error itself would quote the line.
        let (line, reason) = (before.matches('\n').count() + 1, without_quotes(error.message()));
        FileError::Form { path: path.to_owned(), line, reason }
    })?;
    content.key.into_iter().map(|line| line.entry(path)).collect()
}

/// A message of the parser without the values that it quotes: it names unknown fields and values, and what it takes for
/// one may be a key.
fn without_quotes(message: &str) -> String {
    let parts = message.split('`').enumerate();
    let shown = |(index, part): (usize, &str)| if index % 2 == 1 && part.len() > 24 { "…" } else { part }.to_owned();
    parts.map(shown).collect::<Vec<_>>().join("`")
}

impl Line {
    fn entry(self, path: &Path) -> Result<Entry, FileError> {
        let refuse = |reason: String| FileError::Key { path: path.to_owned(), id: self.id.clone(), reason };
        if !KeyId::fits(&self.id) {
            return Err(refuse("a name has 1 to 64 letters, digits and `._-@`".to_owned()));
        }
        if self.scopes.is_empty() {
            return Err(refuse("it may do nothing: give it scopes (infer, index, admin)".to_owned()));
        }
        let digest = self.hash.parse().map_err(|error: SecretError| refuse(error.to_string()))?;
        Ok(Entry {
            id: KeyId::new(&self.id),
            digest,
            limits: Limits { requests_per_minute: self.requests_per_minute, concurrent: self.concurrent },
            private_cache: self.private_cache,
            scopes: self.scopes,
        })
    }
}

/// The lines that store a key, ready to be put into a file.
impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scopes: Vec<_> = self.scopes.iter().map(|scope| format!("\"{scope}\"")).collect();
        writeln!(f, "[[key]]\nid = \"{}\"\nhash = \"{}\"\nscopes = [{}]", self.id, self.digest, scopes.join(", "))?;
        if let Some(rate) = self.limits.requests_per_minute {
            writeln!(f, "requests_per_minute = {rate}")?;
        }
        if let Some(concurrent) = self.limits.concurrent {
            writeln!(f, "concurrent = {concurrent}")?;
        }
        if self.private_cache {
            writeln!(f, "private_cache = true")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::secret::Secret;
    use super::*;

    fn of(text: &str) -> Result<Vec<Entry>, FileError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn what_is_written_is_read() {
        let entry = Entry {
            id: KeyId::new("alice"),
            digest: Secret::generate().digest(),
            scopes: vec![Scope::Infer, Scope::Admin],
            limits: Limits { requests_per_minute: Some(60), concurrent: Some(4) },
            private_cache: true,
        };
        let read = of(&format!("# two of them\n{entry}\n{}", entry.to_string().replace("alice", "bob"))).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].to_string(), entry.to_string());
        assert!(of("").unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_place_and_never_the_key() {
        let secret = Secret::generate();
        let key = secret.reveal();
        let digest = secret.digest();
        for (text, part) in [
            (format!("[[key]]\nid = \"a\"\nhash = \"{key}\"\nscopes = [\"infer\"]"), "key `a`: a stored key is"),
            (format!("[[key]]\nid = \"a\"\nhash = {key}\nscopes = [\"infer\"]"), ":3: "),
            (format!("[[key]]\nid = \"a\"\nhash = \"{digest}\"\nscopes = [\"{key}\"]"), ":4: "),
            (format!("[[key]]\n{key} = 1"), ":2: "),
            (format!("[[key]]\nid = \"a\"\nhash = \"{digest}\"\nscopes = []"), "it may do nothing"),
            (format!("[[key]]\nid = \"a b\"\nhash = \"{digest}\"\nscopes = [\"infer\"]"), "a name has"),
            (format!("[[key]]\nid = \"a\"\nhash = \"{digest}\"\nscopes = [\"root\"]"), "root"),
            ("[[keys]]\n".to_owned(), "keys"),
        ] {
            let error = of(&text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains(&key[3..]), "{error}");
        }
    }
}
