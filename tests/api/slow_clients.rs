//! Slow clients, in sending the head or the body, in reading the response, or idle: each costs bounded time and memory,
//! and delays no other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use waymark::config::FileLimits;
use waymark::keys::{ApiKeys, KeyEntry, KeyLimits, Scope, Secret};
use waymark_agent::{Budget, Policy};

use crate::harness::{
    Large, PATIENCE, ServerPlan, TestServer, eventually, eventually_found, key_entry, read_until, says, send,
};
use crate::vector_store_files::Client;
use crate::vector_store_ingestion::server_of;

const SOON: Duration = Duration::from_millis(300);

/// Size of a file that no socket buffer holds.
const LARGE_FILE: usize = 16 << 20;

const LARGE_FILES: FileLimits = FileLimits { file: LARGE_FILE as u64, storage: 4 * LARGE_FILE as u64 };

/// Requests a stream with so much data per token that no socket buffer holds all of it.
fn body() -> Value {
    let messages = json!([{"role": "user", "content": "hello"}]);
    json!({"model": "plain", "stream": true, "logprobs": true, "top_logprobs": 20, "messages": messages})
}

/// Starts a server. `shorten` makes one timeout short enough for a test to wait for; the others keep their defaults.
async fn test_server(shorten: impl FnOnce(&mut ServerPlan)) -> TestServer {
    let mut plan = ServerPlan::new(says(&"word ".repeat(20)));
    shorten(&mut plan);
    plan.build().await
}

/// Reads to the end of a connection, and returns the bytes.
async fn to_the_end(socket: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut seen)).await;
    // A reset is an end as well.
    let _ = read.expect("the connection is never closed");
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test]
async fn a_head_that_comes_a_byte_at_a_time() {
    let server = test_server(|plan| plan.http.connection.header = SOON).await;
    for begun in ["", "GET /health HTTP/1.1\r\nx-slow: "] {
        // The server may accept the connection before this task continues.
        let start = Instant::now();
        let socket = TcpStream::connect(server.address).await.unwrap();
        let (mut reading, mut writing) = socket.into_split();
        let trickle = tokio::spawn(async move {
            writing.write_all(begun.as_bytes()).await.unwrap();
            while writing.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut seen = Vec::new();
        let read = tokio::time::timeout(PATIENCE, reading.read_to_end(&mut seen)).await;
        let _ = read.expect("the connection is never closed");
        assert!(start.elapsed() >= SOON && seen.is_empty());
        trickle.await.unwrap();
    }
    assert_eq!(server.get("/health").await.status(), 200);
}

#[tokio::test]
async fn a_head_that_is_too_large() {
    let server = test_server(|_| {}).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let flood = format!("GET /health HTTP/1.1\r\nx-large: {}\r\n", "a".repeat(200 << 10));
    // The server may close the connection before all of the request is written.
    let _ = socket.write_all(flood.as_bytes()).await;
    let answer = to_the_end(&mut socket).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn a_body_that_does_not_come() {
    let server = test_server(|plan| plan.http.connection.body = SOON).await;
    for path in ["/v1/chat/completions", "/v1/agent", "/v1/search", "/retrieve", "/v1/embeddings"] {
        let begun = Instant::now();
        let mut socket = server.raw_head(path, "content-length: 100\r\nconnection: close").await;
        socket.write_all(b"{").await.unwrap();
        let answer = to_the_end(&mut socket).await;
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"request_timeout\""), "{path}: {answer}");
        assert!(begun.elapsed() >= SOON, "{:?}", begun.elapsed());
    }
    server.quiet().await;
}

/// Uploads a file of 64 KiB by a byte every 50 ms until the server answers. Returns the answer.
async fn upload_slowly(server: &TestServer) -> String {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 65536\r\n\
                content-type: multipart/form-data; boundary=xyz\r\n\r\n\
                --xyz\r\ncontent-disposition: form-data; name=\"file\"; filename=\"slow.txt\"\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let begun = Instant::now();
    while tokio::time::timeout(Duration::from_millis(50), socket.peek(&mut [0])).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "the upload is never refused");
        // Fails if the server has closed the connection, which ends the loop.
        let _ = socket.write_all(b"a").await;
    }
    to_the_end(&mut socket).await
}

