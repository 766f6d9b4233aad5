//! `waymark mcp`: the server's tools over standard input and output.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::program::{ProgramRun, Serving, typed};

fn lines(messages: &[Value]) -> String {
    messages.iter().map(|message| format!("{message}\n")).collect()
}

/// Returns the responses by their IDs.
fn responses(run: &ProgramRun) -> HashMap<u64, Value> {
    assert!(run.ok(), "{}", run.stderr);
    let parsed = run.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    // A line that cannot be parsed has no ID, and its response has `null`.
    parsed.map(|response| (response["id"].as_u64().unwrap_or(0), response)).collect()
}

fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

#[test]
fn messages_reach_the_server_and_responses_come_back() {
    let server = Serving::start(&["--mock", "--api-key", "a-key-for-this-test-alone-0123"]);
    let client =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let input = lines(&[
        request(1, "initialize", &client),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        request(2, "tools/list", &json!({})),
        request(3, "tools/call", &json!({"name": "ask", "arguments": {"question": "Where?", "model": "plain"}})),
        request(4, "nonsense", &json!({})),
    ]) + "{broken\n\n";
    let keyed = ["mcp", "--url", &server.url, "--api-key", "a-key-for-this-test-alone-0123"];
    let told = responses(&typed(&input, &keyed));
    assert_eq!(told.len(), 5, "a notification has no response: {told:?}");
    assert_eq!(told[&1]["result"]["protocolVersion"], "2025-06-18");
    let tools = told[&2]["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool["name"] == "ask"), "{tools:?}");
    assert!(told[&3]["result"]["content"][0]["text"].is_string(), "{}", told[&3]);
    assert_eq!(told[&4]["error"]["code"], -32601);
    assert_eq!((&told[&0]["error"]["code"], &told[&0]["id"]), (&json!(-32700), &Value::Null));

    // Without the key, every request is answered by an error that says why.
    let told = responses(&typed(&lines(&[request(1, "initialize", &client)]), &["mcp", "--url", &server.url]));
    let reason = told[&1]["error"]["message"].as_str().unwrap();
    assert!(told[&1]["error"]["code"] == -32603 && reason.contains("key"), "{reason}");
    assert!(server.stop());
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let url = "http://127.0.0.1:9";
    let told = responses(&typed(&lines(&[request(7, "ping", &json!({}))]), &["mcp", "--url", url]));
    assert!(told[&7]["error"]["message"].as_str().unwrap().contains("127.0.0.1:9"), "{told:?}");
}
