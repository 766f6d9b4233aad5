//! Any text of a policy and any found passage comes out of the streams unchanged: through the engine, the scanner, JSON
//! and server-sent events. The reader shares no code with the writer.
//!
//! Input: the text. `<|` becomes `<`, because a control token would end the text.

use serde_json::{Value, json};
use waymark_agent::{Policy, SegmentKind};
use waymark_engine::mock::Lines;

use super::sse::{self, Message};
use super::test_app::TestApp;

/// Maximum length of a text in bytes. A token is a byte here.
const LONGEST: usize = 300;

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(&data[..data.len().min(LONGEST)]).replace("<|", "<");
    said(&text);
    found(&text);
}

/// Checks the streams of a policy without a protocol that writes the text.
fn said(text: &str) {
    let app = TestApp::new(&Lines::new([text]), "");
    let plain = Policy::builtin("plain").expect("it is built in").protocol;
    let wanted = |kind| -> String {
        plain.spans(text).into_iter().filter(|span| span.kind == kind).map(|span| &text[span.range]).collect()
    };
    let question = format!("Say {text}.");

    let body = json!({"model": "plain", "stream": true, "question": question});
    let events = values(&app.post("/v1/agent", &body).body);
    let deltas = |kind: &str| -> String { of_type(&events, kind).filter_map(|event| event["text"].as_str()).collect() };
    assert_eq!(events[0]["question"], question.as_str());
    assert_eq!((deltas("answer"), deltas("think")), (wanted(SegmentKind::Answer), wanted(SegmentKind::Think)));
    assert_eq!(of_type(&events, "finished").count(), 1);

    let body = json!({"model": "plain", "stream": true, "messages": [{"role": "user", "content": question}]});
    let chunks = values(&app.post("/v1/chat/completions", &body).body);
    let deltas = |key: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][key].as_str()).collect()
    };
    assert_eq!(
        (deltas("content"), deltas("reasoning_content")),
        (wanted(SegmentKind::Answer), wanted(SegmentKind::Think))
    );
    let reasons = chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"].is_string());
    assert_eq!(reasons.count(), 1);
}

/// Checks the stream of a policy whose search finds the text.
fn found(text: &str) {
    let lines = Lines::new(["<search> [passage] x </search>", "<answer>done</answer>"]);
    let app = TestApp::new(&lines.terminator("</information>\n\n"), text);
    let events = values(&app.post("/v1/agent", &json!({"model": "routerag", "stream": true, "question": "x"})).body);
    let found: Vec<_> = of_type(&events, "search_finished").collect();
    assert_eq!(found.len(), 1, "{events:?}");
    assert_eq!(found[0]["hits"][0]["passage"]["text"], text);
    let shown: String = of_type(&events, "observation").filter_map(|event| event["text"].as_str()).collect();
    for tag in ["<information>", "</information>"] {
        assert_eq!(shown.matches(tag).count(), 1, "{shown:?}");
    }
    for tag in ["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>"] {
        assert!(!shown.contains(tag), "{shown:?}");
    }
    let finished: Vec<_> = of_type(&events, "finished").collect();
    assert_eq!(finished[0]["answer"], "done");
}

fn of_type<'e>(events: &'e [Value], kind: &'e str) -> impl Iterator<Item = &'e Value> {
    events.iter().filter(move |event| event["type"] == kind)
}

/// The data of every message. A name must be the `type` of its data.
fn values(body: &[u8]) -> Vec<Value> {
    let messages = sse::read(body).into_iter().filter(|message| message.data != "[DONE]");
    let value = |Message { name, data }: Message| {
        let value: Value = serde_json::from_str(&data).expect("data is JSON");
        assert!(value["error"].is_null(), "{value}");
        if let Some(name) = name {
            assert_eq!(value["type"], name.as_str());
        }
        value
    };
    messages.map(value).collect()
}
