//! Failures of one request: the client gets an error with the request's ID, and all other requests continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waymark::api::PolicyStore;
use waymark_agent::{
    Action, ActionOutcome, AllowedActions, BlockingSearch, Budget, Conversation, Format, Guide, Injected, Policy,
    Protocol, ProtocolPrompt, ReadingRule, Search, SearchError, SearchLimits, Searcher, SegmentKind, Tag, Tags,
};
use waymark_engine::Health;
use waymark_engine::mock::Lines;
use waymark_index::{Embed, EmbedError, Evidence, Mode, Query};
use waymark_runtime::embedding::TextEmbedder;

use crate::harness::{
    Letters, PATIENCE, ServerPlan, TestServer, answer, chunks, eventually, evidence, joined, says, script,
};

/// Byte that no other text here contains, and its token.
const POISON: &str = "~";
const POISON_TOKEN: u32 = b'~' as u32;

fn body(content: &str, stream: bool) -> Value {
    json!({"model": "plain", "stream": stream, "messages": [{"role": "user", "content": content}]})
}

/// A long, slow answer, so all requests are in the batch together.
fn slow() -> waymark_engine::MockBackend {
    says(&"word ".repeat(40)).with_time(Duration::from_millis(1), Duration::ZERO)
}

/// Sends `bad` streamed and whole, next to three requests that must not be affected. Returns its two errors.
async fn among_others(server: &TestServer, bad: &str) -> (String, Value) {
    asked_among_others(server, &body(bad, false)).await
}

/// Same as [`among_others`], with a whole request body.
async fn asked_among_others(server: &TestServer, bad: &Value) -> (String, Value) {
    let mut stream = bad.clone();
    stream["stream"] = json!(true);
    let good = (0..3).map(|number| async move { server.stream(&body(&format!("number {number}"), true)).await });
    let streamed = async {
        let response = server.post("/v1/chat/completions", &stream).await;
        assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
        response.text().await.unwrap()
    };
    let whole = async {
        let response = server.post("/v1/chat/completions", bad).await;
        assert_eq!(response.status(), 500);
        assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
        response.json::<Value>().await.unwrap()
    };
    let (good, streamed, whole) = tokio::join!(futures::future::join_all(good), streamed, whole);
    for stream in good {
        assert!(stream.ends_with("data: [DONE]\n\n"));
        assert_eq!(joined(&chunks(&stream), "content")[&0], "word ".repeat(40));
    }
    server.quiet().await;
    assert_eq!(server.state.runtime.engine.health(), Health::Ready);
    (streamed, whole)
}

fn assert_told(streamed: &str, whole: &Value, words: &str) {
    assert_eq!((&whole["error"]["code"], &whole["error"]["type"]), (&json!("internal_error"), &json!("server_error")));
    assert!(whole["error"]["message"].as_str().unwrap().contains(words), "{whole}");
    // On a busy machine the request may fail before its stream has begun, in which case it gets an error status.
    let begun = streamed.starts_with("data:");
    let last = if begun { chunks(streamed).pop().unwrap() } else { serde_json::from_str(streamed).unwrap() };
    assert_eq!(last["error"]["code"], "internal_error", "{streamed}");
    assert!(!streamed.contains("[DONE]") && last["error"]["message"].as_str().unwrap().contains(words), "{streamed}");
}

#[tokio::test]
async fn a_panic_in_a_step() {
    let backend = slow();
    backend.faults().panic_on(POISON_TOKEN);
    let server = TestServer::new(backend).await;
    let (streamed, whole) = among_others(&server, POISON).await;
    assert_told(&streamed, &whole, "forward pass failed");
    // The batch with the bad row, and the row alone.
    assert!(server.state.runtime.engine.counters().step_failures_total.get() >= 2);
}

#[tokio::test]
async fn logits_that_are_no_numbers() {
    let backend = slow();
    backend.faults().nan_on(POISON_TOKEN);
    let server = TestServer::new(backend).await;
    let (streamed, whole) = among_others(&server, POISON).await;
    assert_told(&streamed, &whole, "sampling failed");
}

