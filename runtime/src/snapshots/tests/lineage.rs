//! Two writers of one place.

use super::super::lineage::Lineage;
use super::*;

pub(super) async fn refuses_the_second_writer(remote: RemoteIndex) {
    let one = built(10);
    let other = built(11);
    push(one.path(), &remote, PushOptions::default()).await.unwrap();
    let refused = push(other.path(), &remote, PushOptions::default()).await;
    assert!(matches!(refused, Err(SnapshotError::OtherWriter { number: 1, .. })), "{refused:?}");
    // A copy of the directory knows as much as the directory, until one of them publishes.
    let copy = tempfile::tempdir().unwrap();
    copy_all(one.path(), copy.path());
    add(one.path(), 20);
    add(copy.path(), 21);
    let (first, second) = tokio::join!(
        push(one.path(), &remote, PushOptions::default()),
        push(copy.path(), &remote, PushOptions::default()),
    );
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    let (winner, loser) = if first.is_ok() { (one.path(), copy.path()) } else { (copy.path(), one.path()) };
    let refused = push(loser, &remote, PushOptions::default()).await;
    assert!(matches!(refused, Err(SnapshotError::OtherWriter { number: 2, .. })), "{refused:?}");
    add(winner, 22);
    assert_eq!(push(winner, &remote, PushOptions::default()).await.unwrap().number, 3);
    // Whoever wants to win all the same says so, and a replica has exactly its documents then.
    let replica_dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(replica_dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap();
    push(loser, &remote, PushOptions { replace: true, ..PushOptions::default() }).await.unwrap();
    replica.refresh().await.unwrap();
    assert_eq!(live(replica_dir.path()).current().documents(None, 100).unwrap(), all(loser));
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn of_two_writers_the_second_is_refused() {
    let place = tempfile::tempdir().unwrap();
    refuses_the_second_writer(remote(place.path())).await;
}

#[tokio::test]
async fn a_searched_replica_follows_a_writer_that_continues_from_a_copy() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let one = built(10);
    push(one.path(), &remote, PushOptions::default()).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_all(one.path(), copy.path());
    // Both logs have the same name, and records of the same lengths.
    for number in [20, 22] {
        add(one.path(), number);
    }
    for number in [21, 23, 24] {
        add(copy.path(), number);
    }
    push(one.path(), &remote, PushOptions::default()).await.unwrap();
    let replica_dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(replica_dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap();
    let searched = live(replica_dir.path());
    assert_eq!(searched.current().documents(None, 100).unwrap(), all(one.path()));
    push(copy.path(), &remote, PushOptions { replace: true, ..PushOptions::default() }).await.unwrap();
    replica.refresh().await.unwrap();
    assert!(searched.refresh().unwrap());
    assert_eq!(searched.current().documents(None, 100).unwrap(), all(copy.path()));
}

#[tokio::test]
async fn a_killed_writer_recognizes_its_own_publication() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    let newest = remote.newest().await.unwrap().unwrap();
    let stranger = built(11);
    let mut lineage = Lineage::read(stranger.path()).unwrap();
    lineage.attempt(&remote.address, b"another").unwrap();
    assert!(!Lineage::read(stranger.path()).unwrap().has(&remote.address, &newest).unwrap());
    // Killed between the publication and the record of it.
    lineage.attempt(&remote.address, &newest.to_json().unwrap()).unwrap();
    assert!(Lineage::read(stranger.path()).unwrap().has(&remote.address, &newest).unwrap());
    assert!(!Lineage::read(stranger.path()).unwrap().has("elsewhere", &newest).unwrap());
}

#[tokio::test]
async fn a_killed_writer_recognizes_its_own_publication_after_another_failure() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    let record = writer.path().join(".waymark.published.json");
    let earlier = std::fs::read(&record).unwrap();
    add(writer.path(), 10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    // Killed between the publication and the record of it.
    std::fs::write(&record, earlier).unwrap();
    let newest = remote.newest().await.unwrap().unwrap();
    let mut lineage = Lineage::read(writer.path()).unwrap();
    lineage.attempt(&remote.address, &newest.to_json().unwrap()).unwrap();
    // The next publication is attempted, and something is in the way of its manifest.
    add(writer.path(), 11);
    let manifest = place.path().join(super::super::remote::manifest_path(3).as_ref());
    std::fs::create_dir(&manifest).unwrap();
    push(writer.path(), &remote, PushOptions::default()).await.unwrap_err();
    std::fs::remove_dir(&manifest).unwrap();
    assert_eq!(push(writer.path(), &remote, PushOptions::default()).await.unwrap().number, 3);
}

#[tokio::test]
async fn a_writer_is_refused_after_another_one_has_published_as_often_at_the_emptied_place() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let one = built(10);
    let other = built(11);
    push(one.path(), &remote, PushOptions::default()).await.unwrap();
    add(one.path(), 20);
    push(one.path(), &remote, PushOptions::default()).await.unwrap();
    for name in ["manifests", "parts"] {
        std::fs::remove_dir_all(place.path().join(name)).unwrap();
    }
    push(other.path(), &remote, PushOptions::default()).await.unwrap();
    add(other.path(), 21);
    assert_eq!(push(other.path(), &remote, PushOptions::default()).await.unwrap().number, 2);
    add(one.path(), 22);
    let refused = push(one.path(), &remote, PushOptions::default()).await;
    assert!(matches!(refused, Err(SnapshotError::OtherWriter { number: 2, .. })), "{refused:?}");
    assert_eq!(push(other.path(), &remote, PushOptions::default()).await.unwrap().number, 2);
}

