//! API keys that are limited to some of the indexes.

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, IndexScope, KeyEntry, Scope, Secret};

use crate::documents::edition;
use crate::harness::{TestServer, answer, key_entry};
use crate::indexes::server_with;

/// A server with two indexes, `default` with six passages and `second` with seven, and its keys.
struct Scoped {
    server: TestServer,
    keys: Vec<(&'static str, Secret)>,
    _dirs: [tempfile::TempDir; 2],
}

impl Scoped {
    async fn new() -> Scoped {
        let keys = ["all", "second", "default", "missing"].map(|name| (name, Secret::generate()));
        let entries = keys.iter().map(|(name, secret)| {
            let scopes = if *name == "all" { Scope::ALL.to_vec() } else { vec![Scope::Infer, Scope::Index] };
            let names = (*name != "all").then(|| vec![(*name).to_owned()]);
            KeyEntry { indexes: IndexScope::new(names, &scopes).unwrap(), ..key_entry(name, secret, &scopes) }
        });
        let (_dirs, server) = server_with(ApiKeys::open(None, entries.collect()).unwrap()).await;
        let scoped = Scoped { server, keys: keys.into(), _dirs };
        let (status, made) = scoped.post("all", "/v1/documents?index=second", edition(&["new"], 2)).await;
        assert_eq!(status, 200, "{made}");
        scoped
    }

    fn key(&self, name: &str) -> &str {
        self.keys.iter().find(|(other, _)| *other == name).unwrap().1.reveal()
    }

    async fn get(&self, key: &str, path: &str) -> (u16, Value) {
        let request = self.server.client.get(self.server.url(path)).bearer_auth(self.key(key));
        answer(request.send().await.unwrap()).await
    }

    async fn delete(&self, key: &str, path: &str) -> (u16, Value) {
        let request = self.server.client.delete(self.server.url(path)).bearer_auth(self.key(key));
        answer(request.send().await.unwrap()).await
    }

    async fn post(&self, key: &str, path: &str, body: Value) -> (u16, Value) {
        let request = self.server.client.post(self.server.url(path)).bearer_auth(self.key(key)).json(&body);
        answer(request.send().await.unwrap()).await
    }
}

/// Returns the path with the query parameter `index`.
fn with_index(path: &str, index: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}index={index}")
}

#[track_caller]
fn refused((status, body): (u16, Value), param: &str) {
    let error = &body["error"];
    let got = (status, &error["code"], &error["param"]);
    assert_eq!(got, (403, &json!("insufficient_scope"), &json!(param)), "{body}");
}

/// Number of passages of the index that an answer of `/v1/index` describes.
fn passages((status, body): (u16, Value)) -> u64 {
    assert_eq!(status, 200, "{body}");
    body["passages"].as_u64().unwrap()
}