#[tokio::test]
async fn logits_without_bounds() {
    let backend = slow();
    backend.faults().infinite_on(POISON_TOKEN);
    let server = TestServer::new(backend).await;
    let (streamed, whole) = among_others(&server, POISON).await;
    assert_told(&streamed, &whole, "sampling failed");
}

/// RouteRAG's protocol, except that it fails where it is told to.
#[derive(Debug)]
struct Broken(&'static str, Arc<dyn Protocol>);

/// `true` once the rendering of a prompt of the policy `slow` has begun.
static RENDERS: AtomicBool = AtomicBool::new(false);

/// `true` once that rendering may end.
static RELEASED: AtomicBool = AtomicBool::new(false);

impl Broken {
    fn policy(place: &'static str) -> Policy {
        let whole = Policy::builtin("routerag").unwrap();
        Policy { name: place.into(), protocol: Arc::new(Broken(place, whole.protocol.clone())), ..whole }
    }

    fn reach(&self, place: &str) {
        assert!(self.0 != place, "on purpose in {place}");
    }
}

impl Protocol for Broken {
    fn name(&self) -> &'static str {
        self.0
    }

    /// Runs on the thread of the tokenizer and the template.
    fn prompt(&self, conversation: &Conversation, guided: bool) -> ProtocolPrompt {
        self.reach("prompt");
        if self.0 == "slow" {
            RENDERS.store(true, SeqCst);
            let begun = Instant::now();
            while !RELEASED.load(SeqCst) && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.1.prompt(conversation, guided)
    }

    fn tags(&self) -> &'static Tags {
        if self.0 == "grammar" { &TAGLESS } else { self.1.tags() }
    }

    fn stops(&self) -> &'static [&'static str] {
        self.1.stops()
    }

    fn parse(&self, turn: &str, reading: ReadingRule) -> Action {
        self.reach("parse");
        self.1.parse(turn, reading)
    }

    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected> {
        self.1.observation(outcome, format)
    }

    fn budget(&self) -> Budget {
        self.1.budget()
    }

    fn force_answer(&self, writing: SegmentKind) -> Option<String> {
        self.1.force_answer(writing)
    }

    fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        self.1.guide(offer)
    }
}

/// An answer that begins without a tag: the rule that waits for the tag has no byte left, and panics on the thread that
/// computes token masks.
static TAGLESS: Tags = Tags {
    outside: SegmentKind::Text,
    begins: SegmentKind::Text,
    pairs: &[Tag { kind: SegmentKind::Answer, open: "", close: "</answer>" }],
    names: &["answer"],
    labels: &[],
    headers: &[],
    trims: true,
};

#[tokio::test]
async fn a_panic_in_a_grammar() {
    let mut plan = ServerPlan::new(slow());
    plan.policies.push(Broken::policy("grammar"));
    let server = plan.build().await;
    let mut bad = body("hello", false);
    bad["model"] = json!("grammar");
    bad["response_format"] = json!({"type": "json_object"});
    let (streamed, whole) = asked_among_others(&server, &bad).await;
    assert_told(&streamed, &whole, "sampling failed: panic");
    // The mask threads must survive.
    bad["model"] = json!("plain");
    bad["max_tokens"] = json!(4);
    let (status, held) = server.chat(&bad).await;
    assert_eq!(status, 200, "{held}");
    assert!(held["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'), "{held}");
}

#[tokio::test]
async fn a_panic_where_prompts_are_rendered_and_encoded() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.policies.push(Broken::policy("prompt"));
    let server = plan.build().await;
    for stream in [true, false] {
        let mut request = body("hello", stream);
        request["model"] = json!("prompt");
        let response = server.post("/v1/chat/completions", &request).await;
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key("x-request-id"));
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], "internal_error");
    }
    assert_eq!(server.chat(&body("hello", false)).await.0, 200);
    server.quiet().await;
}

