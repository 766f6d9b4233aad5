//! Background responses, and clients that disconnect.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use waymark::config::{HttpConfig, ResponseLimits};
use waymark_engine::MockBackend;

use super::{Never, answer, ask, create, events, fetch, two_searches};
use crate::harness::{ServerPlan, TestServer, eventually, eventually_found, read_until, says, script};

fn slow(words: usize) -> MockBackend {
    says(&"word ".repeat(words)).with_time(Duration::from_millis(4), Duration::ZERO)
}

/// Polls until the response has ended.
async fn finished(server: &TestServer, id: &Value) -> Value {
    eventually_found("it ends", async || {
        let (_, response) = fetch(server, id, "").await;
        let running = ["queued", "in_progress"].contains(&response["status"].as_str().unwrap());
        (!running).then_some(response)
    })
    .await
}

#[tokio::test]
async fn it_is_made_while_nobody_waits() {
    let server = TestServer::new(says("hello you")).await;
    let (status, queued) = create(&server, &ask(json!({"background": true}))).await;
    assert_eq!((status, &queued["status"], &queued["output"]), (200, &json!("queued"), &json!([])));
    let response = finished(&server, &queued["id"]).await;
    assert_eq!((answer(&response), &response["status"]), ("hello you", &json!("completed")));
    // Canceling an ended response changes nothing.
    let path = format!("/v1/responses/{}/cancel", queued["id"].as_str().unwrap());
    assert_eq!(server.post(&path, &json!({})).await.json::<Value>().await.unwrap(), response);
    let again = ask(json!({"previous_response_id": queued["id"]}));
    assert_eq!(create(&server, &again).await.0, 200);
    server.quiet().await;
}

#[tokio::test]
async fn its_stream_survives_its_reader() {
    let server = TestServer::new(slow(200)).await;
    let mut socket = server.raw("/v1/responses", &ask(json!({"background": true, "stream": true}))).await;
    let seen = read_until(&mut socket, "output_text.delta").await;
    drop(socket);
    let id = seen.split("\"id\":\"resp_").nth(1).unwrap().split('"').next().unwrap();
    let path = format!("/v1/responses/resp_{id}?stream=true");
    // While the response is generated, one client follows from the beginning and one from the middle.
    let later = format!("{path}&starting_after=20");
    let (all, rest) =
        tokio::join!(async { server.get(&path).await.text().await }, async { server.get(&later).await.text().await });
    let all = events(&all.unwrap());
    let rest = events(&rest.unwrap());
    assert_eq!(all[21..], rest[..]);
    let deltas = all.iter().filter(|event| event["type"] == "response.output_text.delta");
    let text: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "word ".repeat(200));
    assert_eq!(answer(&all.last().unwrap()["response"]), text);
    // Another one follows when the response has ended.
    assert_eq!(events(&server.get(&later).await.text().await.unwrap()), rest);
    server.quiet().await;
}

#[tokio::test]
async fn there_are_none_where_none_is_kept() {
    for (kept, bytes) in [(0, 1 << 20), (1, 0)] {
        let responses = ResponseLimits { kept, bytes, ..ResponseLimits::default() };
        let http = HttpConfig { responses, ..HttpConfig::default() };
        let server = ServerPlan { http, ..ServerPlan::new(says("hi")) }.build().await;
        for (asked, param) in [(json!({"background": true}), "background"), (json!({"store": true}), "store")] {
            let (status, body) = create(&server, &ask(asked)).await;
            let error = &body["error"];
            assert_eq!((status, &error["code"]), (400, &json!("unsupported_parameter")));
            assert_eq!(error["param"], param);
        }
        let (status, response) = create(&server, &ask(json!({}))).await;
        assert_eq!((status, &response["store"]), (200, &json!(false)), "{response}");
    }
}

