//! Clients that disconnect: all work for them stops, and its resources are freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_engine::mock::Lines;
use waymark_engine::{EngineConfig, MockBackend};
use waymark_index::{Evidence, Mode};

use crate::harness::{
    HangingSearch, OnePassage, PATIENCE, ServerPlan, TestServer, eventually, read_until, says, script,
};
use crate::slow_clients;

/// Duration of an engine step, long enough to distinguish two steps from three.
const STEP: Duration = Duration::from_millis(15);

/// Number of tokens of an answer that nobody breaks off. They take two minutes: much longer than a test waits.
const MOST: usize = 8000;

/// Routes that generate.
const ROUTES: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/agent",
    "/v1/responses",
    "/v1/completions",
    "/v1/rollouts",
    "/inference/v1/generate",
    "/mcp",
];

/// Routes that generate without the loop.
const VERBATIM: [&str; 2] = ["/v1/completions", "/inference/v1/generate"];

/// Builds a request with `text` for `model`, for any of these routes.
fn ask(path: &str, model: &str, text: &str, stream: bool) -> Value {
    if path == "/mcp" {
        return tool("ask", json!({"question": text, "model": model}));
    }
    let (name, said) = match path {
        "/v1/agent" => ("question", json!(text)),
        "/v1/responses" => ("input", json!(text)),
        "/v1/completions" => ("prompt", json!(text)),
        "/v1/rollouts" => ("questions", json!([{"question": text}])),
        // Each byte is one token.
        "/inference/v1/generate" => ("token_ids", json!(text.as_bytes())),
        _ => ("messages", json!([{"role": "user", "content": text}])),
    };
    let mut request = json!({"model": model, "stream": stream, name: said});
    // The defaults of these routes are short answers.
    match path {
        "/v1/completions" => request["max_tokens"] = json!(MOST),
        "/inference/v1/generate" => request["sampling_params"] = json!({"max_tokens": MOST, "ignore_eos": true}),
        _ => {}
    }
    request
}

