//! `Host` of requests: without keys only IP addresses, `localhost` and given names, on every route; and heads that are
//! ambiguous.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use waymark::keys::{ApiKeys, KeyEntry, Secret};

use crate::harness::{ServerPlan, TestServer, says};

/// Sends a request by hand and returns the status and the error code.
async fn send(server: &TestServer, line: &str, headers: &[&str]) -> (u16, String) {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!("{line} HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"));
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap_or_default()).unwrap_or_default();
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

fn refused() -> (u16, String) {
    (403, "host_not_allowed".to_owned())
}

#[tokio::test]
async fn without_keys_a_foreign_host_reaches_no_route() {
    let server = TestServer::new(says("hi")).await;
    let document: Value = server.get("/openapi.json").await.json().await.unwrap();
    let mut lines = vec!["GET /nothing".to_owned(), "OPTIONS /v1/documents".to_owned()];
    for (path, item) in document["paths"].as_object().unwrap() {
        let at: Vec<&str> = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect();
        lines.extend(
            item.as_object().unwrap().keys().map(|method| format!("{} {}", method.to_uppercase(), at.join("/"))),
        );
    }
    assert!(
        lines.len() > 30 && lines.iter().any(|line| line == "GET /") && lines.iter().any(|line| line == "GET /health")
    );
    for line in &lines {
        for host in ["host: evil.test", "host: evil.test:8080", "host: localhost.evil.test"] {
            assert_eq!(send(&server, line, &[host, "content-length: 0"]).await, refused(), "{line} {host}");
        }
    }
    // A page of its own host name is what DNS rebinding uses; addresses and `localhost` are not such names.
    for host in ["host: 10.0.0.7:8080", "host: [::1]", "host: localhost:1", "host: 127.0.0.1"] {
        assert_eq!(send(&server, "GET /health", &[host]).await.0, 200, "{host}");
    }
    // The host of an absolute target takes precedence over the header (RFC 9112, section 3.2.2).
    assert_eq!(send(&server, "GET http://evil.test/health", &["host: localhost"]).await, refused());
}

#[tokio::test]
async fn names_are_allowed_by_a_flag_and_any_by_keys() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.allowed_hosts = vec!["rag.example.org".to_owned()];
    let server = plan.build().await;
    assert_eq!(send(&server, "GET /health", &["host: rag.example.org"]).await.0, 200);
    assert_eq!(send(&server, "GET /health", &["host: evil.test"]).await, refused());
    let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(&Secret::generate())]).unwrap();
    let server = ServerPlan { keys, ..ServerPlan::new(says("hi")) }.build().await;
    assert_eq!(send(&server, "GET /health", &["host: rag.example.org"]).await.0, 200);
}

#[tokio::test]
async fn ambiguous_heads_are_refused() {
    let secret = Secret::generate();
    let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(&secret)]).unwrap();
    let server = ServerPlan { keys, ..ServerPlan::new(says("hi")) }.build().await;
    let key = format!("authorization: Bearer {}", secret.reveal());
    let invalid = (400, "invalid_header".to_owned());
    assert_eq!(send(&server, "GET /v1/models", &["host: localhost", &key]).await.0, 200);
    for headers in [
        &["host: localhost", &key, "authorization: Bearer other"][..],
        &["host: localhost", &key, &key],
        // HTTP/1.1 requires a host.
        &[&key],
        &["host: localhost", "host: localhost", &key],
        // Two lengths of one body are how requests are smuggled (RFC 9112, section 6.1).
        &["host: localhost", &key, "content-length: 5", "transfer-encoding: chunked"],
        &["host: localhost", &key, "transfer-encoding: chunked", "content-length: 5"],
    ] {
        assert_eq!(send(&server, "GET /v1/models", headers).await, invalid, "{headers:?}");
    }
}
