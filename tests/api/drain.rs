//! Graceful shutdown: readiness fails, new work is refused, running streams finish or get an error, and the server
//! ends.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use waymark_engine::mock::Lines;

use crate::harness::{
    Gated, Large, PATIENCE, ServerPlan, TestServer, chunks, eventually, joined, read_until, says, script, with_fields,
};

/// Time within which a server ends that waits for nothing. All timeouts that it must not wait for are longer.
const SOON: Duration = Duration::from_secs(20);

fn body(stream: bool) -> Value {
    json!({"model": "plain", "stream": stream, "messages": [{"role": "user", "content": "hello"}]})
}

async fn test_server(words: usize, drain: Duration) -> TestServer {
    let mut plan = ServerPlan::new(says(&"word ".repeat(words)).with_time(Duration::from_millis(2), Duration::ZERO));
    plan.http.drain = drain;
    plan.build().await
}

#[tokio::test]
async fn running_streams_finish_and_new_work_is_refused() {
    let answer = ["word"; 60].join(" ");
    let turns = ["<think>a</think><search>[passage] b</search>".to_owned(), format!("<answer>{answer}</answer>")];
    let backend = script(&Lines::new(turns).terminator("</information>\n\n"));
    // Both requests run until their searches are released, however long everything in between takes.
    let searcher = Gated::default();
    let mut plan = ServerPlan::new(backend.with_time(Duration::from_millis(2), Duration::ZERO));
    plan.searcher = Some(Arc::new(searcher.clone()));
    plan.http.drain = 2 * PATIENCE;
    let mut server = plan.build().await;
    assert_eq!(server.get("/ready").await.status(), 200);
    let client = server.client.clone();
    let url = server.url("/v1/chat/completions");
    let asked = |stream: bool| with_fields(body(stream), json!({"model": "routerag"}));
    let whole = tokio::spawn({
        let request = client.post(url.clone()).json(&asked(false)).send();
        async move { request.await.unwrap().json::<Value>().await.unwrap() }
    });
    let streamed = tokio::spawn({
        let request = client.post(url).json(&asked(true)).send();
        async move { request.await.unwrap().text().await.unwrap() }
    });
    eventually("both search", || searcher.searches.load(SeqCst) == 2).await;
    server.terminate();
    eventually("it drains", || server.state.drain.phase() != waymark::api::drain::DrainPhase::Serving).await;
    // New connections are still answered, so a load balancer can notice the drain.
    assert_eq!(server.get("/health").await.status(), 200);
    let ready = server.get("/ready").await;
    assert_eq!(ready.status(), 503);
    let (status, refused) = server.chat(&body(true)).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("draining")));
    searcher.release();
    let stream = streamed.await.unwrap();
    assert!(stream.ends_with("data: [DONE]\n\n"));
    assert_eq!(joined(&chunks(&stream), "content")[&0], answer);
    assert_eq!(whole.await.unwrap()["choices"][0]["message"]["content"], answer);
    server.running.await.unwrap();
}

#[tokio::test]
async fn at_the_deadline_streams_are_told() {
    let mut server = test_server(100_000, Duration::from_millis(100)).await;
    let mut stream = server.raw("/v1/chat/completions", &body(true)).await;
    read_until(&mut stream, "\"content\":\"w\"").await;
    let mut agent = server.raw("/v1/agent", &json!({"question": "x", "model": "plain", "stream": true})).await;
    read_until(&mut agent, "event: answer").await;
    let sampling = json!({"max_tokens": 30_000, "ignore_eos": true});
    let tokens = json!({"token_ids": [65], "sampling_params": sampling, "stream": true});
    let mut generate = server.raw("/inference/v1/generate", &tokens).await;
    read_until(&mut generate, "\"token_ids\"").await;
    let batch = |stream: bool| json!({"model": "plain", "questions": [{"question": "x"}], "stream": stream});
    let mut rollouts = server.raw("/v1/rollouts", &batch(true)).await;
    let mut whole = server.raw("/v1/chat/completions", &body(false)).await;
    let mut whole_rollouts = server.raw("/v1/rollouts", &batch(false)).await;
    eventually("six run", || server.state.drain.running() == 6).await;
    server.terminate();
    for socket in [&mut stream, &mut agent, &mut generate, &mut rollouts, &mut whole, &mut whole_rollouts] {
        let rest = read_until(socket, "\"code\":\"draining\"").await;
        assert!(!rest.contains("[DONE]"));
    }
    let begun = Instant::now();
    server.running.await.unwrap();
    assert!(begun.elapsed() < SOON, "it hung");
    assert_eq!(server.state.drain.running(), 0);
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_hold_it_up() {
    let mut server = test_server(100_000, Duration::from_millis(50)).await;
    let silent = server.raw("/v1/chat/completions", &body(true)).await;
    eventually("it runs", || server.state.drain.running() == 1).await;
    let begun = Instant::now();
    server.terminate();
    server.running.await.unwrap();
    assert!(begun.elapsed() < SOON);
    drop(silent);
}

#[tokio::test]
async fn an_idle_server_ends_at_once() {
    let mut server = test_server(1, Duration::from_secs(30)).await;
    server.chat(&body(false)).await;
    let begun = Instant::now();
    server.terminate();
    server.running.await.unwrap();
    assert!(begun.elapsed() < SOON);
}

#[tokio::test]
async fn an_answer_on_its_way_arrives_whole() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.searcher = Some(Arc::new(Large));
    (plan.http.drain, plan.http.connection.send) = (2 * PATIENCE, 2 * PATIENCE);
    let mut server = plan.build().await;
    let mut socket = server.raw_with("/v1/search", "connection: close", &json!({"query": "x"})).await;
    let mut seen = read_until(&mut socket, "\r\n\r\n").await.into_bytes();
    assert_eq!(server.state.drain.running(), 1, "the drain waits for the answer");
    server.terminate();
    // Longer than idle connections may take to close.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    // A stream that was cut off ends with a reset, or without its last bytes.
    let _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut seen)).await;
    assert!(seen.len() > 32 << 20 && seen.ends_with(b"}"), "{} bytes came", seen.len());
    server.running.await.unwrap();
}
