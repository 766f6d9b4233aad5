//! Citations: passages that support an answer, in `/v1/agent`, in chats on request, and as annotations in responses.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::golden::{self, steady};
use crate::harness::{ServerPlan, TestServer, chunks, says, script};
use crate::responses::{Plays, two_searches};

async fn ask(server: &TestServer, model: &str, stream: bool) -> reqwest::Response {
    let response = server.post("/v1/agent", &json!({"question": "Who?", "model": model, "stream": stream})).await;
    assert_eq!(response.status(), 200);
    response
}

/// Returns the last event of a stream.
fn finished(stream: &str) -> Value {
    let last = stream.trim_end().rsplit("\n\n").next().unwrap();
    let (head, data) = last.split_once("\ndata: ").unwrap();
    assert!(head.ends_with("event: finished"), "{head}");
    serde_json::from_str(data).unwrap()
}

/// Builds a server whose policy searches twice.
async fn searching() -> TestServer {
    ServerPlan { searcher: Some(Arc::new(Plays::default())), ..ServerPlan::new(script(&two_searches())) }.build().await
}

/// Expected citations of that server's answer.
fn both() -> Value {
    json!([
        {"start": 0, "end": 19, "passage": "p1", "title": "Faust", "stated": false},
        {"start": 20, "end": 40, "passage": "p2", "title": "Wilhelm Tell", "stated": true},
    ])
}

/// Builds a request to a policy that searches, with the given `rag` options.
fn chat(rag: Value, stream: bool) -> Value {
    golden::ask(json!({"model": "routerag", "rag": rag, "stream": stream, "n": 2}))
}

#[tokio::test]
async fn an_episode_ends_with_them() {
    let server = searching().await;
    let expected = both();
    let whole: Value = ask(&server, "routerag", false).await.json().await.unwrap();
    assert_eq!(
        (&whole["answer"], &whole["citations"]),
        (&json!("Goethe wrote Faust. Schiller wrote Tell."), &expected)
    );
    assert_eq!(whole["trace"].as_array().unwrap().last().unwrap()["citations"], expected);
    let told = finished(&ask(&server, "routerag", true).await.text().await.unwrap());
    assert_eq!(told["citations"], expected);
}

#[tokio::test]
async fn without_a_search_there_are_none() {
    let server = TestServer::new(says("Goethe wrote Faust.")).await;
    let whole: Value = ask(&server, "plain", false).await.json().await.unwrap();
    assert_eq!(whole["citations"], json!([]));
    let told = finished(&ask(&server, "plain", true).await.text().await.unwrap());
    assert_eq!((&told["answer"], &told["citations"]), (&json!("Goethe wrote Faust."), &json!([])));
}

#[tokio::test]
async fn a_chat_tells_them_where_it_is_asked_to_and_nothing_else_changes() {
    let server = searching().await;
    let (_, bare) = server.chat(&chat(json!({}), false)).await;
    let (_, mut whole) = server.chat(&chat(json!({"citations": true}), false)).await;
    for choice in 0..2 {
        let message = whole["choices"][choice]["message"].as_object_mut().unwrap();
        assert_eq!(message.shift_remove("rag"), Some(json!({"citations": both()})));
    }
    assert_eq!(steady(whole), steady(bare));
    let (_, whole) = server.chat(&chat(json!({"citations": true, "trace": true}), false)).await;
    let (_, traced) = server.chat(&chat(json!({"citations": false, "trace": true}), false)).await;
    let notes = |whole: Value| steady(whole)["choices"][1]["message"]["rag"].clone();
    assert_eq!(notes(whole), json!({"trace": notes(traced)["trace"], "citations": both()}));
}

#[tokio::test]
async fn a_stream_tells_them_with_the_end_of_each_answer() {
    let server = searching().await;
    let streamed = async |rag: Value| {
        let all: Vec<Value> = chunks(&server.stream(&chat(rag, true)).await).into_iter().map(steady).collect();
        // Choices arrive in any order; within each the order is fixed.
        let of = |choice: u64| -> Vec<Value> {
            all.iter().filter(|chunk| chunk["choices"][0]["index"] == choice).cloned().collect()
        };
        [of(0), of(1)]
    };
    for trace in [false, true] {
        let bare = streamed(json!({"trace": trace})).await;
        let told = streamed(json!({"trace": trace, "citations": true})).await;
        for (bare, mut told) in bare.into_iter().zip(told) {
            let last = &mut told.last_mut().unwrap()["choices"][0];
            assert_eq!(
                (&last["delta"], &last["finish_reason"]),
                (&json!({"rag": {"citations": both()}}), &json!("stop"))
            );
            last["delta"] = json!({});
            assert_eq!(told, bare);
        }
    }
}

#[tokio::test]
async fn where_nothing_was_searched_a_chat_has_none() {
    let server = TestServer::new(says("Goethe wrote Faust.")).await;
    let (_, whole) = server.chat(&golden::ask(json!({"rag": {"citations": true}}))).await;
    assert_eq!(whole["choices"][0]["message"]["rag"], json!({"citations": []}));
}

/// Options that a route fixes are accepted with the fixed value, and refused with any other.
#[tokio::test]
async fn other_routes_refuse_what_they_do_otherwise() {
    let server = searching().await;
    for (path, taken, refused) in [("/v1/agent", true, false), ("/v1/responses", false, true)] {
        let body = |citations: bool| match path {
            "/v1/agent" => json!({"question": "Who?", "model": "routerag", "rag": {"citations": citations}}),
            _ => json!({"input": "Who?", "model": "routerag", "rag": {"citations": citations}}),
        };
        assert_eq!(server.post(path, &body(taken)).await.status(), 200, "{path}");
        let response = server.post(path, &body(refused)).await;
        assert_eq!(response.status(), 400, "{path}");
        let error = response.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!((&error["code"], &error["param"]), (&json!("unsupported_parameter"), &json!("rag.citations")));
    }
}
