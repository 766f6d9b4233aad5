//! `/mcp`: the Model Context Protocol over HTTP.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use reqwest::Method;
use serde_json::{Value, json};
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_index::{Evidence, MAX_K, Mode};

use crate::harness::{ServerPlan, TestServer, says, script};
use crate::responses::{Plays, two_searches};

/// Sends a message, and returns the status and the body; null if there is none.
async fn send(server: &TestServer, message: &Value) -> (u16, Value) {
    let response = server.post("/mcp", message).await;
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default())
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

/// Returns the result of a request.
async fn result(server: &TestServer, method: &str, params: Value) -> Value {
    let (status, mut answer) = send(server, &request(method, params)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)));
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].take()
}

/// Returns the text of a tool's result, and the whole result.
async fn call(server: &TestServer, name: &str, arguments: Value) -> (String, Value) {
    let result = result(server, "tools/call", json!({"name": name, "arguments": arguments})).await;
    let content = result["content"].as_array().unwrap();
    assert_eq!((content.len(), &content[0]["type"]), (1, &json!("text")), "{result}");
    (content[0]["text"].as_str().unwrap().to_owned(), result)
}

#[tokio::test]
async fn the_handshake() {
    let server = TestServer::new(says("hi")).await;
    for (wanted, spoken) in [
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        // To a revision that it does not speak, a server answers with its latest.
        ("2024-11-05", "2025-06-18"),
        ("2026-07-28", "2025-06-18"),
    ] {
        // Fields of later revisions are ignored, and so is the header.
        let hello = json!({"protocolVersion": wanted, "capabilities": {}, "clientInfo": {"name": "x"}, "later": 1});
        let post = server.client.post(server.url("/mcp")).header("mcp-protocol-version", wanted);
        let response = post.json(&request("initialize", hello)).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert!(!response.headers().contains_key("mcp-session-id"));
        assert!(response.headers().contains_key("x-request-id"));
        let answer: Value = response.json().await.unwrap();
        let result = &answer["result"];
        assert_eq!((&result["protocolVersion"], &result["capabilities"]), (&json!(spoken), &json!({"tools": {}})));
        assert_eq!(result["serverInfo"]["name"], "waymark");
        assert_eq!(result["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
        assert!(result["instructions"].as_str().unwrap().contains("`search`"), "{result}");
    }
    for notification in ["notifications/initialized", "notifications/cancelled", "notifications/anything"] {
        let message = json!({"jsonrpc": "2.0", "method": notification, "params": {"requestId": 7}});
        assert_eq!(send(&server, &message).await, (202, Value::Null), "{notification}");
    }
    assert_eq!(result(&server, "ping", json!({"_meta": {"progressToken": 1}})).await, json!({}));
    let (status, answer) = send(&server, &json!({"jsonrpc": "2.0", "id": "a", "method": "ping"})).await;
    assert_eq!((status, answer), (200, json!({"jsonrpc": "2.0", "id": "a", "result": {}})));
}

/// The server sends nothing unsolicited, and there is no session to end.
#[tokio::test]
async fn there_is_no_stream_and_no_session() {
    let server = TestServer::new(says("hi")).await;
    for method in [Method::GET, Method::DELETE] {
        let request = server.client.request(method, server.url("/mcp")).header("accept", "text/event-stream");
        let response = request.send().await.unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["allow"]), (405, &"POST".parse().unwrap()));
    }
}

/// Checks that every reference in a schema resolves within it.
fn check_references(schema: &Value, at: &Value) {
    match at {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str().filter(|_| name == "$ref") {
                    Some(path) => assert!(schema.pointer(path.strip_prefix('#').unwrap()).is_some(), "{path}"),
                    None => check_references(schema, field),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| check_references(schema, item)),
        _ => {}
    }
}

