//! Many clients at once: every token arrives, in order, at the right one.

use futures::StreamExt;
use serde_json::json;
use waymark::engine::MockBackend;
use waymark::engine::mock::Random;
use waymark_models::chat::Message;

use crate::house::{House, chunks, joined, template, tokenizer};

const CLIENTS: usize = 64;
const TOKENS: usize = 200;
const SEED: u64 = 11;

/// What the mock says to a question: a function of every token before each one.
fn expected(question: &str) -> String {
    let tokenizer = tokenizer();
    let segments = template().render_segments(&[Message::new("user", question)], true).unwrap();
    let mut context = tokenizer.encode_segments(&segments).unwrap();
    let begin = context.len();
    let random = Random { seed: SEED, vocab: tokenizer.vocab() };
    for _ in 0..TOKENS {
        context.push(random.next(None, &context));
    }
    tokenizer.decode(&context[begin..])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_missed_or_out_of_order() {
    let house = House::new(MockBackend::random(SEED, tokenizer().vocab())).await;
    let clients = (0..CLIENTS).map(|number| {
        let house = &house;
        async move {
            let question = format!("question number {number}");
            let body = json!({"model": "plain", "stream": true, "max_tokens": TOKENS, "temperature": 0,
                              "messages": [{"role": "user", "content": question}]});
            let response = house.post("/v1/chat/completions", &body).await;
            let mut bytes = response.bytes_stream();
            let mut stream = Vec::new();
            while let Some(part) = bytes.next().await {
                stream.extend_from_slice(&part.unwrap());
            }
            let chunks = chunks(&String::from_utf8(stream).unwrap());
            assert_eq!(joined(&chunks, "content")[&0], expected(&question), "{question}");
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
        }
    });
    futures::future::join_all(clients).await;
    house.quiet().await;
}
