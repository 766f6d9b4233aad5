//! Clients that take their time, with their head, their body, their answer or nothing at all: each costs a bounded time
//! and a bounded room, and holds up nobody but itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use waymark_agent::{Budget, Policy};

use crate::house::{House, Large, Plan, eventually, read_until, says};

const SOON: Duration = Duration::from_millis(300);

/// Asks for a stream with so much beside each token that no socket holds all of it.
fn body() -> Value {
    let messages = json!([{"role": "user", "content": "hello"}]);
    json!({"model": "plain", "stream": true, "logprobs": true, "top_logprobs": 20, "messages": messages})
}

/// Times so short that a test can wait for them, each alone: the others stay as they are.
async fn house(shorten: impl FnOnce(&mut Plan)) -> House {
    let mut plan = Plan::new(says(&"word ".repeat(20)));
    shorten(&mut plan);
    plan.build().await
}

/// Reads to the end of a connection, and says how long that took and what came.
async fn to_the_end(socket: &mut TcpStream) -> (Duration, String) {
    let begun = Instant::now();
    let mut seen = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut seen)).await;
    // An end without ceremony is an end, too.
    let _ = read.expect("the connection is never closed");
    (begun.elapsed(), String::from_utf8_lossy(&seen).into_owned())
}

#[tokio::test]
async fn a_head_that_comes_a_byte_at_a_time() {
    let house = house(|plan| plan.http.connection.header = SOON).await;
    for begun in ["", "GET /health HTTP/1.1\r\nx-slow: "] {
        let socket = TcpStream::connect(house.address).await.unwrap();
        let (mut reading, mut writing) = socket.into_split();
        let start = Instant::now();
        let trickle = tokio::spawn(async move {
            writing.write_all(begun.as_bytes()).await.unwrap();
            while writing.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut seen = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), reading.read_to_end(&mut seen)).await;
        let _ = read.expect("the connection is never closed");
        assert!(start.elapsed() >= SOON && seen.is_empty());
        trickle.await.unwrap();
    }
    assert_eq!(house.get("/health").await.status(), 200);
}

#[tokio::test]
async fn a_head_that_is_too_large() {
    let house = house(|_| {}).await;
    let mut socket = TcpStream::connect(house.address).await.unwrap();
    let flood = format!("GET /health HTTP/1.1\r\nx-large: {}\r\n", "a".repeat(200 << 10));
    // The server may close before all of it is written.
    let _ = socket.write_all(flood.as_bytes()).await;
    let (_, answer) = to_the_end(&mut socket).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn a_body_that_does_not_come() {
    let house = house(|plan| plan.http.connection.body = SOON).await;
    for path in ["/v1/chat/completions", "/v1/agent", "/v1/search", "/retrieve", "/v1/embeddings"] {
        let mut socket = house.raw_head(path, "content-length: 100\r\nconnection: close").await;
        socket.write_all(b"{").await.unwrap();
        let (time, answer) = to_the_end(&mut socket).await;
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"request_timeout\""), "{path}: {answer}");
        assert!(time >= SOON / 2, "{time:?}");
    }
    house.quiet().await;
}

#[tokio::test]
async fn a_connection_that_is_kept_for_nothing() {
    let house = house(|plan| plan.http.connection.idle = SOON).await;
    let mut socket = TcpStream::connect(house.address).await.unwrap();
    for _ in 0..3 {
        socket.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        read_until(&mut socket, "\"ok\"").await;
        tokio::time::sleep(SOON / 3).await;
    }
    let (time, rest) = to_the_end(&mut socket).await;
    assert!(rest.is_empty() && time >= SOON / 3 && time < Duration::from_secs(10), "{time:?} {rest}");
}

