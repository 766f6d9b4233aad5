//! Files of vector stores that change, fail or do not fit while they are indexed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};
use waymark::api::drain::DrainPhase;
use waymark::api::{IndexParts, Library, OpenIndex, VectorStores};
use waymark::config::FileLimits;
use waymark::keys::{ApiKeys, Scope, Secret};
use waymark::server::Server;
use waymark_agent::{SearchLimits, Searcher};
use waymark_index::{Changes, CommitOptions, Embed, EmbedError, LiveIndex, OpenOptions, PendingChange, PendingChanges};
use waymark_runtime::embedding::{Embedding, TextEmbedder};

use crate::harness::{PATIENCE, ServerPlan, TestServer, eventually, eventually_found, key_entry, says};
use crate::vector_store_files::{Client, RIVERS, server_in};

pub const LIMITS: FileLimits = FileLimits { file: 64 << 10, storage: 1 << 20 };

/// Place at which threads wait until it is released.
#[derive(Debug, Default)]
pub struct Stop {
    is_reached: AtomicBool,
    goes_on: AtomicBool,
}

impl Stop {
    pub fn is_reached(&self) -> bool {
        self.is_reached.load(SeqCst)
    }

    pub fn release(&self) {
        self.goes_on.store(true, SeqCst);
    }

