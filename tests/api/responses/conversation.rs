//! Stored responses: fetched, continued and deleted.

use serde_json::{Value, json};
use waymark::config::{HttpConfig, ResponseLimits};
use waymark_engine::mock::Lines;

use super::{answer, ask, create, fetch};
use crate::harness::{ServerPlan, TestServer, says, script};

/// Mock whose answer depends on the prompt.
fn speaker() -> Lines {
    Lines::new(["one"])
        .rule("one<|im_end|>\n<|im_start|>user\nagain", ["two"])
        .rule("system\nBe brief.", ["brief"])
        .rule("assistant\nearlier", ["later"])
}

#[tokio::test]
async fn a_response_is_fetched_continued_and_forgotten() {
    let server = TestServer::new(script(&speaker())).await;
    let (_, first) = create(&server, &ask(json!({"metadata": {"a": "b"}, "user": "me"}))).await;
    assert_eq!((answer(&first), &first["status"], &first["metadata"]["a"]), ("one", &json!("completed"), &json!("b")));
    assert_eq!(fetch(&server, &first["id"], "").await, (200, first.clone()));

    let (_, second) = create(&server, &ask(json!({"input": "again", "previous_response_id": first["id"]}))).await;
    assert_eq!((answer(&second), &second["previous_response_id"]), ("two", &first["id"]));
    let third = ask(json!({"input": "more", "previous_response_id": second["id"]}));
    let (_, third) = create(&server, &third).await;
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&first) < tokens(&second) && tokens(&second) < tokens(&third));

    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    let deleted = server.client.delete(server.url(&path)).send().await.unwrap();
    let known = json!({"id": first["id"], "object": "response", "deleted": true});
    assert_eq!((deleted.status().as_u16(), deleted.json::<Value>().await.unwrap()), (200, known));
    let (status, gone) = fetch(&server, &first["id"], "").await;
    assert_eq!((status, &gone["error"]["code"]), (404, &json!("response_not_found")));
    let (status, gone) = create(&server, &ask(json!({"previous_response_id": first["id"]}))).await;
    assert_eq!((status, &gone["error"]["param"]), (404, &json!("previous_response_id")));
    assert_eq!(server.client.delete(server.url(&path)).send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn instructions_hold_for_one_response() {
    let server = TestServer::new(script(&speaker())).await;
    let (_, first) = create(&server, &ask(json!({"instructions": "Be brief."}))).await;
    assert_eq!((answer(&first), &first["instructions"]), ("brief", &json!("Be brief.")));
    let (_, second) = create(&server, &ask(json!({"previous_response_id": first["id"]}))).await;
    assert_eq!((answer(&second), &second["instructions"]), ("one", &Value::Null));
}

#[tokio::test]
async fn items_of_earlier_responses_can_be_sent_back() {
    let server = TestServer::new(script(&speaker())).await;
    let input = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "he"}, {"type": "input_text", "text": "llo"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"], "results": null},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "earlier", "annotations": [], "logprobs": []}]},
        {"type": "message", "role": "user", "content": "go on"},
    ]);
    let (status, response) = create(&server, &ask(json!({"input": input}))).await;
    assert_eq!((status, answer(&response)), (200, "later"), "{response}");
    // The output of a response is valid input.
    let mut input = vec![json!({"role": "user", "content": "hello"})];
    input.extend(create(&server, &ask(json!({}))).await.1["output"].as_array().unwrap().clone());
    input.push(json!({"role": "user", "content": "again"}));
    assert_eq!(answer(&create(&server, &ask(json!({"input": input}))).await.1), "two");
}

/// Returns the status of a response's trace.
async fn trace(server: &TestServer, response: &Value) -> u16 {
    server.get(&format!("/v1/traces/{}", response["id"].as_str().unwrap())).await.status().as_u16()
}

#[tokio::test]
async fn a_response_leaves_a_trace_until_it_is_forgotten() {
    let server = TestServer::new(says("hi")).await;
    for background in [false, true] {
        let (_, response) = create(&server, &ask(json!({"background": background}))).await;
        let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
        if background {
            // An ended response can be canceled without effect, and then its trace is complete.
            server.post(&format!("{path}/cancel"), &json!({})).await;
        }
        assert_eq!(trace(&server, &response).await, 200, "{background}");
        assert_eq!(server.client.delete(server.url(&path)).send().await.unwrap().status(), 200);
        assert_eq!(trace(&server, &response).await, 404, "{background}");
    }
}

#[tokio::test]
async fn what_is_not_stored_is_not_there() {
    let server = TestServer::new(says("hi")).await;
    let (status, response) = create(&server, &ask(json!({"store": false}))).await;
    assert_eq!((status, &response["store"]), (200, &json!(false)));
    let (status, absent) = fetch(&server, &response["id"], "").await;
    let message = absent["error"]["message"].as_str().unwrap();
    assert!(status == 404 && message.contains("it was created with `store: false`"), "{message}");
    assert_eq!(trace(&server, &response).await, 404);
}

fn keeping(responses: ResponseLimits) -> HttpConfig {
    HttpConfig { responses, ..HttpConfig::default() }
}

#[tokio::test]
async fn the_oldest_responses_make_room() {
    let limits = ResponseLimits { kept: 2, ..ResponseLimits::default() };
    let server = ServerPlan { http: keeping(limits), ..ServerPlan::new(says("hi")) }.build().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(create(&server, &ask(json!({}))).await.1["id"].clone());
    }
    let there =
        [fetch(&server, &ids[0], "").await.0, fetch(&server, &ids[1], "").await.0, fetch(&server, &ids[2], "").await.0];
    assert_eq!(there, [404, 200, 200]);
    // Too few bytes for a single response.
    let limits = ResponseLimits { bytes: 100, ..ResponseLimits::default() };
    let server = ServerPlan { http: keeping(limits), ..ServerPlan::new(says("hi")) }.build().await;
    let (_, response) = create(&server, &ask(json!({}))).await;
    assert_eq!(fetch(&server, &response["id"], "").await.0, 404);
}

#[tokio::test]
async fn a_stream_is_kept_by_the_time_it_ends() {
    let server = TestServer::new(says("hi")).await;
    let stream = server.post("/v1/responses", &ask(json!({"stream": true}))).await.text().await.unwrap();
    let last = super::events(&stream).pop().unwrap();
    assert_eq!(fetch(&server, &last["response"]["id"], "").await, (200, last["response"].clone()));
}

#[tokio::test]
async fn log_probabilities_are_told_and_shown_again() {
    let server = TestServer::new(says("hi")).await;
    let include = json!(["message.output_text.logprobs"]);
    let (_, response) = create(&server, &ask(json!({"include": include, "top_logprobs": 1}))).await;
    let tokens = response["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!(tokens.iter().map(|token| token["token"].as_str().unwrap()).collect::<String>(), "hi");
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 1));
    let (_, bare) = fetch(&server, &response["id"], "").await;
    assert_eq!(bare["output"][0]["content"][0]["logprobs"], json!([]));
    let (_, again) = fetch(&server, &response["id"], "?include[]=message.output_text.logprobs").await;
    assert_eq!(again, response);
    let (_, other) = create(&server, &ask(json!({}))).await;
    let (status, refused) = fetch(&server, &other["id"], "?include[]=message.output_text.logprobs").await;
    let error = &refused["error"];
    assert_eq!((status, &error["code"], &error["param"]), (400, &json!("unsupported_parameter"), &json!("include")));
    assert_eq!(fetch(&server, &other["id"], "?include[]=file_search_call.results").await.0, 200);
}