#[tokio::test]
async fn the_tools_are_listed_with_their_schemas() {
    let server = TestServer::new(says("hi")).await;
    let list = result(&server, "tools/list", json!({"cursor": null})).await;
    assert!(list.get("nextCursor").is_none());
    let [search, ask] = &list["tools"].as_array().unwrap()[..] else { panic!("{list}") };
    for (tool, name, takes, needs, gives) in [
        (search, "search", vec!["filters", "k", "mode", "query"], "query", vec!["query", "mode", "snapshot", "hits"]),
        (
            ask,
            "ask",
            vec!["model", "question"],
            "question",
            vec!["answer", "refusal", "citations", "finish_reason", "searches", "model", "trace"],
        ),
    ] {
        assert_eq!(tool["name"], name);
        assert!(tool["title"].is_string() && tool["description"].as_str().unwrap().len() > 40);
        assert_eq!(tool["annotations"], json!({"readOnlyHint": true, "openWorldHint": false}));
        let input = &tool["inputSchema"];
        let mut fields: Vec<_> = input["properties"].as_object().unwrap().keys().collect();
        fields.sort_unstable();
        assert_eq!(fields, takes);
        assert_eq!(input["required"], json!([needs]));
        assert_eq!((&input["type"], &input["additionalProperties"]), (&json!("object"), &json!(false)));
        for field in takes {
            let field = &input["properties"][field];
            assert!(field["type"].is_string() && field["description"].is_string(), "{field}");
        }
        let output = &tool["outputSchema"];
        assert_eq!((&output["type"], &output["required"]), (&json!("object"), &json!(gives)), "{output}");
        // A client sees each schema alone, so no reference may lead out of it.
        check_references(input, input);
        check_references(output, output);
    }
    let fields = &search["inputSchema"]["properties"];
    assert_eq!((&fields["k"]["minimum"], &fields["k"]["maximum"]), (&json!(1), &json!(MAX_K)));
    assert_eq!(fields["mode"]["enum"], json!(["passage"]), "what the index offers");
    assert_eq!(ask["inputSchema"]["properties"]["model"]["examples"], json!(["plain", "routerag", "a/b"]));
    let paths = search["outputSchema"]["$defs"]["EvidencePath"]["properties"].as_object().unwrap();
    assert_eq!(paths.keys().collect::<Vec<_>>(), ["bm25", "dense", "graph", "rerank"]);
}

#[tokio::test]
async fn what_is_not_served_is_not_offered() {
    for (searcher, policies, name) in [(false, true, "ask"), (true, false, "search")] {
        let mut plan = ServerPlan::new(says("hi"));
        plan.searcher = plan.searcher.filter(|_| searcher);
        plan.policies.retain(|_| policies);
        let server = plan.build().await;
        let list = result(&server, "tools/list", json!({})).await;
        let names: Vec<_> =
            list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, [name]);
        let other = if name == "ask" { "search" } else { "ask" };
        let (status, answer) = send(&server, &request("tools/call", json!({"name": other, "arguments": {}}))).await;
        assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)), "{answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .unwrap()
                .contains(&format!("unknown tool `{other}`: expected one of {name}")),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_search_is_the_one_of_the_other_route() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let searcher = Some(Arc::new(Plays(Arc::clone(&asked))) as Arc<dyn Search>);
    let server = ServerPlan { searcher, ..ServerPlan::new(says("hi")) }.build().await;
    let (text, given) = call(&server, "search", json!({"query": "Faust", "mode": "passage", "k": 3})).await;
    assert_eq!(
        text,
        "[1] Faust (p1)\nFaust is a tragedy. Goethe wrote it.\n\n[2] Weimar (p3)\nGoethe and Schiller lived in Weimar."
    );
    assert_eq!(given["isError"], false);
    let found = &given["structuredContent"];
    let whole: Value = server.post("/v1/search", &json!({"query": "Faust", "k": 3})).await.json().await.unwrap();
    for field in ["query", "mode", "snapshot", "hits"] {
        assert_eq!(found[field], whole[field], "{field}");
    }
    assert_eq!(found["hits"][0]["passage"]["title"], "Faust");
    assert_eq!(found["hits"][0]["path"]["dense"]["rank"], 1);
    call(&server, "search", json!({"query": "Tell", "mode": null, "k": null})).await;
    // `null` stands for the default of 5.
    assert_eq!(*asked.lock().unwrap(), [3, 3, 5]);
}