    fn wait(&self) {
        self.is_reached.store(true, SeqCst);
        let begun = Instant::now();
        // Bounded, because the runtime of a failed test waits for its threads.
        while !self.goes_on.load(SeqCst) && begun.elapsed() < 2 * PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Mock embedder whose counter panics over `PANIC` and stops at `STOP` and at `HALT`. Embedding stops at `HOLD` and at
/// `REST`.
#[derive(Debug, Default)]
pub struct Delicate {
    pub stop: Stop,
    pub halt: Stop,
    pub hold: Stop,
    pub rest: Stop,
}

impl Embed for Delicate {
    fn id(&self) -> &str {
        Embedding::Mock.id()
    }

    fn dims(&self) -> usize {
        Embedding::Mock.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        for (word, stop) in [("HOLD", &self.hold), ("REST", &self.rest)] {
            if texts.iter().any(|text| text.contains(word)) {
                stop.wait();
            }
        }
        Embedding::Mock.embed(texts)
    }
}

impl TextEmbedder for Delicate {
    fn count_tokens(&self, text: &str) -> usize {
        assert!(!text.contains("PANIC"), "a reader that fails");
        for (word, stop) in [("STOP", &self.stop), ("HALT", &self.halt)] {
            if text.contains(word) {
                stop.wait();
            }
        }
        Embedding::Mock.count_tokens(text)
    }

    fn max_tokens(&self) -> usize {
        Embedding::Mock.max_tokens()
    }
}

/// Opener of indexes that fails while `refuses` is set.
#[derive(Debug, Default)]
pub struct DelicateIndexes {
    pub embedder: Arc<Delicate>,
    refuses: AtomicBool,
}

impl OpenIndex for DelicateIndexes {
    fn embedder(&self) -> Arc<dyn TextEmbedder> {
        Arc::clone(&self.embedder) as _
    }

    fn open(&self, dir: &Path) -> anyhow::Result<IndexParts> {
        ensure!(!self.refuses.load(SeqCst), "cannot open {}", dir.display());
        let live = Arc::new(LiveIndex::open(dir, Arc::clone(&self.embedder) as _, OpenOptions::default())?);
        let searcher = Searcher::new(Arc::clone(&live), SearchLimits::default())?;
        Ok(IndexParts { searcher: Arc::new(searcher), library: Library::new(live, CommitOptions::default()) })
    }
}

pub async fn server_over(folder: &Path, indexes: &Arc<DelicateIndexes>, limits: FileLimits) -> TestServer {
    server_with_keys(folder, indexes, limits, ApiKeys::default()).await
}

pub async fn server_with_keys(
    folder: &Path,
    indexes: &Arc<DelicateIndexes>,
    limits: FileLimits,
    keys: ApiKeys,
) -> TestServer {
    server_of(ServerPlan { keys, ..ServerPlan::new(says("hi")) }, folder, indexes, limits).await
}

/// Builds the server of a plan with vector stores in `folder`.
pub async fn server_of(
    plan: ServerPlan,
    folder: &Path,
    indexes: &Arc<DelicateIndexes>,
    limits: FileLimits,
) -> TestServer {
    let mut server = plan.build().await;
    let stores = VectorStores::open(folder, limits, Arc::clone(indexes) as _).unwrap();
    server.state = server.state.clone().with_vector_stores(stores);
    let own = Server::bind(([127, 0, 0, 1], 0).into(), server.state.clone()).await.unwrap();
    server.address = own.address();
    server.running = tokio::spawn(own.run(std::future::pending()));
    server
}

/// Creates a store with these files in a server that ends. Returns the IDs of the store and of the files.
async fn left_by_another_server(folder: &Path, files: &[(&str, &str)]) -> (String, Vec<String>) {
    let mut server = server_in(folder, ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    let mut ids = Vec::new();
    for (name, content) in files {
        ids.push(client.upload(name, content).await);
    }
    let store = client.store(json!({"file_ids": ids})).await;
    client.indexed(&store).await;
    server.terminate();
    let TestServer { running, state, .. } = server;
    running.await.unwrap();
    drop(state);
    (store, ids)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_stores_documents_is_committed_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = left_by_another_server(folder.path(), &[("rivers.txt", RIVERS)]).await;
    let index = folder_of(folder.path(), waymark_index::MANIFEST);
    let document = json!({"id": "own", "title": "", "text": "The Inn is a river."});
    let changes = Changes::upsert([serde_json::from_value(document).unwrap()]);
    let (pending, _) = PendingChanges::open(&index).unwrap();
    pending.add(&PendingChange { id: "commit-1".to_owned(), owner: None, changes }).unwrap();
    let server = server_in(folder.path(), ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    eventually_found("the change is committed", async || {
        let (status, told) = client.get("/v1/commits/commit-1").await;
        assert_eq!(status, 200, "{told}");
        (told["status"] == "done").then_some(())
    })
    .await;
    let (status, own) = client.get(&format!("/v1/documents/own?index={store}")).await;
    assert_eq!((status, &own["document"]["id"]), (200, &json!("own")), "{own}");
    assert!(PendingChanges::open(&index).unwrap().1.is_empty());
}

/// Returns the folder below `folder` that holds a file of this name.
fn folder_of(folder: &Path, name: &str) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        if folder.join(name).is_file() {
            return folder;
        }
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        folders.extend(entries.filter(|path| path.is_dir()));
    }
    panic!("no folder holds {name}")
}

pub async fn last_error(client: &Client<'_>, store: &str, file: &str) -> Value {
    let (_, file) = client.get(&format!("/v1/vector_stores/{store}/files/{file}")).await;
    assert_eq!(file["status"], "failed", "{file}");
    file["last_error"].clone()
}

#[tokio::test]
async fn a_reader_that_fails_leaves_the_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_over(folder.path(), &Arc::default(), LIMITS).await;
    let client = Client { server: &server, key: None };
    let ids = [client.upload("a.txt", "PANIC").await, client.upload("b.txt", "The Ubangi.").await];
    let store = client.store(json!({"file_ids": ids})).await;
    let found = client.indexed(&store).await;
    let counts = &found["file_counts"];
    assert_eq!((&counts["failed"], &counts["completed"]), (&json!(1), &json!(1)), "{found}");
    let error = last_error(&client, &store, &ids[0]).await;
    assert_eq!(error, json!({"code": "server_error", "message": "the file cannot be read"}));
    assert_eq!(client.search(&store, json!({"query": "ubangi"})).await[0]["file_id"], json!(ids[1]));
}

#[tokio::test]
async fn attributes_that_change_while_a_file_is_indexed_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("a.txt", "STOP at the Ubangi.").await;
    let store = client.store(json!({})).await;
    let files = format!("/v1/vector_stores/{store}/files");
    client.post(&files, json!({"file_id": file, "attributes": {"kind": "old"}})).await;
    let embedder = Arc::clone(&indexes.embedder);
    eventually("the file is read", || embedder.stop.is_reached()).await;
    let (status, changed) = client.post(&format!("{files}/{file}"), json!({"attributes": {"kind": "new"}})).await;
    assert_eq!(status, 200, "{changed}");
    embedder.stop.release();
    assert_eq!(client.indexed(&store).await["file_counts"]["completed"], 1);
    let (_, found) = client.get(&format!("{files}/{file}")).await;
    assert_eq!(found["attributes"], json!({"kind": "new"}));
    for (kind, hits) in [("old", 0), ("new", 1)] {
        let filters = json!({"type": "eq", "key": "kind", "value": kind});
        let found = client.search(&store, json!({"query": "ubangi", "filters": filters})).await;
        assert_eq!(found.len(), hits, "{kind}: {found:?}");
    }
}

