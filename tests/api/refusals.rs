//! Refused requests: their statuses, and the fields that the errors name.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::golden::ask as body;
use crate::harness::{ServerPlan, TestServer, answer, read_until, says};

/// Returns the status, code and param of an error, after checking its format.
fn error(status: u16, value: &Value) -> (u16, String, Value) {
    let error = value["error"].as_object().unwrap_or_else(|| panic!("no error object: {value}"));
    let keys: Vec<&String> = error.keys().collect();
    assert_eq!(keys, ["message", "type", "param", "code"], "{value}");
    let message = error["message"].as_str().unwrap();
    assert!(!message.is_empty() && !message.ends_with('.'), "{message}");
    assert!(error["type"].is_string());
    (status, error["code"].as_str().unwrap().to_owned(), error["param"].clone())
}

#[tokio::test]
async fn bad_messages_are_named() {
    let server = TestServer::new(says("hi")).await;
    // More tokens than the context has, as each byte is one.
    let long = "x".repeat(40_000);
    let message = |message: Value| json!({"messages": [message]});
    for (change, status, code, param) in [
        (json!({"messages": []}), 400, "invalid_value", json!("messages")),
        (json!({"messages": "hi"}), 400, "invalid_value", json!("messages")),
        (message(json!({"role": "user", "content": " "})), 400, "invalid_value", json!("messages")),
        (message(json!({"role": "assistant", "content": "x"})), 400, "invalid_value", json!("messages")),
        (message(json!({"role": "user"})), 400, "missing_required_parameter", json!("messages[0].content")),
        (message(json!({"role": "king", "content": "x"})), 400, "invalid_value", json!("messages[0].role")),
        (message(json!({"role": "function", "content": "x"})), 400, "unsupported_parameter", json!("messages[0].role")),
        (
            message(json!({"role": "tool", "content": "x"})),
            400,
            "missing_required_parameter",
            json!("messages[0].tool_call_id"),
        ),
        (
            message(json!({"role": "user", "content": "x", "tool_call_id": "1"})),
            400,
            "unsupported_parameter",
            json!("messages[0].tool_call_id"),
        ),
        (
            message(json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})),
            400,
            "unsupported_parameter",
            json!("messages[0].content[0]"),
        ),
        (message(json!({"role": "user", "content": long})), 400, "context_length_exceeded", json!("messages")),
        (
            message(json!({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]})),
            400,
            "unknown_parameter",
            json!("messages[0].content[0].cache_control"),
        ),
        (
            message(json!({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text"}]})),
            400,
            "missing_required_parameter",
            json!("messages[0].content[1].text"),
        ),
        (message(json!({"role": "user", "content": 5})), 400, "invalid_value", json!("messages[0].content")),
    ] {
        let (got, answer) = server.chat(&body(change.clone())).await;
        assert_eq!(error(got, &answer), (status, code.to_owned(), param), "{change} gave {answer}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn bad_values_are_named() {
    let server = TestServer::new(says("hi")).await;
    for (change, status, code, param) in [
        (json!({"max_tokens": 0}), 400, "invalid_value", json!("max_tokens")),
        (json!({"max_completion_tokens": 0}), 400, "invalid_value", json!("max_completion_tokens")),
        (json!({"max_tokens": 3, "max_completion_tokens": 4}), 400, "invalid_value", json!("max_tokens")),
        (json!({"max_tokens": -1}), 400, "invalid_value", json!("max_tokens")),
        (json!({"max_tokens": "many"}), 400, "invalid_value", json!("max_tokens")),
        (json!({"n": 0}), 400, "invalid_value", json!("n")),
        (json!({"n": 17}), 400, "invalid_value", json!("n")),
        (json!({"temperature": 2.5}), 400, "invalid_value", json!("temperature")),
        (json!({"temperature": -0.1}), 400, "invalid_value", json!("temperature")),
        (json!({"top_p": 1.1}), 400, "invalid_value", json!("top_p")),
        (json!({"frequency_penalty": 3}), 400, "invalid_value", json!("frequency_penalty")),
        (json!({"presence_penalty": -3}), 400, "invalid_value", json!("presence_penalty")),
        (json!({"logit_bias": {"7": 101}}), 400, "invalid_value", json!("logit_bias")),
        (json!({"logit_bias": {"999999": 1}}), 400, "invalid_value", json!("logit_bias")),
        (json!({"logit_bias": {"x": 1}}), 400, "invalid_value", json!("logit_bias")),
        (json!({"top_logprobs": 3}), 400, "invalid_value", json!("top_logprobs")),
        (json!({"logprobs": true, "top_logprobs": 21}), 400, "invalid_value", json!("top_logprobs")),
        (json!({"stop": ["a", "b", "c", "d", "e"]}), 400, "invalid_value", json!("stop")),
        (json!({"stop": ""}), 400, "invalid_value", json!("stop")),
        (json!({"stream_options": {"include_usage": true}}), 400, "invalid_value", json!("stream_options")),
        (json!({"rag": {"k": 0}}), 400, "invalid_value", json!("rag.k")),
        (json!({"rag": {"mode": "psychic"}}), 400, "invalid_value", json!("rag.mode")),
        (json!({"rag": {"mode": "passage"}}), 400, "invalid_value", json!("rag.mode")),
        (json!({"rag": {"k": 2}}), 400, "invalid_value", json!("rag.k")),
        (json!({"rag": {"ranking": "bm25"}}), 400, "invalid_value", json!("rag.ranking")),
        (json!({"rag": {"graph": "hippo_rag"}}), 400, "invalid_value", json!("rag.graph")),
        (json!({"rag": {"budget": {"seconds": 0}}}), 400, "invalid_value", json!("rag.budget.seconds")),
        (json!({"rag": {"colour": 1}}), 400, "unknown_parameter", json!("rag.colour")),
        (json!({"rag": {"index": "x"}}), 400, "invalid_value", json!("rag.index")),
        (json!({"stop": {"a": 1}}), 400, "invalid_value", json!("stop")),
        (json!({"top_k": -2}), 400, "invalid_value", json!("top_k")),
        (json!({"min_p": 2}), 400, "invalid_value", json!("min_p")),
        (json!({"repetition_penalty": 0}), 400, "invalid_value", json!("repetition_penalty")),
        (json!({"colour": "red"}), 400, "unknown_parameter", json!("colour")),
        (
            json!({"stream": true, "stream_options": {"colour": 1}}),
            400,
            "unknown_parameter",
            json!("stream_options.colour"),
        ),
        (json!({"model": "nobody"}), 404, "model_not_found", json!("model")),
        (json!({"model": "routerag", "rag": {"mode": "graph"}}), 400, "unsupported_parameter", json!("rag.mode")),
        (json!({"model": "routerag", "rag": {"mode": "triples"}}), 400, "unsupported_parameter", json!("rag.mode")),
        (json!({"model": "routerag", "rag": {"mode": "kag"}}), 400, "unsupported_parameter", json!("rag.mode")),
    ] {
        let (got, answer) = server.chat(&body(change.clone())).await;
        assert_eq!(error(got, &answer), (status, code.to_owned(), param), "{change} gave {answer}");
    }
    let (got, answer) = server.chat(&json!({"messages": [{"role": "user", "content": "x"}]})).await;
    assert_eq!(error(got, &answer), (400, "missing_required_parameter".into(), json!("model")));
    server.quiet().await;
}

#[tokio::test]
async fn known_options_without_an_implementation_are_refused_unless_they_ask_for_nothing() {
    let server = TestServer::new(says("hi")).await;
    for (field, asks, harmless) in [
        ("functions", json!([{}]), json!([])),
        ("function_call", json!({"name": "x"}), json!("auto")),
        ("modalities", json!(["text", "audio"]), json!(["text"])),
        ("audio", json!({"voice": "x"}), Value::Null),
        ("prediction", json!({"type": "content"}), Value::Null),
        ("web_search_options", json!({}), Value::Null),
    ] {
        let (status, answer) = server.chat(&body(json!({field: asks}))).await;
        assert_eq!(error(status, &answer), (400, "unsupported_parameter".into(), json!(field)), "{field}");
        let (status, answer) = server.chat(&body(json!({field: harmless}))).await;
        assert_eq!(status, 200, "{field}: {answer}");
    }
}

/// Fields that clients send by default and that change no answer, each with a value that no interface has.
fn hints() -> Vec<(&'static str, Value, Value)> {
    vec![
        ("store", json!(true), json!("yes")),
        ("metadata", json!({"a": "b"}), json!({"a": 1})),
        ("service_tier", json!("priority"), json!("gold")),
        ("reasoning_effort", json!("high"), json!("enormous")),
        ("verbosity", json!("low"), json!(3)),
        ("prompt_cache_key", json!("x"), json!(["x"])),
        ("prompt_cache_retention", json!("24h"), json!("forever")),
    ]
}

#[tokio::test]
async fn hints_change_no_answer_and_their_values_are_checked() {
    let server = TestServer::new(says("hi")).await;
    let (_, plain) = server.chat(&body(json!({}))).await;
    for (field, good, bad) in hints() {
        let (status, answer) = server.chat(&body(json!({field: good}))).await;
        assert_eq!((status, &answer["choices"]), (200, &plain["choices"]), "{field}: {answer}");
        let (status, answer) = server.chat(&body(json!({field: bad}))).await;
        assert_eq!(status, 400, "{field}: {answer}");
        assert!(answer["error"]["param"].as_str().unwrap().starts_with(field), "{answer}");
    }
    let (_, answer) = server.chat(&body(json!({"service_tier": "flex"}))).await;
    assert_eq!((&answer["service_tier"], plain.get("service_tier")), (&json!("default"), None));
}

#[tokio::test]
async fn a_strict_server_refuses_hints_by_name() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.strict = true;
    let server = plan.build().await;
    for (field, good, _) in hints() {
        let (status, answer) = server.chat(&body(json!({field: good}))).await;
        assert_eq!(error(status, &answer), (400, "unsupported_parameter".into(), json!(field)), "{field}");
        let (status, answer) = server.chat(&body(json!({field: null}))).await;
        assert_eq!(status, 200, "{field}: {answer}");
    }
    let named = json!([{"role": "user", "content": "Who?", "name": "alice"}]);
    let (status, answer) = server.chat(&body(json!({"messages": named}))).await;
    assert_eq!(error(status, &answer), (400, "unsupported_parameter".into(), json!("messages[0].name")));
}

#[tokio::test]
async fn responses_return_the_hints_that_openai_returns() {
    let server = TestServer::new(says("hi")).await;
    let request = json!({
        "model": "plain", "input": "Who?", "prompt_cache_key": "tenant-7", "reasoning": {"effort": "low"},
        "text": {"verbosity": "high"}, "service_tier": "auto",
    });
    let (status, answer) = answer(server.post("/v1/responses", &request).await).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["prompt_cache_key"], "tenant-7");
    assert_eq!(answer["reasoning"]["effort"], "low");
    assert_eq!(answer["text"]["verbosity"], "high");
    assert_eq!(answer["service_tier"], "default");
}

#[tokio::test]
async fn clients_of_vllm_find_the_version_and_the_ping() {
    let server = TestServer::new(says("hi")).await;
    let (status, version) = answer(server.get("/version").await).await;
    assert_eq!((status, &version["version"]), (200, &json!(env!("CARGO_PKG_VERSION"))));
    assert_eq!(server.get("/ping").await.status(), 200);
}

#[tokio::test]
async fn bytes_that_are_no_request() {
    let server = TestServer::new(says("hi")).await;
    let send = async |kind: &str, bytes: &[u8]| {
        let request = server.client.post(server.url("/v1/chat/completions")).header("content-type", kind);
        let response = request.body(bytes.to_vec()).send().await.unwrap();
        assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
        error(response.status().as_u16(), &response.json().await.unwrap())
    };
    // Deep enough to overflow the stack of a parser that recurses.
    let deep = "[".repeat(200_000);
    for (kind, bytes, status, code) in [
        ("application/json", b"{".as_slice(), 400, "invalid_json"),
        ("application/json", b"", 400, "invalid_json"),
        ("application/json", b"[]", 400, "invalid_json"),
        ("application/json", b"{\"model\": \"\xff\xfe\"}", 400, "invalid_json"),
        ("application/json", deep.as_bytes(), 400, "invalid_json"),
        ("text/plain", b"{}", 415, "unsupported_media_type"),
        ("application/x-www-form-urlencoded", b"a=b", 415, "unsupported_media_type"),
    ] {
        assert_eq!(send(kind, bytes).await, (status, code.to_owned(), Value::Null), "{kind}");
    }
    assert_eq!(send("application/json; charset=utf-8", br#"{"model":1,"messages":[]}"#).await.1, "invalid_value");
}

#[tokio::test]
async fn a_compressed_body_is_refused_by_the_name_of_its_encoding() {
    let server = TestServer::new(says("hi")).await;
    let send = async |encoding: &str| {
        let request = server.client.post(server.url("/v1/chat/completions")).header("content-encoding", encoding);
        answer(request.json(&body(json!({}))).send().await.unwrap()).await
    };
    for encoding in ["gzip", "zstd"] {
        let (status, refused) = send(encoding).await;
        assert_eq!(error(status, &refused), (415, "unsupported_media_type".into(), Value::Null));
        assert!(refused["error"]["message"].as_str().unwrap().contains(encoding), "{refused}");
    }
    assert_eq!(send("identity").await.0, 200);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.body_limit = 1000;
    let server = plan.build().await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1001\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let answer = read_until(&mut socket, "request_too_large").await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // Without a length header the size is noticed while reading.
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    // 7d0 is 2,000 in hexadecimal.
    socket.write_all(format!("{head}7d0\r\n{}\r\n", "x".repeat(2000)).as_bytes()).await.unwrap();
    let answer = read_until(&mut socket, "request_too_large").await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let fits = server.chat(&body(json!({}))).await;
    assert_eq!(fits.0, 200);
}

#[tokio::test]
async fn every_route_refuses_a_body_that_is_too_large() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.body_limit = 1000;
    let server = plan.build().await;
    let document: Value = server.get("/openapi.json").await.json().await.unwrap();
    let paths = document["paths"].as_object().unwrap().iter();
    // Uploads, which are forms, have a limit of their own.
    let takes_json = |item: &Value| item["post"]["requestBody"]["content"]["application/json"].is_object();
    let paths: Vec<&String> = paths.filter(|(_, item)| takes_json(item)).map(|(path, _)| path).collect();
    assert!(paths.len() > 10, "{paths:?}");
    for path in paths {
        let at = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let at = at.collect::<Vec<_>>().join("/");
        // The response arrives although the body never does.
        let mut socket = server.raw_head(&at, "accept: */*\r\ncontent-length: 1001").await;
        let answer = read_until(&mut socket, "request_too_large").await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn routes_and_methods_that_do_not_exist() {
    let server = TestServer::new(says("hi")).await;
    let response = server.get("/v1/nothing").await;
    assert!(response.headers().contains_key("x-request-id"));
    assert_eq!(error(response.status().as_u16(), &response.json().await.unwrap()).1, "not_found");
    let response = server.get("/v1/chat/completions").await;
    assert_eq!(response.headers()["allow"], "POST");
    assert_eq!(
        error(response.status().as_u16(), &response.json().await.unwrap()),
        (405, "method_not_allowed".into(), Value::Null)
    );
}
