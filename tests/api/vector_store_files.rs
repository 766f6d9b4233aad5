//! Vector stores that clients create, and the files that they are filled from.

use std::path::Path;

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, Scope, Secret};
use waymark_engine::mock::Lines;

use crate::harness::{ServerPlan, TestServer, answer, eventually_found, key_entry, script};

pub const RIVERS: &str = "# Rivers\n\nThe Ubangi flows through Bangui.\n\n# Lakes\n\nLake Kivu lies in Rwanda.\n";

pub async fn server_in(folder: &Path, keys: ApiKeys) -> TestServer {
    let lines = Lines::new(["<think>a</think><search>[passage] ubangi</search>", "<answer> c </answer>"])
        .terminator("</information>\n\n");
    ServerPlan { vector_stores: Some(folder.to_owned()), keys, ..ServerPlan::new(script(&lines)) }.build().await
}

async fn test_server() -> (tempfile::TempDir, TestServer) {
    let folder = tempfile::tempdir().unwrap();
    let server = server_in(folder.path(), ApiKeys::default()).await;
    (folder, server)
}

/// Client with a key, if the server has any.
pub struct Client<'a> {
    pub server: &'a TestServer,
    pub key: Option<&'a str>,
}

impl Client<'_> {
    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.server.client.request(method.parse().unwrap(), self.server.url(path));
        if let Some(key) = self.key {
            request = request.bearer_auth(key);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        answer(request.send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("POST", path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        self.send("DELETE", path, None).await
    }

    /// Uploads a form with these parts, each a head and a content.
    async fn form(&self, parts: &[(&str, &str)]) -> (u16, Value) {
        let part = |(head, content): &(&str, &str)| {
            format!("--xyz\r\ncontent-disposition: form-data; {head}\r\n\r\n{content}\r\n")
        };
        let body = format!("{}--xyz--\r\n", parts.iter().map(part).collect::<String>());
        self.post_form(body.into_bytes()).await
    }

    async fn post_form(&self, body: Vec<u8>) -> (u16, Value) {
        let mut request = self.server.client.post(self.server.url("/v1/files"));
        if let Some(key) = self.key {
            request = request.bearer_auth(key);
        }
        let request = request.header("content-type", "multipart/form-data; boundary=xyz").body(body);
        answer(request.send().await.unwrap()).await
    }

    pub async fn upload(&self, name: &str, content: &str) -> String {
        self.upload_bytes(name, content.as_bytes()).await
    }

    /// Uploads a file that need not be text.
    pub async fn upload_bytes(&self, name: &str, content: &[u8]) -> String {
        let head = format!(
            "--xyz\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n--xyz\r\n\
             content-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
        );
        let (status, made) = self.post_form([head.as_bytes(), content, b"\r\n--xyz--\r\n"].concat()).await;
        assert_eq!((status, &made["object"], &made["bytes"]), (200, &json!("file"), &json!(content.len())), "{made}");
        made["id"].as_str().unwrap().to_owned()
    }

    pub async fn store(&self, body: Value) -> String {
        let (status, made) = self.post("/v1/vector_stores", body).await;
        assert_eq!((status, &made["object"]), (200, &json!("vector_store")), "{made}");
        made["id"].as_str().unwrap().to_owned()
    }

    /// Waits until all files of a store are indexed, and returns the store.
    pub async fn indexed(&self, store: &str) -> Value {
        eventually_found(&format!("the files of {store} are indexed"), async || {
            let (status, found) = self.get(&format!("/v1/vector_stores/{store}")).await;
            assert_eq!(status, 200, "{found}");
            (found["status"] == "completed").then_some(found)
        })
        .await
    }

    pub async fn search(&self, store: &str, body: Value) -> Vec<Value> {
        let (status, page) = self.post(&format!("/v1/vector_stores/{store}/search"), body).await;
        assert_eq!(status, 200, "{page}");
        page["data"].as_array().unwrap().clone()
    }
}

#[tokio::test]
async fn a_store_is_created_filled_searched_and_deleted() {
    let (folder, server) = test_server().await;
    let client = Client { server: &server, key: None };
    let file = client.upload("rivers.md", RIVERS).await;
    let store = client.store(json!({"name": "waters", "file_ids": [file], "metadata": {"a": "b"}})).await;
    let found = client.indexed(&store).await;
    assert_eq!((&found["name"], &found["metadata"]), (&json!("waters"), &json!({"a": "b"})));
    assert_eq!(found["file_counts"]["completed"], 1, "{found}");
    let hits = client.search(&store, json!({"query": "ubangi", "max_num_results": 1})).await;
    assert_eq!((&hits[0]["file_id"], &hits[0]["filename"]), (&json!(file), &json!("rivers.md")), "{hits:?}");

    // The store is an index like any other: with documents, views, and a graph that policies walk.
    let (_, documents) = client.get(&format!("/v1/documents?index={store}")).await;
    let ids: Vec<_> = documents["data"].as_array().unwrap().iter().map(|document| document["id"].clone()).collect();
    assert_eq!(ids, [format!("{file}#1"), format!("{file}#2")]);
    let (_, summary) = client.get(&format!("/v1/index?index={store}")).await;
    assert_eq!((&summary["passages"], summary["graph"].is_object()), (&json!(2), true), "{summary}");
    let body = json!({"model": "routerag", "question": "Which river?", "rag": {"index": store}});
    let (status, answered) = client.post("/v1/agent", body).await;
    assert_eq!(status, 200, "{answered}");
    let (_, trace) = client.get(&format!("/v1/traces/{}", answered["id"].as_str().unwrap())).await;
    assert_eq!((&trace["index"], &trace["searches"][0]["snapshot"]), (&json!(store), &json!(1)), "{trace}");
    let tools = json!([{"type": "file_search", "vector_store_ids": [store]}]);
    let body = json!({"model": "routerag", "input": "?", "tools": tools, "include": ["file_search_call.results"]});
    let (_, response) = client.post("/v1/responses", body).await;
    assert_eq!(response["tools"][0]["vector_store_ids"], json!([store]), "{response}");
    let call = response["output"].as_array().unwrap().iter().find(|item| item["type"] == "file_search_call").unwrap();
    assert_eq!(call["results"][0]["file_id"], json!(file), "{response}");

    let (status, gone) = client.delete(&format!("/v1/vector_stores/{store}")).await;
    assert_eq!((status, &gone["object"], &gone["deleted"]), (200, &json!("vector_store.deleted"), &json!(true)));
    for path in [format!("/v1/vector_stores/{store}"), format!("/v1/vector_stores/{store}/files")] {
        assert_eq!(client.get(&path).await.0, 404);
    }
    let (status, refused) = client.get(&format!("/v1/documents?index={store}")).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("index")));
    // The file is there, and the store has left nothing behind.
    assert_eq!(client.get(&format!("/v1/files/{file}")).await.0, 200);
    assert_eq!(std::fs::read_dir(folder.path().join("stores")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_citation_names_the_file_of_its_passage() {
    let folder = tempfile::tempdir().unwrap();
    let answer = "<answer> The Ubangi flows through Bangui. </answer>";
    let lines = Lines::new(["<think>a</think><search>[passage] ubangi</search>", answer]);
    let backend = script(&lines.terminator("</information>\n\n"));
    let vector_stores = Some(folder.path().to_owned());
    let server = ServerPlan { vector_stores, ..ServerPlan::new(backend) }.build().await;
    let client = Client { server: &server, key: None };
    // Its passages have the title `Rivers`.
    let file = client.upload("handbook.md", RIVERS).await;
    let store = client.store(json!({"file_ids": [file]})).await;
    client.indexed(&store).await;
    let tools = json!([{"type": "file_search", "vector_store_ids": [store]}]);
    let (_, response) = client.post("/v1/responses", json!({"model": "routerag", "input": "?", "tools": tools})).await;
    let output = response["output"].as_array().unwrap();
    let message = output.iter().find(|item| item["type"] == "message").unwrap();
    let note = &message["content"][0]["annotations"][0];
    assert_eq!((&note["file_id"], &note["filename"]), (&json!(file), &json!("handbook.md")), "{response}");
}

#[tokio::test]
async fn file_search_finds_nothing_in_a_store_without_documents() {
    let (_folder, server) = test_server().await;
    let client = Client { server: &server, key: None };
    let store = client.store(json!({})).await;
    let tools = json!([{"type": "file_search", "vector_store_ids": [store]}]);
    let body = json!({"model": "routerag", "input": "?", "tools": tools, "include": ["file_search_call.results"]});
    let (status, response) = client.post("/v1/responses", body).await;
    assert_eq!((status, &response["status"]), (200, &json!("completed")), "{response}");
    let call = response["output"].as_array().unwrap().iter().find(|item| item["type"] == "file_search_call").unwrap();
    assert_eq!((&call["status"], &call["results"]), (&json!("completed"), &json!([])), "{response}");
    assert_eq!(response["tools"][0]["vector_store_ids"], json!([store]));
}

#[tokio::test]
async fn files_are_added_changed_and_removed() {
    let (_folder, server) = test_server().await;
    let client = Client { server: &server, key: None };
    let store = client.store(json!({})).await;
    assert_eq!(client.search(&store, json!({"query": "kivu"})).await, Vec::<Value>::new());
    let body = json!({"question": "?", "rag": {"index": store}});
    let (status, refused) = client.post("/v1/agent", body).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("rag.index")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("no documents yet"));

    let files = format!("/v1/vector_stores/{store}/files");
    let files = files.as_str();
    let rivers = client.upload("rivers.md", RIVERS).await;
    let records = "{\"id\": \"x\", \"title\": \"\", \"text\": \"Kivu again.\", \"kind\": \"lake\"}\n";
    let records = client.upload("lakes.jsonl", records).await;
    let attributes = json!({"kind": "text", "year": 2024});
    let (status, added) = client.post(files, json!({"file_id": rivers, "attributes": attributes})).await;
    assert_eq!((status, &added["object"]), (200, &json!("vector_store.file")), "{added}");
    assert_eq!((&added["vector_store_id"], &added["attributes"]), (&json!(store), &attributes));
    client.post(files, json!({"file_id": records})).await;
    client.indexed(&store).await;
    let of_kind = async |kind: &str| {
        let filters = json!({"type": "eq", "key": "kind", "value": kind});
        client.search(&store, json!({"query": "kivu", "filters": filters})).await.len()
    };
    assert_eq!((of_kind("text").await, of_kind("lake").await), (2, 1));
    let (_, listed) = client.get(&format!("{files}?order=asc&limit=1")).await;
    assert_eq!((&listed["data"][0]["id"], &listed["has_more"]), (&json!(rivers), &json!(true)), "{listed}");
    let (_, rest) = client.get(&format!("{files}?order=asc&after={rivers}")).await;
    assert_eq!((&rest["data"][0]["id"], &rest["has_more"]), (&json!(records), &json!(false)));
    let (_, content) = client.get(&format!("{files}/{rivers}/content")).await;
    assert!(content["data"][1]["text"].as_str().unwrap().contains("Rwanda"), "{content}");

    let (status, _) = client.post(&format!("{files}/{rivers}"), json!({"attributes": {"kind": "prose"}})).await;
    assert_eq!(status, 200);
    client.indexed(&store).await;
    assert_eq!((of_kind("text").await, of_kind("prose").await), (0, 2));
    let (status, refused) = client.post(&format!("{files}/{rivers}"), json!({})).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("attributes")), "{refused}");
    let (status, bare) = client.post(&format!("{files}/{rivers}"), json!({"attributes": null})).await;
    assert_eq!((status, &bare["attributes"]), (200, &json!({})), "{bare}");
    client.indexed(&store).await;
    assert_eq!(of_kind("prose").await, 0);

    let (status, gone) = client.delete(&format!("{files}/{records}")).await;
    assert_eq!((status, &gone["object"]), (200, &json!("vector_store.file.deleted")));
    assert_eq!(of_kind("lake").await, 0);
    // With its last file the index goes, and comes back with the next one.
    assert_eq!(client.delete(&format!("/v1/files/{rivers}")).await.1["deleted"], json!(true));
    assert_eq!(client.search(&store, json!({"query": "kivu"})).await, Vec::<Value>::new());
    client.post(files, json!({"file_id": records})).await;
    assert_eq!(client.indexed(&store).await["file_counts"]["total"], 1);
    assert_eq!(of_kind("lake").await, 1);
}

