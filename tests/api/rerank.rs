//! `/v1/rerank`, and searches that rerank.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use waymark::keys::{ApiKeys, Scope, Secret};
use waymark_runtime::remote::RerankEndpoint;
use waymark_runtime::reranking::Reranking;
use waymark_runtime::trusted_roots::TrustedRoots;

use crate::harness::{PATIENCE, ServerPlan, TestServer, answer, eventually, key_entry, says, with_fields};
use crate::small_index;

const DOCUMENTS: [&str; 4] = ["radium", "the Mona Lisa hangs in Paris", "Mona", "the lisa of mona"];

async fn server() -> TestServer {
    ServerPlan { reranker: Some(Arc::new(Reranking::Mock)), ..ServerPlan::new(says("x")) }.build().await
}

fn request() -> Value {
    json!({"model": "words", "query": "Mona Lisa", "documents": DOCUMENTS})
}

/// Indexes and relevances of a response, in order.
fn ranked(response: &Value) -> Vec<(u64, f64)> {
    let results = response["results"].as_array().unwrap().iter();
    results.map(|result| (result["index"].as_u64().unwrap(), result["relevance_score"].as_f64().unwrap())).collect()
}

#[tokio::test]
async fn documents_are_ordered_by_relevance() {
    let server = server().await;
    let (status, whole) = answer(server.post("/v1/rerank", &request()).await).await;
    assert_eq!((status, &whole["object"], &whole["model"]), (200, &json!("list"), &json!("words")));
    // Ties keep the order of the request.
    assert_eq!(ranked(&whole), [(1, 1.0), (3, 1.0), (2, 0.5), (0, 0.0)]);
    assert!(whole["results"][0].get("document").is_none());
    // Two words of the query with each of the documents' 1 + 6 + 1 + 4.
    assert_eq!(whole["usage"], json!({"prompt_tokens": 20, "total_tokens": 20}));

    let objects: Vec<Value> = DOCUMENTS.iter().map(|text| json!({ "text": text })).collect();
    let asked = with_fields(request(), json!({"documents": objects, "top_n": 2, "return_documents": true}));
    let (_, best) = answer(server.post("/v1/rerank", &asked).await).await;
    assert_eq!(ranked(&best), [(1, 1.0), (3, 1.0)]);
    assert_eq!(best["results"][1]["document"], json!({"text": DOCUMENTS[3]}));

    let models: Value = server.get("/v1/models/words").await.json().await.unwrap();
    assert_eq!((&models["protocol"], &models["parent"]), (&json!("rerank"), &json!("mock")));
}

#[tokio::test]
async fn scores_do_not_depend_on_the_chunks_of_a_request() {
    let server = server().await;
    let many: Vec<&str> = DOCUMENTS.iter().copied().cycle().take(101).collect();
    let asked = with_fields(request(), json!({"documents": many}));
    let (status, whole) = answer(server.post("/v1/rerank", &asked).await).await;
    assert_eq!(status, 200);
    let found = ranked(&whole);
    assert_eq!(found.len(), 101);
    for (index, relevance) in found {
        assert_eq!(relevance, [0.0, 1.0, 0.5, 1.0][index as usize % 4], "{index}");
    }
}