#[tokio::test]
async fn a_file_is_deleted_while_another_store_is_indexed() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let rivers = client.upload("rivers.md", RIVERS).await;
    let filled = client.store(json!({"file_ids": [rivers]})).await;
    client.indexed(&filled).await;
    let slow = client.upload("a.txt", "STOP at the Ubangi.").await;
    let waiting = client.store(json!({"file_ids": [slow]})).await;
    eventually("the file is read", || indexes.embedder.stop.is_reached()).await;
    // The file waits behind the other store, and its removal does not.
    client.post(&format!("/v1/vector_stores/{filled}/files"), json!({"file_id": rivers})).await;
    let path = format!("/v1/files/{rivers}");
    let gone = tokio::time::timeout(PATIENCE, client.delete(&path)).await;
    assert_eq!(gone.map(|(status, _)| status), Ok(200));
    assert_eq!(client.search(&filled, json!({"query": "kivu"})).await, Vec::<Value>::new());
    indexes.embedder.stop.release();
    client.indexed(&waiting).await;
}

#[tokio::test]
async fn chunks_that_the_record_does_not_know_go_with_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let (store, files) =
        left_by_another_server(folder.path(), &[("rivers.md", RIVERS), ("b.txt", "The Ubangi again.")]).await;
    // As if the server had been killed between a commit and the record of it.
    let record = folder.path().join(format!("stores/{store}/files/{}.json", files[0]));
    let text = std::fs::read_to_string(&record).unwrap();
    let older = text.replace("\"chunks\":2", "\"chunks\":0");
    assert_ne!(older, text);
    std::fs::write(&record, older).unwrap();
    let server = server_over(folder.path(), &Arc::default(), LIMITS).await;
    let client = Client { server: &server, key: None };
    assert_eq!(client.search(&store, json!({"query": "kivu"})).await.len(), 3);
    assert_eq!(client.delete(&format!("/v1/vector_stores/{store}/files/{}", files[0])).await.0, 200);
    let left = client.search(&store, json!({"query": "kivu"})).await;
    assert_eq!((left.len(), &left[0]["file_id"]), (1, &json!(files[1])), "{left:?}");
}

#[tokio::test]
async fn an_attempt_is_on_disk_before_its_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("a.txt", "STOP at the Ubangi.").await;
    let store = client.store(json!({"file_ids": [file]})).await;
    eventually("the file is read", || indexes.embedder.stop.is_reached()).await;
    let path = folder.path().join(format!("stores/{store}/files/{file}.json"));
    let record = || serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&record()["status"], &record()["attempts"]), (&json!("in_progress"), &json!(1)));
    indexes.embedder.stop.release();
    client.indexed(&store).await;
    assert_eq!((&record()["status"], &record()["attempts"]), (&json!("completed"), &json!(0)));
}

#[tokio::test]
async fn a_file_that_ended_three_processes_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (store, files) =
        left_by_another_server(folder.path(), &[("rivers.md", RIVERS), ("b.txt", "The Ubangi again.")]).await;
    // As if the server had been killed three times while it indexed the first file, and once with the second one.
    for (file, attempts) in files.iter().zip([3, 1]) {
        let path = folder.path().join(format!("stores/{store}/files/{file}.json"));
        let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        record["status"] = json!("in_progress");
        record["attempts"] = json!(attempts);
        std::fs::write(&path, record.to_string()).unwrap();
    }
    let server = server_over(folder.path(), &Arc::default(), LIMITS).await;
    let client = Client { server: &server, key: None };
    let found = client.indexed(&store).await;
    let counts = &found["file_counts"];
    assert_eq!((&counts["failed"], &counts["completed"]), (&json!(1), &json!(1)), "{found}");
    let error = last_error(&client, &store, &files[0]).await;
    assert!(error["message"].as_str().unwrap().contains("ended three times"), "{error}");
    // A client that adds the file again knows more.
    client.post(&format!("/v1/vector_stores/{store}/files"), json!({"file_id": files[0]})).await;
    assert_eq!(client.indexed(&store).await["file_counts"]["completed"], 2);
}

