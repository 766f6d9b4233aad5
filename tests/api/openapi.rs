//! `openapi.yaml` matches the code. `UPDATE_OPENAPI=1 cargo test --test api openapi` rewrites it.

use std::path::Path;

use crate::harness::{TestServer, says};

#[test]
fn the_committed_document_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.yaml");
    let generated = waymark::api::document_yaml().unwrap();
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "openapi.yaml is out of date: run `UPDATE_OPENAPI=1 cargo test --test api openapi`"
    );
}

#[test]
fn joined_descriptions_end_in_periods() {
    let document = waymark::api::document_yaml().unwrap();
    let lines = document.lines().filter_map(|line| line.split_once(" The key lacks the required scope."));
    let joined: Vec<&str> =
        lines.map(|(before, _)| before).filter(|before| !before.ends_with("description:")).collect();
    assert!(joined.len() > 1 && joined.iter().all(|before| before.ends_with('.')), "{joined:?}");
}

#[tokio::test]
async fn the_server_shows_it() {
    let server = TestServer::new(says("hi")).await;
    let yaml = server.get("/openapi.yaml").await;
    assert_eq!(yaml.headers()["content-type"], "application/yaml");
    assert_eq!(yaml.text().await.unwrap(), waymark::api::document_yaml().unwrap());
    let json: serde_json::Value = server.get("/openapi.json").await.json().await.unwrap();
    for path in [
        "/v1/chat/completions",
        "/v1/chat",
        "/v1/agent",
        "/mcp",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
        "/v1/search",
        "/v1/vector_stores/{id}/search",
        "/v1/documents",
        "/v1/documents/{id}",
        "/retrieve",
        "/search",
        "/query",
        "/v1/models",
        "/v1/models/{id}",
        "/v1/embeddings",
        "/v1/rerank",
        "/health",
        "/ready",
        "/metrics",
    ] {
        assert!(json["paths"][path].is_object(), "{path} is missing");
    }
    let most = |schema: &str, field: &str| &json["components"]["schemas"][schema]["properties"][field]["maximum"];
    for (schema, field) in [
        ("SearchRequest", "k"),
        ("ReplayRequest", "k"),
        ("RagOptions", "k"),
        ("RetrieveRequest", "topk"),
        ("RouteRagRequest", "topk"),
    ] {
        assert_eq!(most(schema, field), waymark_index::MAX_K, "{schema}.{field}");
    }
    for schema in ["ChatRequest", "CompletionRequest"] {
        assert_eq!(most(schema, "repetition_penalty"), 10, "{schema}");
    }
    // Chats return the trace in deltas, responses in events.
    let told = |schema: &str| json["components"]["schemas"][schema].to_string();
    assert!(told("RagNotes").contains("delta") && !told("RagNotes").contains("response.rag.step"));
    assert!(told("RagTrace").contains("response.rag.step") && !told("RagTrace").contains("delta"));
}