#[tokio::test]
async fn files_that_cannot_be_read_fail_by_name_and_leave_the_others() {
    let (_folder, server) = test_server().await;
    let client = Client { server: &server, key: None };
    let mut ids = Vec::new();
    for (name, content) in [
        ("good.txt", "The Ubangi."),
        ("picture.png", "x"),
        ("broken.jsonl", "{\"id\": \"a\", \"text\": \"t\"}\n{"),
        ("empty.md", "\n"),
    ] {
        ids.push(client.upload(name, content).await);
    }
    let store = client.store(json!({"file_ids": ids})).await;
    let found = client.indexed(&store).await;
    assert_eq!(
        (&found["file_counts"]["completed"], &found["file_counts"]["failed"]),
        (&json!(1), &json!(3)),
        "{found}"
    );
    for (id, code, text) in [
        (&ids[1], "unsupported_file", "image"),
        (&ids[2], "invalid_file", "line 2"),
        (&ids[3], "invalid_file", "no text"),
    ] {
        let (_, file) = client.get(&format!("/v1/vector_stores/{store}/files/{id}")).await;
        let error = &file["last_error"];
        assert_eq!((&file["status"], &error["code"]), (&json!("failed"), &json!(code)), "{file}");
        assert!(error["message"].as_str().unwrap().contains(text), "{file}");
        assert!(!error["message"].as_str().unwrap().contains('/'), "no path of the server: {file}");
    }
    assert_eq!(client.search(&store, json!({"query": "ubangi"})).await.len(), 1);
}

