//! Functions of the client: calls in the output, and their results in the next request.

use serde_json::{Value, json};
use waymark_engine::MockBackend;
use waymark_engine::mock::Lines;

use super::{answer, ask, create, events, kinds};
use crate::harness::{TestServer, says, script, with_fields};
use crate::tools::test_server;

const CALL: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>";
const JENA: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Jena\"}}\n</tool_call>";

fn look() -> Value {
    json!({"type": "function", "name": "look", "description": "Looks.", "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Bonn", "Jena"]}},
        "required": ["city"],
        "additionalProperties": false,
    }})
}

/// Sends a question with the function, and with other fields.
fn with(extra: Value) -> Value {
    with_fields(ask(json!({"tools": [look()]})), extra)
}

fn output(call: &Value, text: &str) -> Value {
    json!({"type": "function_call_output", "call_id": call["call_id"], "output": text})
}

/// Returns the calls of a response.
fn calls(response: &Value) -> Vec<&Value> {
    response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "function_call").collect()
}

/// Mock that makes two calls, and answers by their results, which the prompt shows in the order of the calls.
fn caller() -> MockBackend {
    let shown = |first: &str, second: &str| {
        format!(
            "<tool_response>{first}</tool_response><|im_end|>\n<|im_start|>user\n<tool_response>{second}</tool_response>"
        )
    };
    let lines = Lines::new(["nothing"])
        .rule(shown("21 degrees", "19 degrees"), ["Bonn is warmer."])
        .rule(shown("19 degrees", "21 degrees"), ["Jena is warmer."])
        .rule("<tool_response>21 degrees", ["It is warm."])
        .rule("Looks.", [format!("Let me look.\n{CALL}\n{JENA}")]);
    script(&lines)
}

#[tokio::test]
async fn a_call_is_an_item_and_a_stream_says_the_same() {
    let server = test_server(caller()).await;
    let (status, whole) = create(&server, &with(json!({}))).await;
    assert_eq!((status, &whole["status"]), (200, &json!("completed")), "{whole}");
    let listed = with_fields(look(), json!({"strict": false}));
    assert_eq!((&whole["tools"], &whole["tool_choice"]), (&json!([listed]), &json!("auto")));
    let [message, first, second] = whole["output"].as_array().unwrap().as_slice() else { panic!("{whole}") };
    assert_eq!((&message["content"][0]["text"], &message["status"]), (&json!("Let me look."), &json!("completed")));
    for (call, arguments) in [(first, r#"{"city":"Bonn"}"#), (second, r#"{"city":"Jena"}"#)] {
        assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("look")));
        assert_eq!((&call["arguments"], &call["status"]), (&json!(arguments), &json!("completed")));
        assert!(call["id"].as_str().unwrap().starts_with("fc_"), "{call}");
        assert!(call["call_id"].as_str().unwrap().starts_with("call_"), "{call}");
    }
    assert_ne!(first["call_id"], second["call_id"]);

    let stream = server.post("/v1/responses", &with(json!({"stream": true}))).await.text().await.unwrap();
    let told = events(&stream);
    let call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"];
    let message = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"];
    let mut expected = vec!["created", "in_progress", "output_item.added"];
    expected.extend(message);
    expected.push("output_item.done");
    for _ in 0..2 {
        expected.extend(call);
        expected.push("output_item.done");
    }
    expected.push("completed");
    assert_eq!(kinds(&told), expected);
    let added: Vec<&Value> = told
        .iter()
        .filter(|event| event["type"] == "response.output_item.added" && event["item"]["type"] == "function_call")
        .collect();
    assert!(added.iter().all(|event| event["item"]["arguments"] == "" && event["item"]["status"] == "in_progress"));
    let done = told.iter().find(|event| event["type"] == "response.function_call_arguments.done").unwrap();
    assert_eq!((&done["name"], &done["arguments"]), (&json!("look"), &first["arguments"]));
    let last = &told.last().unwrap()["response"];
    assert_eq!(calls(last).len(), 2, "{last}");
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    server.quiet().await;
}

