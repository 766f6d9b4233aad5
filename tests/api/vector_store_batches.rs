//! Batches of files that are added to a vector store together.

use std::sync::Arc;

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, KeyEntry, KeyLimits, Scope, Secret};

use crate::harness::{eventually, eventually_found, key_entry};
use crate::vector_store_files::{Client, RIVERS, server_in};
use crate::vector_store_ingestion::{DelicateIndexes, LIMITS, server_over, server_with_keys};

/// Waits until no file of a batch is being indexed, and returns the batch.
async fn done(client: &Client<'_>, path: &str) -> Value {
    eventually_found(&format!("the files of {path} are indexed"), async || {
        let (status, batch) = client.get(path).await;
        assert_eq!(status, 200, "{batch}");
        (batch["status"] != "in_progress").then_some(batch)
    })
    .await
}

fn ids(page: &Value) -> Vec<&str> {
    page["data"].as_array().unwrap().iter().map(|file| file["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn files_are_added_together_and_told_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server_in(folder.path(), ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    let store = client.store(json!({})).await;
    let batches = format!("/v1/vector_stores/{store}/file_batches");
    let good = [client.upload("rivers.md", RIVERS).await, client.upload("b.txt", "Lake Kivu again.").await];
    let bad = client.upload("picture.png", "PNG").await;
    let (status, made) = client.post(&batches, json!({"file_ids": [good[0], bad], "attributes": {"of": "both"}})).await;
    assert_eq!((status, &made["object"]), (200, &json!("vector_store.files_batch")), "{made}");
    assert_eq!((&made["vector_store_id"], &made["file_counts"]["total"]), (&json!(store), &json!(2)));
    let first = format!("{batches}/{}", made["id"].as_str().unwrap());
    let expected = json!({"in_progress": 0, "completed": 1, "failed": 1, "cancelled": 0, "total": 2});
    let found = done(&client, &first).await;
    assert_eq!((&found["status"], &found["file_counts"]), (&json!("completed"), &expected));
    let files = json!([{"file_id": good[1], "attributes": {"kind": "lake"}}]);
    let (_, made) = client.post(&batches, json!({"files": files})).await;
    let second = format!("{batches}/{}", made["id"].as_str().unwrap());
    assert_eq!(done(&client, &second).await["file_counts"]["completed"], 1);
    let (_, page) = client.get(&format!("{first}/files?order=asc")).await;
    assert_eq!(ids(&page), [good[0].as_str(), &bad]);
    assert_eq!(page["data"][0]["attributes"], json!({"of": "both"}));
    let (_, page) = client.get(&format!("{first}/files?filter=failed")).await;
    assert_eq!(ids(&page), [bad.as_str()]);
    let filters = json!({"type": "eq", "key": "kind", "value": "lake"});
    let hits = client.search(&store, json!({"query": "kivu", "filters": filters})).await;
    assert_eq!(hits[0]["file_id"], json!(good[1]));
    // New attributes leave the file in its batch, which stays as it was.
    let attributes = format!("/v1/vector_stores/{store}/files/{}", good[0]);
    let (status, changed) = client.post(&attributes, json!({"attributes": {"of": "one"}})).await;
    assert_eq!((status, &changed["attributes"]), (200, &json!({"of": "one"})), "{changed}");
    let (_, found) = client.get(&first).await;
    assert_eq!((&found["status"], &found["file_counts"]), (&json!("completed"), &expected));
    client.indexed(&store).await;
    assert_eq!(client.get(&first).await.1["file_counts"], expected);
    // Canceling a finished batch changes nothing, and a file that is added alone leaves its batch.
    let (status, cancelled) = client.post(&format!("{first}/cancel"), json!({})).await;
    assert_eq!((status, &cancelled["status"]), (200, &json!("completed")), "{cancelled}");
    client.post(&format!("/v1/vector_stores/{store}/files"), json!({"file_id": good[0]})).await;
    client.indexed(&store).await;
    assert_eq!(done(&client, &first).await["file_counts"]["total"], 1);
    // A server that starts again knows its batches.
    server.terminate();
    let crate::harness::TestServer { running, state, .. } = server;
    running.await.unwrap();
    drop(state);
    let server = server_in(folder.path(), ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    assert_eq!(done(&client, &second).await["file_counts"]["completed"], 1);
}

#[tokio::test]
async fn a_cancelled_batch_indexes_no_file_that_waited() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let store = client.store(json!({})).await;
    let batches = format!("/v1/vector_stores/{store}/file_batches");
    let slow = client.upload("a.txt", "STOP at the Ubangi.").await;
    let (_, made) = client.post(&batches, json!({"file_ids": [slow]})).await;
    let first = format!("{batches}/{}", made["id"].as_str().unwrap());
    eventually("the file is read", || indexes.embedder.stop.is_reached()).await;
    // These wait behind the slow one.
    let waiting = [client.upload("b.txt", "Kivu one.").await, client.upload("c.txt", "Kivu two.").await];
    let (_, made) = client.post(&batches, json!({"file_ids": waiting})).await;
    let second = format!("{batches}/{}", made["id"].as_str().unwrap());
    let (status, cancelled) = client.post(&format!("{second}/cancel"), json!({})).await;
    assert_eq!((status, &cancelled["status"]), (200, &json!("cancelled")), "{cancelled}");
    assert_eq!(cancelled["file_counts"]["cancelled"], 2);
    // A file that is being indexed is finished.
    let (_, running) = client.post(&format!("{first}/cancel"), json!({})).await;
    assert_eq!(running["status"], "in_progress", "{running}");
    indexes.embedder.stop.release();
    assert_eq!(done(&client, &first).await["file_counts"]["completed"], 1);
    let found = client.search(&store, json!({"query": "kivu ubangi"})).await;
    assert!(!found.is_empty() && found.iter().all(|hit| hit["file_id"] == json!(slow)), "{found:?}");
    let (_, page) = client.get(&format!("/v1/vector_stores/{store}/files?filter=cancelled")).await;
    assert_eq!(ids(&page).len(), 2);
    // A canceled file is indexed once it is added again.
    client.post(&format!("/v1/vector_stores/{store}/files"), json!({"file_id": waiting[0]})).await;
    assert_eq!(client.indexed(&store).await["file_counts"]["completed"], 2);
}

/// Adds files to a store together, and returns the path of the batch.
async fn batch(client: &Client<'_>, store: &str, files: &[String]) -> String {
    let batches = format!("/v1/vector_stores/{store}/file_batches");
    let (status, made) = client.post(&batches, json!({"file_ids": files})).await;
    assert_eq!(status, 200, "{made}");
    format!("{batches}/{}", made["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_file_can_be_cancelled_until_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let store = client.store(json!({})).await;
    let slow = client.upload("a.txt", "STOP at the Ubangi.").await;
    let files = [slow.clone(), client.upload("b.txt", "Kivu.").await, client.upload("c.txt", "Kivu again.").await];
    let first = batch(&client, &store, &files).await;
    eventually("the file is read", || indexes.embedder.stop.is_reached()).await;
    // The rest of its own batch is not read yet.
    let (_, found) = client.post(&format!("{first}/cancel"), json!({})).await;
    assert_eq!((&found["file_counts"]["cancelled"], &found["status"]), (&json!(2), &json!("in_progress")), "{found}");
    // Added again, the file that is being read can be canceled under its new batch.
    let second = batch(&client, &store, std::slice::from_ref(&slow)).await;
    let (_, found) = client.post(&format!("{second}/cancel"), json!({})).await;
    assert_eq!((&found["file_counts"]["cancelled"], &found["status"]), (&json!(1), &json!("cancelled")), "{found}");
    indexes.embedder.stop.release();
    assert_eq!(done(&client, &first).await["status"], "cancelled");
    // The file keeps what was indexed before.
    eventually_found("searches find it", async || {
        let found = client.search(&store, json!({"query": "ubangi"})).await;
        found.iter().any(|hit| hit["file_id"] == json!(slow)).then_some(())
    })
    .await;
    assert_eq!(done(&client, &second).await["file_counts"]["cancelled"], 1);
}

#[tokio::test]
async fn a_batch_whose_record_cannot_be_written_is_cancelled_like_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_over(folder.path(), &indexes, LIMITS).await;
    let client = Client { server: &server, key: None };
    let store = client.store(json!({})).await;
    let slow = client.upload("a.txt", "STOP at the Ubangi.").await;
    batch(&client, &store, &[slow]).await;
    eventually("the file is read", || indexes.embedder.stop.is_reached()).await;
    let path = batch(&client, &store, &[client.upload("b.txt", "Kivu.").await]).await;
    let id = path.rsplit('/').next().unwrap();
    let record = folder.path().join(format!("stores/{store}/batches/{id}.json"));
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    let (status, refused) = client.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!(status, 503, "{refused}");
    let (_, found) = client.get(&path).await;
    assert_eq!((&found["status"], &found["file_counts"]["cancelled"]), (&json!("cancelled"), &json!(1)), "{found}");
    indexes.embedder.stop.release();
}

/// One key, with at most two requests whose files wait.
fn two_at_once(secret: &Secret) -> ApiKeys {
    let entry = KeyEntry {
        limits: KeyLimits { concurrent: Some(2), ..KeyLimits::default() },
        ..key_entry("few", secret, &[Scope::Index])
    };
    ApiKeys::open(None, vec![entry]).unwrap()
}

#[tokio::test]
async fn a_file_that_is_indexed_gives_its_place_back_while_others_wait() {
    let folder = tempfile::tempdir().unwrap();
    let secret = Secret::generate();
    let indexes = Arc::<DelicateIndexes>::default();
    let server = server_with_keys(folder.path(), &indexes, LIMITS, two_at_once(&secret)).await;
    let client = Client { server: &server, key: Some(secret.reveal()) };
    let first = client.upload("a.txt", "STOP at the Ubangi.").await;
    let second = client.upload("b.txt", "HALT at Lake Kivu.").await;
    let third = client.upload("c.txt", "Lake Kivu again.").await;
    let store = client.store(json!({})).await;
    let files = format!("/v1/vector_stores/{store}/files");
    let add = async |file: &String| client.post(&files, json!({"file_id": file})).await.0;
    assert_eq!(add(&first).await, 200);
    eventually("the first file is read", || indexes.embedder.stop.is_reached()).await;
    assert_eq!((add(&second).await, add(&third).await), (200, 429));
    indexes.embedder.stop.release();
    eventually("the second file is read", || indexes.embedder.halt.is_reached()).await;
    // Its place is given back a moment after it is indexed.
    eventually_found("another file may wait", async || (add(&third).await == 200).then_some(())).await;
    indexes.embedder.halt.release();
    assert_eq!(client.indexed(&store).await["file_counts"]["completed"], 3);
}

#[tokio::test]
async fn a_batch_counts_once_against_the_maximum_of_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let secret = Secret::generate();
    let server = server_in(folder.path(), two_at_once(&secret)).await;
    let client = Client { server: &server, key: Some(secret.reveal()) };
    let mut files = Vec::new();
    for number in 0..3 {
        files.push(client.upload(&format!("{number}.txt"), "Lake Kivu.").await);
    }
    let store = client.store(json!({"file_ids": files})).await;
    assert_eq!(client.indexed(&store).await["file_counts"]["completed"], 3);
    let path = batch(&client, &store, &files).await;
    assert_eq!(done(&client, &path).await["file_counts"]["completed"], 3);
}

#[tokio::test]
async fn what_is_wrong_with_a_batch_is_named_and_adds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_in(folder.path(), ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    let store = client.store(json!({})).await;
    let file = client.upload("rivers.md", RIVERS).await;
    let batches = format!("/v1/vector_stores/{store}/file_batches");
    for (body, status, param) in [
        (json!({}), 400, "file_ids"),
        (json!({"file_ids": []}), 400, "file_ids"),
        (json!({"file_ids": [file, file]}), 400, "file_ids[1]"),
        (json!({"files": [{"file_id": file}, {"file_id": file}]}), 400, "files[1].file_id"),
        (json!({"files": [{"file_id": "file-none"}]}), 404, "files[0].file_id"),
        (json!({"files": [{"file_id": file, "attributes": {"a": []}}]}), 400, "files[0].attributes.a"),
        (json!({"file_ids": vec!["f"; 501]}), 400, "file_ids"),
        (json!({"file_ids": [file], "files": []}), 400, "files"),
        (json!({"files": [{"file_id": file}], "attributes": {}}), 400, "attributes"),
        (json!({"file_ids": [file, "file-none"]}), 404, "file_ids[1]"),
        (json!({"files": [{"file_id": file}, {"file_id": "x", "colour": 1}]}), 400, "files[1].colour"),
    ] {
        let (got, refused) = client.post(&batches, body.clone()).await;
        assert_eq!((got, &refused["error"]["param"]), (status, &json!(param)), "{body}: {refused}");
    }
    assert_eq!(client.indexed(&store).await["file_counts"]["total"], 0);
    for path in [format!("{batches}/vsfb_1"), format!("{batches}/vsfb_1/files")] {
        let (status, refused) = client.get(&path).await;
        assert_eq!((status, &refused["error"]["code"]), (404, &json!("file_batch_not_found")), "{refused}");
    }
}
