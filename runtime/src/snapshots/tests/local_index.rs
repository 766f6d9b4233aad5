//! Directories whose index is not, or no longer, the one that was fetched.

use waymark_index::IndexError;

use super::super::held::{self, HELD, NEXT};
use super::*;

/// Commits document `number` as a snapshot of its own.
fn rewrite(dir: &Path, number: usize) {
    let options = CommitOptions { append_from: u64::MAX, ..CommitOptions::default() };
    commit(dir, &Embedding::Mock, Changes::upsert([document(number)]), &options, &()).unwrap();
}

async fn publish(dir: &Path, remote: &RemoteIndex) {
    push(dir, remote, PushOptions::default()).await.unwrap();
}

#[tokio::test]
async fn an_index_that_was_built_here_is_replaced_only_on_request() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    publish(writer.path(), &remote).await;
    let local = built(5);
    let before = all(local.path());
    let mut replica = Replica::open(local.path(), remote.clone()).unwrap();
    assert!(matches!(replica.refresh().await, Err(SnapshotError::Changed(_))));
    assert_eq!(all(local.path()), before);
    replica.replacing(true).refresh().await.unwrap().unwrap();
    assert_eq!(all(local.path()), all(writer.path()));
    // What the directory has published itself is no question.
    let own = Replica::open(writer.path(), remote).unwrap().refresh().await.unwrap().unwrap();
    assert_eq!((own.number, own.bytes), (1, 0));
}

#[tokio::test]
async fn changes_of_a_pulled_index_are_kept() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    publish(writer.path(), &remote).await;
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap();
    rewrite(dir.path(), 20);
    add(dir.path(), 21);
    let changed = all(dir.path());
    add(writer.path(), 30);
    publish(writer.path(), &remote).await;
    assert!(matches!(replica.refresh().await, Err(SnapshotError::Changed(_))));
    drop(replica);
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    assert!(matches!(replica.refresh().await, Err(SnapshotError::Changed(_))));
    assert_eq!(all(dir.path()), changed);
    replica.replacing(true).refresh().await.unwrap().unwrap();
    assert_eq!(all(dir.path()), all(writer.path()));
}

#[tokio::test]
async fn a_fetch_and_a_commit_exclude_each_other() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    publish(writer.path(), &remote).await;
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap();
    add(writer.path(), 10);
    publish(writer.path(), &remote).await;
    let fetching = held::lock_index(dir.path()).unwrap();
    let refused = commit(dir.path(), &Embedding::Mock, Changes::upsert([document(11)]), &CommitOptions::default(), &());
    assert!(matches!(refused, Err(IndexError::Locked { .. })));
    let refused = replica.refresh().await;
    assert!(matches!(refused, Err(SnapshotError::Index(IndexError::Locked { .. }))), "{refused:?}");
    drop(fetching);
    assert_eq!(replica.refresh().await.unwrap().unwrap().number, 2);
}

/// A replica is killed after the manifest of the index is in place and before its record is; `has_announced` tells whether
/// the record was prepared. A log has grown in one publication, and the other is a snapshot of its own.
async fn killed(change: fn(&Path, usize), has_announced: bool) {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    add(writer.path(), 10);
    publish(writer.path(), &remote).await;
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap();
    let earlier = std::fs::read(dir.path().join(HELD)).unwrap();
    change(writer.path(), 11);
    publish(writer.path(), &remote).await;
    replica.refresh().await.unwrap();
    drop(replica);
    std::fs::write(dir.path().join(HELD), earlier).unwrap();
    if !has_announced {
        std::fs::remove_file(dir.path().join(NEXT)).unwrap();
    }
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    assert_eq!(all(dir.path()), all(writer.path()));
    if !has_announced {
        assert_eq!(replica.refresh().await.unwrap().unwrap().bytes, 0);
    }
    assert_eq!(all(dir.path()), all(writer.path()));
    add(writer.path(), 12);
    publish(writer.path(), &remote).await;
    assert_eq!(replica.refresh().await.unwrap().unwrap().number, 3);
    assert_eq!(all(dir.path()), all(writer.path()));
}

#[tokio::test]
async fn a_kill_before_the_record_leaves_a_whole_copy() {
    for has_announced in [false, true] {
        killed(add, has_announced).await;
        killed(rewrite, has_announced).await;
    }
}

#[tokio::test]
async fn a_pull_that_was_killed_before_the_record_may_become_the_writer() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    publish(writer.path(), &remote).await;
    let dir = tempfile::tempdir().unwrap();
    Replica::open(dir.path(), remote.clone()).unwrap().refresh().await.unwrap();
    std::fs::remove_file(dir.path().join(HELD)).unwrap();
    std::fs::remove_file(dir.path().join(".waymark.published.json")).unwrap();
    assert_eq!(Replica::open(dir.path(), remote.clone()).unwrap().refresh().await.unwrap(), None);
    add(dir.path(), 10);
    assert_eq!(push(dir.path(), &remote, PushOptions::default()).await.unwrap().number, 2);
}
