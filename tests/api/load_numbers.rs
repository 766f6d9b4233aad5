//! `/debug/load` agrees with the engine's own counters.

use std::time::Duration;

use serde_json::{Value, json};

use crate::documents::plan;
use crate::harness::{ServerPlan, TestServer, eventually, says};

async fn load(server: &TestServer) -> Value {
    let response = server.get("/debug/load").await;
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

#[tokio::test]
async fn the_load_follows_the_work() {
    let (_dir, _, plan) = plan(true);
    let backend = says(&"word ".repeat(6000)).with_time(Duration::from_millis(3), Duration::ZERO);
    let server = ServerPlan { backend, ..plan }.build().await;
    let before = load(&server).await;
    assert_eq!(
        (&before["object"], &before["phase"], &before["requests"]),
        (&json!("debug.load"), &json!("serving"), &json!(0))
    );
    assert_eq!(before["sessions"], json!({"running": 0, "waiting": 0, "parked": 0, "stalled": 0}));
    assert_eq!(before["index"], json!({"snapshot": 1, "passages": 6, "stale": false}));
    let blocks = &before["blocks"];
    assert_eq!(blocks["total"], blocks["free"]);

    let body = json!({"model": "plain", "stream": true, "messages": [{"role": "user", "content": "hello"}]});
    let running = server.post("/v1/chat/completions", &body).await;
    let counters = server.state.runtime.engine.counters();
    eventually("it decodes", || counters.decode_tokens_total.get() > 3).await;
    let during = load(&server).await;
    assert_eq!((&during["sessions"]["running"], &during["requests"]), (&json!(1), &json!(1)), "{during}");
    assert!(during["blocks"]["used"].as_u64().unwrap() > 0 && during["blocks"]["total"] == blocks["total"]);
    for total in ["prefill_tokens", "decode_tokens", "steps", "turns"] {
        assert!(during["totals"][total].as_u64() > before["totals"][total].as_u64(), "{total}: {during}");
    }
    assert!(during["seconds"].as_f64() > before["seconds"].as_f64());
    drop(running);
    server.quiet().await;

    let search = json!({"query": "river", "ranking": "bm25"});
    assert_eq!(server.post("/v1/search", &search).await.status(), 200);
    let after = load(&server).await;
    assert_eq!((&after["totals"]["client_searches"], &after["sessions"]["running"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn without_an_index_there_is_none_in_the_load() {
    let server = TestServer::new(says("hi")).await;
    assert_eq!(load(&server).await["index"], Value::Null);
}