#[tokio::test]
async fn a_key_reaches_its_indexes_and_no_others() {
    let scoped = Scoped::new().await;
    let river = || json!({"query": "river", "k": 50});
    for (key, own, other) in [("second", "second", "default"), ("default", "default", "second")] {
        let count = if own == "second" { 7 } else { 6 };
        // A request that names no index means that of the key.
        for path in ["/v1/search".to_owned(), format!("/v1/search?index={own}")] {
            let (status, found) = scoped.post(key, &path, river()).await;
            assert_eq!((status, found["hits"].as_array().unwrap().len()), (200, count), "{key} {path}: {found}");
        }
        assert_eq!(passages(scoped.get(key, "/v1/index").await), count as u64);
        for path in ["", "/questions", "/nodes?q=river", "/neighbors?passage=new", "/passages/new"] {
            refused(scoped.get(key, &format!("/v1/index{}", with_index(path, other))).await, "index");
        }
        for path in ["/v1/documents", "/v1/documents/new", "/v1/snapshots"] {
            refused(scoped.get(key, &with_index(path, other)).await, "index");
        }
        refused(scoped.delete(key, &with_index("/v1/documents/new", other)).await, "index");
        refused(scoped.post(key, &with_index("/v1/snapshots/1/restore", other), json!({})).await, "index");
        for path in ["/v1/search", "/v1/documents"] {
            let body = if path == "/v1/search" { river() } else { edition(&["x"], 1) };
            refused(scoped.post(key, &format!("{path}?index={other}"), body).await, "index");
        }
        let (_, listed) = scoped.get(key, "/v1/vector_stores").await;
        let ids: Vec<&Value> = listed["data"].as_array().unwrap().iter().map(|store| &store["id"]).collect();
        assert_eq!(ids, [&json!(own)]);
        refused(scoped.get(key, &format!("/v1/vector_stores/{other}")).await, "id");
        let search = |store: &str| format!("/v1/vector_stores/{store}/search");
        assert_eq!(scoped.post(key, &search(own), json!({"query": "river"})).await.0, 200);
        refused(scoped.post(key, &search(other), json!({"query": "river"})).await, "id");
        for path in ["/retrieve", "/search"] {
            let (status, found) = scoped.post(key, path, json!({"queries": ["river"], "topk": 50})).await;
            assert_eq!((status, found["result"][0].as_array().unwrap().len()), (200, count), "{path}: {found}");
        }
        let call = json!({"name": "search", "arguments": {"query": "river", "k": 50}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call});
        let (_, told) = scoped.post(key, "/mcp", call).await;
        let hits = told["result"]["structuredContent"]["hits"].as_array().unwrap_or_else(|| panic!("{told}"));
        assert_eq!(hits.len(), count, "{told}");
        // An index that does not exist is unknown, and only the key's own are named.
        let (status, unknown) = scoped.post(key, "/v1/search?index=third", river()).await;
        let message = unknown["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(own) && !message.contains(other), "{unknown}");
    }
    let (_, listed) = scoped.get("all", "/v1/vector_stores").await;
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn episodes_search_the_indexes_of_their_key() {
    let scoped = Scoped::new().await;
    let ask = |model: &str, index: Option<&str>| {
        let mut body = json!({"question": "Which river?", "model": model});
        if let Some(index) = index {
            body["rag"] = json!({"index": index});
        }
        body
    };
    let (status, told) = scoped.post("second", "/v1/agent", ask("routerag", None)).await;
    assert_eq!((status, &told["searches"]), (200, &json!(1)), "{told}");
    refused(scoped.post("second", "/v1/agent", ask("routerag", Some("default"))).await, "rag.index");
    assert_eq!(scoped.post("second", "/v1/agent", ask("bound", None)).await.0, 200);
    refused(scoped.post("default", "/v1/agent", ask("bound", None)).await, "model");
    refused(scoped.post("second", "/v1/agent", ask("home", None)).await, "model");
    let call = json!({"name": "ask", "arguments": {"question": "Which river?", "model": "home"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call});
    let (_, told) = scoped.post("second", "/mcp", call).await;
    let text = told["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("insufficient_scope"), "{told}");
    let messages = json!([{"role": "user", "content": "Which river?"}]);
    let chat = |model: &str, index: &str| json!({"model": model, "messages": messages, "rag": {"index": index}});
    refused(scoped.post("default", "/v1/chat/completions", chat("routerag", "second")).await, "rag.index");
    let tools = json!([{"type": "file_search", "vector_store_ids": ["default"]}]);
    let body = json!({"model": "routerag", "input": "Which river?", "tools": tools});
    refused(scoped.post("second", "/v1/responses", body.clone()).await, "tools[0].vector_store_ids[0]");
    assert_eq!(scoped.post("default", "/v1/responses", body).await.0, 200);
    let rollout =
        json!({"questions": [{"question": "Which river?"}], "model": "routerag", "rag": {"index": "default"}});
    refused(scoped.post("second", "/v1/rollouts", rollout).await, "rag.index");
    // The metrics count the searches of each index separately.
    let text = scoped.server.client.get(scoped.server.url("/metrics")).bearer_auth(scoped.key("all"));
    let text = text.send().await.unwrap().text().await.unwrap();
    assert!(text.contains("waymark_searches_total{index=\"second\"} 2\n"), "{text}");
    assert!(text.contains("waymark_searches_total 1\n"), "{text}");
}

#[tokio::test]
async fn a_key_without_an_index_that_exists_answers_without_searching() {
    let scoped = Scoped::new().await;
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = |model: &str| json!({"model": model, "messages": messages});
    assert_eq!(scoped.post("missing", "/v1/chat/completions", chat("plain")).await.0, 200);
    let (_, told) = scoped.post("missing", "/v1/agent", json!({"question": "Hello", "model": "plain"})).await;
    let replay = format!("/v1/traces/{}/replay", told["id"].as_str().unwrap());
    let (status, replayed) = scoped.post("missing", &replay, json!({"mode": "forced"})).await;
    assert_eq!((status, &replayed["ids_equal"]), (200, &json!(true)), "{replayed}");
    refused(scoped.post("missing", "/v1/chat/completions", chat("routerag")).await, "rag.index");
    refused(scoped.post("missing", "/v1/search", json!({"query": "river"})).await, "index");
    for path in ["/retrieve", "/search"] {
        refused(scoped.post("missing", path, json!({"queries": ["river"]})).await, "index");
    }
    refused(scoped.post("missing", "/query", json!({"query": ["river"]})).await, "index");
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let offered = async |key: &str| {
        let (_, told) = scoped.post(key, "/mcp", list.clone()).await;
        let tools = told["result"]["tools"].as_array().unwrap().clone();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(offered("missing").await, ["ask"]);
    assert_eq!(offered("second").await, ["search", "ask"]);
}

#[tokio::test]
async fn models_do_not_name_indexes_of_other_keys() {
    let scoped = Scoped::new().await;
    for (key, bound, home) in [
        ("all", json!("second"), json!("default")),
        ("second", json!("second"), Value::Null),
        ("default", Value::Null, json!("default")),
    ] {
        for (model, index) in [("bound", bound), ("home", home)] {
            let (status, shown) = scoped.get(key, &format!("/v1/models/{model}")).await;
            assert_eq!((status, &shown["index"]), (200, &index), "{key}: {shown}");
        }
    }
}