#[tokio::test]
async fn an_answer_in_one_piece_has_the_time_of_an_answer() {
    for (idle, send, whole) in [(SOON, Duration::from_secs(20), true), (Duration::from_secs(20), SOON, false)] {
        let house = house(|plan| {
            plan.searcher = Some(Arc::new(Large));
            (plan.http.connection.idle, plan.http.connection.send) = (idle, send);
        })
        .await;
        let mut socket = house.raw_with("/v1/search", "connection: close", &json!({"query": "x"})).await;
        let seen = read_until(&mut socket, "\r\n\r\n").await.len();
        tokio::time::sleep(SOON * 4).await;
        let (_, rest) = to_the_end(&mut socket).await;
        assert_eq!(seen + rest.len() > 32 << 20, whole, "{} bytes came", seen + rest.len());
    }
}

/// Asks for a stream over a connection that takes in little before it has to be read.
pub async fn ask(house: &House) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(house.address).await.unwrap();
    let body = body().to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ";
    socket.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    socket
}

/// A house whose answers end after a moment and which has far more to say than the buffers on the way can hold.
pub async fn talkative(seconds: f64) -> House {
    let mut plan = Plan::new(says(&"word ".repeat(200_000)).with_time(Duration::from_micros(5), Duration::ZERO));
    plan.http.connection.send = SOON;
    let budget =
        Budget { seconds, sampled_tokens: 1 << 20, turn_tokens: 1 << 20, context_tokens: 1 << 20, ..Budget::default() };
    plan.policies = vec![Policy { budget, ..Policy::builtin("plain").unwrap() }];
    plan.build().await
}

#[tokio::test]
async fn an_answer_that_is_not_taken_ends_with_its_time() {
    let house = talkative(2.0).await;
    let begun = Instant::now();
    let silent = ask(&house).await;
    let counters = house.state.runtime.engine.counters();
    eventually("its sequence is set aside", || counters.stalls_total.get() > 0).await;
    // What is sampled for it is what fits into the buffers, and no more comes.
    eventually("nothing is held for it any more", || {
        counters.blocks_used.get() == 0 && house.state.drain.running() == 0
    })
    .await;
    let time = begun.elapsed();
    assert!(time >= Duration::from_secs(2) && time < Duration::from_secs(9), "{time:?}");
    house.quiet().await;
    drop(silent);
}

#[tokio::test]
async fn an_answer_that_is_taken_a_byte_at_a_time_ends_as_well() {
    let house = talkative(1.0).await;
    let mut slow = ask(&house).await;
    let reader = tokio::spawn(async move {
        let mut byte = [0];
        let mut taken = 0;
        while matches!(slow.read(&mut byte).await, Ok(1)) {
            taken += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        taken
    });
    // Meanwhile others are served as if it were not there.
    let other = json!({"model": "plain", "max_tokens": 200, "messages": [{"role": "user", "content": "other"}]});
    for _ in 0..5 {
        let begun = Instant::now();
        assert_eq!(house.chat(&other).await.0, 200);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
    eventually("nothing is held for it any more", || house.state.drain.running() == 0).await;
    house.quiet().await;
    reader.abort();
}

#[tokio::test]
async fn connections_beyond_the_bound_are_told() {
    let house = house(|plan| plan.http.connection.most = 2).await;
    let held = [
        house.raw_head("/v1/search", "content-length: 5").await,
        house.raw_head("/v1/search", "content-length: 5").await,
    ];
    eventually("both are in", || house.state.drain.running() == 2).await;
    let mut third = TcpStream::connect(house.address).await.unwrap();
    third.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let (_, answer) = to_the_end(&mut third).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"too_many_connections\""), "{answer}");
    assert!(answer.contains("retry-after: 1") && answer.contains("x-request-id: req_"), "{answer}");
    drop(held);
    eventually("both are gone", || house.state.drain.running() == 0).await;
    // The seats are free a moment after the work is.
    for _ in 0..100 {
        if house.client.get(house.url("/health")).send().await.is_ok_and(|answer| answer.status() == 200) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody is let in any more");
}
