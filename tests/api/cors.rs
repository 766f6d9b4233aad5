//! Pages of other origins: none may use the server unless it is said which.

use crate::house::{House, Plan, says};

async fn house(origins: &[&str]) -> House {
    let mut plan = Plan::new(says("hi"));
    plan.http.cors_origins = origins.iter().map(|&origin| origin.to_owned()).collect();
    plan.build().await
}

/// What a browser is told about `origin`: for a request, and before one with a JSON body.
async fn told(house: &House, origin: &str) -> (Option<String>, Option<String>) {
    let allowed = |response: &reqwest::Response| {
        let header = response.headers().get("access-control-allow-origin")?;
        Some(header.to_str().unwrap().to_owned())
    };
    let request = house.client.get(house.url("/v1/models")).header("origin", origin).send().await.unwrap();
    let preflight = house
        .client
        .request(reqwest::Method::OPTIONS, house.url("/v1/chat/completions"))
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,x-stainless-os")
        .send()
        .await
        .unwrap();
    if let Some(headers) = preflight.headers().get("access-control-allow-headers") {
        assert!(preflight.status().is_success());
        assert!(headers.to_str().unwrap().contains("authorization"));
    }
    (allowed(&request), allowed(&preflight))
}

#[tokio::test]
async fn closed_unless_it_is_opened() {
    let house = house(&[]).await;
    assert_eq!(told(&house, "https://example.org").await, (None, None));
}

#[tokio::test]
async fn opened_for_those_that_are_named() {
    let house = house(&["https://example.org", "http://localhost:3000"]).await;
    for origin in ["https://example.org", "http://localhost:3000"] {
        let allowed = Some(origin.to_owned());
        assert_eq!(told(&house, origin).await, (allowed.clone(), allowed));
    }
    for origin in ["https://example.org.evil.test", "http://example.org", "null"] {
        assert_eq!(told(&house, origin).await, (None, None), "{origin}");
    }
    let anybody = self::house(&["*"]).await;
    assert_eq!(told(&anybody, "https://evil.test").await.0.as_deref(), Some("*"));
}