/// Tool call over `/mcp`, which is never streamed.
fn tool(name: &str, arguments: Value) -> Value {
    let params = json!({"name": name, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

/// All kinds of requests: each route, streamed if possible, and whole. Responses are stored in both cases.
fn ways() -> impl Iterator<Item = (&'static str, bool)> {
    let all = ROUTES.into_iter().flat_map(|path| [(path, true), (path, false)]);
    all.filter(|way| *way != ("/mcp", true))
}

fn body(model: &str, stream: bool) -> Value {
    ask("/v1/chat/completions", model, "hello", stream)
}

fn slow() -> MockBackend {
    says(&"word ".repeat(MOST / 5)).with_time(STEP, Duration::ZERO)
}

/// Drops the connection. Once the server has noticed, the blocks are free within two steps.
async fn leave(server: &TestServer, socket: TcpStream) {
    let running = server.state.drain.running();
    drop(socket);
    // The resources of a request are dropped before its drain guard.
    let noticed = async {
        while server.state.drain.running() == running {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, noticed).await.expect("the server never noticed");
    freed(server).await;
}

/// Checks that the blocks are free within two steps from now.
async fn freed(server: &TestServer) {
    let counters = server.state.runtime.engine.counters();
    let steps = counters.steps_total.get();
    eventually("its blocks are free", || counters.blocks_used.get() == 0).await;
    assert!(counters.steps_total.get() - steps <= 2, "{} steps later", counters.steps_total.get() - steps);
    server.quiet().await;
}

#[tokio::test]
async fn while_queued() {
    let engine = EngineConfig { max_batch_rows: 1, ..EngineConfig::default() };
    let server = ServerPlan { engine, ..ServerPlan::new(slow()) }.build().await;
    let counters = server.state.runtime.engine.counters();
    let mut first = server.raw("/v1/chat/completions", &body("plain", true)).await;
    read_until(&mut first, "\"content\":\"w\"").await;
    for (path, stream) in ways() {
        let socket = server.raw(path, &ask(path, "plain", "hello", stream)).await;
        eventually("one waits", || counters.sessions_waiting.get() == 1).await;
        drop(socket);
        eventually("nobody waits", || counters.sessions_waiting.get() == 0).await;
        assert_eq!(counters.sessions_running.get(), 1, "the first is not touched");
    }
    drop(first);
    server.quiet().await;
}

#[tokio::test]
async fn while_prefilling() {
    let engine = EngineConfig { step_tokens: 16, ..EngineConfig::default() };
    let server = ServerPlan { engine, ..ServerPlan::new(says("hi").with_time(STEP, Duration::ZERO)) }.build().await;
    let counters = server.state.runtime.engine.counters();
    for (index, (path, stream)) in ways().enumerate() {
        // Each client sends its own text, so none finds its prefix in the cache.
        let text = format!("{index} long ").repeat(3000);
        let computed = counters.prefill_tokens_total.get();
        let socket = server.raw(path, &ask(path, "plain", &text, stream)).await;
        eventually("it prefills", || counters.prefill_tokens_total.get() > computed + 16).await;
        leave(&server, socket).await;
        // The prompt has at least 21,000 tokens; 12,000 of them take eleven seconds.
        assert!(counters.prefill_tokens_total.get() - computed < 12_000, "the prefill went on");
    }
    assert_eq!(counters.decode_tokens_total.get(), 0);
}

#[tokio::test]
async fn while_decoding() {
    let server = TestServer::new(slow()).await;
    let counters = server.state.runtime.engine.counters();
    for (path, stream) in ways() {
        let sampled = counters.decode_tokens_total.get();
        let socket = server.raw(path, &ask(path, "plain", "hello", stream)).await;
        eventually("it decodes", || counters.decode_tokens_total.get() > sampled + 2).await;
        leave(&server, socket).await;
        // A tenth of the answer takes twelve seconds.
        let sampled = counters.decode_tokens_total.get() - sampled;
        assert!(sampled < MOST as u64 / 10, "{path}, stream {stream}: it went on for {sampled} tokens");
    }
}

#[tokio::test]
async fn while_searching() {
    let lines = Lines::new(["<think>a</think><search>[passage] b</search>"]);
    let query = json!({"query": "hello"});
    let searches = [("/v1/search", query.clone()), ("/mcp", tool("search", query))];
    let loops = ways().filter(|(path, _)| !VERBATIM.contains(path));
    let asked = loops.map(|(path, stream)| (path, ask(path, "routerag", "hello", stream))).chain(searches);
    for (path, request) in asked {
        let waiting = Arc::new(AtomicUsize::new(0));
        let searcher = Some(Arc::new(HangingSearch(waiting.clone())) as Arc<dyn Search>);
        let server = ServerPlan { searcher, ..ServerPlan::new(script(&lines)) }.build().await;
        let socket = server.raw(path, &request).await;
        eventually("a search runs", || waiting.load(SeqCst) == 1).await;
        leave(&server, socket).await;
        eventually("the search was given up", || waiting.load(SeqCst) == 0).await;
    }
}

/// A response without its last event cannot be fetched or continued.
#[tokio::test]
async fn a_stored_response_that_was_left_is_not_kept() {
    let server = TestServer::new(slow()).await;
    let mut socket = server.raw("/v1/responses", &ask("/v1/responses", "plain", "hello", true)).await;
    let id = response(&read_until(&mut socket, "output_text.delta").await);
    leave(&server, socket).await;
    assert_eq!(server.get(&format!("/v1/responses/{id}")).await.status(), 404);
    let continued = json!({"model": "plain", "input": "and?", "previous_response_id": id});
    assert_eq!(server.post("/v1/responses", &continued).await.status(), 404);
}

/// A background response continues without its client until it is canceled, which frees its resources like a
/// disconnect.
#[tokio::test]
async fn a_response_in_the_background_is_cancelled_like_one_that_was_left() {
    let engine = EngineConfig { step_tokens: 16, ..EngineConfig::default() };
    let server = ServerPlan { engine, ..ServerPlan::new(slow()) }.build().await;
    let counters = server.state.runtime.engine.counters();
    // The second response is canceled during its prefill.
    for text in ["hello".to_owned(), "a long one ".repeat(1000)] {
        let mut request = ask("/v1/responses", "plain", &text, true);
        request["background"] = json!(true);
        let steps = counters.steps_total.get();
        let mut socket = server.raw("/v1/responses", &request).await;
        let id = response(&read_until(&mut socket, "response.created").await);
        drop(socket);
        eventually("it goes on", || counters.steps_total.get() > steps + 8).await;
        let cancelled = server.post(&format!("/v1/responses/{id}/cancel"), &json!({})).await;
        assert_eq!(cancelled.json::<Value>().await.unwrap()["status"], "cancelled");
        freed(&server).await;
    }
}

/// Returns the ID of the response in a stream.
fn response(stream: &str) -> String {
    let id = stream.split("\"id\":\"resp_").nth(1).and_then(|rest| rest.split('"').next());
    format!("resp_{}", id.unwrap_or_else(|| panic!("no id in {stream}")))
}

#[tokio::test]
async fn the_silence_of_a_search_is_filled() {
    let lines = Lines::new(["<think>a</think><search>[passage] b</search>"]);
    let mut plan = ServerPlan { searcher: Some(Arc::new(HangingSearch::default())), ..ServerPlan::new(script(&lines)) };
    plan.http.ping = Duration::from_millis(20);
    let server = plan.build().await;
    let mut socket = server.raw("/v1/chat/completions", &body("routerag", true)).await;
    read_until(&mut socket, ": ping\n\n").await;
    drop(socket);
    server.quiet().await;
}

/// Searcher that finds one passage, after a delay.
#[derive(Debug)]
struct Slowly;

impl Search for Slowly {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            OnePassage.search(query).await
        })
    }

    fn modes(&self) -> Vec<Mode> {
        OnePassage.modes()
    }
}

/// Each client disconnects at a random moment: while queued, in prefill, while decoding, in a search, or with its
/// answer.
#[tokio::test]
async fn a_thousand_times_and_the_next_one_is_served() {
    let thought = format!("<think>{}</think>\n<search>[passage] b</search>", "hm ".repeat(10));
    let lines = Lines::new([thought, format!("<answer>{}</answer>", "word ".repeat(20).trim())])
        .terminator("</information>\n\n");
    let engine = EngineConfig { step_tokens: 128, max_batch_rows: 8, ..EngineConfig::default() };
    let backend = script(&lines).with_time(Duration::from_micros(200), Duration::ZERO).with_blocks(1024);
    let server = ServerPlan { engine, searcher: Some(Arc::new(Slowly)), ..ServerPlan::new(backend) }.build().await;
    // A slow machine needs longer before a request is in a turn.
    let begun = Instant::now();
    assert_eq!(server.chat(&body("routerag", false)).await.0, 200);
    let longest = begun.elapsed().max(Duration::from_millis(40));
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..40 {
        let clients: Vec<_> = (0..25)
            .map(|_| {
                let path = ROUTES[rng.random_range(0..ROUTES.len())];
                let model = ["plain", "routerag"][rng.random_range(0..2)];
                let request = ask(path, model, "hello", rng.random());
                let server = &server;
                let life = longest.mul_f64(rng.random());
                async move {
                    let socket = server.raw(path, &request).await;
                    tokio::time::sleep(life).await;
                    drop(socket);
                }
            })
            .collect();
        futures::future::join_all(clients).await;
    }
    server.quiet().await;
    let counters = server.state.runtime.engine.counters();
    assert!(counters.cancellations_total.get() > 50, "{} were in a turn", counters.cancellations_total.get());
    let (status, whole) = server.chat(&body("routerag", false)).await;
    assert_eq!((status, &whole["choices"][0]["message"]["content"]), (200, &json!("word ".repeat(20).trim())));
}

#[tokio::test]
async fn a_slow_reader_holds_up_nobody_but_itself() {
    let server = slow_clients::talkative(200.0).await;
    // This client never reads: the kernel's buffers fill, then the server's, and then the sequence leaves the batch.
    let slow = slow_clients::ask(&server).await;
    let counters = server.state.runtime.engine.counters();
    eventually("it is set aside", || counters.stalls_total.get() > 0).await;
    let text = server
        .stream(&json!({"model": "plain", "stream": true, "max_tokens": 500,
                                    "messages": [{"role": "user", "content": "other"}]}))
        .await;
    assert!(text.ends_with("data: [DONE]\n\n"));
    eventually("the slow one alone is left", || server.state.drain.running() == 1).await;
    drop(slow);
    server.quiet().await;
}