#[tokio::test]
async fn an_answer_comes_with_its_sources() {
    for kept in [true, false] {
        let mut plan =
            ServerPlan { searcher: Some(Arc::new(Plays::default())), ..ServerPlan::new(script(&two_searches())) };
        plan.http.traces.count = if kept { 10 } else { 0 };
        let server = plan.build().await;
        let (text, mut given) = call(&server, "ask", json!({"question": "Who?", "model": "routerag"})).await;
        let answer = "Goethe wrote Faust. Schiller wrote Tell.";
        assert_eq!(text, format!("{answer}\n\nSources:\n[1] Faust (p1)\n[2] Wilhelm Tell (p2)"));
        assert_eq!(given["isError"], false);
        let answered = &mut given["structuredContent"];
        let trace = answered["trace"].take();
        let expected = json!({
            "answer": answer,
            "refusal": null,
            "citations": [
                {"start": 0, "end": 19, "passage": "p1", "title": "Faust", "stated": false},
                {"start": 20, "end": 40, "passage": "p2", "title": "Wilhelm Tell", "stated": true},
            ],
            "finish_reason": "stop",
            "searches": 2,
            "model": "routerag",
            "trace": null,
        });
        assert_eq!(*answered, expected);
        assert_eq!(trace.is_string(), kept, "{trace}");
        if let Some(id) = trace.as_str() {
            assert_eq!(server.get(&format!("/v1/traces/{id}")).await.status(), 200);
        }
        server.quiet().await;
    }
    // Without a model the first policy answers.
    let (text, given) = call(&TestServer::new(says("hi")).await, "ask", json!({"question": "Who?"})).await;
    assert_eq!((text.as_str(), &given["structuredContent"]["model"]), ("hi", &json!("plain")));
}

/// Returns the status, JSON-RPC code, ID and field of an error, after checking its format.
fn fault(status: u16, answer: &Value) -> (u16, i64, Value, Value) {
    let (error, data) = (&answer["error"], &answer["error"]["data"]);
    assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
    assert!(answer.get("result").is_none() && data["code"].is_string(), "{answer}");
    assert!(error["message"].is_string() && error["message"] == data["message"], "{answer}");
    if let Some(param) = data["param"].as_str() {
        assert!(error["message"].as_str().unwrap().contains(&format!("`{param}`")), "{answer}");
    }
    (status, error["code"].as_i64().unwrap(), answer["id"].clone(), data["param"].clone())
}

#[tokio::test]
async fn what_is_no_message_is_refused_by_name() {
    let server = TestServer::new(says("hi")).await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for (message, id, param) in [
        (json!([ping]), json!(null), json!(null)),
        (json!([]), json!(null), json!(null)),
        (json!("ping"), json!(null), json!(null)),
        (json!({"id": 1, "method": "ping"}), json!(1), json!("jsonrpc")),
        (json!({"jsonrpc": "1.0", "id": "a", "method": "ping"}), json!("a"), json!("jsonrpc")),
        (json!({"jsonrpc": "2.0", "id": 1}), json!(1), json!("method")),
        (json!({"jsonrpc": "2.0", "id": 1, "method": 5}), json!(1), json!("method")),
        (json!({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}), json!(null), json!("id")),
        (json!({"jsonrpc": "2.0", "id": [1], "method": "ping"}), json!(null), json!("id")),
        (json!({"jsonrpc": "2.0", "id": null, "method": "ping"}), json!(null), json!("id")),
        (json!({"jsonrpc": "2.0", "method": "tools/list"}), json!(null), json!("id")),
        (json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "extra": 1}), json!(1), json!("extra")),
        // The server never sends requests, so there is nothing for a client to respond to.
        (json!({"jsonrpc": "2.0", "id": 1, "result": {}}), json!(1), json!("result")),
    ] {
        let (status, answer) = send(&server, &message).await;
        assert_eq!(fault(status, &answer), (400, -32600, id, param), "{message}");
    }
    for body in ["", "{", "nothing", "{\"jsonrpc\": \"2.0\",}"] {
        let post = server.client.post(server.url("/mcp")).header("content-type", "application/json");
        let response = post.body(body).send().await.unwrap();
        let status = response.status().as_u16();
        let answer = response.json().await.unwrap();
        assert_eq!(fault(status, &answer), (400, -32700, json!(null), json!(null)), "{body}");
    }
}