#[tokio::test]
async fn there_are_only_so_many() {
    let responses = ResponseLimits { background: 1, ..ResponseLimits::default() };
    let http = HttpConfig { responses, ..HttpConfig::default() };
    let plan = ServerPlan { http, searcher: Some(Arc::new(Never)), ..ServerPlan::new(script(&two_searches())) };
    let server = plan.build().await;
    let body = ask(json!({"model": "routerag", "background": true}));
    let (_, first) = create(&server, &body).await;
    let refused = server.post("/v1/responses", &body).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["code"], "queue_full");
    // Deleting the first response ends it and frees its slot.
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(server.client.delete(server.url(&path)).send().await.unwrap().status(), 200);
    assert_eq!(fetch(&server, &first["id"], "").await.0, 404);
    let (status, second) = create(&server, &body).await;
    assert_eq!(status, 200);
    server.post(&format!("/v1/responses/{}/cancel", second["id"].as_str().unwrap()), &json!({})).await;
    server.quiet().await;
}

#[tokio::test]
async fn one_that_grows_too_large_fails_and_says_so() {
    let responses = ResponseLimits { bytes: 32 << 10, ..ResponseLimits::default() };
    let http = HttpConfig { responses, ..HttpConfig::default() };
    let server = ServerPlan { http, ..ServerPlan::new(says(&"word ".repeat(200))) }.build().await;
    let (status, queued) = create(&server, &ask(json!({"background": true}))).await;
    assert_eq!(status, 200, "{queued}");
    let response = finished(&server, &queued["id"]).await;
    assert_eq!((&response["status"], &response["output"]), (&json!("failed"), &json!([])));
    let message = response["error"]["message"].as_str().unwrap();
    assert!(message.contains("--response-bytes"), "{response}");
    let again = create(&server, &ask(json!({"previous_response_id": queued["id"]}))).await;
    let error = &again.1["error"];
    assert_eq!((again.0, &error["param"]), (400, &json!("previous_response_id")));
    assert!(error["message"].as_str().unwrap().contains("is failed"), "{error}");
    // The followers get the last event, and nothing is generated any more.
    server.quiet().await;
    let path = format!("/v1/responses/{}?stream=true", queued["id"].as_str().unwrap());
    assert_eq!(events(&server.get(&path).await.text().await.unwrap()).last().unwrap()["type"], "response.failed");
}

#[tokio::test]
async fn a_client_that_goes_ends_what_is_made_for_it() {
    for stream in [true, false] {
        let server = TestServer::new(slow(6000)).await;
        let socket = server.raw("/v1/responses", &ask(json!({"stream": stream}))).await;
        let counters = server.state.runtime.engine.counters();
        eventually("tokens are sampled", || counters.decode_tokens_total.get() > 5).await;
        drop(socket);
        server.quiet().await;
        // All of it would be 30,000 tokens, which take two minutes.
        assert!(counters.decode_tokens_total.get() < 10_000);
    }
}

#[tokio::test]
async fn a_drain_ends_every_kind_in_its_own_words() {
    let mut plan = ServerPlan { searcher: Some(Arc::new(Never)), ..ServerPlan::new(script(&two_searches())) };
    plan.http.drain = Duration::from_millis(50);
    let mut server = plan.build().await;
    let body = ask(json!({"model": "routerag", "stream": true}));
    let streamed = server.post("/v1/responses", &body).await;
    let (_, queued) = create(&server, &ask(json!({"model": "routerag", "background": true}))).await;
    let path = format!("/v1/responses/{}?stream=true", queued["id"].as_str().unwrap());
    let followed = server.get(&path).await;
    let counters = server.state.runtime.engine.counters();
    eventually("both search", || counters.sessions_parked.get() == 2).await;
    server.terminate();
    for stream in [streamed, followed] {
        let last = events(&stream.text().await.unwrap()).pop().unwrap();
        assert_eq!(last["type"], "response.failed");
        let response = &last["response"];
        assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
        assert_eq!(response["output"][1]["status"], "incomplete");
    }
}