/// Like all of `tokio::test`, this test has one async thread: rendering on it would block every other request.
#[tokio::test]
async fn a_prompt_that_takes_long_holds_up_nobody_else() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.policies.push(Broken::policy("slow"));
    let server = plan.build().await;
    let mut request = body("hello", true);
    request["model"] = json!("slow");
    let begun = Instant::now();
    let asked = server.client.post(server.url("/v1/chat/completions")).json(&request).send();
    let asked = tokio::spawn(async move { asked.await.unwrap().status() });
    eventually("its prompt is rendered", || RENDERS.load(SeqCst)).await;
    assert_eq!(server.get("/health").await.status(), 200);
    assert_eq!(server.chat(&body("hello", false)).await.0, 200);
    let time = begun.elapsed();
    RELEASED.store(true, SeqCst);
    assert!(time < PATIENCE, "the others waited for it: {time:?}");
    assert_eq!(asked.await.unwrap(), 200);
    server.quiet().await;
}

#[tokio::test]
async fn a_panic_in_the_loop() {
    let backend = says("word").with_time(Duration::from_millis(2), Duration::ZERO);
    let mut plan = ServerPlan::new(backend);
    plan.policies.push(Broken::policy("parse"));
    let server = plan.build().await;
    let mut request = body("hello", true);
    request["model"] = json!("parse");
    let streamed = server.stream(&request).await;
    request["stream"] = json!(false);
    let (status, whole) = server.chat(&request).await;
    assert_eq!(status, 500);
    assert_told(&streamed, &whole, "bug in the server");
    let agent = json!({"model": "parse", "question": "hello", "stream": true});
    let told = server.post("/v1/agent", &agent).await.text().await.unwrap();
    assert!(told.contains("event: error\ndata: ") && !told.contains("event: finished"), "{told}");
    assert_eq!(server.chat(&body("hello", false)).await.0, 200);
    server.quiet().await;
}

/// Duration of a search that hangs.
const HANG: Duration = Duration::from_secs(600);

/// Searcher that finds one passage, or fails as the query says.
struct Moody;

impl BlockingSearch for Moody {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        match query.text.as_str() {
            "panic" => std::panic::panic_any("on purpose"),
            "hang" => std::thread::sleep(HANG),
            "fail" => return Err(SearchError::Failed("the disk is gone".into())),
            _ => {}
        }
        Ok(evidence("Goethe wrote Faust."))
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }

    fn snapshot(&self) -> u64 {
        3
    }
}

/// Builds a server whose policy searches for `query` on one search thread. Its searches time out after three seconds if
/// one hangs, which is enough for another one; one that panics has the time to print a backtrace.
async fn moody(query: &str) -> TestServer {
    let timeout = if query == "hang" { Duration::from_secs(3) } else { PATIENCE };
    let limits = SearchLimits { threads: 1, waiting: 8, timeout };
    let searcher = Arc::new(Searcher::new(Moody, limits).unwrap()) as Arc<dyn Search>;
    let lines = Lines::new([
        format!("<think>a</think>\n<search>[passage] {query}</search>"),
        "<think>b</think>\n<answer> Goethe </answer>".to_owned(),
    ])
    .terminator("</information>\n\n");
    ServerPlan { searcher: Some(searcher), ..ServerPlan::new(script(&lines)) }.build().await
}

/// Returns the error of the search in the trace of an episode, which must still end with its answer.
async fn searched(server: &TestServer) -> Value {
    let agent = json!({"model": "routerag", "question": "Who wrote Faust?"});
    let response = server.post("/v1/agent", &agent).await;
    assert_eq!(response.status(), 200);
    let whole: Value = response.json().await.unwrap();
    assert_eq!((&whole["answer"], &whole["finish_reason"]), (&json!("Goethe"), &json!("stop")), "{whole}");
    let trace = whole["trace"].as_array().unwrap();
    trace.iter().find(|event| event["type"] == "search_finished").unwrap().clone()
}

async fn direct(server: &TestServer, query: &str) -> (u16, Value) {
    let response = server.post("/v1/search", &json!({"query": query})).await;
    assert!(response.headers().contains_key("x-request-id"));
    answer(response).await
}

#[tokio::test]
async fn a_panic_in_a_search() {
    let server = moody("panic").await;
    assert!(searched(&server).await["error"].as_str().unwrap().contains("panicked"));
    let (status, told) = direct(&server, "panic").await;
    assert_eq!((status, &told["error"]["code"]), (500, &json!("search_failed")));
    assert_eq!(direct(&server, "fine").await.0, 200);
    server.quiet().await;
}