#[tokio::test]
async fn an_index_that_could_not_be_opened_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = left_by_another_server(folder.path(), &[("rivers.md", RIVERS)]).await;
    let indexes = Arc::<DelicateIndexes>::default();
    indexes.refuses.store(true, SeqCst);
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    assert_eq!(client.search(&store, json!({"query": "kivu"})).await, Vec::<Value>::new());
    let file = client.upload("b.txt", "Kivu again.").await;
    let files = format!("/v1/vector_stores/{store}/files");
    client.post(&files, json!({"file_id": file})).await;
    client.indexed(&store).await;
    // Without a path of the server.
    let error = last_error(&client, &store, &file).await;
    assert_eq!(error, json!({"code": "server_error", "message": "the file cannot be indexed"}));
    indexes.refuses.store(false, SeqCst);
    client.post(&files, json!({"file_id": file})).await;
    assert_eq!(client.indexed(&store).await["file_counts"]["completed"], 2);
    assert_eq!(client.search(&store, json!({"query": "kivu"})).await.len(), 3);
}

#[tokio::test]
async fn the_texts_of_all_stores_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let limits = FileLimits { file: 1 << 10, storage: 3 << 10 };
    let server = server_over(folder.path(), &Arc::default(), limits).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("a.txt", &"word ".repeat(200)).await;
    let mut failed = None;
    for _ in 0..4 {
        let store = client.store(json!({"file_ids": [file]})).await;
        if client.indexed(&store).await["file_counts"]["failed"] == 1 {
            failed = Some(store);
            break;
        }
    }
    let error = last_error(&client, &failed.unwrap(), &file).await;
    assert_eq!(error["message"], "the server has no room for the texts of the file");
    // Records that expand to more than eight times what may be uploaded.
    let metadata = "x".repeat(900);
    let expands = format!("{{\"id\": \"a\", \"text\": \"t\", \"note\": \"{metadata}\"}}");
    let file = client.upload("a.jsonl", &expands).await;
    let attributes: serde_json::Map<String, Value> =
        (0..16).map(|number| (format!("name{number}"), json!("x".repeat(512)))).collect();
    let store = client.store(json!({})).await;
    let files = format!("/v1/vector_stores/{store}/files");
    client.post(&files, json!({"file_id": file, "attributes": attributes})).await;
    client.indexed(&store).await;
    let error = last_error(&client, &store, &file).await;
    assert!(error["message"].as_str().unwrap().contains("more than 8192 bytes"), "{error}");
}

#[tokio::test]
async fn a_key_leaves_room_for_the_texts_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = [Secret::generate(), Secret::generate()];
    let entry = |name: &str, secret: &Secret| key_entry(name, secret, &[Scope::Index]);
    let keys = ApiKeys::open(None, vec![entry("a", &secrets[0]), entry("b", &secrets[1])]).unwrap();
    let limits = FileLimits { file: 1 << 10, storage: 4 << 10 };
    let server = server_with_keys(folder.path(), &Arc::default(), limits, keys).await;
    let greedy = Client { server: &server, key: Some(secrets[0].reveal()) };
    let other = Client { server: &server, key: Some(secrets[1].reveal()) };
    let text = "word ".repeat(176);
    let files = [greedy.upload("a.txt", &text).await, greedy.upload("b.txt", &text).await];
    let half = greedy.store(json!({"file_ids": files})).await;
    assert_eq!(greedy.indexed(&half).await["file_counts"]["completed"], 2);
    // The server still has room, and the key has its share.
    let more = greedy.store(json!({"file_ids": [files[0]]})).await;
    assert_eq!(greedy.indexed(&more).await["file_counts"]["failed"], 1);
    let error = last_error(&greedy, &more, &files[0]).await;
    assert!(error["message"].as_str().unwrap().contains("share"), "{error}");
    let own = other.upload("c.txt", &text).await;
    let store = other.store(json!({"file_ids": [own]})).await;
    assert_eq!(other.indexed(&store).await["file_counts"]["completed"], 1);
    // A file that takes no more room than before is indexed again.
    let path = format!("/v1/vector_stores/{half}/files/{}", files[0]);
    assert_eq!(greedy.post(&path, json!({"attributes": {}})).await.0, 200);
    assert_eq!(greedy.indexed(&half).await["file_counts"]["completed"], 2);
}

