//! Replicas of servers that share a cache.

use super::super::follow::{local_copy, replica_dir};
use super::*;

/// Pause before the first server goes on: the second one is waiting by then.
const LATER: Duration = Duration::from_millis(50);

/// Interval in which nothing is fetched again during a test.
const NEVER: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_second_server_waits_for_the_first_snapshot() {
    let place = tempfile::tempdir().unwrap();
    let location = SnapshotLocation::Folder(place.path().to_owned());
    let writer = built(10);
    push(writer.path(), &remote(place.path()), PushOptions::default()).await.unwrap();
    let cache = tempfile::tempdir().unwrap();
    let dir = replica_dir(&location, cache.path());
    let mut first = Replica::open(&dir, remote(place.path())).unwrap();
    let fetched = async {
        tokio::time::sleep(LATER).await;
        first.refresh().await.unwrap();
    };
    let second = async {
        let local = local_copy(&location, cache.path(), NEVER).await.unwrap();
        // Opened at once, as a server does.
        (all(&local), local)
    };
    let ((documents, local), ()) = tokio::join!(second, fetched);
    assert_eq!(local, dir);
    assert_eq!(documents, all(writer.path()));
}

#[tokio::test]
async fn a_second_server_fetches_if_the_first_one_ends() {
    let place = tempfile::tempdir().unwrap();
    let location = SnapshotLocation::Folder(place.path().to_owned());
    let writer = built(10);
    push(writer.path(), &remote(place.path()), PushOptions::default()).await.unwrap();
    let cache = tempfile::tempdir().unwrap();
    let first = Replica::open(&replica_dir(&location, cache.path()), remote(place.path())).unwrap();
    let ended = async {
        tokio::time::sleep(LATER).await;
        drop(first);
    };
    let second = async { all(&local_copy(&location, cache.path(), NEVER).await.unwrap()) };
    let (documents, ()) = tokio::join!(second, ended);
    assert_eq!(documents, all(writer.path()));
}
