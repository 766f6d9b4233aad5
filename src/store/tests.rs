//! Behavior that all stores share, and what databases add to it.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/postgres_server/mod.rs"]
mod postgres_server;

use std::sync::Arc;
use std::time::Duration;

use super::sql::testing;
use super::*;
use crate::keys::Secret;

fn owner() -> Owner {
    Some(Secret::generate().digest().owner())
}

fn response(owner: Owner, id: &str, body: &[u8]) -> Record {
    Record::new(RecordKey::new(RecordKind::Response, owner, id), body.to_vec())
}

fn conversation(owner: Owner) -> RecordKey {
    RecordKey::new(RecordKind::Conversation, owner, "conv")
}

fn item(owner: Owner, id: &str) -> Record {
    Record::new(conversation(owner).child(id).unwrap(), id.into())
}

fn items(owner: Owner, order: RecordOrder, after: Option<i64>, limit: usize) -> RecordRange {
    RecordRange { kind: RecordKind::ConversationItem, owner, parent: "conv".into(), order, after, limit }
}

fn ids(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.key.id.as_str()).collect()
}

async fn sqlite(dir: &std::path::Path, limits: StateLimits) -> SqlStore {
    SqlStore::open_directory(dir, limits).await.unwrap()
}

/// Checks what every store does.
async fn check(store: &dyn Store) {
    let one = owner();
    let other = owner();
    records_belong_to_their_tenant(store, one, other).await;
    records_change_and_go(store, one).await;
    a_key_is_inserted_once(store, one).await;
    children_keep_their_order(store, one).await;
}

async fn records_belong_to_their_tenant(store: &dyn Store, one: Owner, other: Owner) {
    let record = response(one, "r1", b"first");
    store.put(record.clone(), Vec::new()).await.unwrap();
    assert_eq!(store.get(&record.key).await.unwrap(), Some(record.clone()));
    for stranger in [other, None] {
        let key = RecordKey::new(RecordKind::Response, stranger, "r1");
        assert_eq!(store.get(&key).await.unwrap(), None);
        assert!(!store.remove(&key).await.unwrap() && !store.update(&key, b"stolen".to_vec()).await.unwrap());
        assert!(store.list(&RecordRange::youngest(RecordKind::Response, stranger, 9)).await.unwrap().is_empty());
    }
    assert_eq!(store.get(&record.key).await.unwrap(), Some(record));
}

async fn records_change_and_go(store: &dyn Store, one: Owner) {
    let second = response(one, "r2", b"second");
    store.put(second.clone(), Vec::new()).await.unwrap();
    let youngest = |limit| RecordRange::youngest(RecordKind::Response, one, limit);
    assert_eq!(ids(&store.list(&youngest(9)).await.unwrap()), ["r2", "r1"]);
    assert_eq!(ids(&store.list(&youngest(1)).await.unwrap()), ["r2"]);
    assert!(store.update(&second.key, b"changed".to_vec()).await.unwrap());
    let changed = store.get(&second.key).await.unwrap().unwrap();
    assert_eq!((changed.body.as_slice(), changed.position), (b"changed".as_slice(), second.position));
    assert!(store.remove(&second.key).await.unwrap() && !store.remove(&second.key).await.unwrap());
    assert_eq!(ids(&store.list(&youngest(9)).await.unwrap()), ["r1"]);
}

async fn a_key_is_inserted_once(store: &dyn Store, one: Owner) {
    let bodies = [b"a", b"b", b"c", b"d"];
    let records = bodies.map(|body| Record::new(RecordKey::new(RecordKind::Key, one, "alice"), body.to_vec()));
    let key = records[0].key.clone();
    let inserted = futures::future::join_all(records.into_iter().map(|record| store.insert(record))).await;
    let winners: Vec<usize> = (0..bodies.len()).filter(|&at| *inserted[at].as_ref().unwrap()).collect();
    assert_eq!(winners.len(), 1, "{inserted:?}");
    assert_eq!(store.get(&key).await.unwrap().unwrap().body, bodies[winners[0]]);
    let again = Record::new(key.clone(), b"later".to_vec());
    assert!(!store.insert(again.clone()).await.unwrap());
    assert!(store.remove(&key).await.unwrap() && store.insert(again).await.unwrap());
    assert_eq!(store.get(&key).await.unwrap().unwrap().body, b"later");
}

