//! Indexes of earlier formats.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use corpora::{HashEmbed, numbered, open, write};
use waymark_index::{
    BuildOptions, Changes, CommitOptions, Document, Evidence, FORMAT, FileChecksum, Index, LiveIndex, MANIFEST,
    Manifest, Mode, OpenOptions, Query, Triple,
};

fn documents(range: std::ops::Range<usize>) -> Vec<Document> {
    let stated = |i: usize| vec![Triple::new(format!("Title{i}"), "tells of", format!("topic{}", i % 3))];
    let documents = numbered(range.end, "first").into_iter().enumerate().skip(range.start);
    documents.map(|(i, document)| Document { triples: Some(stated(i)), ..document }).collect()
}

/// Evidence of a query in each mode, without the number of the snapshot.
fn answers(index: &Index) -> Vec<Evidence> {
    let ask = |mode| index.search(&Query::new("number7 tells of topic2", mode, 8)).unwrap();
    Mode::ALL.into_iter().map(|mode| Evidence { snapshot: 0, ..ask(mode) }).collect()
}

/// Turns the index in `dir` into one of format 2, whose files are the same: its manifest has checksums of whole files
/// only, and no log of changes.
fn downgrade(dir: &Path) {
    let manifest = Manifest::read(dir).unwrap();
    let whole = |sum: FileChecksum| FileChecksum { blocks: String::new(), ..sum };
    let files = manifest.files.clone().into_iter().map(|(name, sum)| (name, whole(sum))).collect();
    put(dir, Manifest { format: 2, files, ..manifest });
}

/// Writes a manifest with its checksum.
fn put(dir: &Path, manifest: Manifest) {
    let old = Manifest { checksum: 0, ..manifest };
    let json = |manifest: &Manifest| [serde_json::to_string_pretty(manifest).unwrap().as_str(), "\n"].concat();
    let checksum = crc32fast::hash(json(&old).as_bytes());
    fs::write(dir.join(MANIFEST), json(&Manifest { checksum, ..old })).unwrap();
}

#[test]
fn an_index_of_format_2_is_searched_and_the_first_commit_brings_it_up_to_date() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, documents(0..40), &BuildOptions::default()).unwrap();
    let expected = answers(&open(&dir).unwrap());
    downgrade(&dir);
    let text = fs::read_to_string(dir.join(MANIFEST)).unwrap();
    assert!(text.contains("\"format\": 2") && !text.contains("blocks") && !text.contains("delta"), "{text}");

    let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    assert_eq!((live.current().manifest().format, answers(&live.current())), (2, expected));
    assert_eq!(live.scrub(u64::MAX), None);
    let scratch = temp.path().join("scratch");
    write(&scratch, documents(0..50), &BuildOptions::default()).unwrap();
    let expected = answers(&open(&scratch).unwrap());
    // Appends to the log first, whose base keeps its files as they are; the merge writes all of them anew.
    let appending = CommitOptions { append_from: 0, ..CommitOptions::default() };
    let report = live.commit(Changes::upsert(documents(40..50)), &appending, &()).unwrap();
    assert_eq!((report.manifest.format, report.added), (FORMAT, 10));
    assert_eq!(answers(&open(&dir).unwrap()), expected);
    assert!(live.merge(&appending, None).unwrap());
    let index = open(&dir).unwrap();
    assert_eq!((index.manifest().format, answers(&index)), (FORMAT, expected.clone()));
    assert_eq!(answers(&live.current()), expected);
}

#[test]
fn an_index_of_format_3_is_searched_and_the_first_commit_brings_it_up_to_date() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, documents(0..40), &BuildOptions::default()).unwrap();
    let expected = answers(&open(&dir).unwrap());
    put(&dir, Manifest { format: 3, ..Manifest::read(&dir).unwrap() });
    let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    assert_eq!((live.current().manifest().format, answers(&live.current())), (3, expected));
    let report = live.commit(Changes::upsert(documents(40..50)), &CommitOptions::default(), &()).unwrap();
    assert_eq!((report.manifest.format, report.added), (FORMAT, 10));
    assert_eq!(open(&dir).unwrap().manifest().format, FORMAT);
}

#[test]
fn damage_in_a_file_of_format_2_is_found() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, documents(0..40), &BuildOptions::default()).unwrap();
    downgrade(&dir);
    let path = dir.join("snapshot-1/vectors.bin");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = open(&dir).unwrap_err().to_string();
    assert!(error.contains("vectors.bin") && error.contains("damaged"), "{error}");
}
