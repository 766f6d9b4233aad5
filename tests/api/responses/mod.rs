//! `/v1/responses` over HTTP.

mod background;
mod context;
mod conversation;
mod functions;
mod golden;
mod owner;
mod refusals;
mod searches;

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_engine::mock::Lines;
use waymark_index::{Evidence, Hit, HitPath, HitRank, Mode, Passage};

use crate::harness::{TestServer, with_fields};

/// Builds a request with a question and `extra`.
pub fn ask(extra: Value) -> Value {
    with_fields(json!({"model": "plain", "input": "hello"}), extra)
}

/// Sends a request and returns its JSON response.
pub async fn create(server: &TestServer, body: &Value) -> (u16, Value) {
    let response = server.post("/v1/responses", body).await;
    crate::harness::answer(response).await
}

/// Fetches the response with this ID.
pub async fn fetch(server: &TestServer, id: &Value, query: &str) -> (u16, Value) {
    let response = server.get(&format!("/v1/responses/{}{query}", id.as_str().unwrap())).await;
    crate::harness::answer(response).await
}

/// Returns the events of a stream, after checking the rules that hold for all streams.
pub fn events(stream: &str) -> Vec<Value> {
    // Comments keep the connection alive and are no events.
    let messages = stream.split_terminator("\n\n").filter(|message| !message.starts_with(':'));
    let events: Vec<Value> = messages
        .map(|message| {
            let (name, data) = message.split_once('\n').unwrap_or_else(|| panic!("no name: {message:?}"));
            let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), event["type"].as_str());
            event
        })
        .collect();
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    events
}

/// Returns the types of events, with repetitions removed.
pub fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds.iter().map(|kind| kind.strip_prefix("response.").unwrap_or(kind)).collect()
}

/// Returns the text of the answer.
pub fn answer(response: &Value) -> &str {
    let items = response["output"].as_array().unwrap();
    items.iter().find(|item| item["type"] == "message").map_or("", |item| item["content"][0]["text"].as_str().unwrap())
}

/// Script with two searches, and an answer that rests on both.
pub fn two_searches() -> Lines {
    Lines::new([
        "<think>First Faust.</think>\n<search>[passage] Faust</search>",
        "<think>Then Tell.</think>\n<search>[passage] Tell</search>",
        "<think>Done.</think>\n<answer> Goethe wrote Faust. Schiller wrote Tell. </answer>",
    ])
    .terminator("</information>\n\n")
}

/// Searcher over two plays and a distractor, matched by words. Records the requested numbers of passages.
#[derive(Debug, Default)]
pub struct Plays(pub Arc<Mutex<Vec<usize>>>);

impl Search for Plays {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        self.0.lock().unwrap().push(query.wanted.k);
        let hit = |rank: usize, id: &str, title: &str, text: &str| {
            let score = 0.5 / rank as f32;
            let passage = Passage { id: id.into(), title: title.into(), text: text.into() };
            let path = HitPath { dense: Some(HitRank { rank, score }), ..HitPath::default() };
            Hit { rank, score, passage, metadata: None, path }
        };
        let play = match query.wanted.text.as_str() {
            "Faust" => hit(1, "p1", "Faust", "Faust is a tragedy. Goethe wrote it."),
            _ => hit(1, "p2", "Wilhelm Tell", "Schiller wrote Tell in 1804."),
        };
        let other = hit(2, "p3", "Weimar", "Goethe and Schiller lived in Weimar.");
        Box::pin(async move { Ok(Evidence::of(3, Mode::Passage, vec![play, other])) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

/// Searcher that never returns.
#[derive(Debug)]
pub struct Never;

impl Search for Never {
    fn search(&self, _: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(std::future::pending())
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}
