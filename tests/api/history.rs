//! `history` of `/v1/agent`: messages before the question.

use serde_json::{Value, json};

use crate::harness::{TestServer, says};

#[tokio::test]
async fn a_question_after_a_history_is_asked_as_in_a_chat() {
    let server = TestServer::new(says("hi")).await;
    let said = json!([
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Where is the Mona Lisa?"},
        {"role": "assistant", "content": "In the Louvre."},
    ]);
    let question = "In which city is it?";
    let agent = json!({"model": "plain", "question": question, "history": said});
    let asked: Value = server.post("/v1/agent", &agent).await.json().await.unwrap();
    assert_eq!((&asked["question"], &asked["answer"]), (&json!(question), &json!("hi")), "{asked}");

    let mut messages = said.as_array().unwrap().clone();
    messages.push(json!({"role": "user", "content": question}));
    let (status, chat) = server.chat(&json!({"model": "plain", "messages": messages})).await;
    assert_eq!(status, 200, "{chat}");
    let prompt = &asked["trace"][0]["prompt_tokens"];
    assert_eq!(prompt, &chat["usage"]["prompt_tokens"]);

    let alone: Value =
        server.post("/v1/agent", &json!({"model": "plain", "question": question})).await.json().await.unwrap();
    // The tokens of the mock are bytes.
    let least = "Be short.Where is the Mona Lisa?In the Louvre.".len() as u64;
    assert!(prompt.as_u64().unwrap() >= alone["trace"][0]["prompt_tokens"].as_u64().unwrap() + least);
}

#[tokio::test]
async fn messages_that_are_none_are_refused_by_name() {
    let server = TestServer::new(says("hi")).await;
    for (history, words) in [
        (json!([{"role": "tool", "content": "x"}]), "history[0].role"),
        (json!([{"role": "user"}]), "content"),
        (json!([{"role": "user", "content": "x", "name": "Ann"}]), "name"),
        (json!("Where is it?"), "history"),
    ] {
        let asked = json!({"model": "plain", "question": "Who?", "history": history});
        let response = server.post("/v1/agent", &asked).await;
        assert_eq!(response.status(), 400, "{history}");
        let error: Value = response.json().await.unwrap();
        assert!(error["error"].to_string().contains(words), "{history}: {error}");
    }
}