#[tokio::test]
async fn what_cannot_be_reranked_is_refused_by_name() {
    let server = server().await;
    let long = "x".repeat((64 << 10) + 1);
    for (change, status, param) in [
        (json!({"model": "letters"}), 404, "model"),
        (json!({"query": " "}), 400, "query"),
        (json!({"query": long}), 400, "query"),
        (json!({"documents": []}), 400, "documents"),
        (json!({"documents": vec!["a"; 1001]}), 400, "documents"),
        (json!({"documents": ["a", long]}), 400, "documents[1]"),
        (json!({"documents": ["a", 3]}), 400, "documents[1]"),
        (json!({"top_n": 0}), 400, "top_n"),
        (json!({"max_chunks_per_doc": 3}), 400, "max_chunks_per_doc"),
    ] {
        let (found, body) = answer(server.post("/v1/rerank", &with_fields(request(), change)).await).await;
        assert_eq!((found, &body["error"]["param"]), (status, &json!(param)), "{body}");
    }
    let bare = TestServer::new(says("x")).await;
    let (status, body) = answer(bare.post("/v1/rerank", &request()).await).await;
    assert_eq!((status, &body["error"]["code"]), (400, &json!("not_configured")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("--reranker"), "{body}");
}

#[tokio::test]
async fn a_key_must_allow_inference() {
    let secrets = [Scope::Infer, Scope::Index].map(|scope| (scope, Secret::generate()));
    let entry = |(scope, secret): &(Scope, Secret)| key_entry(scope.name(), secret, &[*scope]);
    let keys = ApiKeys::open(None, secrets.iter().map(entry).collect()).unwrap();
    let plan = ServerPlan { reranker: Some(Arc::new(Reranking::Mock)), keys, ..ServerPlan::new(says("x")) };
    let server = plan.build().await;
    let [(_, infer), (_, index)] = &secrets;
    for (key, status) in [(None, 401), (Some(index), 403), (Some(infer), 200)] {
        let mut asked = server.client.post(server.url("/v1/rerank")).json(&request());
        if let Some(key) = key {
            asked = asked.bearer_auth(key.reveal());
        }
        assert_eq!(asked.send().await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn another_server_is_a_reranker_too() {
    let there = server().await;
    let url = there.url("/v1/rerank");
    let endpoint = RerankEndpoint::new(&url, Some("words".into()), None, PATIENCE, TrustedRoots::default()).unwrap();
    let reranker = Some(Arc::new(Reranking::Endpoint(Box::new(endpoint))));
    let here = ServerPlan { reranker, ..ServerPlan::new(says("x")) }.build().await;
    let (status, whole) = answer(here.post("/v1/rerank", &request()).await).await;
    assert_eq!((status, ranked(&whole)), (200, vec![(1, 1.0), (3, 1.0), (2, 0.5), (0, 0.0)]));
    assert!(whole.get("usage").is_none(), "only the endpoint knows it");
}

#[tokio::test]
async fn a_slow_reply_of_an_endpoint_holds_up_no_other_request() {
    let entered = Arc::new(AtomicBool::new(false));
    let release = Arc::new(Notify::new());
    let shared = (Arc::clone(&entered), Arc::clone(&release));
    let reply = move |axum::Json(asked): axum::Json<Value>| {
        let (entered, release) = shared.clone();
        async move {
            if asked["query"] == "slow" {
                entered.store(true, SeqCst);
                release.notified().await;
            }
            axum::Json(json!({"results": [{"index": 0, "relevance_score": 0.5}]}))
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/rerank", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/v1/rerank", axum::routing::post(reply));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let endpoint = RerankEndpoint::new(&url, Some("words".into()), None, PATIENCE, TrustedRoots::default()).unwrap();
    let reranker = Some(Arc::new(Reranking::Endpoint(Box::new(endpoint))));
    let here = ServerPlan { reranker, ..ServerPlan::new(says("x")) }.build().await;
    let ask = async |query: &str| {
        let asked = json!({"model": "words", "query": query, "documents": ["a"]});
        answer(here.post("/v1/rerank", &asked).await).await
    };
    let other = async {
        eventually("the endpoint has the first request", || entered.load(SeqCst)).await;
        let found = ask("fast").await;
        release.notify_one();
        found
    };
    let (slow, fast) = tokio::join!(ask("slow"), other);
    for (status, found) in [slow, fast] {
        assert_eq!((status, ranked(&found)), (200, vec![(0, 0.5)]), "{found}");
    }
}

#[tokio::test]
async fn a_reranker_that_is_away_is_told_from_a_bug() {
    let url = "http://127.0.0.1:9/v1/rerank";
    let endpoint = RerankEndpoint::new(url, Some("words".into()), None, PATIENCE, TrustedRoots::default()).unwrap();
    let reranker = Some(Arc::new(Reranking::Endpoint(Box::new(endpoint))));
    let here = ServerPlan { reranker, ..ServerPlan::new(says("x")) }.build().await;
    let away = here.post("/v1/rerank", &request()).await;
    assert_eq!((away.status().as_u16(), &away.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert!(!away.headers().contains_key("x-should-retry"));
    let (_, told) = answer(away).await;
    assert_eq!(told["error"]["code"], json!("reranker_unavailable"), "{told}");
    assert!(told["error"]["message"].as_str().unwrap().contains(url), "{told}");
}

#[tokio::test]
async fn searches_rerank_where_a_reranker_is_loaded() {
    let (_dir, index) = small_index::index();
    let index = index.with_reranker(Arc::new(Reranking::Mock));
    let plan = ServerPlan { searcher: Some(Arc::new(small_index::searcher(index, 8))), ..ServerPlan::new(says("x")) };
    let server = plan.build().await;
    let query = "river through London";
    for mode in ["passage", "graph", "hybrid"] {
        let asked = json!({"query": query, "mode": mode, "k": 2, "rerank": true, "rerank_cutoff": 0.5});
        let (status, found) = answer(server.post("/v1/search", &asked).await).await;
        assert_eq!(status, 200, "{found}");
        let hits = found["hits"].as_array().unwrap();
        assert_eq!(hits.len(), 1, "the others share no word: {found}");
        assert_eq!((&hits[0]["passage"]["id"], &hits[0]["score"]), (&json!("thames"), &json!(1.0)));
        assert_eq!(hits[0]["path"]["rerank"]["relevance"], 1.0);
        assert!(hits[0]["path"]["rerank"]["rank"].as_u64().unwrap() >= 1);
    }
    let asked = json!({"query": query, "rerank": true, "rerank_depth": 201});
    let (status, refused) = answer(server.post("/v1/search", &asked).await).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("rerank_depth")), "{refused}");
    let asked = json!({"query": query, "rerank": true, "mode": "triples"});
    let (status, refused) = answer(server.post("/v1/search", &asked).await).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("rerank")), "{refused}");
}

#[tokio::test]
async fn without_a_reranker_the_option_is_refused_with_what_to_do() {
    let (_dir, index) = small_index::index();
    let plan = ServerPlan { searcher: Some(Arc::new(small_index::searcher(index, 8))), ..ServerPlan::new(says("x")) };
    let server = plan.build().await;
    let asked = json!({"query": "river", "rerank": true});
    let (status, refused) = answer(server.post("/v1/search", &asked).await).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("rerank")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("--reranker"), "{refused}");
    let asked = json!({
        "model": "routerag", "messages": [{"role": "user", "content": "Where is the Thames?"}], "rag": {"rerank": true},
    });
    let (status, refused) = server.chat(&asked).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("rag.rerank")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("--reranker"), "{refused}");
}