#[tokio::test]
async fn what_a_method_does_not_take_is_refused_by_name() {
    let server = TestServer::new(says("hi")).await;
    let tool = |name: &str, arguments: Value| ("tools/call", json!({"name": name, "arguments": arguments}));
    for ((method, params), number, param) in [
        (("resources/list", json!({})), -32601, "method"),
        (("server/discover", json!({})), -32601, "method"),
        (("notifications/initialized", json!({})), -32601, "method"),
        (("initialize", json!({})), -32602, "protocolVersion"),
        (("initialize", json!({"protocolVersion": 3})), -32602, "protocolVersion"),
        (("ping", json!([])), -32602, "params"),
        (("ping", json!({"hello": 1})), -32602, "hello"),
        (("tools/list", json!({"cursor": "2"})), -32602, "cursor"),
        (("tools/call", json!({})), -32602, "name"),
        (("tools/call", json!({"name": "search", "arguments": {"query": "x"}, "task": {}})), -32602, "task"),
        (tool("find", json!({})), -32602, "name"),
        (tool("search", json!(["x"])), -32602, "arguments"),
        (("tools/call", json!({"name": "search"})), -32602, "query"),
        (tool("search", json!({"query": "x", "colour": 1})), -32602, "colour"),
        (tool("search", json!({"query": "x", "explain": true})), -32602, "explain"),
        (tool("search", json!({"query": " "})), -32602, "query"),
        (tool("search", json!({"query": 5})), -32602, "query"),
        (tool("search", json!({"query": "x", "k": 0})), -32602, "k"),
        (tool("search", json!({"query": "x", "k": 201})), -32602, "k"),
        (tool("search", json!({"query": "x", "mode": "psychic"})), -32602, "mode"),
        (tool("ask", json!({})), -32602, "question"),
        (tool("ask", json!({"question": ""})), -32602, "question"),
        (tool("ask", json!({"question": "x", "stream": true})), -32602, "stream"),
    ] {
        let (status, answer) = send(&server, &request(method, params.clone())).await;
        assert_eq!(fault(status, &answer), (200, number, json!(7), json!(param)), "{method} {params}");
    }
}

/// Searcher that never returns in time.
#[derive(Debug)]
struct Late;

impl Search for Late {
    fn search(&self, _: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async { Err(SearchError::Timeout) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

#[tokio::test]
async fn what_goes_wrong_in_a_tool_is_a_result() {
    let server = ServerPlan { searcher: Some(Arc::new(Late)), ..ServerPlan::new(says("hi")) }.build().await;
    for (name, arguments, code) in [
        ("search", json!({"query": "x"}), "search_timeout"),
        ("ask", json!({"question": "x", "model": "nobody"}), "model_not_found"),
        ("ask", json!({"question": "x".repeat(40_000)}), "context_length_exceeded"),
    ] {
        let (text, given) = call(&server, name, arguments).await;
        assert!(text.starts_with(&format!("{code}: ")), "{text}");
        assert_eq!(given["isError"], true);
        assert!(given.get("structuredContent").is_none(), "{given}");
    }
}

#[tokio::test]
async fn headers_are_looked_at_before_the_body() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.cors_origins = vec!["https://example.org".to_owned()];
    plan.http.body_limit = 1000;
    let server = plan.build().await;
    let url = server.url("");
    let own = url.as_str();
    let accepted = "application/json, text/event-stream";
    let bodies = [json!({"jsonrpc": "2.0", "id": 7, "method": "ping"}).to_string(), "x".repeat(1001)];
    let [ping, large] = bodies.each_ref().map(String::as_str);
    for (name, value, body, status, code) in [
        ("origin", "https://example.org", ping, 200, ""),
        ("origin", "https://evil.test", ping, 403, "origin_not_allowed"),
        // Origins of a page whose own name resolves to this server, and of a page without an origin.
        ("origin", own, ping, 403, "origin_not_allowed"),
        ("origin", "null", large, 403, "origin_not_allowed"),
        ("accept", accepted, ping, 200, ""),
        ("accept", "text/event-stream", ping, 406, "not_acceptable"),
        ("accept", "text/html", large, 406, "not_acceptable"),
        ("accept", accepted, large, 413, "request_too_large"),
        ("content-type", "text/plain", ping, 415, "unsupported_media_type"),
    ] {
        let mut post = server.client.post(server.url("/mcp")).header(name, value).body(body.to_owned());
        if name != "content-type" {
            post = post.header("content-type", "application/json");
        }
        let response = post.send().await.unwrap();
        assert_eq!(response.status(), status, "{name}: {value}");
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"]["code"].as_str().unwrap_or_default(), code, "{name}: {value}");
    }
}

#[tokio::test]
async fn a_revision_that_is_not_spoken_is_refused() {
    let server = TestServer::new(says("hi")).await;
    let send = async |version: &str, message: Value| {
        let post = server.client.post(server.url("/mcp")).header("mcp-protocol-version", version);
        let response = post.json(&message).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    for version in ["2025-06-18", "2025-03-26"] {
        assert_eq!(send(version, request("ping", json!({}))).await.0, 200, "{version}");
    }
    for version in ["2026-07-28", "2024-11-05", "1", ""] {
        let (status, answer) = send(version, request("server/discover", json!({}))).await;
        let refused = fault(status, &serde_json::from_str(&answer).unwrap());
        assert_eq!(refused, (400, -32600, json!(7), json!("mcp-protocol-version")), "{version}");
        let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(send(version, notification).await.0, 400, "{version}");
    }
}
