//! What the tests of the crate share.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waymark_index::{BuildOptions, BuildReport, Corpus, Document, Embed, EmbedError, Index, IndexError, build};

/// Bags of hashed words: texts that share words lie close, and nothing has to be loaded.
#[derive(Debug, Clone)]
pub struct HashEmbed {
    pub id: &'static str,
    pub dims: usize,
}

impl Default for HashEmbed {
    fn default() -> HashEmbed {
        HashEmbed { id: "hash-64", dims: 64 }
    }
}

impl Embed for HashEmbed {
    fn id(&self) -> &str {
        self.id
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Ok(texts.iter().map(|text| hash_vector(text, self.dims)).collect())
    }
}

fn hash_vector(text: &str, dims: usize) -> Vec<f32> {
    let mut vector = vec![0.0; dims];
    for word in text.to_lowercase().split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        // FNV-1a, then a xorshift stream as the word's own direction.
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let mut state = word.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        for x in &mut vector {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *x += (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        }
    }
    vector
}

pub fn document(id: &str, title: &str, text: &str) -> Document {
    Document { id: id.to_owned(), title: title.to_owned(), text: text.to_owned(), metadata: None }
}

/// `count` passages, each about its own number, all saying which `edition` of the corpus they are from.
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

/// A folder with an index over [`numbered`] passages in it.
pub fn small_index(count: usize) -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, numbered(count, "first"), &BuildOptions::default()).unwrap();
    (temp, dir)
}

/// Every file below `dir`, in order.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(dir).sort_by_file_name().into_iter().map(|entry| entry.unwrap());
    entries.filter(|entry| entry.file_type().is_file()).map(walkdir::DirEntry::into_path).collect()
}
