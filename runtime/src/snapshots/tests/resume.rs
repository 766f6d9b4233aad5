//! Replicas that missed publications, and fetches that were interrupted.

use super::super::published::{Part, PublishedFile, PublishedIndex};
use super::*;

#[tokio::test]
async fn publications_that_are_gone_already_are_skipped() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let writer = built(10);
    let publish = async |number: usize| {
        add(writer.path(), number);
        push(writer.path(), &remote, PushOptions { keep: 1, ..PushOptions::default() }).await.unwrap();
    };
    publish(10).await;
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    assert_eq!(replica.refresh().await.unwrap().unwrap().number, 1);
    // Made while the first one was fetched.
    for number in 11..14 {
        publish(number).await;
    }
    assert_eq!(replica.refresh().await.unwrap().unwrap().number, 4);
    // Made between two looks of a replica that asks for the next one only.
    assert_eq!(replica.refresh().await.unwrap(), None);
    for number in 14..17 {
        publish(number).await;
    }
    let mut looks = 0;
    let fetched = loop {
        looks += 1;
        assert!(looks < 20, "the replica has stopped following");
        if let Some(fetched) = replica.refresh().await.unwrap() {
            break fetched;
        }
    };
    assert_eq!(fetched.number, 7);
    assert_eq!(all(dir.path()), all(writer.path()));
}

/// Publishes files of a few parts each. Parts of which `is_sent` returns `false` are missing.
async fn publish_parts(remote: &RemoteIndex, number: u64, files: &[(&str, &[&str])], is_sent: impl Fn(&str) -> bool) {
    let mut named = std::collections::BTreeMap::new();
    for (name, contents) in files {
        let parts: Vec<Part> = contents.iter().map(|content| Part::of(content.as_bytes())).collect();
        for (part, content) in parts.iter().zip(*contents).filter(|(_, content)| is_sent(content)) {
            remote.write(part, content.as_bytes().to_vec()).await.unwrap();
        }
        named.insert((*name).to_owned(), PublishedFile { parts });
    }
    let json = PublishedIndex::new(number, number, named).to_json().unwrap();
    assert!(remote.create(number, json).await.unwrap());
}

#[tokio::test]
async fn an_interrupted_fetch_goes_on_where_it_was() {
    let place = tempfile::tempdir().unwrap();
    let remote = remote(place.path());
    let files: [(&str, &[&str]); 4] = [
        ("delta-1.log", &["log"]),
        ("manifest.json", &["first"]),
        ("snapshot-1/vectors.bin", &["one", "two", "three"]),
        ("snapshot-1/vectors.keys", &["keys"]),
    ];
    publish_parts(&remote, 1, &files, |content| content != "three").await;
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    replica.refresh().await.unwrap_err();
    assert!(!replica.holds_index());
    drop(replica);
    remote.write(&Part::of(b"three"), b"three".to_vec()).await.unwrap();
    let mut replica = Replica::open(dir.path(), remote.clone()).unwrap();
    let rest = replica.refresh().await.unwrap().unwrap();
    // The third part, the other file and the manifest.
    assert_eq!((rest.parts, rest.bytes), (3, 14));
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(
        (read("snapshot-1/vectors.bin"), read("snapshot-1/vectors.keys")),
        ("onetwothree".into(), "keys".into())
    );
    // An interrupted end of the log, too, in the same process and in the next one.
    let files: [(&str, &[&str]); 4] = [
        ("delta-1.log", &["log", " grows", " again"]),
        ("manifest.json", &["second"]),
        ("snapshot-1/vectors.bin", &["one", "two", "three"]),
        ("snapshot-1/vectors.keys", &["keys"]),
    ];
    publish_parts(&remote, 2, &files, |content| content != " again").await;
    replica.refresh().await.unwrap_err();
    replica.refresh().await.unwrap_err();
    assert_eq!((read("delta-1.log"), read("manifest.json")), ("log grows".into(), "first".into()));
    drop(replica);
    remote.write(&Part::of(b" again"), b" again".to_vec()).await.unwrap();
    let mut replica = Replica::open(dir.path(), remote).unwrap();
    assert_eq!(replica.refresh().await.unwrap().unwrap().parts, 2);
    assert_eq!((read("delta-1.log"), read("manifest.json")), ("log grows again".into(), "second".into()));
}
