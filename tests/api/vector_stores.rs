//! Metadata filters, and OpenAI's search of a vector store.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waymark_agent::{Search, SearchError, SearchLimits, SearchQuery, Searcher};
use waymark_engine::mock::Lines;
use waymark_index::{BuildOptions, Condition, Corpus, Document, Evidence, LiveIndex, Mode, OpenOptions, build};

use crate::harness::{ServerPlan, TestServer, answer, evidence, says, script};
use crate::small_index::HashEmbed;

/// Builds a server over six passages about rivers, of the years 2000 to 2005.
async fn rivers() -> (tempfile::TempDir, TestServer) {
    let dir = tempfile::tempdir().unwrap();
    let document = |number: usize| {
        let metadata = json!({"year": 2000 + number, "open": number.is_multiple_of(2), "tags": ["river"]});
        let text = format!("Passage number{number} tells of a river.");
        let body = json!({"id": format!("r{number}"), "title": "", "text": text, "metadata": metadata});
        serde_json::from_value::<Document>(body).unwrap()
    };
    let corpus = Corpus::from_documents("test", (0..6).map(document).collect());
    build(corpus, &HashEmbed::default(), dir.path(), &BuildOptions::default(), &()).unwrap();
    let live = LiveIndex::open(dir.path(), Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    let searcher = Searcher::new(Arc::new(live), SearchLimits::default()).unwrap();
    let server = ServerPlan { searcher: Some(Arc::new(searcher)), ..ServerPlan::new(says("hi")) }.build().await;
    (dir, server)
}

async fn post(server: &TestServer, path: &str, body: &Value) -> (u16, Value) {
    let response = server.post(path, body).await;
    answer(response).await
}

const STORE: &str = "/v1/vector_stores/default/search";

fn ids(page: &Value) -> Vec<&str> {
    page["data"].as_array().unwrap().iter().map(|result| result["file_id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_store_is_searched_in_openais_form() {
    let (_dir, server) = rivers().await;
    let (status, page) = post(&server, STORE, &json!({"query": "number3", "max_num_results": 2})).await;
    assert_eq!(status, 200, "{page}");
    assert_eq!(
        (&page["object"], &page["search_query"]),
        (&json!("vector_store.search_results.page"), &json!(["number3"]))
    );
    assert_eq!((&page["has_more"], page.get("next_page")), (&json!(false), Some(&Value::Null)));
    let [first, _] = &page["data"].as_array().unwrap()[..] else { panic!("{page}") };
    assert_eq!((&first["file_id"], &first["filename"]), (&json!("r3"), &json!("r3")));
    assert_eq!(first["attributes"], json!({"year": 2003, "open": false}));
    assert_eq!(first["content"], json!([{"type": "text", "text": "Passage number3 tells of a river."}]));
    assert!((0.0..=1.0).contains(&first["score"].as_f64().unwrap()));
    let (status, named) =
        post(&server, "/v1/vector_stores/shelf/search", &json!({"query": "number3", "rewrite_query": false})).await;
    assert_eq!((status, ids(&named).len()), (200, 6), "ten when not given");
    let (_, both) = post(&server, STORE, &json!({"query": ["number1", "number4"]})).await;
    let mut found = ids(&both);
    found.sort_unstable();
    assert_eq!(
        (found, &both["search_query"]),
        (vec!["r0", "r1", "r2", "r3", "r4", "r5"], &json!(["number1", "number4"]))
    );
}

#[tokio::test]
async fn filters_hold_wherever_it_is_searched() {
    let (_dir, server) = rivers().await;
    let filters = json!({"type": "and", "filters": [
        {"type": "gte", "key": "year", "value": 2002}, {"type": "eq", "key": "open", "value": true},
    ]});
    let (_, page) = post(&server, STORE, &json!({"query": "number3", "filters": filters})).await;
    let mut found = ids(&page);
    found.sort_unstable();
    assert_eq!(found, ["r2", "r4"]);
    let (_, answer) = post(&server, "/v1/search", &json!({"query": "number3", "filters": filters, "k": 1})).await;
    assert_eq!(answer["hits"].as_array().unwrap().len(), 1);
    assert_eq!(answer["hits"][0]["metadata"]["open"], true);
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let (_dir, server) = rivers().await;
    for (body, code, param) in [
        (json!({}), "missing_required_parameter", "query"),
        (json!({"query": " "}), "invalid_value", "query"),
        (json!({"query": []}), "invalid_value", "query"),
        (json!({"query": ["a", ""]}), "invalid_value", "query[1]"),
        (json!({"query": vec!["a"; 9]}), "invalid_value", "query"),
        (json!({"query": "a", "max_num_results": 51}), "invalid_value", "max_num_results"),
        (json!({"query": "a", "rewrite_query": true}), "unsupported_parameter", "rewrite_query"),
        (
            json!({"query": "a", "ranking_options": {"ranker": "best"}}),
            "unsupported_parameter",
            "ranking_options.ranker",
        ),
        (json!({"query": "a", "filters": {"type": "eq", "value": 1}}), "missing_required_parameter", "filters.key"),
        (json!({"query": "a", "colour": 1}), "unknown_parameter", "colour"),
    ] {
        let (status, refused) = post(&server, STORE, &body).await;
        let error = &refused["error"];
        assert_eq!((status, &error["code"], &error["param"]), (400, &json!(code), &json!(param)), "{body}: {refused}");
    }
    let (status, refused) = post(&server, "/v1/vector_stores/vs_1/search", &json!({"query": "a"})).await;
    assert_eq!((status, &refused["error"]["code"]), (404, &json!("vector_store_not_found")));
    let bare = ServerPlan { searcher: None, ..ServerPlan::new(says("hi")) }.build().await;
    let (status, refused) = post(&bare, STORE, &json!({"query": "a"})).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("not_configured")));
}

/// Searcher that records the filter of documents, and finds one passage.
#[derive(Debug, Default)]
struct Asked(Arc<Mutex<Vec<Option<Condition>>>>);

impl Search for Asked {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        self.0.lock().unwrap().push(query.wanted.only.as_deref().cloned());
        Box::pin(async { Ok(evidence("Goethe wrote Faust.")) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

#[tokio::test]
async fn every_search_of_an_episode_is_among_what_its_request_allows() {
    let turns = ["<think>I must look.</think>\n<search>[passage] Faust</search>", "<answer> Goethe </answer>"];
    let lines = Lines::new(turns).terminator("</information>\n\n");
    let filters = json!({"type": "in", "key": "year", "value": [1808, 1832]});
    let asked = Arc::<Mutex<Vec<_>>>::default();
    let searcher = Arc::new(Asked(Arc::clone(&asked)));
    let server = ServerPlan { searcher: Some(searcher), ..ServerPlan::new(script(&lines)) }.build().await;
    let rag = json!({"filters": filters, "index": "default"});
    let tools = json!([{"type": "file_search", "filters": filters, "vector_store_ids": ["shelf"]}]);
    let messages = json!([{"role": "user", "content": "Who wrote Faust?"}]);
    for (path, body) in [
        ("/v1/agent", json!({"model": "routerag", "question": "Who wrote Faust?", "rag": rag})),
        ("/v1/chat/completions", json!({"model": "routerag", "messages": messages, "rag": rag})),
        ("/v1/responses", json!({"model": "routerag", "input": "Who wrote Faust?", "rag": rag, "store": false})),
        ("/v1/responses", json!({"model": "routerag", "input": "Who wrote Faust?", "tools": tools})),
    ] {
        let (status, answer) = post(&server, path, &body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        let expected: Condition = serde_json::from_value(filters.clone()).unwrap();
        assert_eq!(asked, [Some(expected)], "{path}");
    }
    let traces: Value = server.get("/v1/traces").await.json().await.unwrap();
    let id = traces["data"][0]["id"].as_str().unwrap();
    let trace: Value = server.get(&format!("/v1/traces/{id}")).await.json().await.unwrap();
    assert_eq!(trace["options"]["filters"], filters);
    // A free replay searches again, and must not leave the filter of the trace behind.
    let (status, replay) = post(&server, &format!("/v1/traces/{id}/replay"), &json!({"mode": "free"})).await;
    assert_eq!(status, 200, "{replay}");
    let asked = asked.lock().unwrap();
    assert!(!asked.is_empty() && asked.iter().all(Option::is_some));
}
