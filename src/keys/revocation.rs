//! Removal of a key from a file of keys, which keeps the rest of the file as it is.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use waymark_models::durable_file;

use super::entry::KeyEntry;
use super::file::{self, FileError};

/// Error of a removal. The file is then unchanged, unless only its folder could not be synced.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has no key of this name.
    #[error("no key `{id}` in {}; its keys are: {}", path.display(), known.join(", "))]
    Unknown {
        /// Path of the file.
        path: PathBuf,
        /// Name of the key.
        id: String,
        /// Names of the keys in the file.
        known: Vec<String>,
    },
    /// The file is not written as `waymark key new` writes it.
    #[error("cannot find the lines of the key `{id}` in {}: remove them by hand", path.display())]
    Lines {
        /// Path of the file.
        path: PathBuf,
        /// Name of the key.
        id: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
}

/// Reads the keys in the file at `path`.
///
/// # Errors
/// If the file cannot be read or is invalid.
pub fn read_keys(path: &Path) -> Result<Vec<KeyEntry>, FileError> {
    file::read(path)
}

/// Removes the key `id` from the file at `path`, which is replaced whole. Waits while another process changes the file.
///
/// # Errors
/// If the file has no such key, or cannot be read or written.
pub fn revoke_key(path: &Path, id: &str) -> Result<(), RevokeError> {
    // A network file system locks only files that are open for writing. A file that may only be read can be replaced,
    // too.
    let open = || File::options().read(true).write(true).open(path).or_else(|_| File::open(path));
    let _locked = file::lock(path, open).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let entries = file::read(path)?;
    let Some(place) = entries.iter().position(|entry| entry.id.as_str() == id) else {
        let known = entries.iter().map(|entry| entry.id.to_string()).collect();
        return Err(RevokeError::Unknown { path: path.to_owned(), id: id.to_owned(), known });
    };
    let unclear = || RevokeError::Lines { path: path.to_owned(), id: id.to_owned() };
    let text = fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let shortened = without(&text, place, entries.len()).ok_or_else(unclear)?;
    // Exactly one key may be removed, whatever the form of the file.
    let left = file::parse(&shortened, path).map_err(|_| unclear())?;
    let others = entries.iter().enumerate().filter(|(index, _)| *index != place);
    if !others.map(|(_, entry)| entry.to_string()).eq(left.iter().map(ToString::to_string)) {
        return Err(unclear());
    }
    replace(path, &shortened).map_err(|source| RevokeError::Write { path: path.to_owned(), source })
}

/// Returns the text without the lines of the table at `place` among `count` tables. Blank lines and comments at its end
/// stay, because they may describe the next table.
fn without(text: &str, place: usize, count: usize) -> Option<String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let code = |line: &str| line.split('#').next().unwrap_or_default().replace([' ', '\t', '\r', '\n'], "");
    let heads = lines.iter().enumerate().filter(|(_, line)| code(line) == "[[key]]").map(|(number, _)| number);
    let heads: Vec<usize> = heads.collect();
    if heads.len() != count {
        return None;
    }
    let begin = *heads.get(place)?;
    let next = heads.get(place + 1).copied().unwrap_or(lines.len());
    let last = (begin..next).rev().find(|&number| !code(lines[number]).is_empty())?;
    Some([&lines[..begin], &lines[last + 1..]].concat().concat())
}

/// Replaces the file at `path` at once and durably, with its owner, group and permissions. A link stays, and its target
/// is replaced.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A link is followed, because the rename would otherwise replace the link.
    let path = &fs::canonicalize(path)?;
    let before = fs::metadata(path)?;
    durable_file::replace_with(path, |file| {
        // A server of another user must still be able to read the file.
        give_to_owner_of(&before, file.get_ref())?;
        file.write_all(text.as_bytes())
    })
}

