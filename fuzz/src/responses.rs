//! Bodies of `POST /v1/responses`. A refused request gets an error object. An answered one has the documented form,
//! whole, streamed or in the background, and can be fetched by its ID if it is stored.
//!
//! Input: the body.

use std::sync::LazyLock;

use axum::http::{Method, StatusCode};
use serde_json::Value;
use waymark_engine::mock::Lines;

use super::request;
use super::sse::{self, Message};
use super::test_app::{Answer, TestApp};

const PATH: &str = "/v1/responses";

/// Types of the last event of a stream.
const ENDS: [&str; 2] = ["response.completed", "response.incomplete"];

thread_local! {
    static APP: LazyLock<TestApp> = LazyLock::new(|| {
        let lines = Lines::new(["<think>Hm.</think><search> [passage] Faust </search>", "<answer>Goethe wrote it</answer>"]);
        TestApp::new(&lines.terminator("</information>\n\n"), "Goethe wrote Faust.")
    });
}

pub fn run(data: &[u8]) {
    APP.with(|app| {
        let answer = app.send(&Method::POST, PATH, data).expect("a path is a URI");
        request::check(&answer);
        if !answer.status.is_success() {
            return;
        }
        let told = if answer.is_stream() { streamed(&answer) } else { json(&answer) };
        let ended = match told["status"].as_str() {
            Some("queued" | "in_progress") => streamed(&get(app, &format!("{}?stream=true", id(&told)))),
            _ => told,
        };
        kept(app, &ended);
    });
}

fn id(response: &Value) -> &str {
    response["id"].as_str().expect("a response has an id")
}

fn get(app: &TestApp, rest: &str) -> Answer {
    app.send(&Method::GET, &format!("{PATH}/{rest}"), b"").expect("an id fits into a URI")
}

fn json(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).expect("an answer is JSON")
}

/// Checks a stream and returns the response in its last event.
fn streamed(answer: &Answer) -> Value {
    assert!(answer.is_stream(), "{}: {}", answer.status, answer.text());
    let event = |Message { name, data }: Message| {
        let event: Value = serde_json::from_str(&data).expect("data is JSON");
        assert_eq!(event["type"].as_str(), name.as_deref());
        event
    };
    let events: Vec<Value> = sse::read(&answer.body).into_iter().map(event).collect();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let ends = |event: &&Value| ENDS.iter().any(|kind| event["type"] == *kind);
    let last = events.last().filter(ends).unwrap_or_else(|| panic!("no end in {}", answer.text()));
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let said: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(said, text(&last["response"]));
    last["response"].clone()
}

/// The text of a response's messages.
fn text(response: &Value) -> String {
    let items = response["output"].as_array().into_iter().flatten();
    let parts = items.filter_map(|item| item["content"].as_array()).flatten();
    parts.filter(|part| part["type"] == "output_text").filter_map(|part| part["text"].as_str()).collect()
}

/// Checks that a response can be fetched if and only if it is stored, and deletes it, so that every input finds the
/// server in the same state.
fn kept(app: &TestApp, response: &Value) {
    let found = get(app, id(response));
    if response["store"] == false {
        assert_eq!(found.status, StatusCode::NOT_FOUND, "{}", found.text());
        return;
    }
    let again = json(&found);
    for field in ["id", "status", "model", "metadata", "usage"] {
        assert_eq!(again[field], response[field], "{field}");
    }
    assert_eq!(text(&again), text(response));
    let path = format!("{PATH}/{}", id(response));
    let forgotten = app.send(&Method::DELETE, &path, b"").expect("an id fits into a URI");
    assert_eq!(forgotten.status, StatusCode::OK, "{}", forgotten.text());
}