#[tokio::test]
async fn what_a_key_creates_is_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = [Secret::generate(), Secret::generate()];
    let entry = |name: &str, secret: &Secret| key_entry(name, secret, &Scope::ALL);
    let keys = || ApiKeys::open(None, vec![entry("a", &secrets[0]), entry("b", &secrets[1])]).unwrap();
    let mut server = server_in(folder.path(), keys()).await;
    let (store, file) = {
        let owner = Client { server: &server, key: Some(secrets[0].reveal()) };
        let other = Client { server: &server, key: Some(secrets[1].reveal()) };
        let file = owner.upload("rivers.md", RIVERS).await;
        let store = owner.store(json!({"file_ids": [file]})).await;
        owner.indexed(&store).await;
        for path in [format!("/v1/vector_stores/{store}"), format!("/v1/files/{file}")] {
            assert_eq!((owner.get(&path).await.0, other.get(&path).await.0), (200, 404), "{path}");
            assert_eq!(other.delete(&path).await.0, 404);
        }
        let search = format!("/v1/vector_stores/{store}/search");
        assert_eq!(other.post(&search, json!({"query": "ubangi"})).await.0, 404);
        let body = json!({"model": "routerag", "question": "?", "rag": {"index": store}});
        let (status, refused) = other.post("/v1/agent", body).await;
        assert_eq!(status, 400, "{refused}");
        assert_eq!(other.get(&format!("/v1/documents?index={store}")).await.0, 400);
        let tools = json!([{"type": "file_search", "vector_store_ids": [store]}]);
        assert_eq!(
            other.post("/v1/responses", json!({"model": "routerag", "input": "?", "tools": tools})).await.0,
            400
        );
        let mine = other.store(json!({})).await;
        let (status, refused) = other.post(&format!("/v1/vector_stores/{mine}/files"), json!({"file_id": file})).await;
        assert_eq!((status, &refused["error"]["param"]), (404, &json!("file_id")));
        let (_, listed) = other.get("/v1/vector_stores").await;
        let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|store| store["id"].clone()).collect();
        assert_eq!(ids, [json!(mine), json!("default")]);
        assert_eq!(other.get("/v1/files").await.1["data"], json!([]));
        (store, file)
    };
    // The same holds after a restart.
    server.terminate();
    let TestServer { running, state, .. } = server;
    running.await.unwrap();
    drop(state);
    let server = server_in(folder.path(), keys()).await;
    let owner = Client { server: &server, key: Some(secrets[0].reveal()) };
    let other = Client { server: &server, key: Some(secrets[1].reveal()) };
    assert_eq!(owner.search(&store, json!({"query": "ubangi"})).await[0]["file_id"], json!(file));
    assert_eq!(other.get(&format!("/v1/vector_stores/{store}")).await.0, 404);
}