#[tokio::test]
async fn results_are_answered_with_the_previous_response_and_without() {
    let server = test_server(caller()).await;
    let (_, first) = create(&server, &with(json!({}))).await;
    let made = calls(&first);
    let bonn = output(made[0], "21 degrees");
    let jena = output(made[1], "19 degrees");
    // Results may come in any order: the prompt shows them in the order of the calls.
    for results in [json!([bonn, jena]), json!([jena, bonn])] {
        let body = with(json!({"previous_response_id": first["id"], "input": results}));
        let (status, next) = create(&server, &body).await;
        assert_eq!((status, answer(&next)), (200, "Bonn is warmer."), "{next}");
        assert!(calls(&next).is_empty());
        let path = format!("/v1/responses/{}/input_items?order=asc", next["id"].as_str().unwrap());
        let items: Value = server.get(&path).await.json().await.unwrap();
        assert_eq!(items["data"][0]["type"], "function_call_output");
        assert_eq!(items["data"][1]["call_id"], results[1]["call_id"]);

        let mut input = vec![json!({"role": "user", "content": "hello"})];
        input.extend(first["output"].as_array().unwrap().clone());
        input.extend(results.as_array().unwrap().clone());
        let (status, stateless) = create(&server, &with(json!({"store": false, "input": input}))).await;
        assert_eq!((status, answer(&stateless)), (200, "Bonn is warmer."), "{stateless}");
        assert_eq!(stateless["usage"]["input_tokens"], next["usage"]["input_tokens"], "the prompts are the same");
    }
    // The second result alone would be shown in the place of the first.
    let body = with(json!({"previous_response_id": first["id"], "input": [jena]}));
    let (status, refused) = create(&server, &body).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("input")), "{refused}");
    // One result now, and the other one in a request after it.
    let body = with(json!({"previous_response_id": first["id"], "input": [bonn]}));
    let (_, half) = create(&server, &body).await;
    assert_eq!(answer(&half), "It is warm.");
    let again = with(json!({"previous_response_id": half["id"], "input": [bonn]}));
    let (status, refused) = create(&server, &again).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("input[0].call_id")), "{refused}");
    let rest = with(json!({"previous_response_id": half["id"], "input": [jena]}));
    assert_eq!(create(&server, &rest).await.0, 200);
}

#[tokio::test]
async fn items_are_referenced_by_their_ids() {
    let server = test_server(caller()).await;
    let (_, first) = create(&server, &with(json!({}))).await;
    let mut input = vec![json!({"role": "user", "content": "hello"})];
    let items = first["output"].as_array().unwrap();
    // A reference may leave out its type.
    for (item, form) in items.iter().zip([json!({"type": "item_reference"}), json!({}), json!({"type": null})]) {
        input.push(with_fields(form, json!({"id": item["id"]})));
    }
    let made = calls(&first);
    input.extend([output(made[0], "19 degrees"), output(made[1], "21 degrees")]);
    let (status, next) = create(&server, &with(json!({"input": input}))).await;
    assert_eq!((status, answer(&next)), (200, "Jena is warmer."), "{next}");

    let unknown = format!("msg_{}00", "0".repeat(32));
    let past = format!("{}ff", made[0]["id"].as_str().unwrap());
    for id in ["nothing", &unknown, &past] {
        let body = with(json!({"input": [{"type": "item_reference", "id": id}]}));
        let (status, refused) = create(&server, &body).await;
        let error = &refused["error"];
        assert_eq!((status, &error["param"]), (404, &json!("input[0].id")), "{refused}");
        assert_eq!(error["code"], "response_not_found");
    }
    // Items of a response that is not stored cannot be referenced.
    let (_, lost) = create(&server, &with(json!({"store": false}))).await;
    let body = with(json!({"input": [{"type": "item_reference", "id": lost["output"][0]["id"]}]}));
    assert_eq!(create(&server, &body).await.0, 404);
}