/// Gives `file` the owner and the group in `before`.
#[cfg(unix)]
fn give_to_owner_of(before: &fs::Metadata, file: &File) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, fchown};
    let own = file.metadata()?;
    if (own.uid(), own.gid()) == (before.uid(), before.gid()) {
        return Ok(());
    }
    fchown(file, Some(before.uid()), Some(before.gid()))
}

#[cfg(not(unix))]
fn give_to_owner_of(_before: &fs::Metadata, _file: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::addition::add_key;
    use super::super::key_id::KeyId;
    use super::super::secret::Secret;
    use super::*;

    fn table(id: &str, rest: &str) -> String {
        format!("[[key]]\nid = \"{id}\"\nhash = \"{}\"\nscopes = [\"infer\"]\n{rest}", Secret::generate().digest())
    }

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn one_key_goes_and_everything_else_stays() {
        let alice = table("alice", "");
        let carol = table("carol", "");
        let text = format!("# ours\n{alice}\n{}\n# of a guest\n{carol}", table("bob", "concurrent = 2\n"));
        let (dir, path) = file(&text);
        revoke_key(&path, "bob").unwrap();
        let left = fs::read_to_string(&path).unwrap();
        assert_eq!(left, format!("# ours\n{alice}\n\n# of a guest\n{carol}"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no drafts are left");
        for id in ["carol", "alice"] {
            revoke_key(&path, id).unwrap();
        }
        assert!(read_keys(&path).unwrap().is_empty());
    }

    #[test]
    fn no_change_of_a_file_undoes_another() {
        let names = |kind: &str| (0..20).map(|number| format!("{kind}-{number:02}")).collect::<Vec<_>>();
        let old = names("old");
        let new = names("new");
        let (dir, path) = file(&old.iter().map(|id| table(id, "")).collect::<String>());
        std::thread::scope(|scope| {
            for (revoked, added) in old.iter().zip(&new) {
                let path = &path;
                scope.spawn(move || revoke_key(path, revoked).unwrap());
                scope.spawn(move || {
                    let entry = KeyEntry { id: KeyId::new(added), ..KeyEntry::of_environment(&Secret::generate()) };
                    add_key(path, &entry).unwrap();
                });
            }
        });
        let mut left: Vec<String> = read_keys(&path).unwrap().iter().map(|entry| entry.id.to_string()).collect();
        left.sort();
        assert_eq!(left, new);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no drafts are left");
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_file_stays_a_link() {
        let (dir, path) = file(&table("alice", ""));
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("link.toml");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        revoke_key(&link, "alice").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(read_keys(&path).unwrap().is_empty());
        for folder in [dir.path(), elsewhere.path()] {
            assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "no drafts are left");
        }
    }

    /// A server of another user reads the file by its group.
    #[cfg(unix)]
    #[test]
    fn the_file_keeps_its_group_and_permissions() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let (_dir, path) = file(&format!("{}\n{}", table("alice", ""), table("bob", "")));
        // Only root may choose any group; anybody else tests the permissions alone.
        let _ = chown(&path, None, Some(12_345));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let read = || {
            let metadata = fs::metadata(&path).unwrap();
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
        };
        let before = read();
        revoke_key(&path, "alice").unwrap();
        assert_eq!(read(), before);
    }

    #[test]
    fn a_key_that_is_not_there_is_told_with_those_that_are() {
        let (_dir, path) = file(&format!("{}\n{}", table("alice", ""), table("bob", "")));
        let refused = revoke_key(&path, "carol").unwrap_err().to_string();
        assert!(refused.contains("no key `carol`") && refused.contains("alice, bob"), "{refused}");
    }

    #[test]
    fn a_file_in_another_form_is_left_alone() {
        let digest = Secret::generate().digest();
        let text = format!("key = [{{ id = \"a\", hash = \"{digest}\", scopes = [\"infer\"] }}]\n");
        let (_dir, path) = file(&text);
        assert!(matches!(revoke_key(&path, "a"), Err(RevokeError::Lines { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}
