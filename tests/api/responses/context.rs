//! Size of the context, and what a client keeps of it: counts, truncation, sealed reasoning.

use serde_json::{Value, json};
use waymark_engine::mock::Lines;

use super::{answer, ask, create, fetch};
use crate::harness::{TestServer, says, script, with_fields};

async fn count(server: &TestServer, body: &Value) -> (u16, Value) {
    crate::harness::answer(server.post("/v1/responses/input_tokens", body).await).await
}

#[tokio::test]
async fn tokens_are_counted_as_a_response_counts_them() {
    let server = TestServer::new(says("hi")).await;
    let (_, first) = create(&server, &ask(json!({}))).await;
    let function = json!({"type": "function", "name": "look", "strict": true, "parameters": {"type": "object"}});
    for body in [
        ask(json!({})),
        ask(json!({"instructions": "Be brief."})),
        ask(json!({"previous_response_id": first["id"]})),
        ask(json!({"tools": [function], "parallel_tool_calls": false})),
        ask(json!({"model": "routerag", "tool_choice": "none"})),
        ask(json!({"text": {"format": {"type": "json_object"}}})),
    ] {
        let (status, counted) = count(&server, &body).await;
        assert_eq!((status, &counted["object"]), (200, &json!("response.input_tokens")), "{counted}");
        let (status, response) = create(&server, &body).await;
        assert_eq!(status, 200, "{response}");
        assert_eq!(counted["input_tokens"], response["usage"]["input_tokens"], "{body}");
    }
    for (body, status, param) in [
        (ask(json!({"model": "nobody"})), 404, "model"),
        (ask(json!({"stream": true})), 400, "stream"),
        (ask(json!({"input": "x".repeat(40_000)})), 400, "input"),
        (ask(json!({"previous_response_id": "resp_0"})), 404, "previous_response_id"),
    ] {
        let (refused, counted) = count(&server, &body).await;
        assert_eq!((refused, &counted["error"]["param"]), (status, &json!(param)), "{counted}");
    }
    for field in ["generate_summary", "summary"] {
        let (status, counted) = count(&server, &ask(json!({"reasoning": {field: "auto"}}))).await;
        let error = &counted["error"];
        let param = format!("reasoning.{field}");
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{counted}");
        assert_eq!(error["code"], "unsupported_parameter", "{counted}");
        assert_eq!(count(&server, &ask(json!({"reasoning": {field: null}}))).await.0, 200, "{field}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn the_oldest_turns_make_room_if_the_client_says_so() {
    let lines = Lines::new(["no instructions"]).rule("system\nBe brief.", ["brief"]);
    let server = TestServer::new(script(&lines)).await;
    let says = |role: &str, text: &str| json!({"role": role, "content": text});
    let long = "x".repeat(20_000);
    let input = json!([
        says("user", &long),
        says("assistant", &long),
        says("user", "short"),
        says("assistant", "y"),
        says("user", "and now?")
    ]);
    let body = |truncation: Value| ask(json!({"input": input, "instructions": "Be brief.", "truncation": truncation}));
    for truncation in [json!("disabled"), Value::Null] {
        let (status, refused) = create(&server, &body(truncation)).await;
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("context_length_exceeded")));
    }
    let (status, response) = create(&server, &body(json!("auto"))).await;
    assert_eq!((status, answer(&response), &response["truncation"]), (200, "brief", &json!("auto")), "{response}");
    // Only the turn that does not fit is dropped.
    let kept = json!([says("user", "short"), says("assistant", "y"), says("user", "and now?")]);
    let (_, alone) = create(&server, &ask(json!({"input": kept, "instructions": "Be brief."}))).await;
    assert_eq!(response["usage"]["input_tokens"], alone["usage"]["input_tokens"]);
    assert_eq!(count(&server, &body(json!("auto"))).await.1["input_tokens"], alone["usage"]["input_tokens"]);
    // An input that fits is left as it is, and a question that does not fit is refused.
    let (_, whole) =
        create(&server, &ask(json!({"input": kept, "instructions": "Be brief.", "truncation": "auto"}))).await;
    assert_eq!(whole["usage"]["input_tokens"], alone["usage"]["input_tokens"]);
    let (status, refused) = create(&server, &ask(json!({"input": "x".repeat(40_000), "truncation": "auto"}))).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("context_length_exceeded")), "{refused}");
    server.quiet().await;
}

