//! Many clients at once: every token arrives, in order, at the right client, and no kind of request starves another.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use waymark_engine::MockBackend;
use waymark_engine::mock::Random;
use waymark_index::{Embed, EmbedError};
use waymark_models::chat::Message;
use waymark_runtime::embedding::TextEmbedder;

use crate::documents::plan_with;
use crate::harness::{PATIENCE, ServerPlan, TestServer, chunks, eventually, joined, template, tokenizer};
use crate::small_index::HashEmbed;

const CLIENTS: usize = 64;
const TOKENS: usize = 200;
const SEED: u64 = 11;

/// Answer of the mock to a question: a function of all tokens before each one.
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
    let server = TestServer::new(MockBackend::random(SEED, tokenizer().vocab())).await;
    let clients = (0..CLIENTS).map(|number| {
        let server = &server;
        async move {
            let question = format!("question number {number}");
            let body = json!({"model": "plain", "stream": true, "max_tokens": TOKENS, "temperature": 0,
                              "messages": [{"role": "user", "content": question}]});
            let response = server.post("/v1/chat/completions", &body).await;
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
    server.quiet().await;
}

/// Embedder that handles one call at a time, like a real one, and can be paused in the middle of it.
#[derive(Debug, Default)]
struct Single {
    words: HashEmbed,
    held: AtomicBool,
    /// Number of callers still waiting for their vectors.
    inside: AtomicUsize,
    /// First text of each call.
    passes: Mutex<Vec<String>>,
}

impl Embed for Single {
    fn id(&self) -> &str {
        self.words.id()
    }

    fn dims(&self) -> usize {
        self.words.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.inside.fetch_add(1, SeqCst);
        let mut passes = self.passes.lock().unwrap();
        passes.push(texts[0].to_owned());
        std::thread::sleep(Duration::from_millis(5));
        let begun = Instant::now();
        // With a timeout, because the runtime of a failed test waits for this thread.
        while self.held.load(SeqCst) && begun.elapsed() < 4 * PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(passes);
        self.inside.fetch_sub(1, SeqCst);
        self.words.embed(texts)
    }
}

impl TextEmbedder for Single {
    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }

    fn max_tokens(&self) -> usize {
        usize::MAX
    }
}

/// Number of embedding requests running or waiting.
const ROOM: usize = 65;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_texts_to_embed_hold_up_neither_searches_nor_chats() {
    const MORE: usize = 8;
    let single = Arc::new(Single::default());
    let (_dir, _, plan) = plan_with(true, single.clone());
    let server = ServerPlan { embedder: Some(single.clone()), ..plan }.build().await;
    single.held.store(true, SeqCst);
    let refused = AtomicUsize::new(0);
    let embeddings = (0..ROOM + MORE).map(|number| {
        let server = &server;
        let refused = &refused;
        async move {
            let body = json!({"model": "letters", "input": format!("text {number}")});
            let response = server.post("/v1/embeddings", &body).await;
            let status = response.status().as_u16();
            let retry = response.headers().contains_key("retry-after");
            let told: Value = response.json().await.unwrap();
            if status != 200 {
                assert_eq!((status, retry, &told["error"]["code"]), (503, true, &json!("queue_full")), "{told}");
                refused.fetch_add(1, SeqCst);
            }
            status
        }
    });
    let others = async {
        eventually("those for whom there is no room are refused", || refused.load(SeqCst) == MORE).await;
        eventually("one request embeds", || single.inside.load(SeqCst) == 1).await;
        let chat = json!({"model": "plain", "messages": [{"role": "user", "content": "hello"}]});
        assert_eq!(server.chat(&chat).await.0, 200);
        let query = json!({"query": "river", "ranking": "dense"});
        let release = async {
            eventually("the search waits for the embedder", || single.inside.load(SeqCst) == 2).await;
            single.held.store(false, SeqCst);
        };
        let (found, ()) = tokio::join!(server.post("/v1/search", &query), release);
        assert_eq!(found.status(), 200);
    };
    let (statuses, ()) = tokio::join!(futures::future::join_all(embeddings), others);
    assert_eq!(statuses.iter().filter(|&&status| status == 200).count(), ROOM);
    let passes = single.passes.lock().unwrap();
    let place = passes.iter().position(|text| text == "river").unwrap();
    // In the order of arrival, the search would come last.
    assert!(place < ROOM / 2, "the search came {place} passes after the first of {}", passes.len());
}

/// `cargo test --release --test api throughput -- --ignored --nocapture` prints the number of streamed tokens per
/// second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput() {
    const LONG: usize = 1000;
    // Enough that no session is preempted.
    let server = TestServer::new(MockBackend::random(SEED, tokenizer().vocab()).with_blocks(1 << 15)).await;
    let begun = Instant::now();
    let clients = (0..CLIENTS).map(|number| {
        let server = &server;
        async move {
            let body = json!({"model": "plain", "stream": true, "max_tokens": LONG, "temperature": 0,
                              "messages": [{"role": "user", "content": format!("question {number}")}]});
            let mut socket = server.raw("/v1/chat/completions", &body).await;
            let mut buffer = vec![0; 1 << 16];
            let mut chunks = 0;
            // The end may be split between two reads.
            let mut last = [0; 16];
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

/// Microseconds of CPU time per token of this whole process, if the system tells: on a busy machine the wall time means
/// little.
fn processor_time(tokens: usize) -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or_default();
    format!(
        "{:.1} µs user and {:.1} µs system per token",
        // `utime` and `stime` of proc(5), in ticks of 10 ms.
        ticks(11) * 1e4 / tokens as f64,
        ticks(12) * 1e4 / tokens as f64
    )
}
