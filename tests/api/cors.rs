//! CORS: web pages of other origins may use the server only if their origin is allowed.

use crate::harness::{ServerPlan, TestServer, says};

async fn test_server(origins: &[&str]) -> TestServer {
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.cors_origins = origins.iter().map(|&origin| origin.to_owned()).collect();
    plan.build().await
}

/// Returns the CORS headers for `origin`: of a request, and of the preflight for one with a JSON body.
async fn told(server: &TestServer, origin: &str) -> (Option<String>, Option<String>) {
    let allowed = |response: &reqwest::Response| {
        let header = response.headers().get("access-control-allow-origin")?;
        Some(header.to_str().unwrap().to_owned())
    };
    let request = server.client.get(server.url("/v1/models")).header("origin", origin).send().await.unwrap();
    let preflight = server
        .client
        .request(reqwest::Method::OPTIONS, server.url("/v1/chat/completions"))
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        // OpenAI's SDK sends `x-stainless-` headers in browsers, too.
        .header("access-control-request-headers", "authorization,content-type,x-stainless-os")
        .send()
        .await
        .unwrap();
    if allowed(&preflight).is_some() {
        assert!(preflight.status().is_success());
        let headers = preflight.headers().get("access-control-allow-headers").expect("no header may be sent");
        assert!(headers.to_str().unwrap().contains("authorization"));
    }
    (allowed(&request), allowed(&preflight))
}

#[tokio::test]
async fn closed_unless_it_is_opened() {
    let server = test_server(&[]).await;
    assert_eq!(told(&server, "https://example.org").await, (None, None));
}

#[tokio::test]
async fn opened_for_those_that_are_named() {
    let server = test_server(&["https://example.org", "http://localhost:3000"]).await;
    for origin in ["https://example.org", "http://localhost:3000"] {
        let allowed = Some(origin.to_owned());
        assert_eq!(told(&server, origin).await, (allowed.clone(), allowed));
    }
    // Sandboxed pages and local files have the origin `null`.
    for origin in ["https://example.org.evil.test", "http://example.org", "null"] {
        assert_eq!(told(&server, origin).await, (None, None), "{origin}");
    }
    let anybody = self::test_server(&["*"]).await;
    let allowed = Some("*".to_owned());
    assert_eq!(told(&anybody, "https://evil.test").await, (allowed.clone(), allowed));
}
