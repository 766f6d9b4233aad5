//! Tests of a writer and its replicas, over a folder and, if a server is given, over S3.
#![allow(clippy::unwrap_used)]

mod damage;
mod follow;
mod lineage;
mod local_index;
mod resume;
mod retries;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use waymark_index::{
    BuildOptions, Changes, CommitOptions, Corpus, Document, Index, LiveIndex, Manifest, Mode, OpenOptions, Query,
    build, commit, restore_snapshot,
};

use super::published::PART;
use super::remote::part_path;
use super::{PushOptions, RemoteIndex, Replica, SnapshotError, SnapshotLocation, push, sweep};
use crate::embedding::Embedding;

/// Variable that names an S3 location for the ignored test.
const S3: &str = "WAYMARK_TEST_S3";

fn document(number: usize) -> Document {
    let text = format!("Passage word{number} tells of river {}.", number % 7);
    Document { id: format!("d{number}"), title: String::new(), text, triples: None, metadata: None }
}

/// Builds an index of `count` documents.
fn built(count: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let corpus = Corpus::from_documents("test", (0..count).map(document).collect());
    build(corpus, &Embedding::Mock, dir.path(), &BuildOptions::default(), &()).unwrap();
    dir
}

/// Commits document `number` to the log of the index.
fn add(dir: &Path, number: usize) {
    let options = CommitOptions { append_from: 0, ..CommitOptions::default() };
    commit(dir, &Embedding::Mock, Changes::upsert([document(number)]), &options, &()).unwrap();
}

#[test]
fn missing_credentials_are_named() {
    let failed = |reason: &str| {
        let source = reason.to_owned().into();
        SnapshotError::from(object_store::Error::Generic { store: "S3", source }).to_string()
    };
    let unknown = failed("Error performing PUT http://169.254.169.254/latest/api/token in 3 s");
    assert!(unknown.contains("AWS_ACCESS_KEY_ID"), "{unknown}");
    assert!(!failed("Error performing PUT https://s3.example.org/bucket").contains("AWS_"));
}

fn remote(place: &Path) -> RemoteIndex {
    RemoteIndex::open(&SnapshotLocation::Folder(place.to_owned())).unwrap()
}

fn live(dir: &Path) -> LiveIndex {
    LiveIndex::open(dir, Arc::new(Embedding::Mock), OpenOptions::default()).unwrap()
}

fn finds(index: &Index, number: usize) -> bool {
    let query = Query::new(format!("word{number}"), Mode::Passage, 1);
    index.search(&query).unwrap().hits.first().is_some_and(|hit| hit.passage.id == format!("d{number}"))
}

fn snapshot(dir: &Path) -> u64 {
    Manifest::read(dir).unwrap().snapshot
}

/// Checks that a replica follows a writer, and that only changes are transferred.
async fn follows(remote: RemoteIndex) {
    let writer = built(3000);
    let replica_dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(replica_dir.path(), remote.clone()).unwrap();
    assert!(matches!(replica.refresh().await, Err(SnapshotError::Empty(_))));
    let first = push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    assert!(first.published && first.number == 1, "{first:?}");
    let again = push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    assert!(!again.published && again.bytes == 0, "{again:?}");
    let whole = replica.refresh().await.unwrap().unwrap();
    assert_eq!(replica.refresh().await.unwrap(), None);
    let searched = live(replica_dir.path());
    assert!(finds(&searched.current(), 17));
    for number in 3000..3003 {
        add(writer.path(), number);
        let pushed = push(writer.path(), &remote, PushOptions::default()).await.unwrap();
        let pulled = replica.refresh().await.unwrap().unwrap();
        // These are the new end of the log and the manifest.
        assert_eq!((pushed.parts, pulled.parts), (2, 2), "{pushed:?} {pulled:?}");
        assert!(pulled.bytes * 10 < whole.bytes && pushed.bytes * 10 < first.bytes, "{pushed:?} of {first:?}");
        assert!(searched.refresh().unwrap() && finds(&searched.current(), number));
    }
    assert_eq!(snapshot(replica_dir.path()), snapshot(writer.path()));
    // A replica that starts later gets the same.
    let late_dir = tempfile::tempdir().unwrap();
    Replica::open(late_dir.path(), remote).unwrap().refresh().await.unwrap();
    assert!(finds(&live(late_dir.path()).current(), 3002));
}

#[tokio::test]
async fn replicas_fetch_what_changed() {
    let place = tempfile::tempdir().unwrap();
    follows(remote(place.path())).await;
}

#[tokio::test]
#[ignore = "needs an S3 server: run scripts/test_s3.sh"]
async fn replicas_follow_over_s3() {
    let base = std::env::var(S3).unwrap();
    let under = |name: &str| RemoteIndex::open(&format!("{base}/{name}").parse().unwrap()).unwrap();
    follows(under("follows")).await;
    lineage::refuses_the_second_writer(under("writers")).await;
}

fn all(dir: &Path) -> Option<Vec<Document>> {
    live(dir).current().documents(None, 100).unwrap()
}

