//! Refused requests: their statuses, and the fields that the errors name.

use serde_json::{Value, json};

use super::{ask, create};
use crate::harness::{TestServer, says};

const INVALID: &str = "invalid_value";
const UNSUPPORTED: &str = "unsupported_parameter";
const UNKNOWN: &str = "unknown_parameter";

async fn refused(server: &TestServer, change: &Value) -> (u16, String, String) {
    let (status, body) = create(server, &ask(change.clone())).await;
    let error = body["error"].as_object().unwrap_or_else(|| panic!("{change} gave {body}"));
    let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    assert!(!text("message").is_empty() && !text("message").ends_with('.'), "{body}");
    (status, text("code"), text("param"))
}

#[tokio::test]
async fn bad_input_is_named() {
    let server = TestServer::new(says("hi")).await;
    let item = |item: Value| json!({"input": [item]});
    let part = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    for (change, code, param) in [
        (json!({"input": ""}), INVALID, "input"),
        (json!({"input": []}), INVALID, "input"),
        (json!({"input": 3}), INVALID, "input"),
        // The mock has one token per byte, and a context of 32,768 tokens.
        (json!({"input": "x".repeat(40_000)}), "context_length_exceeded", "input"),
        (item(json!({"role": "assistant", "content": "x"})), INVALID, "input"),
        (item(json!({"role": "king", "content": "x"})), INVALID, "input[0].role"),
        (item(json!({"role": "user"})), "missing_required_parameter", "input[0].content"),
        (item(json!({"role": "user", "content": 3})), INVALID, "input[0].content"),
        (item(json!({"role": "user", "content": "x", "colour": 1})), UNKNOWN, "input[0].colour"),
        (item(json!({"role": "user", "content": "x", "phase": "commentary"})), UNSUPPORTED, "input[0].phase"),
        (item(json!({"type": "function_call_output", "call_id": "x", "output": "y"})), INVALID, "input[0].call_id"),
        (item(json!({"type": "computer_call", "id": "cu_1"})), UNSUPPORTED, "input[0]"),
        (item(json!({"type": 3})), INVALID, "input[0].type"),
        (item(json!("x")), INVALID, "input[0]"),
        (part(json!({"type": "input_image", "image_url": "x"})), UNSUPPORTED, "input[0].content[0]"),
        (part(json!({"type": "input_text", "text": 3})), INVALID, "input[0].content[0].text"),
        (part(json!({"text": "x"})), INVALID, "input[0].content[0]"),
    ] {
        assert_eq!(refused(&server, &change).await, (400, code.to_owned(), param.to_owned()), "{change}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn bad_values_are_named() {
    let server = TestServer::new(says("hi")).await;
    let tool = |tool: Value| json!({"model": "routerag", "tools": [tool]});
    let ranking =
        |options: Value| json!({"model": "routerag", "tools": [{"type": "file_search", "ranking_options": options}]});
    let format = |mut format: Value| {
        format["type"] = json!("json_schema");
        json!({"text": {"format": format}})
    };
    // OpenAI allows 16 pairs.
    let pairs = (0..17).map(|at| (at.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>();
    for (change, code, param) in [
        (json!({"include": ["everything"]}), INVALID, "include[0]"),
        (json!({"include": ["web_search_call.results"]}), UNSUPPORTED, "include[0]"),
        (json!({"truncation": "always"}), INVALID, "truncation"),
        (json!({"max_output_tokens": 0}), INVALID, "max_output_tokens"),
        (json!({"max_tool_calls": -1}), INVALID, "max_tool_calls"),
        (json!({"temperature": 2.5}), INVALID, "temperature"),
        (json!({"top_p": -0.5}), INVALID, "top_p"),
        (json!({"top_logprobs": 3}), INVALID, "top_logprobs"),
        (json!({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}), INVALID, "top_logprobs"),
        (json!({"metadata": {"a": 3}}), INVALID, "metadata.a"),
        (json!({"metadata": pairs}), INVALID, "metadata"),
        (json!({"background": true, "store": false}), INVALID, "background"),
        (json!({"rag": {"k": 0}}), INVALID, "rag.k"),
        (json!({"rag": {"index": "x"}}), INVALID, "rag.index"),
        (json!({"colour": 1}), UNKNOWN, "colour"),
        (json!({"text": {"colour": 1}}), UNKNOWN, "text.colour"),
        (json!({"text": {"format": {"type": "grammar"}}}), INVALID, "text.format.type"),
        (json!({"text": {"format": {"type": "text", "name": "x"}}}), INVALID, "text.format.name"),
        (format(json!({"name": "a b", "schema": {}})), INVALID, "text.format.name"),
        (format(json!({"schema": {}})), "missing_required_parameter", "text.format.name"),
        (format(json!({"name": "x"})), "missing_required_parameter", "text.format.schema"),
        (format(json!({"name": "x", "schema": {"type": "nonsense"}})), INVALID, "text.format"),
        (json!({"tool_choice": "required"}), UNSUPPORTED, "tool_choice"),
        (json!({"tool_choice": {"type": "file_search"}}), UNSUPPORTED, "tool_choice"),
        (json!({"tools": [{"type": "file_search"}]}), UNSUPPORTED, "tools[0]"),
        (tool(json!({"type": "web_search"})), UNSUPPORTED, "tools[0]"),
        (tool(json!({})), INVALID, "tools[0]"),
        (tool(json!({"type": "file_search", "colour": 1})), UNKNOWN, "tools[0].colour"),
        (
            tool(json!({"type": "file_search", "vector_store_ids": ["vs_1"]})),
            UNSUPPORTED,
            "tools[0].vector_store_ids[0]",
        ),
        // OpenAI's tool returns at most 50 results.
        (tool(json!({"type": "file_search", "max_num_results": 51})), INVALID, "tools[0].max_num_results"),
        (
            tool(json!({"type": "file_search", "filters": {"type": "eq"}})),
            "missing_required_parameter",
            "tools[0].filters.key",
        ),
        (
            tool(json!({"type": "file_search", "filters": {"type": "like", "key": "a", "value": 1}})),
            INVALID,
            "tools[0].filters.type",
        ),
        (
            json!({"model": "routerag", "rag": {"filters": {"type": "eq", "key": "a", "value": 1}},
                   "tools": [{"type": "file_search", "filters": {"type": "eq", "key": "a", "value": 2}}]}),
            INVALID,
            "tools[0].filters",
        ),
        (json!({"rag": {"filters": {"type": "eq", "key": "a", "value": 1}}}), INVALID, "rag.filters"),
        (ranking(json!({"ranker": "best"})), UNSUPPORTED, "tools[0].ranking_options.ranker"),
        (ranking(json!({"score_threshold": 0.5})), UNSUPPORTED, "tools[0].ranking_options.score_threshold"),
        (ranking(json!({"hybrid_search": {}})), UNSUPPORTED, "tools[0].ranking_options.hybrid_search"),
        (
            json!({"model": "routerag", "rag": {"k": 2}, "tools": [{"type": "file_search", "max_num_results": 3}]}),
            INVALID,
            "tools[0].max_num_results",
        ),
    ] {
        assert_eq!(refused(&server, &change).await, (400, code.to_owned(), param.to_owned()), "{change}");
    }
    let nobody = refused(&server, &json!({"model": "nobody"})).await;
    assert_eq!(nobody, (404, "model_not_found".into(), "model".into()));
    let nothing = refused(&server, &json!({"previous_response_id": "resp_0"})).await;
    assert_eq!(nothing, (404, "response_not_found".into(), "previous_response_id".into()));
    let nothing = refused(&server, &json!({"conversation": "conv_0"})).await;
    assert_eq!(nothing, (404, "conversation_not_found".into(), "conversation".into()));
    server.quiet().await;
}

#[tokio::test]
async fn known_options_without_an_implementation_are_refused_unless_they_ask_for_nothing() {
    let server = TestServer::new(says("hi")).await;
    for (field, asks, harmless) in [
        ("context_management", json!([{}]), json!([])),
        ("prompt", json!({"id": "x"}), Value::Null),
        ("stream_options", json!({"colour": 1}), json!({"include_obfuscation": false})),
    ] {
        let expected = (400, UNSUPPORTED.to_owned(), field.to_owned());
        assert_eq!(refused(&server, &json!({field: asks})).await, expected, "{field}");
        let (status, body) = create(&server, &ask(json!({field: harmless}))).await;
        assert_eq!(status, 200, "{field}: {body}");
    }
    for (body, param) in [
        (json!({"reasoning": {"summary": "auto"}}), "reasoning.summary"),
        (json!({"stream_options": {"include_obfuscation": true}}), "stream_options.include_obfuscation"),
    ] {
        assert_eq!(refused(&server, &body).await, (400, UNSUPPORTED.to_owned(), param.to_owned()));
    }
}

#[tokio::test]
async fn fields_that_are_null_are_accepted() {
    let server = TestServer::new(says("hi")).await;
    // From the document, so fields that come later are tested, too.
    let document: Value = server.get("/openapi.json").await.json().await.unwrap();
    let known = document["components"]["schemas"]["ResponsesRequest"]["properties"].as_object().unwrap();
    let mut body = ask(json!({}));
    for field in known.keys().filter(|field| !["model", "input"].contains(&field.as_str())) {
        body[field] = Value::Null;
    }
    body["input"] =
        json!([{"type": null, "role": "user", "content": "hello", "id": null, "status": null, "phase": null}]);
    assert_eq!(create(&server, &body).await.0, 200, "{body}");
}

#[tokio::test]
async fn only_what_is_made_in_the_background_is_cancelled_or_followed() {
    let server = TestServer::new(says("hi")).await;
    let (_, response) = create(&server, &ask(json!({}))).await;
    let id = response["id"].as_str().unwrap();
    let cancelled = server.post(&format!("/v1/responses/{id}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status(), 400);
    let followed = server.get(&format!("/v1/responses/{id}?stream=true")).await;
    assert_eq!(followed.status(), 400);
    assert_eq!(followed.json::<Value>().await.unwrap()["error"]["param"], "stream");
    for path in ["/v1/responses/resp_0", "/v1/responses/resp_0?stream=true", "/v1/responses/%ff"] {
        assert_eq!(server.get(path).await.status(), 404);
    }
    let unreadable = server.get("/v1/responses/%ff").await.json::<Value>().await.unwrap();
    assert_eq!(unreadable["error"]["code"], "not_found");
    assert_eq!(server.post("/v1/responses/resp_0/cancel", &json!({})).await.status(), 404);
}
