//! Streams that lose their connection and are resumed.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures::StreamExt;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use waymark::config::ResumeConfig;
use waymark_engine::MockBackend;

use crate::harness::{
    Gated, PATIENCE, ServerPlan, TestServer, eventually, read_until, says, script, tokenizer, with_fields,
};
use crate::traces::{loops, trace};

const STEP: Duration = Duration::from_millis(1);

fn question(model: &str) -> Value {
    json!({"question": "Who wrote Faust?", "model": model, "stream": true, "resumable": true, "seed": 1})
}

/// Returns the complete messages at the beginning of `bytes`: ID, name and data of each.
fn messages(bytes: &[u8]) -> Vec<(u64, String, Value)> {
    let text = String::from_utf8_lossy(bytes);
    let whole = text.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    let parse = |message: &str| {
        let [id, event, data] = message.split('\n').collect::<Vec<_>>()[..] else { panic!("{message:?}") };
        let id = id.strip_prefix("id: ").unwrap().parse().unwrap();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (id, event.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    whole.split("\n\n").filter(|message| !message.is_empty() && !message.starts_with(':')).map(parse).collect()
}

/// Returns the content of the events, without what differs between runs.
fn said(messages: &[(u64, String, Value)]) -> Vec<(u64, String, Value)> {
    let mut messages = messages.to_vec();
    for (_, name, data) in &mut messages {
        for field in ["/id", "/milliseconds", "/usage/search_ms"] {
            if let Some(value) = data.pointer_mut(field) {
                *value = Value::Null;
            }
        }
        assert_eq!(data["type"], **name);
    }
    messages
}

async fn get(server: &TestServer, id: &str, after: u64) -> reqwest::Response {
    let request = server.client.get(server.url(&format!("/v1/agent/{id}")));
    request.header("last-event-id", after.to_string()).send().await.unwrap()
}

/// Reads about `most` bytes of a response, then drops it with its connection. Also returns whether it ended before.
async fn read_some(response: reqwest::Response, most: usize) -> (Vec<u8>, bool) {
    let mut parts = response.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.unwrap();
        // Bytes that a client has not read when its socket dies count as not received.
        let rest = (most - bytes.len()).min(part.len());
        bytes.extend_from_slice(&part[..rest]);
        if bytes.len() >= most {
            return (bytes, false);
        }
    }
    (bytes, true)
}

/// Returns the engine's counts of prefilled, decoded and recomputed tokens.
fn computed(server: &TestServer) -> [u64; 3] {
    let counters = server.state.runtime.engine.counters();
    [
        counters.prefill_tokens_total.get(),
        counters.decode_tokens_total.get(),
        counters.prefill_tokens_recomputed_total.get(),
    ]
}

/// A policy and its mock backend.
type Voice = (&'static str, fn() -> MockBackend);

fn voices() -> [Voice; 2] {
    [
        ("routerag", || script(&loops()).with_time(STEP, Duration::ZERO)),
        ("plain", || {
            MockBackend::random(9, tokenizer().vocab()).with_confidence(3.0).with_time(STEP / 2, Duration::ZERO)
        }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_killed_at_random_loses_nothing_and_computes_nothing_twice() {
    for (model, voice) in voices() {
        let whole = TestServer::new(voice()).await;
        let response = whole.post("/v1/agent", &question(model)).await;
        let uninterrupted = messages(&response.bytes().await.unwrap());
        let length =
            serde_json::to_string(&uninterrupted.iter().map(|(.., data)| data).collect::<Vec<_>>()).unwrap().len();
        for seed in 0..4 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let server = TestServer::new(voice()).await;
            let mut response = server.post("/v1/agent", &question(model)).await;
            let location = response.headers()["content-location"].to_str().unwrap().to_owned();
            let mut seen: Vec<(u64, String, Value)> = Vec::new();
            let mut kills = 0;
            loop {
                // At most a third, so every seed kills at least twice.
                let (bytes, over) = read_some(response, random.random_range(1..length / 3)).await;
                seen.extend(messages(&bytes));
                if over {
                    break;
                }
                kills += 1;
                let id = location.strip_prefix("/v1/agent/").unwrap();
                response = get(&server, id, seen.last().map_or(0, |(id, ..)| *id)).await;
                // All events had arrived before the socket was killed.
                if response.status() == 204 {
                    break;
                }
                assert_eq!(response.status(), 200);
            }
            assert!(kills >= 2, "seed {seed}: {kills} kills");
            assert!(seen.iter().zip(1..).all(|((id, ..), expected)| *id == expected), "an event came twice or never");
            // Only the joined texts are compared, because deltas are split wherever the tokens happened to arrive.
            assert_eq!(text(&seen), text(&uninterrupted), "{model}, seed {seed}");
            assert_eq!(said(&seen).last(), said(&uninterrupted).last());
            assert_eq!(computed(&server), computed(&whole), "{model}, seed {seed}");
        }
    }
}

/// Returns thoughts, queries, observations and the answer, joined.
fn text(messages: &[(u64, String, Value)]) -> String {
    messages.iter().filter_map(|(.., data)| data["text"].as_str()).collect()
}

/// Reads a stream until it has an event with this name, and returns its ID.
async fn begun(socket: &mut TcpStream, event: &str) -> String {
    let begun = read_until(socket, &format!("event: {event}")).await;
    begun.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

/// Returns a searcher, and the plan of a server whose episodes wait in their search until the searcher is released.
fn gated() -> (Gated, ServerPlan) {
    let searcher = Gated::default();
    let plan = ServerPlan { searcher: Some(Arc::new(searcher.clone())), ..ServerPlan::new(script(&loops())) };
    (searcher, plan)
}

#[tokio::test]
async fn whoever_has_it_all_is_told_so() {
    let server = TestServer::new(says("hi")).await;
    let response = server.post("/v1/agent", &question("plain")).await;
    let seen = messages(&response.bytes().await.unwrap());
    let last = seen.last().unwrap().0;
    let id = seen[0].2["id"].as_str().unwrap().to_owned();
    assert_eq!(get(&server, &id, last).await.status(), 204);
    // With the query parameter instead of the header, and from the beginning.
    let rest = server.get(&format!("/v1/agent/{id}?after={}", last - 1)).await.bytes().await.unwrap();
    assert_eq!(messages(&rest), seen[seen.len() - 1..]);
    let all = server.get(&format!("/v1/agent/{id}")).await.bytes().await.unwrap();
    assert_eq!(messages(&all), seen);
    for (path, after, status) in [
        (id.as_str(), (last + 1).to_string(), 400),
        (&id, "eleven".to_owned(), 400),
        // The number after it must not overflow.
        (&id, u64::MAX.to_string(), 400),
        ("ep-nobody", "0".to_owned(), 404),
    ] {
        let request = server.client.get(server.url(&format!("/v1/agent/{path}"))).header("last-event-id", &after);
        assert_eq!(request.send().await.unwrap().status(), status, "{path} after {after}");
    }
    let beyond = server.get(&format!("/v1/agent/{id}?after={}", last + 1)).await.json::<Value>().await.unwrap();
    assert_eq!(beyond["error"]["param"], "after");
    assert_eq!(server.get(&format!("/v1/agent/{id}?before=1")).await.status(), 400);
}

#[tokio::test]
async fn to_look_takes_it_from_nobody() {
    let server = TestServer::new(says(&"word ".repeat(200)).with_time(STEP, Duration::ZERO)).await;
    let mut socket = server.raw("/v1/agent", &question("plain")).await;
    let id = begun(&mut socket, "answer").await;
    let looked = server.client.head(server.url(&format!("/v1/agent/{id}"))).send().await.unwrap();
    assert_eq!(looked.status(), 200);
    read_until(&mut socket, "event: finished").await;
}

#[tokio::test]
async fn a_client_that_gives_its_stream_up_cancels_the_episode_at_once() {
    // Grace and tokens for much longer than `quiet` waits.
    let mut plan = ServerPlan::new(says(&"word ".repeat(200_000)).with_time(4 * STEP, Duration::ZERO));
    plan.http.resume.grace = 10 * PATIENCE;
    let server = plan.build().await;
    let body = with_fields(question("plain"), json!({"max_tokens": 30_000}));
    for leaves_first in [false, true] {
        let mut socket = Some(server.raw("/v1/agent", &body).await);
        let id = begun(socket.as_mut().unwrap(), "answer").await;
        if leaves_first {
            socket = None;
        }
        let url = server.url(&format!("/v1/agent/{id}"));
        assert_eq!(server.client.delete(&url).send().await.unwrap().status(), 204);
        server.quiet().await;
        assert_eq!(server.client.delete(&url).send().await.unwrap().status(), 404);
        assert_eq!(get(&server, &id, 0).await.status(), 404);
        drop(socket);
    }
    assert_eq!(server.client.delete(server.url("/v1/agent/ep-nobody")).send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn a_stream_is_cancelled_when_nobody_comes_back() {
    let mut plan = ServerPlan::new(says(&"word ".repeat(6000)).with_time(STEP, Duration::ZERO));
    plan.http.resume.grace = Duration::from_secs(2);
    let server = plan.build().await;
    let mut socket = server.raw("/v1/agent", &question("plain")).await;
    let id = begun(&mut socket, "answer").await;
    drop(socket);
    let counters = server.state.runtime.engine.counters();
    let before = counters.decode_tokens_total.get();
    eventually("it goes on alone", || counters.decode_tokens_total.get() > before + 20).await;
    server.quiet().await;
    // At most 2,000 of the 30,000 tokens fit into the time until the stream is given up.
    assert!(counters.decode_tokens_total.get() < 15_000);
    assert_eq!(get(&server, &id, 1).await.status(), 404);
    assert_eq!(trace(&server, &id).await.1["status"], "cancelled");
}

#[tokio::test]
async fn without_a_reader_it_waits_when_its_room_is_full() {
    let mut plan = ServerPlan::new(says(&"word ".repeat(400)));
    plan.http.resume = ResumeConfig { bytes: 8 << 10, grace: 10 * PATIENCE, ..ResumeConfig::default() };
    let server = plan.build().await;
    let response = server.post("/v1/agent", &question("plain")).await;
    let location = response.headers()["content-location"].to_str().unwrap().to_owned();
    drop(response);
    let counters = server.state.runtime.engine.counters();
    eventually("it waits", || counters.sessions_stalled.get() == 1 && counters.sessions_running.get() == 0).await;
    // All of it would be 2,000 tokens.
    assert!(counters.decode_tokens_total.get() < 2000);
    // A new reader gets all events, except those sent to a lost reader and evicted since.
    let response = server.get(&location).await;
    match response.status().as_u16() {
        200 => {
            let seen = messages(&response.bytes().await.unwrap());
            assert_eq!(text(&seen), "word ".repeat(400));
        }
        status => {
            assert_eq!(status, 410);
            assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], "events_gone");
        }
    }
}

#[tokio::test]
async fn a_new_reader_takes_the_stream_from_the_old_one() {
    let (searcher, plan) = gated();
    let server = plan.build().await;
    let mut old = server.raw("/v1/agent", &question("routerag")).await;
    let id = begun(&mut old, "search_started").await;
    let new = get(&server, &id, 0).await;
    searcher.release();
    let seen = messages(&new.bytes().await.unwrap());
    let undisturbed = server.post("/v1/agent", &question("routerag")).await.bytes().await.unwrap();
    assert_eq!(text(&seen), text(&messages(&undisturbed)));
    let mut rest = Vec::new();
    while !String::from_utf8_lossy(&rest).ends_with("0\r\n\r\n") {
        assert!(read_more(&mut old, &mut rest).await, "the old one was cut");
    }
    assert!(!String::from_utf8_lossy(&rest).contains("event: finished"));
}

async fn read_more(socket: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    let count = tokio::time::timeout(PATIENCE, socket.read(&mut buffer)).await.unwrap().unwrap();
    bytes.extend_from_slice(&buffer[..count]);
    count > 0
}

#[tokio::test]
async fn streams_are_counted_and_can_be_turned_off() {
    // Without a grace period, streams cannot be resumed.
    let off = ResumeConfig { grace: Duration::ZERO, ..ResumeConfig::default() };
    let one = ResumeConfig { count: 1, ..ResumeConfig::default() };
    for (resume, status, code) in [(off, 400, "unsupported_parameter"), (one, 503, "queue_full")] {
        // The first stream continues for half a minute.
        let mut plan = ServerPlan::new(says(&"word ".repeat(6000)).with_time(STEP, Duration::ZERO));
        plan.http.resume = resume;
        let server = plan.build().await;
        let first = server.post("/v1/agent", &question("plain")).await;
        let second = server.post("/v1/agent", &question("plain")).await;
        assert_eq!(second.status(), status);
        assert_eq!(second.json::<Value>().await.unwrap()["error"]["code"], code);
        drop(first);
    }
}

#[tokio::test]
async fn a_drain_waits_for_an_episode_without_a_client_and_lets_it_come_back() {
    let (searcher, mut plan) = gated();
    plan.http.drain = 2 * PATIENCE;
    let mut server = plan.build().await;
    let mut socket = server.raw("/v1/agent", &question("routerag")).await;
    let id = begun(&mut socket, "search_started").await;
    drop(socket);
    server.terminate();
    let drain = server.state.drain.clone();
    eventually("the server drains", || drain.phase() != waymark::api::drain::DrainPhase::Serving).await;
    let rest = get(&server, &id, 0).await;
    searcher.release();
    let seen = messages(&rest.bytes().await.unwrap());
    assert!(seen.iter().zip(1..).all(|((id, ..), expected)| *id == expected), "{seen:?}");
    assert_eq!(seen.last().unwrap().2["answer"], "Goethe");
    let ended = tokio::time::timeout(PATIENCE, &mut server.running).await;
    ended.unwrap().unwrap();
}

#[tokio::test]
async fn the_silence_of_a_search_is_filled_and_outlived() {
    for resumable in [false, true] {
        let (searcher, mut plan) = gated();
        // Short enough for several pings during the search.
        plan.http.ping = Duration::from_millis(20);
        let server = plan.build().await;
        let mut body = question("routerag");
        body["resumable"] = json!(resumable);
        let mut socket = server.raw("/v1/agent", &body).await;
        // On a slow machine a ping comes before the first event, too.
        let id = begun(&mut socket, "search_started").await;
        read_until(&mut socket, ": ping\n\n").await;
        eventually("a search runs", || searcher.searches.load(SeqCst) == 1).await;
        drop(socket);
        if !resumable {
            server.quiet().await;
            continue;
        }
        let rest = get(&server, &id, 0).await;
        searcher.release();
        let seen = messages(&rest.bytes().await.unwrap());
        assert_eq!(seen.last().unwrap().2["answer"], "Goethe");
        assert_eq!(searcher.searches.load(SeqCst), 1, "the search was made twice");
    }
}