async fn children_keep_their_order(store: &dyn Store, one: Owner) {
    let parent = conversation(one);
    assert!(!store.append(&parent, vec![item(one, "a")]).await.unwrap());
    // Appended last, and made first: the order is that of the appends.
    let late = item(one, "c");
    store.put(Record::new(parent.clone(), b"{}".to_vec()), vec![item(one, "a")]).await.unwrap();
    assert!(store.append(&parent, vec![item(one, "b"), item(one, "x")]).await.unwrap());
    assert!(store.append(&parent, vec![late]).await.unwrap());
    let all = store.list(&items(one, RecordOrder::Ascending, None, 9)).await.unwrap();
    assert_eq!(ids(&all), ["a", "b", "x", "c"]);
    assert!(store.remove(&parent.child("x").unwrap()).await.unwrap());
    let after = store.list(&items(one, RecordOrder::Ascending, Some(all[0].position), 1)).await.unwrap();
    assert_eq!(ids(&after), ["b"]);
    let before = store.list(&items(one, RecordOrder::Descending, Some(all[3].position), 9)).await.unwrap();
    assert_eq!(ids(&before), ["b", "a"]);
    assert_eq!(store.get(&parent.child("b").unwrap()).await.unwrap().unwrap().body, b"b");
    assert!(store.remove(&parent).await.unwrap());
    assert!(store.list(&items(one, RecordOrder::Ascending, None, 9)).await.unwrap().is_empty());
}

#[tokio::test]
async fn memory_does_what_a_store_does() {
    check(&MemoryStore::new(MemoryLimits { count: 100, bytes: 1 << 20 })).await;
}

#[tokio::test]
async fn a_conversation_that_outgrows_its_room_in_memory_stays_as_it_was() {
    let store = MemoryStore::new(MemoryLimits { count: 100, bytes: 1 << 20 });
    let one = owner();
    let large = |id: &str| Record { body: vec![0; 40 << 20], ..item(one, id) };
    let other = RecordKey::new(RecordKind::Conversation, one, "other");
    store.put(Record::new(other.clone(), Vec::new()), Vec::new()).await.unwrap();
    store.put(Record::new(conversation(one), Vec::new()), vec![large("a")]).await.unwrap();
    let refused = store.append(&conversation(one), vec![large("b")]).await.unwrap_err();
    assert!(matches!(refused, StoreError::Full { kind: RecordKind::Conversation, .. }), "{refused}");
    let refused = store.update(&conversation(one), vec![0; 40 << 20]).await.unwrap_err();
    assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
    assert_eq!(ids(&store.list(&items(one, RecordOrder::Ascending, None, 9)).await.unwrap()), ["a"]);
    assert!(store.get(&other).await.unwrap().is_some(), "a refused append evicts nothing");
    assert!(store.append(&conversation(one), vec![item(one, "c")]).await.unwrap());
}

#[tokio::test]
async fn sqlite_does_what_a_store_does() {
    let dir = tempfile::tempdir().unwrap();
    check(&sqlite(dir.path(), StateLimits::default()).await).await;
}

#[tokio::test]
async fn records_outlive_their_store_and_a_directory_has_one_user() {
    let dir = tempfile::tempdir().unwrap();
    // A name that a URL must encode.
    let dir = dir.path().join("a state?#%ä");
    let record = response(None, "r", b"kept");
    let store = sqlite(&dir, StateLimits::default()).await;
    store.put(record.clone(), Vec::new()).await.unwrap();
    let second = SqlStore::open_directory(&dir, StateLimits::default()).await.unwrap_err();
    assert!(matches!(second, StoreError::InUse(_)), "{second}");
    drop(store);
    let store = sqlite(&dir, StateLimits::default()).await;
    assert_eq!(store.get(&record.key).await.unwrap(), Some(record));
    assert_eq!(store.size(RecordKind::Response), StoreSize { count: 1, bytes: 4 });
}

#[tokio::test]
async fn a_later_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(dir.path(), StateLimits::default()).await;
    testing::execute(&store, "INSERT INTO migration (version) VALUES (99)").await;
    drop(store);
    let refused = SqlStore::open_directory(dir.path(), StateLimits::default()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Version { found: 99, known: 1 }), "{refused}");
}

#[tokio::test]
async fn the_oldest_records_of_the_largest_tenant_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(dir.path(), StateLimits::default()).await;
    let small = owner();
    let large = owner();
    for (owner, count) in [(small, 3), (large, 600)] {
        for number in 0..count {
            store.put(response(owner, &format!("r{number}"), &[0; 10]), Vec::new()).await.unwrap();
        }
    }
    let youngest = |owner| RecordRange::youngest(RecordKind::Response, owner, 9);
    let limits = StateLimits { count: 10, bytes: 1 << 20, age: None };
    testing::trim(&store, limits).await;
    assert_eq!(store.size(RecordKind::Response), StoreSize { count: 10, bytes: 100 });
    assert_eq!(store.list(&youngest(small)).await.unwrap().len(), 3);
    assert_eq!(ids(&store.list(&youngest(large)).await.unwrap())[..2], ["r599", "r598"]);

    testing::trim(&store, StateLimits { bytes: 45, ..limits }).await;
    assert_eq!(store.size(RecordKind::Response).count, 4);
    tokio::time::sleep(Duration::from_millis(5)).await;
    testing::trim(&store, StateLimits { age: Some(Duration::from_millis(1)), ..limits }).await;
    assert_eq!(store.size(RecordKind::Response), StoreSize::default());
}

