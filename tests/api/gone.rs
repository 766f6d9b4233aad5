//! Clients that go away: whatever was done for them stops, and what they held is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::future::BoxFuture;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use waymark::agent::{Search, SearchError, SearchQuery};
use waymark::engine::mock::Lines;
use waymark::engine::{EngineConfig, MockBackend};
use waymark_index::{Evidence, Mode};

use crate::house::{House, Plan, Shelf, eventually, read_until, says, script};

const STEP: Duration = Duration::from_millis(4);

fn body(model: &str, stream: bool) -> Value {
    json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": "hello"}]})
}

fn slow() -> MockBackend {
    says(&"word ".repeat(1000)).with_time(STEP, Duration::ZERO)
}

#[tokio::test]
async fn while_decoding_streamed() {
    let house = House::new(slow()).await;
    let mut socket = house.raw("/v1/chat/completions", &body("plain", true)).await;
    read_until(&mut socket, "\"content\":\"w\"").await;
    drop(socket);
    house.quiet().await;
    assert!(house.state.runtime.engine.counters().decode_tokens_total.get() < 1000);
}

#[tokio::test]
async fn while_decoding_whole() {
    for path in ["/v1/chat/completions", "/v1/agent"] {
        let house = House::new(slow()).await;
        let request = match path {
            "/v1/agent" => json!({"question": "hello", "model": "plain"}),
            _ => body("plain", false),
        };
        let socket = house.raw(path, &request).await;
        let counters = house.state.runtime.engine.counters();
        eventually("tokens are sampled", || counters.decode_tokens_total.get() > 5).await;
        drop(socket);
        house.quiet().await;
        assert!(counters.decode_tokens_total.get() < 1000);
    }
}

#[tokio::test]
async fn while_prefilling() {
    let engine = EngineConfig { step_tokens: 16, ..EngineConfig::default() };
    for stream in [true, false] {
        let house =
            Plan { engine: engine.clone(), ..Plan::new(says("hi").with_time(STEP, Duration::ZERO)) }.build().await;
        let mut request = body("plain", stream);
        request["messages"][0]["content"] = json!("long ".repeat(2000));
        let socket = house.raw("/v1/chat/completions", &request).await;
        let counters = house.state.runtime.engine.counters();
        eventually("the prefill has begun", || counters.prefill_tokens_total.get() > 16).await;
        drop(socket);
        house.quiet().await;
        assert!(counters.prefill_tokens_total.get() < 9000, "the prefill went on");
        assert_eq!(counters.decode_tokens_total.get(), 0);
    }
}

#[tokio::test]
async fn while_queued() {
    for stream in [true, false] {
        let engine = EngineConfig { max_batch_rows: 1, ..EngineConfig::default() };
        let house = Plan { engine, ..Plan::new(slow()) }.build().await;
        let mut first = house.raw("/v1/chat/completions", &body("plain", true)).await;
        read_until(&mut first, "\"content\":\"w\"").await;
        let second = house.raw("/v1/chat/completions", &body("plain", stream)).await;
        let counters = house.state.runtime.engine.counters();
        eventually("one waits", || counters.sessions_waiting.get() == 1).await;
        drop(second);
        eventually("nobody waits", || counters.sessions_waiting.get() == 0).await;
        assert_eq!(counters.sessions_running.get(), 1, "the first is not touched");
        drop(first);
        house.quiet().await;
    }
}

/// Never finds anything, and counts who waits for it.
#[derive(Debug, Default)]
struct Abyss(Arc<AtomicUsize>);

struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Search for Abyss {
    fn search(&self, _: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        self.0.fetch_add(1, SeqCst);
        let waiting = Waiting(self.0.clone());
        Box::pin(async move {
            let _waiting = waiting;
            std::future::pending().await
        })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

#[tokio::test]
async fn while_searching() {
    let lines = Lines::new(["<think>a</think><search>[passage] b</search>"]);
    for (path, request) in [
        ("/v1/chat/completions", body("routerag", true)),
        ("/v1/chat/completions", body("routerag", false)),
        ("/v1/agent", json!({"question": "hello", "model": "routerag", "stream": true})),
        ("/v1/agent", json!({"question": "hello", "model": "routerag"})),
        ("/v1/search", json!({"query": "hello"})),
    ] {
        let waiting = Arc::new(AtomicUsize::new(0));
        let searcher = Some(Arc::new(Abyss(waiting.clone())) as Arc<dyn Search>);
        let house = Plan { searcher, ..Plan::new(script(&lines)) }.build().await;
        let socket = house.raw(path, &request).await;
        eventually("a search runs", || waiting.load(SeqCst) == 1).await;
        drop(socket);
        eventually("the search was given up", || waiting.load(SeqCst) == 0).await;
        house.quiet().await;
    }
}

#[tokio::test]
async fn the_silence_of_a_search_is_filled() {
    let lines = Lines::new(["<think>a</think><search>[passage] b</search>"]);
    let mut plan = Plan { searcher: Some(Arc::new(Abyss::default())), ..Plan::new(script(&lines)) };
    plan.http.ping = Duration::from_millis(20);
    let house = plan.build().await;
    let mut socket = house.raw("/v1/chat/completions", &body("routerag", true)).await;
    read_until(&mut socket, ": ping\n\n").await;
    drop(socket);
    house.quiet().await;
}

/// How a request asks, on every route that generates.
fn asks() -> [(&'static str, Value); 4] {
    [
        ("/v1/chat/completions", body("plain", true)),
        ("/v1/chat/completions", body("plain", false)),
        ("/v1/agent", json!({"question": "hello", "model": "plain", "stream": true})),
        ("/v1/agent", json!({"question": "hello", "model": "plain"})),
    ]
}

/// Drops the connection; once the server knows, the blocks are free within two steps.
async fn leave(house: &House, socket: TcpStream) {
    let counters = house.state.runtime.engine.counters();
    let running = house.state.drain.running();
    drop(socket);
    // What a request held is dropped before its place among the running ones.
    while house.state.drain.running() == running {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    let steps = counters.steps_total.get();
    eventually("its blocks are free", || counters.blocks_used.get() == 0).await;
    assert!(counters.steps_total.get() - steps <= 2, "{} steps later", counters.steps_total.get() - steps);
    house.quiet().await;
}

/// Long enough that two of them can be told from three.
const LONG_STEP: Duration = Duration::from_millis(15);

#[tokio::test]
async fn blocks_are_free_within_two_steps_of_a_decode() {
    let house = House::new(says(&"word ".repeat(1000)).with_time(LONG_STEP, Duration::ZERO)).await;
    let counters = house.state.runtime.engine.counters();
    for (path, request) in asks() {
        let sampled = counters.decode_tokens_total.get();
        let socket = house.raw(path, &request).await;
        eventually("it decodes", || counters.decode_tokens_total.get() > sampled + 2).await;
        leave(&house, socket).await;
    }
}

#[tokio::test]
async fn blocks_are_free_within_two_steps_of_a_prefill() {
    let engine = EngineConfig { step_tokens: 16, ..EngineConfig::default() };
    let house = Plan { engine, ..Plan::new(says("hi").with_time(LONG_STEP, Duration::ZERO)) }.build().await;
    let counters = house.state.runtime.engine.counters();
    for (index, (path, mut request)) in asks().into_iter().enumerate() {
        // Each its own text, so that none finds its prefix in the cache.
        let text = format!("{index} long ").repeat(1000);
        match request.get_mut("question") {
            Some(question) => *question = json!(text),
            None => request["messages"][0]["content"] = json!(text),
        }
        let computed = counters.prefill_tokens_total.get();
        let socket = house.raw(path, &request).await;
        eventually("it prefills", || counters.prefill_tokens_total.get() > computed + 16).await;
        leave(&house, socket).await;
    }
    assert_eq!(counters.decode_tokens_total.get(), 0);
}

#[tokio::test]
async fn a_waiting_request_of_every_kind_is_forgotten_at_once() {
    let engine = EngineConfig { max_batch_rows: 1, ..EngineConfig::default() };
    let house = Plan { engine, ..Plan::new(slow()) }.build().await;
    let counters = house.state.runtime.engine.counters();
    let mut first = house.raw("/v1/chat/completions", &body("plain", true)).await;
    read_until(&mut first, "\"content\":\"w\"").await;
    for (path, request) in asks() {
        let socket = house.raw(path, &request).await;
        eventually("one waits", || counters.sessions_waiting.get() == 1).await;
        drop(socket);
        eventually("nobody waits", || counters.sessions_waiting.get() == 0).await;
        assert_eq!(counters.sessions_running.get(), 1, "the first is not touched");
    }
    drop(first);
    house.quiet().await;
}

/// Finds one passage, after a while.
#[derive(Debug)]
struct Slowly;

impl Search for Slowly {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            Shelf.search(query).await
        })
    }

    fn modes(&self) -> Vec<Mode> {
        Shelf.modes()
    }
}

/// Each client leaves at a random moment: while it waits, in prefill, while decoding, in a search, or with its answer.
#[tokio::test]
async fn a_thousand_times_and_the_next_one_is_served() {
    let thought = format!("<think>{}</think>\n<search>[passage] b</search>", "hm ".repeat(10));
    let lines = Lines::new([thought, format!("<answer>{}</answer>", "word ".repeat(20).trim())])
        .terminator("</information>\n\n");
    let engine = EngineConfig { step_tokens: 128, max_batch_rows: 8, ..EngineConfig::default() };
    let backend = script(&lines).with_time(Duration::from_micros(200), Duration::ZERO).with_blocks(1024);
    let house = Plan { engine, searcher: Some(Arc::new(Slowly)), ..Plan::new(backend) }.build().await;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..40 {
        let clients: Vec<_> = (0..25)
            .map(|_| {
                let (path, mut request) = asks()[rng.random_range(0..4)].clone();
                if rng.random() {
                    request["model"] = json!("routerag");
                }
                let (house, life) = (&house, Duration::from_micros(rng.random_range(0..40_000)));
                async move {
                    let socket = house.raw(path, &request).await;
                    tokio::time::sleep(life).await;
                    drop(socket);
                }
            })
            .collect();
        futures::future::join_all(clients).await;
    }
    house.quiet().await;
    let counters = house.state.runtime.engine.counters();
    assert!(counters.cancellations_total.get() > 100, "{} were in a turn", counters.cancellations_total.get());
    let (status, whole) = house.chat(&body("routerag", false)).await;
    assert_eq!((status, &whole["choices"][0]["message"]["content"]), (200, &json!("word ".repeat(20).trim())));
}

#[tokio::test]
async fn a_slow_reader_holds_up_nobody_but_itself() {
    let house = House::new(says(&"word ".repeat(3000)).with_time(Duration::from_micros(20), Duration::ZERO)).await;
    // Never reads: the kernel's buffers fill, then the server's bounded ones, then the sequence leaves the batch.
    let slow = house.raw("/v1/chat/completions", &body("plain", true)).await;
    let text = house
        .stream(&json!({"model": "plain", "stream": true, "max_tokens": 500,
                                    "messages": [{"role": "user", "content": "other"}]}))
        .await;
    assert!(text.ends_with("data: [DONE]\n\n"));
    drop(slow);
    house.quiet().await;
}
