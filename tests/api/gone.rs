//! Clients that go away: whatever was done for them stops, and what they held is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::future::BoxFuture;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_engine::mock::Lines;
use waymark_engine::{EngineConfig, MockBackend};
use waymark_index::{Evidence, Mode};

use crate::house::{House, Plan, Shelf, eventually, read_until, says, script};
use crate::patience;

/// Long enough that two of them can be told from three.
const STEP: Duration = Duration::from_millis(15);

/// The routes that generate.
const ROUTES: [&str; 5] = ["/v1/chat/completions", "/v1/agent", "/v1/responses", "/v1/completions", "/mcp"];

/// A request for `model` that says `text`, to any of those routes.
fn ask(path: &str, model: &str, text: &str, stream: bool) -> Value {
    if path == "/mcp" {
        return tool("ask", json!({"question": text, "model": model}));
    }
    let (name, said) = match path {
        "/v1/agent" => ("question", json!(text)),
        "/v1/responses" => ("input", json!(text)),
        "/v1/completions" => ("prompt", json!(text)),
        _ => ("messages", json!([{"role": "user", "content": text}])),
    };
    let mut request = json!({"model": model, "stream": stream, name: said});
    if path == "/v1/completions" {
        // Where nothing is said these are short.
        request["max_tokens"] = json!(1000);
    }
    request
}

