//! Several indexes in one server: requests and policies choose between them.

use serde_json::{Value, json};
use waymark::keys::ApiKeys;
use waymark_agent::Policy;
use waymark_engine::mock::Lines;

use crate::documents::{edition, plan};
use crate::harness::{ServerPlan, TestServer, answer, script, with_fields};

/// Builds a server with two equal indexes, `default` and `second`, and the policies `routerag`, `bound`, which
/// searches the second one, and `home`, which searches the default one. Returns it with the directories of the indexes.
async fn test_server() -> ([tempfile::TempDir; 2], TestServer) {
    server_with(ApiKeys::default()).await
}

/// Same as [`test_server`], with these keys.
pub async fn server_with(keys: ApiKeys) -> ([tempfile::TempDir; 2], TestServer) {
    let lines = Lines::new(["<think>a</think><search>[passage] river</search>", "<answer> c </answer>"])
        .terminator("</information>\n\n");
    let (first, _, default) = plan(true);
    let (second, _, other) = plan(true);
    let others = vec![("second".to_owned(), other.searcher.unwrap(), other.library.unwrap())];
    let mut plan = ServerPlan {
        others,
        keys,
        searcher: default.searcher,
        library: default.library,
        ..ServerPlan::new(script(&lines))
    };
    let bound = Policy { name: "bound".into(), index: Some("second".into()), ..Policy::builtin("routerag").unwrap() };
    // Requests to `lost` are refused, because the server has no index `third`.
    let lost = Policy { name: "lost".into(), index: Some("third".into()), ..Policy::builtin("routerag").unwrap() };
    let home = Policy { name: "home".into(), index: Some("default".into()), ..Policy::builtin("routerag").unwrap() };
    plan.policies.extend([bound, lost, home]);
    ([first, second], plan.build().await)
}

async fn send(server: &TestServer, path: &str, body: Value) -> (u16, Value) {
    answer(server.post(path, &body).await).await
}

/// Returns the snapshot that an answer's first search has seen.
async fn snapshot(server: &TestServer, extra: Value) -> u64 {
    let body = with_fields(json!({"question": "Which river?", "model": "routerag"}), extra);
    let (status, response) = send(server, "/v1/agent", body).await;
    assert_eq!(status, 200, "{response}");
    let (_, trace) = answer(server.get(&format!("/v1/traces/{}", response["id"].as_str().unwrap())).await).await;
    trace["searches"][0]["snapshot"].as_u64().unwrap()
}

