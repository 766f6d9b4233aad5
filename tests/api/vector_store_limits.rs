//! Files and documents of vector stores that take too long or too much room, and keys that share both.

use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use waymark::api::drain::DrainPhase;
use waymark::config::FileLimits;
use waymark::keys::{ApiKeys, Scope, Secret};

use crate::harness::{PATIENCE, eventually, eventually_found, key_entry};
use crate::vector_store_files::Client;
use crate::vector_store_ingestion::{DelicateIndexes, LIMITS, last_error, server_over, server_with_keys};

/// Sections that the embedder of the tests stops at, one after the other.
const TWO_STOPS: &str = "# One\n\nSTOP at the Ubangi.\n\n# Two\n\nHALT at Lake Kivu.\n";

/// Limits for files of several slices.
const LONG: FileLimits = FileLimits { file: 1 << 20, storage: 8 << 20 };

/// Number of chunks of the first slice of [`two_slices`].
const SLICE: usize = 1024;

/// Records without IDs that make two slices. The embedder of the tests stops in both.
fn two_slices() -> String {
    let middle = (1..SLICE).map(|number| format!("Mile {number}."));
    let texts = std::iter::once("HOLD at the Inn.".to_owned()).chain(middle).chain(["REST at Lake Kivu.".to_owned()]);
    texts.map(|text| format!("{}\n", json!({"text": text}))).collect()
}

/// Zstandard frame of `blocks` blocks, each of which decompresses to 128 KiB of line feeds.
fn line_feeds(blocks: usize) -> Vec<u8> {
    // The magic number, a head without the size of the content, and a window of 128 KiB.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for block in 1..=blocks {
        // The size, the type of a repeated byte, and the mark of the last block.
        let head = ((128 << 10) << 3) | (1 << 1) | usize::from(block == blocks);
        frame.extend(&head.to_le_bytes()[..3]);
        frame.push(b'\n');
    }
    frame
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn files_that_expand_without_giving_documents_fail() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_over(folder.path(), &Arc::default(), LIMITS).await;
    let client = Client { server: &server, key: None };
    for (name, content) in [
        ("a.jsonl.zst", line_feeds(64)),
        ("a.json.gz", gzip(&format!("[{}", " ".repeat(1 << 20)))),
        ("a.csv.gz", gzip(&format!("text\n{}", "again\n".repeat(1 << 18)))),
    ] {
        let file = client.upload_bytes(name, &content).await;
        let store = client.store(json!({"file_ids": [file]})).await;
        client.indexed(&store).await;
        let error = last_error(&client, &store, &file).await;
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("more than 524288 bytes, decompressed"), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_file_that_is_removed_is_read_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let slow = client.upload("a.md", TWO_STOPS).await;
    let store = client.store(json!({"file_ids": [slow]})).await;
    eventually("the file is read", || indexes.embedder.stop.is_reached()).await;
    let path = format!("/v1/vector_stores/{store}/files/{slow}");
    let removal = tokio::spawn(server.client.delete(server.url(&path)).send());
    let record = folder.path().join(format!("stores/{store}/files/{slow}.json"));
    let is_marked = || std::fs::read_to_string(&record).is_ok_and(|text| text.contains("\"removing\":true"));
    eventually("its removal waits", is_marked).await;
    indexes.embedder.stop.release();
    let removed = tokio::time::timeout(PATIENCE, removal).await.expect("the removal waits for the file");
    assert_eq!((removed.unwrap().unwrap().status().as_u16(), indexes.embedder.halt.is_reached()), (200, false));
    assert_eq!(client.get(&path).await.0, 404);
}

#[tokio::test]
async fn a_store_that_is_deleted_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let files = [client.upload("a.md", TWO_STOPS).await, client.upload("b.txt", "Lake Kivu again.").await];
    let store = client.store(json!({"file_ids": [files[0]]})).await;
    eventually("the file is read", || indexes.embedder.stop.is_reached()).await;
    assert_eq!(client.delete(&format!("/v1/vector_stores/{store}")).await.0, 200);
    let other = client.store(json!({"file_ids": [files[1]]})).await;
    indexes.embedder.stop.release();
    assert_eq!(client.indexed(&other).await["file_counts"]["completed"], 1);
    assert!(!indexes.embedder.halt.is_reached());
}

