//! `/debug/state` shows the true state of the server without stopping its work.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use waymark_engine::EngineConfig;
use waymark_engine::mock::Lines;

use crate::harness::{HangingSearch, ServerPlan, TestServer, chunks, eventually, joined, says, script};

async fn state(server: &TestServer) -> Value {
    let response = server.get("/debug/state").await;
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

/// Returns the session of a request, and checks that the numbers of the state add up.
fn session<'a>(state: &'a Value, request: &str) -> &'a Value {
    let blocks = &state["blocks"];
    let sum = ["free", "cached", "used"].iter().map(|name| blocks[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum, blocks["total"].as_u64().unwrap());
    let sessions = state["sessions"].as_array().unwrap();
    sessions.iter().find(|session| session["request"] == request).unwrap_or_else(|| panic!("{request}: {state}"))
}

fn request_id(response: &reqwest::Response) -> String {
    response.headers()["x-request-id"].to_str().unwrap().to_owned()
}

fn body() -> Value {
    json!({"model": "plain", "stream": true, "messages": [{"role": "user", "content": "hello"}]})
}

#[tokio::test]
async fn a_running_and_a_waiting_request_are_told_apart() {
    let engine = EngineConfig { max_batch_rows: 1, ..EngineConfig::default() };
    let backend = says(&"word ".repeat(6000)).with_time(Duration::from_millis(3), Duration::ZERO);
    let server = ServerPlan { engine, ..ServerPlan::new(backend) }.build().await;
    let running = server.post("/v1/chat/completions", &body()).await;
    let counters = server.state.runtime.engine.counters();
    eventually("it decodes", || counters.decode_tokens_total.get() > 3).await;
    let waiting = server.post("/v1/chat/completions", &body()).await;
    eventually("one waits", || counters.sessions_waiting.get() == 1).await;
    let state = state(&server).await;
    let first = session(&state, &request_id(&running));
    assert_eq!(first["state"], "running");
    assert!(first["sampled"].as_u64().unwrap() > 3 && first["blocks"].as_u64().unwrap() > 0, "{first}");
    // The engine learns of a turn a moment after it was requested.
    let turn = first["turn_seconds"].as_f64().unwrap();
    let age = first["age_seconds"].as_f64().unwrap();
    assert!((turn - age).abs() < 10.0 && age > 0.0, "{first}");
    let second = session(&state, &request_id(&waiting));
    assert_eq!((&second["state"], &second["sampled"]), (&json!("waiting"), &json!(0)));
    assert_eq!(state["queue"], json!([second["id"]]));
    assert_eq!((&state["phase"], &state["requests"]), (&json!("serving"), &json!(2)));
    assert!(!state.to_string().contains("hello"), "no text of any request is shown");
    drop((running, waiting));
    server.quiet().await;
}

#[tokio::test]
async fn a_session_that_waits_for_a_search_is_parked_with_its_blocks() {
    let lines = Lines::new(["<think>a</think><search>[passage] b</search>"]);
    let server = ServerPlan { searcher: Some(Arc::new(HangingSearch::default())), ..ServerPlan::new(script(&lines)) }
        .build()
        .await;
    let mut request = body();
    request["model"] = json!("routerag");
    let searching = server.post("/v1/chat/completions", &request).await;
    let counters = server.state.runtime.engine.counters();
    eventually("it searches", || counters.sessions_parked.get() == 1).await;
    let state = state(&server).await;
    let parked = session(&state, &request_id(&searching));
    assert_eq!((&parked["state"], &parked["turn_seconds"]), (&json!("parked"), &Value::Null));
    assert!(parked["blocks"].as_u64().unwrap() > 0);
    drop(searching);
    server.quiet().await;
    assert_eq!(self::state(&server).await["sessions"], json!([]));
}

#[tokio::test]
async fn asking_all_the_time_holds_nobody_up() {
    let backend = says(&"word ".repeat(60)).with_time(Duration::from_millis(1), Duration::ZERO);
    let server = TestServer::new(backend).await;
    let request = body();
    let (stream, ()) = tokio::join!(server.stream(&request), async {
        for _ in 0..100 {
            state(&server).await;
        }
    });
    assert_eq!(joined(&chunks(&stream), "content")[&0], "word ".repeat(60));
    // A snapshot is not a step: the number of steps does not change.
    let steps = server.state.runtime.engine.counters().steps_total.get();
    assert!(steps <= 60 * 5 + 3, "{steps} steps");
    server.quiet().await;
}