/// A call of a tool over `/mcp`, where nothing is streamed.
fn tool(name: &str, arguments: Value) -> Value {
    let params = json!({"name": name, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

/// Every way to ask: each route, streamed where it can be and in one piece. Responses are stored in either.
fn ways() -> impl Iterator<Item = (&'static str, bool)> {
    let all = ROUTES.into_iter().flat_map(|path| [(path, true), (path, false)]);
    all.filter(|way| *way != ("/mcp", true))
}

fn body(model: &str, stream: bool) -> Value {
    ask("/v1/chat/completions", model, "hello", stream)
}

fn slow() -> MockBackend {
    says(&"word ".repeat(1000)).with_time(STEP, Duration::ZERO)
}

/// Drops the connection; once the server knows, the blocks are free within two steps.
async fn leave(house: &House, socket: TcpStream) {
    let running = house.state.drain.running();
    drop(socket);
    // What a request held is dropped before its place among the running ones.
    let noticed = async {
        while house.state.drain.running() == running {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), noticed).await.expect("the server never noticed");
    freed(house).await;
}

/// From now on the blocks are free within two steps.
async fn freed(house: &House) {
    let counters = house.state.runtime.engine.counters();
    let steps = counters.steps_total.get();
    eventually("its blocks are free", || counters.blocks_used.get() == 0).await;
    assert!(counters.steps_total.get() - steps <= 2, "{} steps later", counters.steps_total.get() - steps);
    house.quiet().await;
}

#[tokio::test]
async fn while_queued() {
    let engine = EngineConfig { max_batch_rows: 1, ..EngineConfig::default() };
    let house = Plan { engine, ..Plan::new(slow()) }.build().await;
    let counters = house.state.runtime.engine.counters();
    let mut first = house.raw("/v1/chat/completions", &body("plain", true)).await;
    read_until(&mut first, "\"content\":\"w\"").await;
    for (path, stream) in ways() {
        let socket = house.raw(path, &ask(path, "plain", "hello", stream)).await;
        eventually("one waits", || counters.sessions_waiting.get() == 1).await;
        drop(socket);
        eventually("nobody waits", || counters.sessions_waiting.get() == 0).await;
        assert_eq!(counters.sessions_running.get(), 1, "the first is not touched");
    }
    drop(first);
    house.quiet().await;
}

#[tokio::test]
async fn while_prefilling() {
    let engine = EngineConfig { step_tokens: 16, ..EngineConfig::default() };
    let house = Plan { engine, ..Plan::new(says("hi").with_time(STEP, Duration::ZERO)) }.build().await;
    let counters = house.state.runtime.engine.counters();
    for (index, (path, stream)) in ways().enumerate() {
        // Each its own text, so that none finds its prefix in the cache.
        let text = format!("{index} long ").repeat(1000);
        let computed = counters.prefill_tokens_total.get();
        let socket = house.raw(path, &ask(path, "plain", &text, stream)).await;
        eventually("it prefills", || counters.prefill_tokens_total.get() > computed + 16).await;
        leave(&house, socket).await;
        assert!(counters.prefill_tokens_total.get() - computed < 4000, "the prefill went on");
    }
    assert_eq!(counters.decode_tokens_total.get(), 0);
}

#[tokio::test]
async fn while_decoding() {
    let house = House::new(slow()).await;
    let counters = house.state.runtime.engine.counters();
    for (path, stream) in ways() {
        let sampled = counters.decode_tokens_total.get();
        let socket = house.raw(path, &ask(path, "plain", "hello", stream)).await;
        eventually("it decodes", || counters.decode_tokens_total.get() > sampled + 2).await;
        leave(&house, socket).await;
        // Its answer would have been of 1000 tokens at least; 200 take three seconds.
        let sampled = counters.decode_tokens_total.get() - sampled;
        assert!(sampled < 200, "{path}, stream {stream}: it went on for {sampled} tokens");
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
    let query = json!({"query": "hello"});
    let searches = [("/v1/search", query.clone()), ("/mcp", tool("search", query))];
    // A prompt as it stands is not searched for.
    let loops = ways().filter(|(path, _)| *path != "/v1/completions");
    let asked = loops.map(|(path, stream)| (path, ask(path, "routerag", "hello", stream))).chain(searches);
    for (path, request) in asked {
        let waiting = Arc::new(AtomicUsize::new(0));
        let searcher = Some(Arc::new(Abyss(waiting.clone())) as Arc<dyn Search>);
        let house = Plan { searcher, ..Plan::new(script(&lines)) }.build().await;
        let socket = house.raw(path, &request).await;
        eventually("a search runs", || waiting.load(SeqCst) == 1).await;
        leave(&house, socket).await;
        eventually("the search was given up", || waiting.load(SeqCst) == 0).await;
    }
}

/// Without its last event a response is not one that could be fetched or continued.
#[tokio::test]
async fn a_stored_response_that_was_left_is_not_kept() {
    let house = House::new(slow()).await;
    let mut socket = house.raw("/v1/responses", &ask("/v1/responses", "plain", "hello", true)).await;
    let id = response(&read_until(&mut socket, "output_text.delta").await);
    leave(&house, socket).await;
    assert_eq!(house.get(&format!("/v1/responses/{id}")).await.status(), 404);
    let continued = json!({"model": "plain", "input": "and?", "previous_response_id": id});
    assert_eq!(house.post("/v1/responses", &continued).await.status(), 404);
}

/// One made in the background goes on without its client, until it is cancelled: the same as leaving any other.
#[tokio::test]
async fn a_response_in_the_background_is_cancelled_like_one_that_was_left() {
    let engine = EngineConfig { step_tokens: 16, ..EngineConfig::default() };
    let house = Plan { engine, ..Plan::new(slow()) }.build().await;
    let counters = house.state.runtime.engine.counters();
    // The second is cancelled in its prefill.
    for text in ["hello".to_owned(), "a long one ".repeat(1000)] {
        let mut request = ask("/v1/responses", "plain", &text, true);
        request["background"] = json!(true);
        let steps = counters.steps_total.get();
        let mut socket = house.raw("/v1/responses", &request).await;
        let id = response(&read_until(&mut socket, "response.created").await);
        drop(socket);
        eventually("it goes on", || counters.steps_total.get() > steps + 8).await;
        let cancelled = house.post(&format!("/v1/responses/{id}/cancel"), &json!({})).await;
        assert_eq!(cancelled.json::<Value>().await.unwrap()["status"], "cancelled");
        freed(&house).await;
    }
}

/// The id of the response that a stream tells of.
fn response(stream: &str) -> String {
    let id = stream.split("\"id\":\"resp_").nth(1).and_then(|rest| rest.split('"').next());
    format!("resp_{}", id.unwrap_or_else(|| panic!("no id in {stream}")))
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
                let path = ROUTES[rng.random_range(0..ROUTES.len())];
                let model = ["plain", "routerag"][rng.random_range(0..2)];
                let request = ask(path, model, "hello", rng.random());
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
    let house = patience::talkative(20.0).await;
    // Never reads: the kernel's buffers fill, then the server's bounded ones, then the sequence leaves the batch.
    let slow = patience::ask(&house).await;
    let counters = house.state.runtime.engine.counters();
    eventually("it is set aside", || counters.stalls_total.get() > 0).await;
    let text = house
        .stream(&json!({"model": "plain", "stream": true, "max_tokens": 500,
                                    "messages": [{"role": "user", "content": "other"}]}))
        .await;
    assert!(text.ends_with("data: [DONE]\n\n"));
    eventually("the slow one alone is left", || house.state.drain.running() == 1).await;
    drop(slow);
    house.quiet().await;
}
