//! Snapshots on disk. A snapshot that was damaged after it was written is refused. A forged one, whose checksums are
//! correct again, opens and is searched without a panic, or is refused.
//!
//! Input: `d` (damaged) or anything else (forged), then changes of 8 bytes each: the number of a file, what is done, a
//! place (3 bytes), and 3 bytes to put there. A change of file 255 ends them: what follows that byte is searched for.
//! Files of tantivy and usearch are damaged but not forged: those libraries trust their files, which is why an index has
//! checksums at all (see `SECURITY.md`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use tempfile::TempDir;
use waymark_index::{
    BuildOptions, Corpus, Document, Embed, EmbedError, FileChecksum, Index, MANIFEST, Manifest, Mode, OpenOptions,
    Query, build,
};

/// Bytes of one change.
const CHANGE: usize = 8;

/// Number of a file that does not exist. The rest of the input after it is the query.
const QUERY: u8 = u8::MAX;

pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let (changes, query) = parts(rest);
    let damaged = *kind == b'd';
    let whole = &*WHOLE;
    let names: Vec<&String> = whole.files.keys().filter(|name| damaged || ours(name)).collect();
    let mut files = BTreeMap::new();
    for change in changes.chunks_exact(CHANGE).take(16) {
        let name = names[usize::from(change[0]) % names.len()];
        apply(files.entry(name.as_str()).or_insert_with(|| whole.files[name].clone()), change);
    }
    files.retain(|name, bytes| whole.files[*name] != *bytes);
    let folder = tempfile::tempdir().expect("a temporary folder");
    whole.write(folder.path(), &files);
    if !damaged {
        reseal(folder.path(), &files);
    }
    let options = OpenOptions { concurrency: 1, ..OpenOptions::default() };
    match Index::open_with(folder.path(), Arc::new(Words), &options) {
        Ok(_) if damaged && !files.is_empty() => panic!("damage to {:?} went unseen", files.keys()),
        Ok(index) => search(&index, &query),
        Err(error) => assert!(!files.is_empty(), "a whole index is refused: {error}"),
    }
}

/// Returns the changes and the query.
fn parts(data: &[u8]) -> (&[u8], Cow<'_, str>) {
    match data.chunks(CHANGE).position(|change| change[0] == QUERY) {
        Some(at) => (&data[..at * CHANGE], String::from_utf8_lossy(&data[at * CHANGE + 1..])),
        None => (data, Cow::Borrowed("Who wrote Faust?")),
    }
}

/// Returns `true` if the snapshot's own code reads the file.
fn ours(name: &str) -> bool {
    name != MANIFEST && !name.contains("lexical") && !name.ends_with(".usearch")
}

fn apply(bytes: &mut Vec<u8>, change: &[u8]) {
    let place = u32::from_le_bytes([change[2], change[3], change[4], 0]) as usize % (bytes.len() + 1);
    let put = &change[5..];
    match change[1] % 4 {
        0 => bytes.iter_mut().skip(place).zip(put).for_each(|(byte, new)| *byte = *new),
        1 => bytes.truncate(place),
        2 => drop(bytes.splice(place..place, put.iter().copied())),
        // From the end, where the tables are.
        _ => bytes.iter_mut().rev().skip(place % 64).zip(put).for_each(|(byte, new)| *byte = *new),
    }
}

/// Reads the index in every way.
fn search(index: &Index, query: &str) {
    for mode in Mode::ALL {
        let _ = index.search(&Query::new(query, mode, 3).explained());
    }
    let documents = index.documents(None, 10).ok().flatten().unwrap_or_default();
    for document in documents {
        let _ = (index.passage(&document.id), index.number(&document.id));
    }
    let _ = (index.vector(0), index.info());
}

/// Writes a manifest with the checksums of the changed files.
fn reseal(dir: &Path, files: &BTreeMap<&str, Vec<u8>>) {
    let mut manifest = Manifest::read(dir).expect("the manifest is whole");
    for (name, bytes) in files {
        let sum = FileChecksum::of_bytes(bytes);
        manifest.files.insert((*name).to_owned(), sum);
    }
    manifest.checksum = 0;
    let json =
        |manifest: &Manifest| [serde_json::to_vec_pretty(manifest).expect("plain data"), b"\n".to_vec()].concat();
    manifest.checksum = crc32fast::hash(&json(&manifest));
    let path = dir.join(MANIFEST);
    fs::remove_file(&path).expect("it is there");
    fs::write(&path, json(&manifest)).expect("room for a small file");
    Manifest::read(dir).expect("resealed as the index does it");
}

/// Copies the unchanged index into `folder`. The copies may be changed.
pub(super) fn put(folder: &Path) {
    let whole = &*WHOLE;
    let copies: BTreeMap<&str, Vec<u8>> =
        whole.files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    whole.write(folder, &copies);
}

static WHOLE: LazyLock<Whole> = LazyLock::new(Whole::build);

/// An index as it was written.
struct Whole {
    dir: TempDir,
    /// By path from the folder of the index.
    files: BTreeMap<String, Vec<u8>>,
}

impl Whole {
    fn build() -> Whole {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let document = |id: &str, title: &str, text: &str, triples: &[[&str; 3]]| Document {
            id: id.to_owned(),
            title: title.to_owned(),
            text: text.to_owned(),
            triples: Some(triples.iter().map(|triple| triple.map(str::to_owned).into()).collect()),
            metadata: None,
        };
        let corpus = Corpus::from_documents(
            "fuzz",
            vec![
                document("a", "Faust", "Goethe wrote Faust.", &[["Goethe", "wrote", "Faust"]]),
                document("b", "Goethe", "Goethe lived in Weimar.", &[["Goethe", "lived in", "Weimar"]]),
                document("c", "Weimar", "Weimar is a town.", &[["Weimar", "is a", "town"], ["Weimar", "near", "Jena"]]),
                document("d", "Nothing", "Nothing is said here.", &[]),
            ],
        );
        let options = BuildOptions { threads: 1, journal: false, ..BuildOptions::default() };
        build(corpus, &Words, dir.path(), &options, &()).expect("an index");
        let manifest = Manifest::read(dir.path()).expect("its manifest");
        let names = manifest.files.keys().cloned().chain([MANIFEST.to_owned()]);
        let read = |name: String| {
            let bytes = fs::read(dir.path().join(&name)).expect("its file");
            (name, bytes)
        };
        let files = names.map(read).collect();
        Whole { dir, files }
    }

    /// The same index in another folder, with `changed` files; the others are links.
    fn write(&self, folder: &Path, changed: &BTreeMap<&str, Vec<u8>>) {
        for name in self.files.keys() {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
            match changed.get(name.as_str()) {
                Some(bytes) => fs::write(&path, bytes).expect("room for a small file"),
                None => fs::hard_link(self.dir.path().join(name), &path).expect("a link"),
            }
        }
    }
}

/// Embedder that counts bytes.
#[derive(Debug)]
pub(super) struct Words;

impl Embed for Words {
    fn id(&self) -> &str {
        "letters"
    }

    fn dims(&self) -> usize {
        16
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let vector = |text: &&str| {
            let mut vector = vec![0.0; 16];
            text.bytes().for_each(|byte| vector[usize::from(byte % 16)] += 1.0);
            vector
        };
        Ok(texts.iter().map(vector).collect())
    }
}