#[tokio::test]
async fn a_conversation_keeps_calls_and_results() {
    let server = test_server(caller()).await;
    let made: Value = server.post("/v1/conversations", &json!({})).await.json().await.unwrap();
    let (_, first) = create(&server, &with(json!({"conversation": made["id"]}))).await;
    let results: Vec<Value> =
        calls(&first).iter().zip(["21 degrees", "19 degrees"]).map(|(call, text)| output(call, text)).collect();
    let (status, next) = create(&server, &with(json!({"conversation": made["id"], "input": results}))).await;
    assert_eq!((status, answer(&next)), (200, "Bonn is warmer."), "{next}");
    let path = format!("/v1/conversations/{}/items?order=asc", made["id"].as_str().unwrap());
    let items: Value = server.get(&path).await.json().await.unwrap();
    let kinds: Vec<&str> =
        items["data"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    let call = "function_call";
    let result = "function_call_output";
    assert_eq!(kinds, ["message", "message", call, call, result, result, "message"]);
}

#[tokio::test]
async fn a_call_can_be_demanded_or_held_to_its_schema() {
    let strict = with_fields(look(), json!({"strict": true}));
    let leap = json!({"type": "function", "name": "leap"});
    let named = json!({"type": "function", "name": "look"});
    for (said, extra) in [
        ("Certainly!", json!({"tools": [strict], "tool_choice": "required"})),
        ("Certainly!", json!({"tools": [leap, look()], "tool_choice": named})),
        (CALL, json!({"tools": [strict]})),
        (CALL, json!({"tools": [look()], "parallel_tool_calls": false})),
    ] {
        let server = test_server(says(said)).await;
        let (status, response) = create(&server, &with(extra.clone())).await;
        assert_eq!(status, 200, "{extra} gave {response}");
        let made = calls(&response);
        assert_eq!((made.len(), &made[0]["name"]), (1, &json!("look")), "{extra} gave {response}");
        let arguments: Value = serde_json::from_str(made[0]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["city"] == "Bonn" || arguments["city"] == "Jena", "{arguments}");
        assert_eq!(response["output"].as_array().unwrap().len(), 1, "no message: {response}");
        assert_eq!(&response["tool_choice"], extra.get("tool_choice").unwrap_or(&json!("auto")));
        server.quiet().await;
    }
    let server = test_server(says(CALL)).await;
    let (_, none) = create(&server, &with(json!({"tool_choice": "none"}))).await;
    assert_eq!((answer(&none), calls(&none).len()), (CALL, 0));
}

/// Choice of these tools.
fn allowed(mode: &str, tools: Value) -> Value {
    json!({"type": "allowed_tools", "mode": mode, "tools": tools})
}

#[tokio::test]
async fn only_allowed_functions_are_called() {
    let leap = json!({"type": "function", "name": "leap", "parameters": {"type": "object"}});
    let named = |name: &str| json!([{"type": "function", "name": name}]);
    for (said, choice, made) in [
        (CALL, allowed("auto", named("look")), Some("look")),
        (CALL, allowed("auto", named("leap")), None),
        ("Certainly!", allowed("required", named("look")), Some("look")),
    ] {
        let server = test_server(says(said)).await;
        let body = ask(json!({"tools": [leap, look()], "tool_choice": choice}));
        let (status, response) = create(&server, &body).await;
        let names: Vec<&str> = calls(&response).iter().map(|call| call["name"].as_str().unwrap()).collect();
        assert_eq!((status, names), (200, made.into_iter().collect()), "{response}");
        assert_eq!(response["tool_choice"], choice);
    }
}

#[tokio::test]
async fn a_search_that_is_not_allowed_is_not_made() {
    let lines = Lines::new(["<think>a</think>\n<search>[passage] Faust</search>", "<answer> Goethe </answer>"]);
    let search = json!({"type": "file_search"});
    for (tools, allows, searches) in [
        (json!([search, look()]), json!([{"type": "function", "name": "look"}]), 0),
        (json!([search, look()]), json!([{"type": "function", "name": "look"}, search]), 1),
        (json!([look()]), json!([{"type": "function", "name": "look"}]), 1),
    ] {
        let server = test_server(script(&lines)).await;
        let choice = allowed("auto", allows);
        let body = ask(json!({"model": "routerag", "tools": tools, "tool_choice": choice}));
        let (status, response) = create(&server, &body).await;
        assert_eq!(status, 200, "{response}");
        assert_eq!(response["usage"]["searches"], searches, "{choice}");
    }
}

#[tokio::test]
async fn a_policy_that_searches_calls_and_goes_on_with_the_result() {
    let lines = Lines::new([
        "<think>First Faust.</think>\n<search>[passage] Faust</search>".to_owned(),
        format!("<think>Now the weather.</think>\n{CALL}"),
    ])
    .rule("21 degrees", ["<think>Done.</think>\n<answer> It is warm. </answer>"])
    .terminator("</information>\n\n");
    let server = TestServer::new(script(&lines)).await;
    let question = |extra: Value| with(with_fields(json!({"model": "routerag"}), extra));
    let (status, first) = create(&server, &question(json!({}))).await;
    assert_eq!((status, &first["status"]), (200, &json!("completed")), "{first}");
    let kinds: Vec<&str> = first["output"].as_array().unwrap().iter().map(|it| it["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "file_search_call", "reasoning", "function_call"]);
    let made = calls(&first);
    assert_eq!(made[0]["arguments"], r#"{"city":"Bonn"}"#);

    let results = json!([output(made[0], "21 degrees")]);
    let body = question(json!({"previous_response_id": first["id"], "input": results}));
    let (status, next) = create(&server, &body).await;
    assert_eq!((status, answer(&next)), (200, "It is warm."), "{next}");
    // Without a stored response, the conversation starts over with its messages.
    let mut input = vec![json!({"role": "user", "content": "hello"})];
    input.extend(first["output"].as_array().unwrap().clone());
    input.push(results[0].clone());
    let (status, next) = create(&server, &question(json!({"input": input, "store": false}))).await;
    assert_eq!((status, answer(&next)), (200, "It is warm."), "{next}");
    server.quiet().await;
}

#[tokio::test]
async fn functions_that_cannot_be_had_are_refused_by_name() {
    let server = test_server(says("hi")).await;
    let tool = |fields: Value| json!({"tools": [with_fields(json!({"type": "function"}), fields)]});
    let item = |item: Value| json!({"input": [{"role": "user", "content": "x"}, item]});
    let invalid = "invalid_value";
    let unsupported = "unsupported_parameter";
    for (extra, code, param) in [
        (json!({"tools": [look(), look()]}), invalid, "tools[1].name"),
        (json!({"tools": vec![look(); 129]}), invalid, "tools"),
        (tool(json!({})), "missing_required_parameter", "tools[0].name"),
        (tool(json!({"name": "a b"})), invalid, "tools[0].name"),
        (tool(json!({"name": "x", "colour": 1})), "unknown_parameter", "tools[0].colour"),
        (tool(json!({"name": "x", "parameters": {"type": "string"}})), invalid, "tools[0].parameters"),
        (json!({"tools": [look(), {"type": "custom", "name": "x"}]}), unsupported, "tools[1]"),
        (json!({"tool_choice": "maybe"}), unsupported, "tool_choice"),
        (json!({"tool_choice": allowed("auto", json!([]))}), invalid, "tool_choice.tools"),
        (json!({"tool_choice": allowed("none", json!([]))}), invalid, "tool_choice.mode"),
        (
            json!({"tool_choice": allowed("auto", json!([{"type": "function", "name": "leap"}]))}),
            invalid,
            "tool_choice.tools[0].name",
        ),
        (json!({"tool_choice": allowed("auto", json!([{"type": "function"}]))}), invalid, "tool_choice.tools[0].name"),
        (json!({"tool_choice": allowed("auto", json!([{"type": "file_search"}]))}), invalid, "tool_choice.tools[0]"),
        (
            json!({"tool_choice": allowed("required", json!([{"type": "file_search"}]))}),
            unsupported,
            "tool_choice.tools[0]",
        ),
        (json!({"tool_choice": {"type": "function", "name": "leap"}}), invalid, "tool_choice.name"),
        (json!({"tool_choice": {"type": "function"}}), "missing_required_parameter", "tool_choice.name"),
        (json!({"tools": [], "tool_choice": {"type": "function", "name": "leap"}}), invalid, "tool_choice"),
        (item(json!({"type": "function_call_output", "call_id": "c", "output": "x"})), invalid, "input[1].call_id"),
        (
            item(json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": "["})),
            invalid,
            "input[1].arguments",
        ),
    ] {
        let (status, body) = create(&server, &with(extra.clone())).await;
        let error = &body["error"];
        assert_eq!(
            (status, &error["code"], &error["param"]),
            (400, &json!(code), &json!(param)),
            "{extra} gave {error}"
        );
    }
}
