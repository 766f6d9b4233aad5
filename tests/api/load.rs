//! Many clients at once: every token arrives, in order, at the right one.

use futures::StreamExt;
use serde_json::json;
use tokio::io::AsyncReadExt;
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

/// `cargo test --release --test api throughput -- --ignored --nocapture` prints streamed tokens per second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput() {
    const LONG: usize = 1000;
    let house = House::new(MockBackend::random(SEED, tokenizer().vocab()).with_blocks(1 << 15)).await;
    let begun = std::time::Instant::now();
    let clients = (0..CLIENTS).map(|number| {
        let house = &house;
        async move {
            let body = json!({"model": "plain", "stream": true, "max_tokens": LONG, "temperature": 0,
                              "messages": [{"role": "user", "content": format!("question {number}")}]});
            let mut socket = house.raw("/v1/chat/completions", &body).await;
            let mut buffer = vec![0; 1 << 16];
            let (mut chunks, mut last) = (0, [0; 16]);
            while !last.windows(8).any(|part| part == b"[DONE]\n\n") {
                let count = socket.read(&mut buffer).await.unwrap();
                assert!(count > 0);
                chunks += buffer[..count].windows(6).filter(|part| part == b"data: ").count();
                let tail = &buffer[count.saturating_sub(16)..count];
                last.rotate_left(tail.len());
                let at = last.len() - tail.len();
                last[at..].copy_from_slice(tail);
            }
            chunks
        }
    });
    let chunks: usize = futures::future::join_all(clients).await.into_iter().sum();
    let seconds = begun.elapsed().as_secs_f64();
    let rate = chunks as f64 / seconds;
    println!("{CLIENTS} clients, {chunks} chunks in {seconds:.2} s: {rate:.0} tokens/s, {}", processor_time(chunks));
}

/// Microseconds of processor time per token of this whole process, where the system tells: on a busy machine the wall
/// says little.
fn processor_time(tokens: usize) -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or_default();
    format!(
        "{:.1} µs user and {:.1} µs system per token",
        ticks(11) * 1e4 / tokens as f64,
        ticks(12) * 1e4 / tokens as f64
    )
}
