//! Request bodies through the whole interface: whatever is sent, the answer is what was asked for or an error object,
//! and never a status of the server's own failure.
//!
//! Input: a letter that names the route, then the body; of routes without a body, the rest of the target.

use std::sync::LazyLock;

use axum::http::{Method, StatusCode};
use serde_json::Value;
use waymark::engine::mock::Lines;

use super::house::{Answer, House};
use super::sse;

/// `a`, `b`, … in this order; new ones go to the end, or the seeds change their meaning.
const ROUTES: &[(&Method, &str)] = &[
    (&Method::POST, "/v1/agent"),
    (&Method::POST, "/v1/chat"),
    (&Method::POST, "/v1/chat/completions"),
    (&Method::POST, "/v1/search"),
    (&Method::POST, "/v1/documents"),
    (&Method::POST, "/v1/embeddings"),
    (&Method::POST, "/v1/policies"),
    (&Method::POST, "/retrieve"),
    (&Method::POST, "/search"),
    (&Method::POST, "/query"),
    (&Method::GET, "/v1/documents?"),
    (&Method::GET, "/v1/documents/"),
    (&Method::GET, "/v1/models/"),
    (&Method::DELETE, "/v1/policies/"),
    (&Method::POST, "/v1/responses"),
    (&Method::POST, "/v1/completions"),
    (&Method::POST, "/tokenize"),
    (&Method::POST, "/detokenize"),
    (&Method::GET, "/v1/responses/"),
    (&Method::GET, "/v1/traces/"),
    (&Method::POST, "/mcp"),
];

thread_local! {
    static HOUSE: LazyLock<House> = LazyLock::new(|| {
        let lines = Lines::new(["<think>Hm.</think><search> [passage] Faust </search>", "<answer>Goethe</answer>"]);
        House::new(&lines.terminator("</information>\n\n"), "Goethe wrote Faust.")
    });
}

pub fn run(data: &[u8]) {
    let Some((letter, rest)) = data.split_first() else { return };
    let (method, path) = ROUTES[usize::from(letter.wrapping_sub(b'a')) % ROUTES.len()];
    let answer = HOUSE.with(|house| match *method {
        Method::POST => house.send(method, path, rest),
        _ => house.send(method, &format!("{path}{}", String::from_utf8_lossy(rest)), b""),
    });
    if let Some(answer) = answer {
        check(&answer);
    }
}

/// What holds for every answer.
pub(super) fn check(answer: &Answer) {
    assert!(!answer.status.is_server_error(), "{}: {}", answer.status, answer.text());
    if answer.is_stream() {
        assert_eq!(answer.status, StatusCode::OK);
        for message in sse::read(&answer.body) {
            if message.data != "[DONE]" {
                let data: Value = serde_json::from_str(&message.data).expect("data is JSON");
                assert!(data["error"]["code"] != "internal_error", "{data}");
            }
        }
    } else if !answer.status.is_success() {
        let body: Value = serde_json::from_slice(&answer.body).expect("an error is JSON");
        // A message of the Model Context Protocol has it inside an error of its own.
        let error = body["error"]["data"].as_object().or(body["error"].as_object()).expect("an error object");
        assert!(["message", "type", "param", "code"].iter().all(|key| error.contains_key(*key)), "{body}");
    }
}