#[tokio::test]
async fn records_of_earlier_programs_are_understood() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    let newest = remote.newest().await.unwrap().unwrap();
    // The number alone, and a folder as it was given.
    let path = writer.path().join(".waymark.published.json");
    std::fs::write(&path, r#"{"places":{"some/place":{"number":1,"attempted":null}}}"#).unwrap();
    let mut lineage = Lineage::read(writer.path()).unwrap();
    assert!(lineage.has("some/place", &newest).unwrap());
    lineage.know("some/place", &newest).unwrap();
    let record = std::fs::read_to_string(&path).unwrap();
    let absolute = std::path::absolute("some/place").unwrap();
    assert!(record.contains(&format!("{:?}:", absolute.display().to_string())), "{record}");
    assert!(!record.contains("\"some/place\""), "{record}");
    let lineage = Lineage::read(writer.path()).unwrap();
    for same in ["some/place", "./some/place/", &absolute.display().to_string()] {
        assert!(lineage.has(same, &newest).unwrap(), "{same}");
    }
}

#[tokio::test]
async fn a_failed_replacement_makes_nothing_its_own() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let one = built(10);
    let other = built(11);
    push(one.path(), &remote, PushOptions::default()).await.unwrap();
    // Something else is in the way of the next manifest.
    let manifest = place.path().join(super::super::remote::manifest_path(2).as_ref());
    std::fs::create_dir(&manifest).unwrap();
    let replacing = PushOptions { replace: true, ..PushOptions::default() };
    push(other.path(), &remote, replacing).await.unwrap_err();
    std::fs::remove_dir(&manifest).unwrap();
    let refused = push(other.path(), &remote, PushOptions::default()).await;
    assert!(matches!(refused, Err(SnapshotError::OtherWriter { number: 1, .. })), "{refused:?}");
    assert_eq!(push(other.path(), &remote, replacing).await.unwrap().number, 2);
}

#[tokio::test]
async fn a_look_that_finds_nothing_new_writes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    push(writer.path(), &remote, PushOptions::default()).await.unwrap();
    let path = writer.path().join(".waymark.published.json");
    let modified = || std::fs::metadata(&path).unwrap().modified().unwrap();
    let before = modified();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!push(writer.path(), &remote, PushOptions::default()).await.unwrap().published);
    assert_eq!(modified(), before);
}
