//! File of API keys.
//!
//! ```toml
//! [[key]]
//! id = "alice"                  # name of the key in logs; must be unique
//! hash = "blake3:…"             # as `waymark key new` prints it
//! scopes = ["infer", "index"]   # infer, index, admin; none includes another
//! requests_per_minute = 600     # unlimited if absent
//! tokens_per_minute = 100000    # of prompts and answers; unlimited if absent
//! concurrent = 16               # unlimited if absent
//! priority = "low"              # low, normal or high: share relative to other keys; normal if absent
//! indexes = ["law", "default"]  # indexes that it may use; all if absent
//! private_cache = true          # shares no cached prefixes or query vectors; implied by `--private-cache`
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::entry::KeyEntry;
use super::index_scope::IndexScope;
use super::key_id::KeyId;
use super::meter::KeyLimits;
use super::priority::RequestPriority;
use super::scope::Scope;
use super::secret::{MIN_LENGTH, SecretError};

/// Error reading a file of keys. Messages never quote the file's content, because a key may stand where its hash
/// belongs.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read the keys in {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The file is not valid.
    #[error("{}:{line}: {reason}", path.display())]
    Form {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Description of the error.
        reason: String,
    },
    /// One of the keys is not valid.
    #[error("{}: key `{id}`: {reason}", path.display())]
    Key {
        /// Path of the file.
        path: PathBuf,
        /// Name of the key.
        id: String,
        /// Description of the error.
        reason: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<KeyTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTable {
    id: String,
    hash: String,
    scopes: Vec<Scope>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    concurrent: Option<u32>,
    #[serde(default)]
    priority: RequestPriority,
    #[serde(default)]
    private_cache: bool,
    indexes: Option<Vec<String>>,
}

/// Reads the keys in the file at `path`.
pub(super) fn read(path: &Path) -> Result<Vec<KeyEntry>, FileError> {
    let text = fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

/// Opens the file at `path` by `open`, and locks it for a change. Waits for the end of another change. The lock ends
/// with the returned file.
pub(super) fn lock(path: &Path, open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    loop {
        let file = open()?;
        file.lock()?;
        // A removal may have replaced the file meanwhile, and later changes take the lock of the new one.
        if is_at(&file, path)? {
            return Ok(file);
        }
    }
}

/// Returns `true` if `file` is the file at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(now) => Ok((own.dev(), own.ino()) == (now.dev(), now.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}

/// Parses the keys in `text`, the content of the file at `path`.
pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<KeyEntry>, FileError> {
    let content: KeyFile = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        // Only the message is used: the error's own `Display` quotes the line, which may hold a key.
        let line = before.matches('\n').count() + 1;
        let reason = without_quotes(error.message());
        FileError::Form { path: path.to_owned(), line, reason }
    })?;
    content.key.into_iter().map(|line| line.entry(path)).collect()
}

/// Removes long quoted values from a message of the parser. The message quotes unknown fields and values, and a
/// misplaced key may be one of them.
fn without_quotes(message: &str) -> String {
    let parts = message.split('`').enumerate();
    let shown =
        |(index, part): (usize, &str)| if index % 2 == 1 && part.len() >= MIN_LENGTH { "…" } else { part }.to_owned();
    parts.map(shown).collect::<Vec<_>>().join("`")
}

impl KeyTable {
    fn entry(self, path: &Path) -> Result<KeyEntry, FileError> {
        let refuse = |reason: String| FileError::Key { path: path.to_owned(), id: self.id.clone(), reason };
        if !KeyId::fits(&self.id) {
            return Err(refuse("a name has 1 to 64 letters, digits and `._-@`".to_owned()));
        }
        if self.scopes.is_empty() {
            return Err(refuse("the key has no scopes: give it at least one of infer, index, admin".to_owned()));
        }
        let digest = self.hash.parse().map_err(|error: SecretError| refuse(error.to_string()))?;
        let indexes = IndexScope::new(self.indexes.clone(), &self.scopes);
        let indexes = indexes.map_err(|error| refuse(error.to_string()))?;
        Ok(KeyEntry {
            id: KeyId::new(&self.id),
            digest,
            indexes,
            limits: KeyLimits {
                requests_per_minute: self.requests_per_minute,
                tokens_per_minute: self.tokens_per_minute,
                concurrent: self.concurrent,
            },
            priority: self.priority,
            private_cache: self.private_cache,
            scopes: self.scopes,
        })
    }
}

/// Formats the lines of a key file that store this key.
impl std::fmt::Display for KeyEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scopes: Vec<_> = self.scopes.iter().map(|scope| format!("\"{scope}\"")).collect();
        writeln!(f, "[[key]]\nid = \"{}\"\nhash = \"{}\"\nscopes = [{}]", self.id, self.digest, scopes.join(", "))?;
        if let Some(rate) = self.limits.requests_per_minute {
            writeln!(f, "requests_per_minute = {rate}")?;
        }
        if let Some(rate) = self.limits.tokens_per_minute {
            writeln!(f, "tokens_per_minute = {rate}")?;
        }
        if let Some(concurrent) = self.limits.concurrent {
            writeln!(f, "concurrent = {concurrent}")?;
        }
        if self.priority != RequestPriority::default() {
            writeln!(f, "priority = \"{}\"", self.priority.name())?;
        }
        if let Some(names) = self.indexes.names() {
            let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
            writeln!(f, "indexes = [{}]", names.join(", "))?;
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

    fn of(text: &str) -> Result<Vec<KeyEntry>, FileError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn what_is_written_is_read() {
        let entry = KeyEntry {
            id: KeyId::new("alice"),
            digest: Secret::generate().digest(),
            scopes: vec![Scope::Infer, Scope::Index],
            indexes: IndexScope::new(Some(vec!["law".into(), "a.b-c".into()]), &[Scope::Infer]).unwrap(),
            limits: KeyLimits { requests_per_minute: Some(60), tokens_per_minute: Some(9000), concurrent: Some(4) },
            priority: RequestPriority::High,
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
            (format!("[[key]]\nid = \"a\"\nhash = \"{digest}\"\nscopes = []"), "the key has no scopes"),
            (format!("[[key]]\nid = \"a b\"\nhash = \"{digest}\"\nscopes = [\"infer\"]"), "a name has"),
            (format!("[[key]]\nid = \"a\"\nhash = \"{digest}\"\nscopes = [\"root\"]"), "root"),
            (
                format!("[[key]]\nid = \"a\"\nhash = \"{digest}\"\nscopes = [\"infer\"]\nindexes = [\"{key}!\"]"),
                "the name of an index",
            ),
            ("[[keys]]\n".to_owned(), "keys"),
        ] {
            let error = of(&text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains(&key[3..]), "{error}");
        }
    }
}