#[tokio::test]
async fn a_search_that_fails() {
    let server = moody("fail").await;
    assert_eq!(searched(&server).await["error"], "the disk is gone");
    assert_eq!(direct(&server, "fail").await.1["error"]["code"], "search_failed");
    let metrics = server.metrics().await;
    for line in ["waymark_search_failures_total 1", "waymark_client_search_failures_total 1"] {
        assert!(metrics.lines().any(|found| found == line), "{line:?} is missing in\n{metrics}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn a_search_that_hangs() {
    let server = moody("hang").await;
    let begun = Instant::now();
    let (stuck, (status, told)) = tokio::join!(searched(&server), direct(&server, "hang"));
    assert_eq!(stuck["error"], "it took too long");
    assert_eq!((status, &told["error"]["code"]), (504, &json!("search_timeout")));
    // Both searches still hang on a pool of one thread; the next one must get a thread all the same.
    assert_eq!(direct(&server, "fine").await.0, 200);
    assert!(begun.elapsed() < HANG);
    server.quiet().await;
}

/// Embedder that fails on one text.
#[derive(Debug)]
struct Fragile;

impl Embed for Fragile {
    fn id(&self) -> &str {
        Letters.id()
    }

    fn dims(&self) -> usize {
        Letters.dims()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        assert!(!texts.contains(&POISON), "on purpose");
        Letters.embed(texts)
    }
}

impl TextEmbedder for Fragile {
    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }

    fn max_tokens(&self) -> usize {
        usize::MAX
    }
}

#[tokio::test]
async fn a_panic_in_the_embedder() {
    let server = ServerPlan { embedder: Some(Arc::new(Fragile)), ..ServerPlan::new(says("hi")) }.build().await;
    let embed = async |text: &str| server.post("/v1/embeddings", &json!({"model": "letters", "input": text})).await;
    let broken = embed(POISON).await;
    assert_eq!(broken.status(), 500);
    assert!(broken.headers().contains_key("x-request-id"));
    assert_eq!(embed("abc").await.status(), 200);
}

#[tokio::test]
async fn a_panic_while_an_adapter_is_loaded() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("one");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("policy.toml"), "name = \"one\"\nprotocol = \"plain\"\n").unwrap();
    std::fs::write(folder.join("adapter_config.json"), "{}").unwrap();
    let store = PolicyStore::new(root.path().canonicalize().unwrap());
    let backend = slow();
    let faults = backend.faults();
    faults.panic_on_load(true);
    let server = ServerPlan { store: Some(store), ..ServerPlan::new(backend) }.build().await;
    let load = async || server.post("/v1/policies", &json!({"directory": "one"})).await;
    let request = body("hello", true);
    // Loaded while another request generates, which must not notice.
    let (refused, stream) = tokio::join!(load(), server.stream(&request));
    assert_eq!(refused.status(), 400);
    assert!(refused.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().contains("panic"));
    assert_eq!(joined(&chunks(&stream), "content")[&0], "word ".repeat(40));
    faults.panic_on_load(false);
    assert_eq!(load().await.status(), 200);
    let mut request = body("hello", false);
    request["model"] = json!("one");
    assert_eq!(server.chat(&request).await.0, 200);
    server.quiet().await;
}

#[tokio::test]
async fn an_engine_that_only_fails_is_reported_by_readiness_and_the_server_stays_up() {
    let backend = says("hi");
    backend.faults().broken_from(1);
    let mut server = TestServer::new(backend).await;
    // Three failures in a row make an engine dead.
    for _ in 0..3 {
        assert_eq!(server.chat(&body("hello", false)).await.0, 500);
    }
    eventually("the engine is dead", || server.state.runtime.engine.health() != Health::Ready).await;
    assert_eq!(server.get("/ready").await.status(), 503);
    let (status, told) = server.chat(&body("hello", false)).await;
    assert_eq!((status, &told["error"]["code"]), (503, &json!("engine_unavailable")));
    assert_eq!(server.get("/debug/state").await.status(), 503);
    for path in ["/health", "/metrics", "/v1/models"] {
        assert_eq!(server.get(path).await.status(), 200, "{path}");
    }
    // A search needs no engine.
    assert_eq!(server.post("/v1/search", &json!({"query": "x"})).await.status(), 200);
    server.terminate();
    server.running.await.unwrap();
}