#[tokio::test]
async fn nothing_of_a_deleted_store_is_indexed() {
    // Deleted while its second file is read, and while the index of both is built.
    for (texts, in_build) in [(["The Ubangi.", TWO_STOPS], false), (["HOLD at the Inn.", "The Ubangi."], true)] {
        let folder = tempfile::tempdir().unwrap();
        let indexes = Arc::<DelicateIndexes>::default();
        let server = server_over(folder.path(), &indexes, LIMITS).await;
        let client = Client { server: &server, key: None };
        let files = [client.upload("a.md", texts[0]).await, client.upload("b.md", texts[1]).await];
        let store = client.store(json!({"file_ids": files})).await;
        let stop = if in_build { &indexes.embedder.hold } else { &indexes.embedder.stop };
        eventually("the files are indexed", || stop.is_reached()).await;
        let path = format!("/v1/vector_stores/{store}");
        assert_eq!((client.delete(&path).await.0, client.delete(&path).await.0), (200, 404), "{in_build}");
        stop.release();
        eventually("nothing runs", || server.state.drain.running() == 0).await;
        let left = std::fs::read_dir(folder.path().join("stores")).unwrap().count();
        assert_eq!(left, 0, "{in_build}");
    }
}

#[tokio::test]
async fn keys_take_turns_to_index_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let secrets = [Secret::generate(), Secret::generate()];
    let entry = |name: &str, secret: &Secret| key_entry(name, secret, &[Scope::Index]);
    let keys = ApiKeys::open(None, vec![entry("a", &secrets[0]), entry("b", &secrets[1])]).unwrap();
    let server = server_with_keys(folder.path(), &indexes, LIMITS, keys).await;
    let many = Client { server: &server, key: Some(secrets[0].reveal()) };
    let one = Client { server: &server, key: Some(secrets[1].reveal()) };
    let mut stores = Vec::new();
    // The others wait behind the first file. The last one is read until it is released.
    for text in ["HOLD at the Inn.", "The Ubangi.", "STOP at Lake Kivu."] {
        let file = many.upload("a.txt", text).await;
        stores.push(many.store(json!({"file_ids": [file]})).await);
        eventually("the first file is indexed", || indexes.embedder.hold.is_reached()).await;
    }
    let file = one.upload("b.txt", "Lake Kivu again.").await;
    let own = one.store(json!({"file_ids": [file]})).await;
    indexes.embedder.hold.release();
    assert_eq!(one.indexed(&own).await["file_counts"]["completed"], 1);
    indexes.embedder.stop.release();
    for store in stores {
        assert_eq!(many.indexed(&store).await["file_counts"]["completed"], 1);
    }
}

#[tokio::test]
async fn a_long_file_lets_the_files_of_others_pass_between_its_slices() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let secrets = [Secret::generate(), Secret::generate()];
    let entry = |name: &str, secret: &Secret| key_entry(name, secret, &Scope::ALL);
    let keys = ApiKeys::open(None, vec![entry("a", &secrets[0]), entry("b", &secrets[1])]).unwrap();
    let server = server_with_keys(folder.path(), &indexes, LONG, keys).await;
    let long = Client { server: &server, key: Some(secrets[0].reveal()) };
    let short = Client { server: &server, key: Some(secrets[1].reveal()) };
    let file = long.upload("a.jsonl", &two_slices()).await;
    let store = long.store(json!({"file_ids": [file]})).await;
    eventually("the first slice is indexed", || indexes.embedder.hold.is_reached()).await;
    let note = short.upload("b.txt", "Lake Kivu again.").await;
    let own = short.store(json!({"file_ids": [note]})).await;
    indexes.embedder.hold.release();
    assert_eq!(short.indexed(&own).await["file_counts"]["completed"], 1);
    let (_, begun) = long.get(&format!("/v1/vector_stores/{store}/files/{file}")).await;
    assert_eq!(begun["status"], "in_progress", "{begun}");
    indexes.embedder.rest.release();
    assert_eq!(long.indexed(&store).await["file_counts"]["completed"], 1);
    let (_, summary) = long.get(&format!("/v1/index?index={store}")).await;
    assert_eq!(summary["passages"], SLICE + 1, "{summary}");
}

