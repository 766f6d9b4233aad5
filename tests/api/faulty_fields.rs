//! Errors name the field at fault by its whole path.

use serde_json::{Value, json};
use waymark::keys::ApiKeys;

use crate::vector_store_files::{Client, RIVERS, server_in};

#[tokio::test]
async fn the_path_of_the_field_at_fault_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_in(folder.path(), ApiKeys::default()).await;
    let client = Client { server: &server, key: None };
    let file = client.upload("rivers.md", RIVERS).await;
    let store = client.store(json!({})).await;
    let chat = |extra: Value| ("/v1/chat/completions".to_owned(), crate::golden::ask(extra));
    let said = |content: Value| chat(json!({"messages": [{"role": "user", "content": content}]}));
    let response = |extra: Value| ("/v1/responses".to_owned(), crate::responses::ask(extra));
    let search = |body: Value| ("/v1/vector_stores/default/search".to_owned(), body);
    let adding = |strategy: Value| {
        let body = json!({"file_id": file, "chunking_strategy": strategy});
        (format!("/v1/vector_stores/{store}/files"), body)
    };
    let choice = |choice: Value| chat(json!({"tool_choice": choice}));
    for ((path, body), code, param) in [
        (
            said(json!([{"type": "text", "text": "x"}, {"text": "y"}])),
            "missing_required_parameter",
            "messages[0].content[1].type",
        ),
        (said(json!([{"type": "text", "text": 3}])), "invalid_value", "messages[0].content[0].text"),
        (said(json!(["x"])), "invalid_value", "messages[0].content[0]"),
        (chat(json!({"stop": ["a", 3]})), "invalid_value", "stop[1]"),
        (chat(json!({"stop": ["a", ""]})), "invalid_value", "stop[1]"),
        (choice(json!("maybe")), "invalid_value", "tool_choice"),
        (choice(json!({"type": "custom"})), "invalid_value", "tool_choice.type"),
        (choice(json!({"type": "function"})), "missing_required_parameter", "tool_choice.function"),
        (
            choice(json!({"type": "function", "function": {}})),
            "missing_required_parameter",
            "tool_choice.function.name",
        ),
        (
            choice(json!({"type": "function", "function": {"name": "a", "b": 1}})),
            "unknown_parameter",
            "tool_choice.function.b",
        ),
        (choice(json!({"type": "allowed_tools"})), "missing_required_parameter", "tool_choice.allowed_tools"),
        (response(json!({"conversation": {"id": 3}})), "invalid_value", "conversation.id"),
        (response(json!({"conversation": {"name": "a"}})), "unknown_parameter", "conversation.name"),
        (search(json!({"query": ["a", 3]})), "invalid_value", "query[1]"),
        (adding(json!({"type": "semantic"})), "invalid_value", "chunking_strategy.type"),
        (adding(json!({"type": "static"})), "missing_required_parameter", "chunking_strategy.static"),
        (adding(json!({"type": "auto", "size": 1})), "unknown_parameter", "chunking_strategy.size"),
        (
            adding(json!({"type": "static", "static": {"max_chunk_size_tokens": "many", "chunk_overlap_tokens": 0}})),
            "invalid_value",
            "chunking_strategy.static.max_chunk_size_tokens",
        ),
        (
            adding(json!({"type": "static", "static": {"max_chunk_size_tokens": 200}})),
            "missing_required_parameter",
            "chunking_strategy.static.chunk_overlap_tokens",
        ),
    ] {
        let (status, refused) = client.post(&path, body.clone()).await;
        let error = &refused["error"];
        assert_eq!((status, &error["code"], &error["param"]), (400, &json!(code), &json!(param)), "{body}: {refused}");
    }
}
