//! Remaining cases of the OpenAI conformance list, as transcripts; `golden` holds the others.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::golden::{ask, golden, loops, steady};
use crate::harness::{HangingSearch, Letters, ServerPlan, TestServer, answer, chunks, read_until, says, script};

/// Choices and results without a tool are refused before anything is computed; `tools` tests the tools themselves.
#[tokio::test]
async fn tools_are_refused() {
    let server = TestServer::new(says("hi")).await;
    let user = json!({"role": "user", "content": "x"});
    let mut told = Vec::new();
    for change in [
        json!({"tool_choice": "required"}),
        json!({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}, user]}),
    ] {
        let (status, answer) = server.chat(&ask(change)).await;
        assert_eq!(status, 400);
        told.push(answer);
    }
    golden("tools_refused", &format!("{:#}\n", json!(told)));
}

#[tokio::test]
async fn a_client_that_goes_during_a_search() {
    let server = ServerPlan { searcher: Some(Arc::new(HangingSearch::default())), ..ServerPlan::new(script(&loops())) }
        .build()
        .await;
    let body = ask(json!({"model": "routerag", "stream": true, "rag": {"trace": true}}));
    let mut socket = server.raw("/v1/chat/completions", &body).await;
    let mut seen = read_until(&mut socket, "search_started").await;
    // The read may end within the event, but the transcript needs all of it.
    if !seen.rsplit("search_started").next().is_some_and(|rest| rest.contains("\n\n")) {
        seen += &read_until(&mut socket, "\n\n").await;
    }
    drop(socket);
    let lines = seen.lines().filter_map(|line| line.strip_prefix("data: "));
    let told: Vec<String> = lines.map(|line| steady(serde_json::from_str(line).unwrap()).to_string() + "\n").collect();
    golden("client_gone_during_a_search", &told.concat());
    server.quiet().await;
}

#[tokio::test]
async fn embeddings_as_base64() {
    let server = ServerPlan { embedder: Some(Arc::new(Letters)), ..ServerPlan::new(says("hi")) }.build().await;
    let body = json!({"model": "letters", "input": ["abba", "c"], "encoding_format": "base64"});
    let answer: Value = server.post("/v1/embeddings", &body).await.json().await.unwrap();
    golden("embeddings_base64", &format!("{answer:#}\n"));
}

/// Some clients send every text as token IDs of OpenAI's encoding.
#[tokio::test]
async fn token_ids_are_embedded_as_the_text_they_stand_for() {
    let server = ServerPlan { embedder: Some(Arc::new(Letters)), ..ServerPlan::new(says("hi")) }.build().await;
    let embed = async |input: Value| {
        let response = server.post("/v1/embeddings", &json!({"model": "letters", "input": input})).await;
        answer(response).await
    };
    // " a", " b", "c" and "a" in cl100k_base.
    for (ids, text) in [(json!([264, 293]), json!([" a b"])), (json!([[66], [64, 64]]), json!(["c", "aa"]))] {
        let (status, of_ids) = embed(ids).await;
        assert_eq!(status, 200, "{of_ids}");
        assert_eq!(of_ids, embed(text).await.1);
    }
    for (ids, param) in
        [(json!([[66], []]), "input[1]"), (json!([[66], [4_000_000]]), "input[1]"), (json!([]), "input")]
    {
        let (status, refused) = embed(ids).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
}

/// Texts longer than the embedder reads are refused: truncated, they would count tokens that were never computed.
#[tokio::test]
async fn a_text_longer_than_the_embedder_reads_is_refused() {
    let server = ServerPlan { embedder: Some(Arc::new(Letters)), ..ServerPlan::new(says("hi")) }.build().await;
    let mut inputs = vec!["a".repeat(200); 40];
    let embed = async |inputs: &[String]| {
        let response = server.post("/v1/embeddings", &json!({"model": "letters", "input": inputs})).await;
        answer(response).await
    };
    let (status, answer) = embed(&inputs).await;
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(8000)));
    inputs[37].push('a');
    let (status, answer) = embed(&inputs).await;
    assert_eq!(
        (status, &answer["error"]["code"], &answer["error"]["param"]),
        (400, &json!("context_length_exceeded"), &json!("input[37]"))
    );
}

#[tokio::test]
async fn a_model_with_a_slash_in_its_name() {
    let server = TestServer::new(says("hi")).await;
    let model: Value = server.get("/v1/models/a%2Fb").await.json().await.unwrap();
    let unknown: Value = server.get("/v1/models/a%2Fc").await.json().await.unwrap();
    golden("model_with_a_slash", &format!("{:#}\n{unknown:#}\n", steady(model)));
}

#[tokio::test]
async fn three_choices_are_not_sent_one_after_the_other() {
    // Slow, so no choice ends before the others begin.
    let slow = says("abcdefgh").with_time(std::time::Duration::from_millis(100), std::time::Duration::ZERO);
    let server = TestServer::new(slow).await;
    let all = chunks(&server.stream(&ask(json!({"stream": true, "n": 3}))).await);
    let indices: Vec<u64> = all.iter().filter_map(|chunk| chunk["choices"][0]["index"].as_u64()).collect();
    let changes = indices.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > 8, "{indices:?}");
    let roles = all.iter().filter(|chunk| chunk["choices"][0]["delta"]["role"] == "assistant").count();
    let ends = all.iter().filter(|chunk| chunk["choices"][0]["finish_reason"] == "stop").count();
    assert_eq!((roles, ends), (3, 3));
}

#[tokio::test]
async fn reasoning_goes_by_both_names_where_that_is_set_and_comes_back() {
    let mut plan = ServerPlan::new(script(&loops()));
    plan.http.mirror_reasoning = true;
    let server = plan.build().await;
    let (_, whole) = server.chat(&ask(json!({"model": "routerag"}))).await;
    let message = whole["choices"][0]["message"].clone();
    assert!(message["reasoning"].is_string() && message["reasoning"] == message["reasoning_content"]);
    let streamed = chunks(&server.stream(&ask(json!({"model": "routerag", "stream": true}))).await);
    let deltas = streamed.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    let names = |name: &str| deltas.clone().filter_map(|delta| delta[name].as_str()).collect::<String>();
    assert_eq!(names("reasoning"), names("reasoning_content"));
    assert_eq!(message["reasoning"], names("reasoning"));
    let user = |text: &str| json!({"role": "user", "content": text});
    let turns = json!({"model": "plain", "messages": [user("hello"), message, user("why?")]});
    let (status, answer) = server.chat(&turns).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn the_index_that_is_searched_can_be_named() {
    let server = TestServer::new(script(&loops())).await;
    for (index, status) in [("shelf", 200), ("attic", 400)] {
        let (got, answer) = server.chat(&ask(json!({"model": "routerag", "rag": {"index": index}}))).await;
        assert_eq!(got, status, "{answer}");
        let body = json!({"question": "Who?", "model": "routerag", "rag": {"index": index}});
        assert_eq!(server.post("/v1/agent", &body).await.status(), status);
        let body = json!({"input": "Who?", "model": "routerag", "rag": {"index": index}});
        assert_eq!(server.post("/v1/responses", &body).await.status(), status);
    }
}