#[tokio::test]
async fn a_drain_waits_for_the_file_that_is_read_and_leaves_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let files = [client.upload("a.txt", "STOP at the Ubangi.").await, client.upload("b.txt", "HALT at Kivu.").await];
    let store = client.store(json!({"file_ids": files})).await;
    eventually("the first file is read", || indexes.embedder.stop.is_reached()).await;
    let drain = &server.state.drain;
    drain.advance(DrainPhase::Draining);
    indexes.embedder.stop.release();
    eventually("nothing runs", || drain.running() == 0).await;
    let statuses = files.map(|file| {
        let path = folder.path().join(format!("stores/{store}/files/{file}.json"));
        serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap()["status"].clone()
    });
    assert_eq!(statuses, ["completed", "in_progress"]);
}

/// Begins a change of the documents of a store, whose commit lasts until the embedder's `hold` is released.
async fn hold_commits(client: &Client<'_>, indexes: &DelicateIndexes, store: &str) {
    let drain = &client.server.state.drain;
    eventually("all files are indexed", || drain.running() == 0).await;
    let body = json!({"documents": [{"id": "own", "text": "HOLD at the Inn."}], "wait": false});
    let (status, change) = client.post(&format!("/v1/documents?index={store}"), body).await;
    assert_eq!(status, 202, "{change}");
    eventually("its commit runs", || indexes.embedder.hold.is_reached()).await;
    eventually("the change alone runs", || drain.running() == 1).await;
}

#[tokio::test]
async fn a_change_that_was_accepted_outlives_the_last_file() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("rivers.md", RIVERS).await;
    let store = client.store(json!({"file_ids": [file]})).await;
    client.indexed(&store).await;
    hold_commits(&client, &indexes, &store).await;
    let path = format!("/v1/vector_stores/{store}/files/{file}");
    let removal = tokio::spawn(server.client.delete(server.url(&path)).send());
    // The request, its task, and the change.
    eventually("the removal waits", || server.state.drain.running() == 3 || removal.is_finished()).await;
    indexes.embedder.hold.release();
    assert_eq!(removal.await.unwrap().unwrap().status(), 200);
    let (_, documents) = client.get(&format!("/v1/documents?index={store}")).await;
    let ids: Vec<_> = documents["data"].as_array().unwrap().iter().map(|document| &document["id"]).collect();
    assert_eq!(ids, ["own"], "{documents}");
    assert_eq!(client.get(&path).await.0, 404);
}

#[tokio::test]
async fn a_removal_ends_without_its_client() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let files = [client.upload("rivers.md", RIVERS).await, client.upload("b.txt", "The Ubangi again.").await];
    let store = client.store(json!({"file_ids": files})).await;
    client.indexed(&store).await;
    hold_commits(&client, &indexes, &store).await;
    let path = format!("/v1/vector_stores/{store}/files/{}", files[0]);
    let removal = tokio::spawn(server.client.delete(server.url(&path)).send());
    let drain = &server.state.drain;
    eventually("the removal waits", || drain.running() == 3).await;
    removal.abort();
    eventually("its client is gone", || drain.running() == 2).await;
    indexes.embedder.hold.release();
    eventually_found("the file is removed", async || (client.get(&path).await.0 == 404).then_some(())).await;
    let left = client.search(&store, json!({"query": "kivu"})).await;
    assert!(!left.is_empty() && left.iter().all(|hit| hit["file_id"] != json!(files[0])), "{left:?}");
}

#[tokio::test]
async fn a_removal_that_was_interrupted_is_finished_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let (store, files) =
        left_by_another_server(folder.path(), &[("rivers.md", RIVERS), ("b.txt", "The Ubangi again.")]).await;
    // As if the server had been killed while it removed the first file.
    let record = folder.path().join(format!("stores/{store}/files/{}.json", files[0]));
    let text = std::fs::read_to_string(&record).unwrap();
    let marked = text.replace("\"removing\":false", "\"removing\":true");
    assert_ne!(marked, text);
    std::fs::write(&record, marked).unwrap();
    let server = server_over(folder.path(), &Arc::default(), LIMITS).await;
    let client = Client { server: &server, key: None };
    let path = format!("/v1/vector_stores/{store}/files/{}", files[0]);
    eventually_found("the file is removed", async || (client.get(&path).await.0 == 404).then_some(())).await;
    let left = client.search(&store, json!({"query": "kivu"})).await;
    assert_eq!((left.len(), &left[0]["file_id"]), (1, &json!(files[1])), "{left:?}");
}