#[tokio::test]
async fn files_that_a_killed_server_was_given_are_indexed_by_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server_in(folder.path(), ApiKeys::default()).await;
    let (store, file) = {
        let client = Client { server: &server, key: None };
        let file = client.upload("rivers.md", RIVERS).await;
        let store = client.store(json!({"file_ids": [file]})).await;
        client.indexed(&store).await;
        (store, file)
    };
    server.terminate();
    let TestServer { running, state, .. } = server;
    running.await.unwrap();
    drop(state);
    // As if the server had been killed after it had acknowledged the file, while it deleted another store.
    let dir = folder.path().join("stores").join(&store);
    let record = dir.join("files").join(format!("{file}.json"));
    let text = std::fs::read_to_string(&record).unwrap().replace("\"completed\"", "\"in_progress\"");
    std::fs::write(&record, text).unwrap();
    std::fs::remove_dir_all(dir.join("index")).unwrap();
    std::fs::create_dir_all(folder.path().join("stores/.half/files")).unwrap();
    std::fs::create_dir_all(folder.path().join("files/.half/content")).unwrap();
    let server = server_in(folder.path(), ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    assert_eq!(client.indexed(&store).await["file_counts"]["completed"], 1);
    assert_eq!(client.search(&store, json!({"query": "ubangi"})).await.len(), 2);
    assert!(!folder.path().join("stores/.half").exists() && !folder.path().join("files/.half").exists());
}

