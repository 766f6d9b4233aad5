//! Helpers shared by the tests of the crate.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

mod hash;
mod histories;

use waymark_index::{BuildOptions, BuildReport, Corpus, Document, Index, IndexError, build};

// No test file uses all of them.
#[allow(unused_imports)]
pub use hash::{Failing, HashEmbed};
#[allow(unused_imports)]
pub use histories::{Pairs, apply, canonical, changes_of, document_of};

pub fn document(id: &str, title: &str, text: &str) -> Document {
    Document { id: id.to_owned(), title: title.to_owned(), text: text.to_owned(), triples: None, metadata: None }
}

/// `count` passages, each about its own number and naming the `edition` of the corpus.
pub fn numbered(count: usize, edition: &str) -> Vec<Document> {
    let text =
        |i: usize| format!("Passage number{i} of the {edition} edition tells of topic{} and topic{}.", i % 5, i % 3);
    (0..count).map(|i| document(&format!("p{i}"), &format!("Title{i}"), &text(i))).collect()
}

pub fn write(out: &Path, documents: Vec<Document>, options: &BuildOptions) -> Result<BuildReport, IndexError> {
    build(Corpus::from_documents("test", documents), &HashEmbed::default(), out, options, &())
}

pub fn replacing() -> BuildOptions {
    BuildOptions { replace: true, ..BuildOptions::default() }
}

pub fn open(dir: &Path) -> Result<Index, IndexError> {
    Index::open(dir, Arc::new(HashEmbed::default()))
}

/// Folder with an index over [`numbered`] passages.
pub fn small_index(count: usize) -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, numbered(count, "first"), &BuildOptions::default()).unwrap();
    (temp, dir)
}

/// Every file below `dir`, sorted.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(dir).sort_by_file_name().into_iter().map(|entry| entry.unwrap());
    entries.filter(|entry| entry.file_type().is_file()).map(walkdir::DirEntry::into_path).collect()
}
