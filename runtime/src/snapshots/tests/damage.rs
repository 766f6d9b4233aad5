//! Damaged files of a writer and of replicas.

use std::path::PathBuf;

use waymark_index::IndexError;

use super::*;

/// File with its contents before it was damaged.
struct WholeFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl WholeFile {
    fn read(path: PathBuf) -> WholeFile {
        let bytes = std::fs::read(&path).unwrap();
        WholeFile { path, bytes }
    }

    /// Changes one bit of the byte `place`.
    fn flip(&self, place: usize) {
        let mut bytes = self.bytes.clone();
        bytes[place] ^= 16;
        std::fs::write(&self.path, bytes).unwrap();
    }

    fn is_whole(&self) -> bool {
        std::fs::read(&self.path).unwrap() == self.bytes
    }
}

#[tokio::test]
async fn damaged_files_are_not_published() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    add(writer.path(), 10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap();
    add(writer.path(), 11);
    let log = Manifest::read(writer.path()).unwrap().delta.unwrap().log;
    let base = WholeFile::read(writer.path().join("snapshot-1/passages.bin"));
    let log = WholeFile::read(writer.path().join(log));
    // Of the log, the first record is published already, and the last one is new.
    for (file, flipped) in [(&base, base.bytes.len() / 2), (&log, 20), (&log, log.bytes.len() - 9)] {
        file.flip(flipped);
        let refused = push(writer.path(), &remote, PushOptions::default()).await;
        let Err(SnapshotError::Index(IndexError::Corrupt { file: named, .. })) = &refused else {
            panic!("{flipped}: {refused:?}")
        };
        assert_eq!(named, &file.path);
        assert_eq!(replica.refresh().await.unwrap(), None);
        std::fs::write(&file.path, &file.bytes).unwrap();
    }
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    replica.refresh().await.unwrap().unwrap();
    assert_eq!(all(dir.path()), all(writer.path()));
}

#[tokio::test]
async fn damaged_files_of_a_replica_are_fetched_again() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let open = || Replica::open(dir.path(), remote.clone()).unwrap();
    open().refresh().await.unwrap();
    let file = WholeFile::read(dir.path().join("snapshot-1/vectors.bin"));
    std::fs::remove_file(&file.path).unwrap();
    assert_eq!(open().refresh().await.unwrap().unwrap().parts, 1);
    assert!(file.is_whole());
    std::fs::write(&file.path, &file.bytes[1..]).unwrap();
    let mut replica = open();
    assert_eq!(replica.refresh().await.unwrap().unwrap().parts, 1);
    assert!(file.is_whole());
    assert_eq!(replica.refresh().await.unwrap(), None);
    drop(replica);
    // The contents are compared only on request, and once.
    file.flip(file.bytes.len() / 2);
    assert_eq!(open().refresh().await.unwrap(), None);
    let mut replica = open().comparing(true);
    assert_eq!(replica.refresh().await.unwrap().unwrap().parts, 1);
    assert!(file.is_whole());
    assert_eq!(replica.refresh().await.unwrap(), None);
    assert_eq!(all(dir.path()), all(writer.path()));
}

#[tokio::test]
async fn a_failed_fetch_of_files_of_the_same_names_replaces_nothing() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let first = built(10);
    push(first.path(), &remote, PushOptions::default()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap();
    let searched = live(dir.path());
    let documents = all(first.path());
    let second = built(20);
    push(second.path(), &remote, PushOptions { replace: true, ..PushOptions::default() }).await.unwrap();
    // The parts of the last file that is fetched, and that of the manifest.
    for name in ["snapshot-1/vectors.usearch", "manifest.json"] {
        let newest = remote.newest().await.unwrap().unwrap();
        let missing = WholeFile::read(place.path().join(part_path(&newest.files[name].parts[0].hash).as_ref()));
        std::fs::remove_file(&missing.path).unwrap();
        replica.refresh().await.unwrap_err();
        assert_eq!(all(dir.path()), documents, "{name}");
        assert_eq!((searched.scrub(u64::MAX), searched.damage()), (None, None), "{name}");
        std::fs::write(&missing.path, &missing.bytes).unwrap();
    }
    replica.refresh().await.unwrap().unwrap();
    assert_eq!(all(dir.path()), all(second.path()));
    assert!(searched.refresh().unwrap());
}