#[tokio::test]
async fn uploads_are_checked_and_bounded() {
    let (folder, server) = test_server().await;
    let client = Client { server: &server, key: None };
    let purpose = ("name=\"purpose\"", "assistants");
    let file = ("name=\"file\"; filename=\"a.txt\"", "text");
    let large = "x".repeat((64 << 10) + 1);
    for (parts, status, param) in [
        (vec![file], 400, json!("purpose")),
        (vec![purpose], 400, json!("file")),
        (vec![("name=\"purpose\"", "fine-tune"), file], 400, json!("purpose")),
        (vec![purpose, ("name=\"file\"", "text")], 400, json!("file")),
        (vec![purpose, file, file], 400, json!("file")),
        (vec![purpose, file, ("name=\"what\"", "1")], 400, json!("what")),
        (vec![("name=\"purpose\"", large.as_str()), file], 400, json!("purpose")),
        (vec![purpose, ("name=\"expires_after[anchor]\"", "created_at"), file], 400, json!("expires_after")),
        (vec![purpose, ("name=\"file\"; filename=\"a.txt\"", large.as_str())], 413, Value::Null),
    ] {
        let (found, refused) = client.form(&parts).await;
        assert_eq!((found, &refused["error"]["param"]), (status, &param), "{refused}");
    }
    let (status, refused) = client.post("/v1/files", json!({})).await;
    assert_eq!((status, &refused["error"]["code"]), (415, &json!("unsupported_media_type")));
    // Nothing is left of refused uploads, and no name reaches another folder.
    assert_eq!(std::fs::read_dir(folder.path().join("files")).unwrap().count(), 0);
    let id = client.upload("../../../evil.txt", "text").await;
    assert_eq!(client.get(&format!("/v1/files/{id}")).await.1["filename"], json!("../../../evil.txt"));
    assert!(folder.path().join("files").join(&id).join("content").is_dir());
    // 1 MiB for all files together.
    let filler = "x".repeat(60 << 10);
    let mut refused = Value::Null;
    for _ in 0..20 {
        let made = client.form(&[purpose, ("name=\"file\"; filename=\"a.txt\"", filler.as_str())]).await;
        if made.0 != 200 {
            refused = made.1;
            break;
        }
    }
    assert_eq!(refused["error"]["code"], json!("queue_full"), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("revoked keys"), "{refused}");
}

