//! Texts that cannot fit are refused by their bytes, before they are encoded, on every route.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::{Letters, ServerPlan, TestServer, says};
use crate::tools::template;

/// Longer than 32,768 tokens of one byte, than 64 KiB of a query, and than 200 tokens of an embedder.
fn long() -> String {
    "a ".repeat(40_000)
}

async fn post(server: &TestServer, path: &str, body: Value) -> (u16, Value) {
    let response = server.post(path, &body).await;
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_by_its_bytes_on_every_route() {
    let server = ServerPlan { embedder: Some(Arc::new(Letters)), template: template(), ..ServerPlan::new(says("hi")) }
        .build()
        .await;
    let text = long();
    let chat = json!([{"role": "user", "content": text}]);
    let ids = vec![97; 40_000];
    for (path, body, param) in [
        ("/tokenize", json!({"prompt": text}), "prompt"),
        ("/tokenize", json!({"messages": chat}), "messages"),
        ("/v1/completions", json!({"model": "plain", "prompt": text}), "prompt"),
        ("/v1/completions", json!({"model": "plain", "prompt": ["x", text]}), "prompt"),
        ("/v1/completions", json!({"model": "plain", "prompt": ids}), "prompt"),
        ("/v1/completions", json!({"model": "plain", "prompt": [[97], ids]}), "prompt"),
        ("/v1/chat/completions", json!({"model": "plain", "messages": chat}), "messages"),
        (
            "/v1/chat/completions",
            json!({"model": "plain", "messages": chat, "response_format": {"type": "json_object"}}),
            "messages",
        ),
        ("/v1/responses", json!({"model": "plain", "input": text}), "input"),
        ("/v1/responses", json!({"model": "plain", "input": "x", "instructions": text}), "input"),
        ("/v1/agent", json!({"model": "plain", "question": text}), "question"),
        ("/v1/embeddings", json!({"model": "letters", "input": ["x", text]}), "input[1]"),
        ("/v1/search", json!({"query": text}), "query"),
        ("/v1/vector_stores/default/search", json!({"query": ["x", text]}), "query"),
        ("/retrieve", json!({"queries": ["x", text]}), "queries[1]"),
        ("/search", json!({"queries": ["x", text]}), "queries[1]"),
        ("/query", json!({"query": ["x", text]}), "query[1]"),
    ] {
        let (status, answer) = post(&server, path, body).await;
        let error = &answer["error"];
        let refused = (status, error["code"].as_str(), error["param"].as_str());
        assert_eq!(refused, (400, Some("context_length_exceeded"), Some(param)), "{path}: {answer}");
    }
    for (tool, arguments) in [("ask", json!({"question": text})), ("search", json!({"query": text}))] {
        let params = json!({"name": tool, "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let (_, answer) = post(&server, "/mcp", call).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        let said = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(said.starts_with("context_length_exceeded: ") && said.contains("bytes"), "{said}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn a_long_name_in_the_arguments_of_a_call_counts() {
    let server = ServerPlan { template: template(), ..ServerPlan::new(says("hi")) }.build().await;
    let arguments = json!({long(): 1}).to_string();
    let function = json!({"name": "look", "arguments": arguments});
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "y"},
    ]);
    let input = json!([
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": arguments},
        {"type": "function_call_output", "call_id": "1", "output": "y"},
    ]);
    for (path, body, param) in [
        ("/tokenize", json!({"messages": messages}), "messages"),
        ("/v1/chat/completions", json!({"model": "plain", "messages": messages}), "messages"),
        ("/v1/responses", json!({"model": "plain", "input": input}), "input"),
    ] {
        let (status, answer) = post(&server, path, body).await;
        let error = &answer["error"];
        let refused = (status, error["code"].as_str(), error["param"].as_str());
        assert_eq!(refused, (400, Some("context_length_exceeded"), Some(param)), "{path}: {answer}");
        // By its bytes: the same request could be refused by its tokens, after they were made.
        assert!(error["message"].as_str().unwrap().contains("bytes"), "{path}: {answer}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn long_texts_that_exceed_the_room_together_are_all_answered() {
    let mut plan = ServerPlan::new(says("hi"));
    // Room for one text of this length at a time.
    plan.http.encoding_bytes = 1 << 20;
    let server = plan.build().await;
    let text = "a ".repeat(16_000);
    let asked = (0..8).map(|_| post(&server, "/tokenize", json!({"prompt": text})));
    for (status, answer) in futures::future::join_all(asked).await {
        assert_eq!((status, &answer["count"]), (200, &json!(32_000)));
    }
}
