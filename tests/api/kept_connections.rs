//! Connections after refused requests: kept, or closed with notice.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use waymark::keys::{ApiKeys, Scope, Secret};

use crate::harness::{ServerPlan, TestServer, key_entry, read_until, says};

async fn test_server() -> TestServer {
    let secret = Secret::generate();
    let mut plan = ServerPlan::new(says("hi"));
    plan.keys = ApiKeys::open(None, vec![key_entry("one", &secret, &Scope::ALL)]).unwrap();
    plan.build().await
}

/// Sends a request without a key, its body a moment after its head. Returns the connection and the answer.
async fn refused(server: &TestServer, headers: &str, body: &str) -> (TcpStream, String) {
    let mut socket = server.raw_head("/v1/chat/completions", headers).await;
    // The server sees the head alone.
    tokio::time::sleep(Duration::from_millis(10)).await;
    // Fails if the server has closed the connection.
    let _ = socket.write_all(body.as_bytes()).await;
    let answer = read_until(&mut socket, "}}").await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    (socket, answer)
}

#[tokio::test]
async fn a_connection_is_kept_after_a_refusal_or_its_end_is_told() {
    let server = test_server().await;
    for body in ["{}".to_owned(), "x".repeat(60_000)] {
        let (mut socket, answer) = refused(&server, &format!("content-length: {}", body.len()), &body).await;
        // A busy machine may not have read the body in time.
        if answer.contains("connection: close") {
            continue;
        }
        socket.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let next = read_until(&mut socket, "\"ok\"").await;
        assert!(next.starts_with("HTTP/1.1 200"), "{next}");
    }
}

#[tokio::test]
async fn a_body_that_is_large_or_has_to_be_asked_for_ends_the_connection() {
    let server = test_server().await;
    for headers in ["content-length: 1000000", "content-length: 2\r\nexpect: 100-continue"] {
        let (_socket, answer) = refused(&server, headers, "").await;
        assert!(answer.contains("connection: close") && !answer.contains("100 Continue"), "{headers}: {answer}");
    }
}
