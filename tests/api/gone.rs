//! Clients that go away: whatever was done for them stops, and what they held is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waymark::agent::{Search, SearchError, SearchQuery};
use waymark::engine::mock::Lines;
use waymark::engine::{EngineConfig, MockBackend};
use waymark_index::{Evidence, Mode};

use crate::house::{House, Plan, eventually, read_until, says, script};

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

#[tokio::test]
async fn a_thousand_times_and_the_next_one_is_served() {
    let house = House::new(says(&"word ".repeat(50)).with_time(Duration::from_micros(200), Duration::ZERO)).await;
    for round in 0..40u64 {
        let sockets = futures::future::join_all((0..25).map(|index| {
            let stream = (index + round) % 3 != 0;
            let house = &house;
            async move { house.raw("/v1/chat/completions", &body("plain", stream)).await }
        }))
        .await;
        tokio::time::sleep(Duration::from_millis(round % 7)).await;
        drop(sockets);
    }
    house.quiet().await;
    let (status, whole) = house.chat(&body("plain", false)).await;
    assert_eq!((status, &whole["choices"][0]["message"]["content"]), (200, &json!("word ".repeat(50))));
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
