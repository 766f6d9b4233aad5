//! Counting and limiting searches.

use serde_json::{Value, json};

use crate::golden::{ask, loops};
use crate::harness::{TestServer, chunks, script, with_fields};

fn question(extra: Value) -> Value {
    with_fields(json!({"question": "Who wrote Faust?", "model": "routerag"}), extra)
}

async fn agent(server: &TestServer, extra: Value) -> Value {
    server.post("/v1/agent", &question(extra)).await.json().await.unwrap()
}

fn told<'a>(answer: &'a Value, kind: &str) -> Vec<&'a Value> {
    answer["trace"].as_array().unwrap().iter().filter(|event| event["type"] == kind).collect()
}

#[tokio::test]
async fn an_answer_tells_its_searches_and_their_time() {
    let server = TestServer::new(script(&loops())).await;
    let answer = agent(&server, json!({})).await;
    let usage = &answer["usage"];
    let search = told(&answer, "search_finished")[0];
    assert_eq!((&usage["searches"], &usage["search_ms"]), (&json!(1), &search["milliseconds"]), "{answer}");
    assert!(usage["search_ms"].as_f64().unwrap() > 0.0);

    // The searches of all answers are added up.
    let (_, whole) = server.chat(&ask(json!({"model": "routerag", "n": 2}))).await;
    assert_eq!(whole["usage"]["searches"], 2);
    assert!(whole["usage"]["search_ms"].as_f64().unwrap() > 0.0);
    let body = ask(json!({"model": "routerag", "stream": true, "stream_options": {"include_usage": true}}));
    let streamed = chunks(&server.stream(&body).await);
    let usage = &streamed.last().unwrap()["usage"];
    assert!(usage["searches"] == 1 && usage["search_ms"].as_f64().unwrap() > 0.0, "{usage}");
    let (_, plain) = server.chat(&ask(json!({}))).await;
    assert_eq!((&plain["usage"]["searches"], &plain["usage"]["search_ms"]), (&json!(0), &json!(0.0)));
}

#[tokio::test]
async fn a_request_bounds_searches_and_evidence() {
    let server = TestServer::new(script(&loops())).await;
    // The first turn has no action and gets an error message of about 200 tokens; the second turn searches.
    for (budget, kind, searches) in [
        (json!({"searches": 0}), "searches", 0),
        (json!({"environment_tokens": 20}), "environment_tokens", 0),
        (json!({"environment_tokens": 250}), "environment_tokens", 1),
    ] {
        let answer = agent(&server, json!({"rag": {"budget": budget}})).await;
        let usage = &answer["usage"];
        assert_eq!(
            (&usage["searches"], told(&answer, "search_started").len()),
            (&json!(searches), searches),
            "{answer}"
        );
        assert!(told(&answer, "budget").iter().any(|event| event["kind"] == kind), "{answer}");
        let most = budget["environment_tokens"].as_u64().unwrap_or(u64::MAX);
        assert!(usage["environment_tokens"].as_u64().unwrap() <= most, "{answer}");
        // The stored trace contains the requested options.
        let kept: Value =
            server.get(&format!("/v1/traces/{}", answer["id"].as_str().unwrap())).await.json().await.unwrap();
        for field in ["searches", "environment_tokens"] {
            assert_eq!(kept["options"][field], budget[field], "{field}");
        }
    }
}