#[tokio::test]
async fn a_file_that_is_removed_is_indexed_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LONG).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("a.jsonl", &two_slices()).await;
    let store = client.store(json!({"file_ids": [file]})).await;
    eventually("the first slice is indexed", || indexes.embedder.hold.is_reached()).await;
    let path = format!("/v1/vector_stores/{store}/files/{file}");
    let removal = tokio::spawn(server.client.delete(server.url(&path)).send());
    let record = folder.path().join(format!("stores/{store}/files/{file}.json"));
    let is_marked = || std::fs::read_to_string(&record).is_ok_and(|text| text.contains("\"removing\":true"));
    eventually("its removal waits", is_marked).await;
    indexes.embedder.hold.release();
    let removed = tokio::time::timeout(PATIENCE, removal).await.expect("the removal waits for the slice");
    assert_eq!((removed.unwrap().unwrap().status().as_u16(), indexes.embedder.rest.is_reached()), (200, false));
    assert_eq!(client.get(&path).await.0, 404);
}

#[tokio::test]
async fn a_drain_leaves_the_rest_of_a_long_file_to_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LONG).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("a.jsonl", &two_slices()).await;
    let store = client.store(json!({"file_ids": [file]})).await;
    eventually("the first slice is indexed", || indexes.embedder.hold.is_reached()).await;
    server.state.drain.advance(DrainPhase::Draining);
    indexes.embedder.hold.release();
    eventually("nothing runs", || server.state.drain.running() == 0).await;
    assert!(!indexes.embedder.rest.is_reached());
    let path = folder.path().join(format!("stores/{store}/files/{file}.json"));
    let record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let progress = json!([record["status"], record["indexed"], record["attempts"]]);
    assert_eq!(progress, json!(["in_progress", SLICE, 0]), "{record}");
}

#[tokio::test]
async fn metadata_take_the_room_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    let limits = FileLimits { file: 64 << 10, storage: 64 << 10 };
    let server = server_over(folder.path(), &Arc::default(), limits).await;
    let client = Client { server: &server, key: None };
    let record = json!({"text": "The Ubangi.", "note": "x".repeat(100 << 10)}).to_string();
    let file = client.upload_bytes("a.jsonl.gz", &gzip(&record)).await;
    let store = client.store(json!({"file_ids": [file]})).await;
    client.indexed(&store).await;
    let error = last_error(&client, &store, &file).await;
    assert_eq!(error["message"], "the server has no room for the texts of the file");
}

#[tokio::test]
async fn documents_take_the_room_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    let limits = FileLimits { file: 1 << 10, storage: 4 << 10 };
    let server = server_over(folder.path(), &Arc::default(), limits).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("a.txt", "The Ubangi.").await;
    let store = client.store(json!({"file_ids": [file]})).await;
    client.indexed(&store).await;
    let documents = format!("/v1/documents?index={store}");
    let add = async |id: &str, bytes: usize, wait: bool| {
        let document = json!({"id": id, "text": "x".repeat(bytes)});
        client.post(&documents, json!({"documents": [document], "wait": wait})).await
    };
    for wait in [true, false] {
        let (status, refused) = add("large", 8 << 10, wait).await;
        assert_eq!((status, &refused["error"]["code"]), (503, &json!("queue_full")), "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("texts in vector stores"), "{refused}");
    }
    assert_eq!(add("one", 2 << 10, true).await.0, 200);
    let (_, found) = client.get(&format!("/v1/vector_stores/{store}")).await;
    assert!(found["usage_bytes"].as_u64().unwrap() > 2 << 10, "{found}");
    assert_eq!(add("two", 2 << 10, true).await.0, 503);
    assert_eq!(client.delete(&format!("/v1/documents/one?index={store}")).await.0, 200);
    eventually_found("there is room again", async || (add("two", 2 << 10, true).await.0 == 200).then_some(())).await;
}
