//! `max_tokens` and its other names: no answer counts more tokens, and none shows a part of a tag or of a thought.

use serde_json::{Value, json};
use waymark_engine::MockBackend;

use crate::golden::ask;
use crate::harness::{TestServer, chunks, joined, says, tokenizer};
use crate::responses;

const THOUGHT: &str = "<think>half a thought</think>";

/// Limits below, among and above the lengths of what a guided turn forces.
const LIMITS: [u64; 7] = [1, 8, 20, 50, 90, 150, 400];

/// Starts a server whose policies write nonsense: a guided one is held to its form by forced text.
async fn nonsense() -> TestServer {
    TestServer::new(MockBackend::random(5, tokenizer().vocab()).with_confidence(2.0)).await
}

fn searching(extra: Value) -> Value {
    let base = json!({"model": "routerag", "rag": {"guided": true}, "seed": 3, "temperature": 1.0});
    crate::harness::with_fields(base, extra)
}

#[tokio::test]
async fn a_chat_counts_no_more_tokens_than_its_client_allows() {
    let server = nonsense().await;
    let mut forced = Vec::new();
    for most in LIMITS {
        let body = ask(searching(json!({"max_completion_tokens": most})));
        let (status, whole) = server.chat(&body).await;
        assert_eq!(status, 200, "{whole}");
        let counted = whole["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(counted <= most, "{counted} of {most}: {whole}");
        let mut streaming = body;
        streaming["stream"] = json!(true);
        streaming["stream_options"] = json!({"include_usage": true});
        let all = chunks(&server.stream(&streaming).await);
        assert_eq!(all.last().unwrap()["usage"]["completion_tokens"], counted, "{most}");
        let shown = joined(&all, "content").remove(&0).unwrap_or_default();
        assert_eq!(shown, whole["choices"][0]["message"]["content"].as_str().unwrap_or_default());
        if most <= 8 {
            // Not even the opening of an answer fits.
            assert_eq!((counted, &whole["choices"][0]["finish_reason"]), (0, &json!("length")));
        }
        forced.push(counted);
    }
    assert!(forced.last() > Some(&90), "the widest limit holds a guided turn: {forced:?}");
    server.quiet().await;
}

#[tokio::test]
async fn a_response_counts_no_more_tokens_than_its_client_allows() {
    let server = nonsense().await;
    for most in LIMITS {
        let body = responses::ask(searching(json!({"max_output_tokens": most})));
        let (status, whole) = responses::create(&server, &body).await;
        assert_eq!(status, 200, "{whole}");
        let counted = whole["usage"]["output_tokens"].as_u64().unwrap();
        assert!(counted <= most, "{counted} of {most}: {whole}");
        if most <= 8 {
            assert_eq!((counted, &whole["status"]), (0, &json!("incomplete")));
            assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
        }
    }
    server.quiet().await;
}

#[tokio::test]
async fn an_agent_counts_no_more_tokens_than_its_client_allows() {
    let server = nonsense().await;
    for most in LIMITS {
        let body = searching(json!({"question": "hello", "max_tokens": most}));
        let told: Value = server.post("/v1/agent", &body).await.json().await.unwrap();
        let counted = told["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(counted <= most, "{counted} of {most}: {told}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn a_cut_answer_shows_no_part_of_a_thought() {
    let said = format!("{THOUGHT}Paris");
    let server = TestServer::new(says(&said)).await;
    for most in [1, 4, 7, 12, THOUGHT.len() - 3, THOUGHT.len(), THOUGHT.len() + 3] {
        let expected = &said[THOUGHT.len()..most.max(THOUGHT.len())];
        let (_, whole) = server.chat(&ask(json!({"max_tokens": most}))).await;
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), expected, "{most}");
        assert_eq!((&choice["finish_reason"], &whole["usage"]["completion_tokens"]), (&json!("length"), &json!(most)));
        let stream = chunks(&server.stream(&ask(json!({"max_tokens": most, "stream": true}))).await);
        assert_eq!(joined(&stream, "content").remove(&0).unwrap_or_default(), expected, "{most}");
        let (_, response) = responses::create(&server, &responses::ask(json!({"max_output_tokens": most}))).await;
        let texts = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
        let text: String = texts.filter_map(|item| item["content"][0]["text"].as_str()).collect();
        assert_eq!((text.as_str(), &response["status"]), (expected, &json!("incomplete")), "{most}");
    }
    server.quiet().await;
}