#[tokio::test]
async fn uploads_that_come_a_byte_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    // Long enough for a busy machine to send the upload at the end.
    let wait = Duration::from_secs(2);
    let server = test_server(|plan| {
        plan.vector_stores = Some(folder.path().to_owned());
        plan.http.connection.body = wait;
    })
    .await;
    let begun = Instant::now();
    // They take all of the room for files, which is 1 MiB.
    let answers = futures::future::join_all((0..16).map(|_| upload_slowly(&server))).await;
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"request_timeout\""), "{answer}");
    }
    assert!(begun.elapsed() >= wait, "{:?}", begun.elapsed());
    let client = Client { server: &server, key: None };
    client.upload("whole.txt", &"x".repeat(60 << 10)).await;
    server.quiet().await;
}

#[tokio::test]
async fn a_connection_that_is_kept_for_nothing() {
    // The pauses between the requests take as long together, and each leaves two seconds more to a busy machine.
    let idle = Duration::from_secs(3);
    let server = test_server(|plan| plan.http.connection.idle = idle).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let mut asked = Instant::now();
    for _ in 0..4 {
        tokio::time::sleep(idle / 3).await;
        asked = Instant::now();
        socket.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        read_until(&mut socket, "\"ok\"").await;
    }
    let rest = to_the_end(&mut socket).await;
    let time = asked.elapsed();
    assert!(rest.is_empty() && time >= idle, "{time:?} {rest}");
}

#[tokio::test]
async fn an_answer_in_one_piece_has_the_time_of_an_answer() {
    for (idle, send, whole) in [(SOON, 2 * PATIENCE, true), (2 * PATIENCE, SOON, false)] {
        let server = test_server(|plan| {
            plan.searcher = Some(Arc::new(Large));
            (plan.http.connection.idle, plan.http.connection.send) = (idle, send);
        })
        .await;
        let mut socket = server.raw_with("/v1/search", "connection: close", &json!({"query": "x"})).await;
        let seen = read_until(&mut socket, "\r\n\r\n").await.len();
        tokio::time::sleep(SOON * 4).await;
        let rest = to_the_end(&mut socket).await;
        assert_eq!(seen + rest.len() > 32 << 20, whole, "{} bytes came", seen + rest.len());
    }
}

#[tokio::test]
async fn the_content_of_a_file_has_the_time_of_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.connection.send = SOON;
    // Other answers are smaller than files may be.
    plan.http.answer_bytes = 1 << 20;
    let server = server_of(plan, folder.path(), &Arc::default(), LARGE_FILES).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("large.txt", &"x".repeat(LARGE_FILE)).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET /v1/files/{file}/content HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let head = read_until(&mut socket, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-length: 16777216"), "{head}");
    tokio::time::sleep(SOON * 4).await;
    let rest = to_the_end(&mut socket).await;
    let all = head + &rest;
    assert_eq!(all.split_once("\r\n\r\n").unwrap().1.len(), LARGE_FILE);
}

/// Sends a request with a key over a connection with a small receive buffer, and reads the head of the response alone.
async fn head_alone(server: &TestServer, secret: &Secret, request: &str, body: &str) -> TcpStream {
    let mut socket = narrow(server).await;
    let key = secret.reveal();
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let seen = read_until(&mut socket, "\r\n\r\n").await;
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
    socket
}

#[tokio::test]
async fn a_large_answer_counts_against_its_key_until_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let secret = Secret::generate();
    let limits = KeyLimits { concurrent: Some(1), ..KeyLimits::default() };
    let entry = KeyEntry { limits, ..key_entry("one", &secret, &Scope::ALL) };
    let mut plan = ServerPlan::new(says("hi"));
    plan.keys = ApiKeys::open(None, vec![entry]).unwrap();
    plan.searcher = Some(Arc::new(Large));
    let server = server_of(plan, folder.path(), &Arc::default(), LARGE_FILES).await;
    let client = Client { server: &server, key: Some(secret.reveal()) };
    let file = client.upload("large.txt", &"x".repeat(LARGE_FILE)).await;
    let status = async || send(&server, &secret, "GET", "/v1/models", &Value::Null).await.0;
    let content = format!("GET /v1/files/{file}/content");
    for (request, body) in [(content.as_str(), ""), ("POST /v1/search", "{\"query\": \"x\"}")] {
        let unread = head_alone(&server, &secret, request, body).await;
        assert_eq!(status().await, 429, "{request}");
        drop(unread);
        eventually_found("the place is free", async || (status().await == 200).then_some(())).await;
    }
}

/// Opens a connection with a small receive buffer.
async fn narrow(server: &TestServer) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// Requests a stream over a connection with a small receive buffer.
pub async fn ask(server: &TestServer) -> TcpStream {
    let mut socket = narrow(server).await;
    let body = body().to_string();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ";
    socket.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    socket
}

