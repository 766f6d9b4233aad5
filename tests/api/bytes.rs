//! A model that samples arbitrary bytes: every message is valid JSON, and no character is lost.

use serde_json::{Value, json};
use waymark_engine::MockBackend;

use crate::harness::{TestServer, chunks, joined, says, tokenizer};

const TOKENS: usize = 300;

/// Returns the bytes of all tokens of an answer, taken from its log-probabilities.
fn said(entries: &[Value]) -> Vec<u8> {
    let bytes = entries.iter().flat_map(|entry| entry["bytes"].as_array().unwrap());
    bytes.map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn random_bytes_are_always_valid_json_and_lose_no_character() {
    // All tokens are equally probable, so most of the output is not UTF-8.
    let server = TestServer::new(MockBackend::random(5, tokenizer().vocab()).with_confidence(0.0)).await;
    for seed in 0..8 {
        let mut request = json!({"model": "plain", "max_tokens": TOKENS, "temperature": 1, "seed": seed, "logprobs": true,
                                 "messages": [{"role": "user", "content": "hello"}]});
        let (status, whole) = server.chat(&request).await;
        assert_eq!(status, 200, "{whole}");
        let choice = &whole["choices"][0];
        let content = choice["message"]["content"].as_str().unwrap();
        let bytes = said(choice["logprobs"]["content"].as_array().unwrap());
        assert!(std::str::from_utf8(&bytes).is_err(), "this was meant to be no text");
        assert_eq!(content, String::from_utf8_lossy(&bytes), "what is no character stands for itself, and only that");
        request["stream"] = json!(true);
        let chunks = chunks(&server.stream(&request).await);
        assert_eq!(joined(&chunks, "content")[&0], content, "a stream says the same");
    }
    server.quiet().await;
}

#[tokio::test]
async fn the_tokens_of_an_answer_spell_it_without_the_white_space_around_it() {
    let server = TestServer::new(says("<answer> \n Faust 1 \n </answer>")).await;
    let mut request =
        json!({"model": "routerag", "logprobs": true, "messages": [{"role": "user", "content": "hello"}]});
    let (status, whole) = server.chat(&request).await;
    assert_eq!(status, 200, "{whole}");
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], "Faust 1");
    assert_eq!(said(choice["logprobs"]["content"].as_array().unwrap()), b"Faust 1");
    request["stream"] = json!(true);
    let chunks = chunks(&server.stream(&request).await);
    let entries = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(said(&entries.flatten().cloned().collect::<Vec<_>>()), b"Faust 1", "a stream says the same");
}