#[tokio::test]
async fn each_index_has_its_own_documents_and_searches() {
    let (_dirs, server) = test_server().await;
    let (_, before) = answer(server.get("/v1/index").await).await;
    let (status, made) = send(&server, "/v1/documents?index=second", edition(&["new"], 2)).await;
    assert_eq!((status, &made["added"]), (200, &json!(1)), "{made}");
    assert_eq!(server.get("/v1/documents/new?index=second").await.status(), 200);
    assert_eq!(server.get("/v1/documents/new").await.status(), 404);
    let (_, listed) = answer(server.get("/v1/documents?index=second&limit=100").await).await;
    assert_eq!(listed["data"].as_array().unwrap().len(), 7);
    assert_eq!(answer(server.get("/v1/index").await).await.1, before);
    let (_, second) = answer(server.get("/v1/index?index=second").await).await;
    assert_eq!((&second["names"], &second["passages"]), (&json!(["second"]), &json!(7)));

    // The snapshots tell the indexes apart.
    let first = before["snapshot"].as_u64().unwrap();
    let other = second["snapshot"].as_u64().unwrap();
    assert_ne!(first, other);
    assert_eq!(snapshot(&server, json!({})).await, first);
    assert_eq!(snapshot(&server, json!({"rag": {"index": "second"}})).await, other);
    assert_eq!(snapshot(&server, json!({"model": "bound"})).await, other);
    assert_eq!(snapshot(&server, json!({"model": "bound", "rag": {"index": "default"}})).await, first);
    for (store, passages) in [("default", 6), ("second", 7)] {
        let body = json!({"query": "river", "max_num_results": 50});
        let (status, found) = send(&server, &format!("/v1/vector_stores/{store}/search"), body).await;
        assert_eq!((status, found["data"].as_array().unwrap().len()), (200, passages), "{store}");
    }
    let metrics = server.metrics().await;
    assert!(metrics.contains("waymark_index_passages 6\n"), "{metrics}");
    assert!(metrics.contains("waymark_index_passages{index=\"second\"} 7\n"), "{metrics}");
    assert!(metrics.contains("waymark_index_commits_total{index=\"second\"} 1\n"), "{metrics}");
    assert!(metrics.contains("waymark_searches_total 2\n"), "{metrics}");
    assert!(metrics.contains("waymark_searches_total{index=\"second\"} 2\n"), "{metrics}");
    assert!(metrics.contains("waymark_client_searches_total{index=\"second\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_misspelled_index_is_refused() {
    let (_dirs, server) = test_server().await;
    let (_, before) = answer(server.get("/v1/index").await).await;
    for (method, path, body) in [
        ("POST", "/v1/documents", edition(&["new"], 2)),
        ("DELETE", "/v1/documents/a", Value::Null),
        ("GET", "/v1/documents/a", Value::Null),
        ("GET", "/v1/documents", Value::Null),
        ("GET", "/v1/snapshots", Value::Null),
        ("POST", "/v1/snapshots/1/restore", json!({})),
        ("POST", "/v1/search", json!({"query": "river"})),
        ("GET", "/v1/index", Value::Null),
    ] {
        for query in ["idx=other", "index=second&idx=other", "idx=other&index=second"] {
            let request = server.client.request(method.parse().unwrap(), server.url(&format!("{path}?{query}")));
            let request = if body.is_null() { request } else { request.json(&body) };
            let (status, refused) = answer(request.send().await.unwrap()).await;
            let error = &refused["error"];
            let got = (status, &error["code"], &error["param"]);
            let expected = (400, &json!("unknown_parameter"), &json!("idx"));
            assert_eq!(got, expected, "{method} {path}?{query}: {refused}");
        }
    }
    assert_eq!(answer(server.get("/v1/index").await).await.1, before);
    assert_eq!(server.get("/v1/documents/a?index=second").await.status(), 200);
}

#[tokio::test]
async fn a_tool_chooses_an_index_and_its_replay_finds_it_again() {
    let (_dirs, server) = test_server().await;
    send(&server, "/v1/documents?index=second", edition(&["new"], 2)).await;
    let tools = |stores: Value| json!([{"type": "file_search", "vector_store_ids": stores}]);
    let body = json!({"model": "routerag", "input": "Which river?", "tools": tools(json!(["second"]))});
    let (status, response) = send(&server, "/v1/responses", body).await;
    assert_eq!((status, &response["tools"][0]["vector_store_ids"]), (200, &json!(["second"])), "{response}");
    let replay = format!("/v1/traces/{}/replay", response["id"].as_str().unwrap());
    let (status, replay) = send(&server, &replay, json!({"mode": "free"})).await;
    assert_eq!((status, &replay["ids_equal"]), (200, &json!(true)), "{replay}");

    for (extra, param) in [
        (json!({"tools": tools(json!(["second", "default"]))}), "tools[0].vector_store_ids[1]"),
        (json!({"tools": tools(json!(["third"]))}), "tools[0].vector_store_ids[0]"),
        (json!({"tools": tools(json!(["second"])), "rag": {"index": "default"}}), "rag.index"),
        (json!({"rag": {"index": "third"}}), "rag.index"),
        (json!({"model": "lost"}), "model"),
    ] {
        let body = with_fields(json!({"model": "routerag", "input": "Which river?"}), extra);
        let (status, refused) = send(&server, "/v1/responses", body).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    for path in ["/v1/documents?index=third", "/v1/index?index=third", "/v1/snapshots?index=third"] {
        let (status, refused) = answer(server.get(path).await).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!("index")), "{path}");
    }
}

#[tokio::test]
async fn a_model_names_the_index_of_its_policy() {
    let (_dirs, server) = test_server().await;
    let (_, list) = answer(server.get("/v1/models").await).await;
    let named = |model: &Value| (model["id"].as_str().unwrap().to_owned(), model["index"].clone());
    let models: Vec<_> = list["data"].as_array().unwrap().iter().map(named).collect();
    for (id, index) in [("routerag", Value::Null), ("bound", json!("second")), ("home", json!("default"))] {
        assert!(models.contains(&(id.to_owned(), index)), "{id}: {list}");
    }
    let (_, bound) = answer(server.get("/v1/models/bound").await).await;
    assert_eq!(bound["index"], "second");
}
