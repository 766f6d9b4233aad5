//! Request bodies through the whole interface: whatever is sent, the answer is what was asked for or an error object,
//! and never a status of the server's own failure.
//!
//! Input: a letter that names the route, then the body; of routes without a body, the rest of the target.

use std::cell::RefCell;

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use waymark_engine::mock::Lines;

use super::sse;
use super::test_app::{Answer, TestApp};

/// `a`, `b`, …, `z`, `{`, `|`, … (byte by byte) in this order; new ones go to the end, or the seeds change their meaning.
pub const ROUTES: &[(&Method, &str)] = &[
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
    (&Method::POST, "/v1/traces/{id}/replay"),
    (&Method::DELETE, "/v1/documents/"),
    (&Method::GET, "/v1/commits/"),
    (&Method::POST, "/v1/vector_stores/{id}/search"),
    (&Method::POST, "/inference/v1/generate"),
    (&Method::POST, "/v1/conversations"),
    (&Method::POST, "/v1/conversations/{id}"),
    (&Method::POST, "/v1/conversations/{id}/items"),
    (&Method::POST, "/v1/keys"),
    (&Method::POST, "/v1/rollouts"),
    (&Method::POST, "/v1/rerank"),
    (&Method::POST, "/v1/responses/input_tokens"),
    (&Method::POST, "/v1/files"),
    (&Method::POST, "/v1/vector_stores"),
    (&Method::POST, "/v1/vector_stores/{id}"),
    (&Method::POST, "/v1/vector_stores/{id}/files"),
    (&Method::POST, "/v1/vector_stores/{id}/files/{file_id}"),
    (&Method::POST, "/v1/vector_stores/{id}/file_batches"),
];

/// Media type of uploads.
const FORM: &str = "multipart/form-data; boundary=fuzz";

thread_local! {
    static APP: RefCell<TestApp> = RefCell::new(app());
}

fn app() -> TestApp {
    let lines = Lines::new(["<think>Hm.</think><search> [passage] Faust </search>", "<answer>Goethe</answer>"]);
    TestApp::whole(&lines.terminator("</information>\n\n"))
}

pub fn run(data: &[u8]) {
    answered(data);
}

/// Sends an input and checks the answer. Returns its status and text, or `None` if there was nothing to send.
pub fn answered(data: &[u8]) -> Option<(StatusCode, String)> {
    let (letter, rest) = data.split_first()?;
    let (method, path) = ROUTES[usize::from(letter.wrapping_sub(b'a')) % ROUTES.len()];
    APP.with_borrow_mut(|kept| {
        let answer = match *method {
            Method::POST if path == "/v1/files" => kept.send_as(FORM, method, path, rest),
            Method::POST if path.ends_with("/search") => kept.send(method, &path.replace("{id}", "default"), rest),
            Method::POST if path.starts_with("/v1/vector_stores/") => {
                let (store, file) = vector_store(kept);
                kept.send(method, &path.replace("{id}", &store).replace("{file_id}", &file), rest)
            }
            Method::POST if path.starts_with("/v1/conversations/") => {
                kept.send(method, &path.replace("{id}", &conversation(kept)), rest)
            }
            Method::POST if path.contains("{id}") => kept.send(method, &path.replace("{id}", &trace(kept)), rest),
            Method::POST => kept.send(method, path, rest),
            _ => kept.send(method, &format!("{path}{}", String::from_utf8_lossy(rest)), b""),
        }?;
        check(&answer);
        // Every input must find a server in the same state.
        let changes =
            ["/v1/documents", "/v1/policies", "/v1/keys", "/v1/conversations", "/v1/files", "/v1/vector_stores"]
                .iter()
                .any(|changed| path.starts_with(changed));
        if changes && !path.ends_with("/search") && *method != Method::GET && answer.status.is_success() {
            *kept = app();
        }
        Some((answer.status, answer.text()))
    })
}

/// Plays an episode and returns the ID of its trace. Traces of earlier episodes may have been evicted.
fn trace(app: &TestApp) -> String {
    let answer = app.post("/v1/agent", &json!({"question": "Who wrote Faust?", "model": "routerag"}));
    let episode: Value = serde_json::from_slice(&answer.body).expect("an episode is JSON");
    episode["id"].as_str().expect("an episode has an id").to_owned()
}

/// The ids of a vector store and of its file.
fn vector_store(app: &TestApp) -> (String, String) {
    let id = |answer: Answer| {
        let created: Value = serde_json::from_slice(&answer.body).expect("what was made is JSON");
        created["id"].as_str().expect("it has an id").to_owned()
    };
    let form = "--fuzz\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n--fuzz\r\n\
                content-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nGoethe wrote Faust.\r\n--fuzz--\r\n";
    let uploaded = app.send_as(FORM, &Method::POST, "/v1/files", form.as_bytes()).expect("a path is a URI");
    let file = id(uploaded);
    (id(app.post("/v1/vector_stores", &json!({"file_ids": [file]}))), file)
}

/// The id of an empty conversation.
fn conversation(app: &TestApp) -> String {
    let answer = app.post("/v1/conversations", &json!({}));
    let created: Value = serde_json::from_slice(&answer.body).expect("a conversation is JSON");
    created["id"].as_str().expect("a conversation has an id").to_owned()
}

/// Checks the promises about every answer.
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
        // An error of the Model Context Protocol has the error object in its `data`.
        let error = body["error"]["data"].as_object().or(body["error"].as_object()).expect("an error object");
        assert!(["message", "type", "param", "code"].iter().all(|key| error.contains_key(*key)), "{body}");
    }
}