#[tokio::test]
async fn invalid_requests_are_refused_by_name() {
    let (_folder, server) = test_server().await;
    let client = Client { server: &server, key: None };
    let file = client.upload("rivers.md", RIVERS).await;
    let store = client.store(json!({})).await;
    let files = format!("/v1/vector_stores/{store}/files");
    let files = files.as_str();
    let chunks = |size: usize, overlap: usize| {
        let sizes = json!({"max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap});
        json!({"file_id": file, "chunking_strategy": {"type": "static", "static": sizes}})
    };
    for (path, body, status, param) in [
        ("/v1/vector_stores", json!({"expires_after": {"anchor": "last_active_at", "days": 1}}), 400, "expires_after"),
        ("/v1/vector_stores", json!({"name": "x".repeat(513)}), 400, "name"),
        ("/v1/vector_stores", json!({"file_ids": [file, "file-0"]}), 404, "file_ids[1]"),
        (files, json!({"file_id": "file-0"}), 404, "file_id"),
        (files, json!({"file_id": file, "attributes": {"a": [1]}}), 400, "attributes.a"),
        (files, chunks(10, 0), 400, "chunking_strategy.static.max_chunk_size_tokens"),
        (files, chunks(200, 101), 400, "chunking_strategy.static.chunk_overlap_tokens"),
        ("/v1/vector_stores/vs_0/files", json!({"file_id": file}), 404, "id"),
        ("/v1/vector_stores/default/files", json!({"file_id": file}), 403, "id"),
        ("/v1/vector_stores/default", json!({"name": "a"}), 403, "id"),
    ] {
        let (found, refused) = client.post(path, body).await;
        assert_eq!((found, &refused["error"]["param"]), (status, &json!(param)), "{path}: {refused}");
    }
    assert_eq!(client.delete("/v1/vector_stores/default").await.1["error"]["code"], json!("fixed_vector_store"));
    let (_, listed) = client.get("/v1/vector_stores?order=asc").await;
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|store| store["id"].clone()).collect();
    assert_eq!(ids, [json!("default"), json!(store)]);

    let bare = ServerPlan::new(script(&Lines::new(["hi"]))).build().await;
    let bare = Client { server: &bare, key: None };
    for path in ["/v1/vector_stores", "/v1/files"] {
        let refused = if path.ends_with("files") { bare.get(path).await } else { bare.post(path, json!({})).await };
        assert_eq!((refused.0, &refused.1["error"]["code"]), (400, &json!("not_configured")), "{path}");
    }
    assert_eq!(bare.get("/v1/vector_stores").await.1["data"][0]["id"], json!("default"));
}