#[tokio::test]
async fn a_damaged_part_is_refused_and_the_old_snapshot_stays() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap();
    let before = snapshot(dir.path());
    add(writer.path(), 10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    let held = remote.read(1).await.unwrap().unwrap();
    let newest = remote.newest().await.unwrap().unwrap();
    let new = newest.parts().find(|part| !held.hashes().contains(part.hash.as_str())).unwrap();
    let path = place.path().join(part_path(&new.hash).as_ref());
    let good = std::fs::read(&path).unwrap();
    std::fs::write(&path, b"damaged").unwrap();
    assert!(matches!(replica.refresh().await, Err(SnapshotError::Damaged { .. })));
    assert_eq!((snapshot(dir.path()), finds(&live(dir.path()).current(), 3)), (before, true));
    std::fs::write(&path, good).unwrap();
    assert!(replica.refresh().await.unwrap().is_some());
    assert!(finds(&live(dir.path()).current(), 10));
}

/// Removes the index in `dir` as `rm -rf DIR/*` does, which leaves the record of publications, and builds another one.
/// Its passages take more than one part, and the text of the first document is in the first part.
fn build_anew(dir: &Path, text: &str) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            std::fs::remove_dir_all(entry.path()).unwrap();
        } else {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let filler = serde_json::Value::from("x".repeat(PART as usize));
    let metadata = [("filler".to_owned(), filler)].into_iter().collect();
    let first = Document { text: text.to_owned(), ..document(0) };
    let second = Document { metadata: Some(metadata), ..document(1) };
    let corpus = Corpus::from_documents("test", vec![first, second]);
    build(corpus, &Embedding::Mock, dir, &BuildOptions::default(), &()).unwrap();
}

#[tokio::test]
async fn an_index_that_was_built_anew_in_the_directory_is_published_whole() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = tempfile::tempdir().unwrap();
    for (text, number) in [("old words", 1), ("new words", 2)] {
        build_anew(writer.path(), text);
        let pushed = push(writer.path(), &remote, PushOptions::default()).await.unwrap();
        assert_eq!((pushed.number, pushed.snapshot), (number, 1));
    }
    let dir = tempfile::tempdir().unwrap();
    Replica::open(dir.path(), remote).unwrap().refresh().await.unwrap();
    assert_eq!(all(dir.path()), all(writer.path()));
    assert_eq!(all(dir.path()).unwrap()[0].text, "new words");
}

#[tokio::test]
async fn a_restored_snapshot_reaches_the_replicas_and_old_files_go() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    let mut publish = async |change: &dyn Fn()| {
        change();
        push(writer.path(), &remote, PushOptions::default()).await.unwrap();
        replica.refresh().await.unwrap();
    };
    publish(&|| ()).await;
    let first = snapshot(writer.path());
    publish(&|| {
        let options = CommitOptions { append_from: 0, keep: 3, ..CommitOptions::default() };
        commit(writer.path(), &Embedding::Mock, Changes::upsert([document(10)]), &options, &()).unwrap();
    })
    .await;
    publish(&|| drop(restore_snapshot(writer.path(), first, 3).unwrap())).await;
    assert_eq!(all(dir.path()), all(writer.path()));
    // After three full rewrites, the files that only the first publication named are removed.
    let rewrite = |number| {
        let options = CommitOptions { append_from: u64::MAX, ..CommitOptions::default() };
        commit(writer.path(), &Embedding::Mock, Changes::upsert([document(number)]), &options, &()).unwrap();
    };
    publish(&|| rewrite(11)).await;
    publish(&|| rewrite(12)).await;
    publish(&|| rewrite(13)).await;
    assert!(!dir.path().join(format!("snapshot-{first}")).exists());
    assert_eq!(all(dir.path()), all(writer.path()));
}

#[tokio::test]
async fn parts_that_no_kept_manifest_names_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    let options = PushOptions { keep: 2, ..PushOptions::default() };
    let mut number = 0;
    for count in 10..16 {
        let rewrite = CommitOptions { append_from: u64::MAX, ..CommitOptions::default() };
        commit(writer.path(), &Embedding::Mock, Changes::upsert([document(count)]), &rewrite, &()).unwrap();
        number = push(writer.path(), &remote, options).await.unwrap().number;
    }
    assert_eq!(remote.numbers().await.unwrap(), [number - 1, number]);
    let parts = || std::fs::read_dir(place.path().join("parts")).unwrap().count();
    let before = parts();
    sweep::sweep(&remote, 16, 2, Duration::from_secs(3600)).await.unwrap();
    assert_eq!(parts(), before, "young parts may belong to a publication that is being prepared");
    sweep::sweep(&remote, 16, 2, Duration::ZERO).await.unwrap();
    assert!(parts() < before);
    let dir = tempfile::tempdir().unwrap();
    Replica::open(dir.path(), remote).unwrap().refresh().await.unwrap();
    assert!(finds(&live(dir.path()).current(), 15));
}

#[tokio::test]
async fn one_process_at_a_time_fetches_into_a_directory() {
    let place = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let first = Replica::open(dir.path(), remote(place.path())).unwrap();
    assert!(matches!(Replica::open(dir.path(), remote(place.path())), Err(SnapshotError::InUse(_))));
    drop(first);
    assert!(Replica::open(dir.path(), remote(place.path())).is_ok());
}
