//! Transcripts, compared with `golden/responses_*.txt`; see `crate::golden`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Never, Plays, answer, ask, create, events, fetch, kinds, two_searches};
use crate::golden::golden;
use crate::harness::{ServerPlan, TestServer, eventually, says, script};

/// Removes everything that differs between runs from JSON: IDs keep only their kind and the number of their item.
fn steady(mut value: Value) -> Value {
    fn name(id: &str) -> String {
        let (kind, tail) = id.split_once('_').unwrap();
        format!("{kind}_{}", &tail[tail.len().min(32)..])
    }
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields.iter_mut() {
                    match field.as_str() {
                        "created_at" | "search_ms" | "cached_tokens" => *value = json!(0),
                        "completed_at" if value.is_u64() => *value = json!(0),
                        "id" | "item_id" if value.as_str().is_some_and(|id| id.contains('_')) => {
                            *value = json!(name(value.as_str().unwrap()));
                        }
                        _ => walk(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut value);
    value
}

fn transcript(stream: &str) -> String {
    let mut text = String::new();
    for event in events(stream) {
        writeln!(text, "{}", steady(event)).unwrap();
    }
    text
}

async fn streamed(server: &TestServer, body: &Value) -> String {
    let response = server.post("/v1/responses", body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    response.text().await.unwrap()
}

#[tokio::test]
async fn two_searches_and_two_citations() {
    let server = ServerPlan { searcher: Some(Arc::new(Plays::default())), ..ServerPlan::new(script(&two_searches())) }
        .build()
        .await;
    let mut body = ask(json!({"model": "routerag", "include": ["file_search_call.results"], "stream": true}));
    let stream = streamed(&server, &body).await;
    golden("responses_two_searches", &transcript(&stream));
    let reasoning = [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ];
    let search = [
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
    ];
    let message = [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.annotation.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ];
    let order = [&["created", "in_progress"], &reasoning[..], &search, &reasoning, &search, &reasoning, &message];
    let all = events(&stream);
    assert_eq!(kinds(&all), [order.concat(), vec!["completed"]].concat());

    body["stream"] = json!(false);
    let (status, whole) = create(&server, &body).await;
    let last = &all.last().unwrap()["response"];
    assert_eq!((status, steady(whole.clone())), (200, steady(last.clone())));
    assert_eq!(answer(&whole), "Goethe wrote Faust. Schiller wrote Tell.");
    assert_eq!(
        whole["output"][5]["content"][0]["annotations"],
        json!([
            {"type": "file_citation", "file_id": "p1", "filename": "Faust", "index": 19},
            {"type": "file_citation", "file_id": "p2", "filename": "Wilhelm Tell", "index": 40},
        ])
    );
}

#[tokio::test]
async fn incomplete_by_length() {
    let server = TestServer::new(says("abcdefgh")).await;
    let stream = streamed(&server, &ask(json!({"max_output_tokens": 3, "stream": true}))).await;
    golden("responses_incomplete", &transcript(&stream));
    let (_, whole) = create(&server, &ask(json!({"max_output_tokens": 3}))).await;
    assert_eq!((&whole["status"], answer(&whole)), (&json!("incomplete"), "abc"));
    assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
}

#[tokio::test]
async fn failed_in_the_middle() {
    // Slow enough for the stream to have begun before the fault.
    let backend = says("abcdefgh").with_time(Duration::from_millis(150), Duration::ZERO);
    backend.faults().nan_on(crate::harness::tokenizer().id("d").unwrap_or(u32::from(b'd')));
    let server = TestServer::new(backend).await;
    let stream = streamed(&server, &ask(json!({"stream": true}))).await;
    golden("responses_failed", &transcript(&stream));
    let last = events(&stream).pop().unwrap();
    assert_eq!(fetch(&server, &last["response"]["id"], "").await, (200, last["response"].clone()));
    let (status, whole) = create(&server, &ask(json!({}))).await;
    assert_eq!((status, &whole["error"]["code"]), (500, &json!("internal_error")));
    server.quiet().await;
}

#[tokio::test]
async fn cancelled_in_the_background() {
    let plan = ServerPlan { searcher: Some(Arc::new(Never)), ..ServerPlan::new(script(&two_searches())) };
    let server = plan.build().await;
    let (status, queued) = create(&server, &ask(json!({"model": "routerag", "background": true}))).await;
    assert_eq!(status, 200);
    let id = &queued["id"];
    let mut text = format!("{:#}\n", steady(queued.clone()));
    let counters = server.state.runtime.engine.counters();
    eventually("it searches", || counters.sessions_parked.get() == 1).await;
    let (_, searching) = fetch(&server, id, "").await;
    writeln!(text, "{:#}", steady(searching)).unwrap();
    let cancelled = server.post(&format!("/v1/responses/{}/cancel", id.as_str().unwrap()), &json!({})).await;
    assert_eq!(cancelled.status(), 200);
    let cancelled: Value = cancelled.json().await.unwrap();
    writeln!(text, "{:#}", steady(cancelled.clone())).unwrap();
    assert_eq!(fetch(&server, id, "").await, (200, cancelled));
    let stream = server.get(&format!("/v1/responses/{}?stream=true", id.as_str().unwrap())).await;
    text += &transcript(&stream.text().await.unwrap());
    golden("responses_background_cancel", &text);
    server.quiet().await;
}

#[tokio::test]
async fn steps_are_shown_on_request() {
    let server = ServerPlan { searcher: Some(Arc::new(Plays::default())), ..ServerPlan::new(script(&two_searches())) }
        .build()
        .await;
    let body = ask(json!({"model": "routerag", "rag": {"trace": true}, "stream": true}));
    let all = events(&streamed(&server, &body).await);
    let steps: Vec<&Value> = all.iter().filter(|event| event["type"] == "response.rag.step").collect();
    let steps: Vec<&Value> = steps.into_iter().map(|event| &event["step"]).collect();
    assert_eq!(all.last().unwrap()["response"]["rag"]["trace"], json!(steps));
    let kinds: Vec<&str> = steps.iter().map(|step| step["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["search_started", "search_finished", "observation"].repeat(2));
}