#[tokio::test]
async fn a_conversation_goes_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(dir.path(), StateLimits::default()).await;
    store.put(Record::new(conversation(None), vec![0; 10]), vec![item(None, "a")]).await.unwrap();
    store.append(&conversation(None), vec![item(None, "bb"), item(None, "ccc")]).await.unwrap();
    let roomy = StateLimits { count: 1, bytes: 16, age: None };
    testing::trim(&store, roomy).await;
    assert_eq!(store.size(RecordKind::Conversation), StoreSize { count: 1, bytes: 16 });
    store.remove(&conversation(None).child("ccc").unwrap()).await.unwrap();
    testing::trim(&store, StateLimits { bytes: 13, ..roomy }).await;
    assert_eq!(store.size(RecordKind::Conversation), StoreSize { count: 1, bytes: 13 });
    testing::trim(&store, StateLimits { bytes: 12, ..roomy }).await;
    assert!(store.list(&items(None, RecordOrder::Ascending, None, 9)).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_state_opens_even_if_old_records_cannot_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(dir.path(), StateLimits::default()).await;
    let record = response(None, "r", b"kept");
    store.put(record.clone(), Vec::new()).await.unwrap();
    testing::execute(&store, "CREATE TRIGGER no BEFORE DELETE ON record BEGIN SELECT RAISE(ABORT, 'no'); END").await;
    drop(store);
    let store = sqlite(dir.path(), StateLimits { count: 0, bytes: 0, age: None }).await;
    assert_eq!(store.get(&record.key).await.unwrap(), Some(record));
}

#[tokio::test]
async fn an_append_by_a_slow_clock_makes_a_conversation_no_older() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(dir.path(), StateLimits::default()).await;
    let early = item(None, "early");
    let parent = Record::new(conversation(None), Vec::new());
    let late = item(None, "late");
    store.put(parent.clone(), Vec::new()).await.unwrap();
    for (item, position) in [(early, parent.position), (late.clone(), late.position)] {
        assert!(store.append(&parent.key, vec![item]).await.unwrap());
        assert_eq!(store.get(&parent.key).await.unwrap().unwrap().position, position);
    }
}

#[tokio::test]
async fn a_full_disk_fails_the_write_and_no_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(dir.path(), StateLimits::default()).await;
    let record = response(None, "r", b"early");
    store.put(record.clone(), Vec::new()).await.unwrap();
    // Enough for the database as it is. SQLite then reports that it is full, as it does for a disk.
    testing::execute_everywhere(&store, "PRAGMA max_page_count = 16").await;
    let large = response(None, "large", &vec![7; 1 << 20]);
    let refused = store.put(large.clone(), Vec::new()).await.unwrap_err();
    assert!(refused.to_string().contains("full"), "{refused}");
    assert_eq!(store.get(&record.key).await.unwrap(), Some(record));
    assert_eq!(store.get(&large.key).await.unwrap(), None);
}

#[tokio::test]
async fn appends_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(sqlite(dir.path(), StateLimits::default()).await);
    store.put(Record::new(conversation(None), Vec::new()), Vec::new()).await.unwrap();
    let append = |number: usize| {
        let store = Arc::clone(&store);
        async move { store.append(&conversation(None), vec![item(None, &number.to_string())]).await }
    };
    // More than there are connections, and few enough for a slow disk to sync them within the time of one.
    let appended = futures::future::join_all((0..12).map(append)).await;
    assert!(appended.into_iter().all(|appended| appended.unwrap()));
    let all = store.list(&items(None, RecordOrder::Ascending, None, 100)).await.unwrap();
    assert_eq!(all.len(), 12);
    assert!(all.windows(2).all(|pair| pair[0].position < pair[1].position));
}

#[tokio::test]
#[ignore = "needs the programs of a PostgreSQL server, from the package `postgresql`"]
async fn postgresql_does_what_a_store_does() {
    let server = postgres_server::Postgres::start();
    let store = SqlStore::open_postgres(&server.url, StateLimits::default()).await.unwrap();
    check(&store).await;
    let replica = SqlStore::open_postgres(&server.url, StateLimits::default()).await.unwrap();
    let record = response(None, "shared", b"seen by both");
    store.put(record.clone(), Vec::new()).await.unwrap();
    assert_eq!(replica.get(&record.key).await.unwrap(), Some(record));
    testing::trim(&store, StateLimits { count: 0, bytes: 0, age: None }).await;
    assert_eq!(store.size(RecordKind::Response), StoreSize::default());
}