#[tokio::test]
async fn a_chain_of_responses_has_a_limit() {
    let server = TestServer::new(says("hi")).await;
    let turns = |count: usize| vec![json!({"role": "user", "content": "a"}); count];
    // With its answer, one message more than a response continues.
    let (status, long) = create(&server, &ask(json!({"input": turns(1000), "truncation": "auto"}))).await;
    assert_eq!(status, 200, "{long}");
    let follow = ask(json!({"previous_response_id": long["id"]}));
    for refused in [create(&server, &follow).await, count(&server, &follow).await] {
        let (status, refused) = refused;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!("previous_response_id")), "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("1001 messages"), "{refused}");
    }
    let (status, shorter) = create(&server, &with_fields(follow, json!({"truncation": "auto"}))).await;
    assert_eq!(status, 200, "{shorter}");
    // The dropped turn is gone, but the new ones count.
    let (_, refused) = create(&server, &ask(json!({"previous_response_id": shorter["id"]}))).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("1002 messages"), "{refused}");
    server.quiet().await;
}

#[tokio::test]
async fn sealed_reasoning_comes_back_and_a_forged_one_does_not() {
    let server = TestServer::new(says("<think>Let me see.</think>yes")).await;
    let include = json!(["reasoning.encrypted_content"]);
    let (status, first) = create(&server, &ask(json!({"include": include}))).await;
    assert_eq!((status, answer(&first)), (200, "yes"), "{first}");
    let reasoning = &first["output"][0];
    let sealed = reasoning["encrypted_content"].as_str().unwrap();
    assert_eq!(reasoning["content"][0]["text"], "Let me see.");
    assert!(!sealed.contains("Let me see"), "{sealed}");
    // The sealed reasoning is returned only to a request that asks for it.
    let (_, unsealed) = create(&server, &ask(json!({}))).await;
    assert!(unsealed["output"][0].get("encrypted_content").is_none(), "{unsealed}");
    assert!(fetch(&server, &first["id"], "").await.1["output"][0].get("encrypted_content").is_none());
    let sealed_again = "?include[]=reasoning.encrypted_content";
    assert_eq!(fetch(&server, &first["id"], sealed_again).await.1, first);
    // It cannot be added to a response that was created without it.
    let (status, refused) = fetch(&server, &unsealed["id"], sealed_again).await;
    let error = &refused["error"];
    let got = (status, &error["code"], &error["param"]);
    assert_eq!(got, (400, &json!("unsupported_parameter"), &json!("include")), "{refused}");
    assert!(error["message"].as_str().unwrap().contains("sealed reasoning"), "{refused}");

    let again = |encrypted: Value| {
        let mut item = reasoning.clone();
        item["encrypted_content"] = encrypted;
        ask(json!({"store": false, "input": [{"role": "user", "content": "hello"}, item, first["output"][1],
            {"role": "user", "content": "and now?"}]}))
    };
    for good in [json!(sealed), Value::Null] {
        let (status, next) = create(&server, &again(good)).await;
        assert_eq!(status, 200, "{next}");
    }
    let mut forged: Vec<char> = sealed.chars().collect();
    forged[40] = if forged[40] == 'A' { 'B' } else { 'A' };
    for bad in [json!(forged.iter().collect::<String>()), json!("x"), json!(""), json!(7), json!(&sealed[..60])] {
        let (status, refused) = create(&server, &again(bad.clone())).await;
        let error = &refused["error"];
        assert_eq!((status, &error["param"]), (400, &json!("input[1].encrypted_content")), "{bad} gave {refused}");
    }
    // Another server has other secrets.
    let other = TestServer::new(says("yes")).await;
    assert_eq!(create(&other, &again(json!(sealed))).await.0, 400);
    server.quiet().await;
}