/// Builds a server with a short send timeout whose answers exceed all buffers on the way.
pub async fn talkative(seconds: f64) -> TestServer {
    let mut plan = ServerPlan::new(says(&"word ".repeat(200_000)).with_time(Duration::from_micros(5), Duration::ZERO));
    plan.http.connection.send = SOON;
    let budget =
        Budget { seconds, sampled_tokens: 1 << 20, turn_tokens: 1 << 20, context_tokens: 1 << 20, ..Budget::default() };
    plan.policies = vec![Policy { budget, ..Policy::builtin("plain").unwrap() }];
    plan.build().await
}

#[tokio::test]
async fn an_answer_that_is_not_taken_ends_with_its_time() {
    // Long enough for a slow machine to fill all buffers.
    let budget = Duration::from_secs(8);
    let server = talkative(budget.as_secs_f64()).await;
    let begun = Instant::now();
    let silent = ask(&server).await;
    let counters = server.state.runtime.engine.counters();
    eventually("its sequence is set aside", || counters.stalls_total.get() > 0).await;
    // The sequence is sampled until the buffers are full, and no further.
    eventually("nothing is held for it any more", || {
        counters.blocks_used.get() == 0 && server.state.drain.running() == 0
    })
    .await;
    let time = begun.elapsed();
    // By default, half a minute follows in which the client may read the rest.
    assert!(time >= budget && time < budget + Duration::from_secs(25), "{time:?}");
    server.quiet().await;
    drop(silent);
}

#[tokio::test]
async fn an_answer_that_is_taken_a_byte_at_a_time_ends_as_well() {
    let server = talkative(1.0).await;
    let mut slow = ask(&server).await;
    let reader = tokio::spawn(async move {
        let mut byte = [0];
        let mut taken = 0;
        while matches!(slow.read(&mut byte).await, Ok(1)) {
            taken += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        taken
    });
    // Other requests are served meanwhile.
    let other = json!({"model": "plain", "max_tokens": 200, "messages": [{"role": "user", "content": "other"}]});
    for _ in 0..5 {
        let answered = tokio::time::timeout(PATIENCE, server.chat(&other)).await;
        assert_eq!(answered.expect("it waits for the slow one").0, 200);
    }
    eventually("nothing is held for it any more", || server.state.drain.running() == 0).await;
    server.quiet().await;
    reader.abort();
}

#[tokio::test]
async fn connections_beyond_the_bound_are_told() {
    let server = test_server(|plan| {
        plan.http.connection.max_open = 2;
        plan.http.connection.body = 10 * PATIENCE;
    })
    .await;
    let held = [
        server.raw_head("/v1/search", "content-length: 5").await,
        server.raw_head("/v1/search", "content-length: 5").await,
    ];
    eventually("both are in", || server.state.drain.running() == 2).await;
    let mut third = TcpStream::connect(server.address).await.unwrap();
    third.write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let answer = to_the_end(&mut third).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"too_many_connections\""), "{answer}");
    assert!(answer.contains("retry-after: 1") && answer.contains("x-request-id: req_"), "{answer}");
    for path in ["/health", "/ready"] {
        let mut probe = TcpStream::connect(server.address).await.unwrap();
        probe.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let answer = to_the_end(&mut probe).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{path}: {answer}");
    }
    drop(held);
    eventually("both are gone", || server.state.drain.running() == 0).await;
    // Connection slots are freed a moment after the work ends.
    eventually_found("a client is let in again", async || {
        let models = server.client.get(server.url("/v1/models")).send().await;
        models.is_ok_and(|answer| answer.status() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let server = test_server(|plan| {
        plan.http.connection.max_open = 8;
        plan.http.connection.max_per_address = Some(2);
        plan.http.connection.body = 10 * PATIENCE;
    })
    .await;
    let held = [
        server.raw_head("/v1/search", "content-length: 5").await,
        server.raw_head("/v1/search", "content-length: 5").await,
    ];
    eventually("both are in", || server.state.drain.running() == 2).await;
    for (address, status) in [("127.0.0.1:0", "HTTP/1.1 503"), ("127.0.0.2:0", "HTTP/1.1 200")] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(address.parse().unwrap()).unwrap();
        let mut client = socket.connect(server.address).await.unwrap();
        client.write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        let answer = to_the_end(&mut client).await;
        assert!(answer.starts_with(status), "{address}: {answer}");
    }
    drop(held);
}
