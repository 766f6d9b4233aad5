//! IDs without a stored record: errors distinguish evicted records from records that never existed.

use serde_json::{Value, json};

use crate::harness::{ServerPlan, TestServer, says};

/// Returns the message of the 404 that a path gets.
async fn missing(server: &TestServer, path: &str) -> String {
    let response = server.get(path).await;
    assert_eq!(response.status(), 404, "{path}");
    let body: Value = response.json().await.unwrap();
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_was_pushed_out_is_told_from_what_never_was() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.traces.count = 1;
    plan.http.responses.kept = 1;
    let server = plan.build().await;
    let mut traces = Vec::new();
    let mut responses = Vec::new();
    for _ in 0..2 {
        let asked = server.post("/v1/responses", &json!({"model": "plain", "input": "hello"})).await;
        responses.push(asked.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned());
        let asked = server.post("/v1/agent", &json!({"model": "plain", "question": "hello"})).await;
        traces.push(asked.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned());
    }
    for (path, flag) in [
        (format!("/v1/traces/{}", traces[0]), "--trace-count"),
        (format!("/v1/responses/{}", responses[0]), "--kept-responses"),
    ] {
        let message = missing(&server, &path).await;
        assert!(message.contains("newer ones took its place") && message.contains(flag), "{message}");
    }
    for path in ["/v1/traces/ep-1", "/v1/responses/resp_1"] {
        let message = missing(&server, path).await;
        assert!(message.contains("ever had the ID"), "{message}");
    }
    assert_eq!(server.get(&format!("/v1/responses/{}", responses[1])).await.status(), 200);
}
