//! What goes wrong for one request: it is told, with its id, and all others go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waymark_agent::{
    Action, Budget, Conversation, Find, Format, Guide, Injected, Kind, Offer, Outcome, Policy, Prompt, Protocol,
    Reading, Search, SearchError, SearchLimits, Searcher, Tag, Tags,
};
use waymark::api::{PolicyStore};
use waymark_runtime::embedding::TextEmbedder;
use waymark_engine::Health;
use waymark_engine::mock::Lines;
use waymark_index::{Embed, EmbedError, Evidence, Mode, Query};

use crate::house::{House, Letters, Plan, chunks, eventually, evidence, joined, says, script};

/// A byte that no other text here holds, and its token.
const POISON: &str = "~";
const POISON_TOKEN: u32 = b'~' as u32;

fn body(content: &str, stream: bool) -> Value {
    json!({"model": "plain", "stream": stream, "messages": [{"role": "user", "content": content}]})
}

/// A long answer, slowly, so that everybody is in the batch together.
fn slow() -> waymark_engine::MockBackend {
    says(&"word ".repeat(40)).with_time(Duration::from_millis(1), Duration::ZERO)
}

/// Asks for `bad` streamed and whole among three others who must not notice. Gives the two ways in which it failed.
async fn among_others(house: &House, bad: &str) -> (String, Value) {
    asked_among_others(house, &body(bad, false)).await
}

/// The same for a whole request.
async fn asked_among_others(house: &House, bad: &Value) -> (String, Value) {
    let mut stream = bad.clone();
    stream["stream"] = json!(true);
    let good = (0..3).map(|number| async move { house.stream(&body(&format!("number {number}"), true)).await });
    let streamed = async {
        let response = house.post("/v1/chat/completions", &stream).await;
        assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
        response.text().await.unwrap()
    };
    let whole = async {
        let response = house.post("/v1/chat/completions", bad).await;
        assert_eq!(response.status(), 500);
        assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
        response.json::<Value>().await.unwrap()
    };
    let (good, streamed, whole) = tokio::join!(futures::future::join_all(good), streamed, whole);
    for stream in good {
        assert!(stream.ends_with("data: [DONE]\n\n"));
        assert_eq!(joined(&chunks(&stream), "content")[&0], "word ".repeat(40));
    }
    house.quiet().await;
    assert_eq!(house.state.runtime.engine.health(), Health::Ready);
    (streamed, whole)
}

fn assert_told(streamed: &str, whole: &Value, words: &str) {
    assert_eq!((&whole["error"]["code"], &whole["error"]["type"]), (&json!("internal_error"), &json!("server_error")));
    assert!(whole["error"]["message"].as_str().unwrap().contains(words), "{whole}");
    // On a busy machine it may fail before the stream has begun, and is told as the other then.
    let begun = streamed.starts_with("data:");
    let last = if begun { chunks(streamed).pop().unwrap() } else { serde_json::from_str(streamed).unwrap() };
    assert_eq!(last["error"]["code"], "internal_error", "{streamed}");
    assert!(!streamed.contains("[DONE]") && last["error"]["message"].as_str().unwrap().contains(words), "{streamed}");
}

#[tokio::test]
async fn a_panic_in_a_step() {
    let backend = slow();
    backend.faults().panic_on(POISON_TOKEN);
    let house = House::new(backend).await;
    let (streamed, whole) = among_others(&house, POISON).await;
    assert_told(&streamed, &whole, "forward pass failed");
    assert!(house.state.runtime.engine.counters().step_failures_total.get() >= 2);
}

#[tokio::test]
async fn logits_that_are_no_numbers() {
    let backend = slow();
    backend.faults().nan_on(POISON_TOKEN);
    let house = House::new(backend).await;
    let (streamed, whole) = among_others(&house, POISON).await;
    assert_told(&streamed, &whole, "sampling failed");
}

#[tokio::test]
async fn logits_without_bounds() {
    let backend = slow();
    backend.faults().infinite_on(POISON_TOKEN);
    let house = House::new(backend).await;
    let (streamed, whole) = among_others(&house, POISON).await;
    assert_told(&streamed, &whole, "sampling failed");
}

/// Breaks where it is told to, and is RouteRAG's protocol everywhere else.
#[derive(Debug)]
struct Broken(&'static str, Arc<dyn Protocol>);

/// What the prompt of the place `slow` takes.
const SLOW: Duration = Duration::from_secs(2);

/// Whether that prompt was begun.
static RENDERS: AtomicBool = AtomicBool::new(false);

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

    /// Runs where the tokenizer and the template do.
    fn prompt(&self, conversation: &Conversation, guided: bool) -> Prompt {
        self.reach("prompt");
        if self.0 == "slow" {
            RENDERS.store(true, SeqCst);
            std::thread::sleep(SLOW);
        }
        self.1.prompt(conversation, guided)
    }

    fn tags(&self) -> &'static Tags {
        if self.0 == "grammar" { &TAGLESS } else { self.1.tags() }
    }

    fn stops(&self) -> &'static [&'static str] {
        self.1.stops()
    }

    fn parse(&self, turn: &str, reading: Reading) -> Action {
        self.reach("parse");
        self.1.parse(turn, reading)
    }

    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        self.1.cut(turn)
    }

    fn observation(&self, outcome: &Outcome<'_>, format: Format) -> Vec<Injected> {
        self.1.observation(outcome, format)
    }

    fn budget(&self) -> Budget {
        self.1.budget()
    }

    fn force_answer(&self, writing: Kind) -> Option<String> {
        self.1.force_answer(writing)
    }

    fn guide(&self, offer: &Offer) -> Option<Guide> {
        self.1.guide(offer)
    }
}

/// An answer that begins with no tag at all: the rule that waits for it has no byte to wait for, and panics on the thread
/// that finds masks.
static TAGLESS: Tags = Tags {
    outside: Kind::Text,
    begins: Kind::Text,
    pairs: &[Tag { kind: Kind::Answer, open: "", close: "</answer>" }],
    names: &["answer"],
    labels: &[],
    trims: true,
};

#[tokio::test]
async fn a_panic_in_a_grammar() {
    let mut plan = Plan::new(slow());
    plan.policies.push(Broken::policy("grammar"));
    let house = plan.build().await;
    let mut bad = body("hello", false);
    bad["model"] = json!("grammar");
    bad["response_format"] = json!({"type": "json_object"});
    let (streamed, whole) = asked_among_others(&house, &bad).await;
    assert_told(&streamed, &whole, "sampling failed: panic");
    // The threads that find masks live on.
    bad["model"] = json!("plain");
    bad["max_tokens"] = json!(4);
    let (status, held) = house.chat(&bad).await;
    assert_eq!(status, 200, "{held}");
    assert!(held["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'), "{held}");
}

#[tokio::test]
async fn a_panic_where_prompts_are_rendered_and_encoded() {
    let mut plan = Plan::new(says("hi"));
    plan.policies.push(Broken::policy("prompt"));
    let house = plan.build().await;
    for stream in [true, false] {
        let mut request = body("hello", stream);
        request["model"] = json!("prompt");
        let response = house.post("/v1/chat/completions", &request).await;
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key("x-request-id"));
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], "internal_error");
    }
    assert_eq!(house.chat(&body("hello", false)).await.0, 200);
    house.quiet().await;
}

/// The runtime of this test has one thread, as each of `tokio::test`: whoever renders on it holds up everybody.
#[tokio::test]
async fn a_prompt_that_takes_long_holds_up_nobody_else() {
    let mut plan = Plan::new(says("hi"));
    plan.policies.push(Broken::policy("slow"));
    let house = plan.build().await;
    let mut request = body("hello", true);
    request["model"] = json!("slow");
    let begun = Instant::now();
    let asked = house.client.post(house.url("/v1/chat/completions")).json(&request).send();
    let asked = tokio::spawn(async move { asked.await.unwrap().status() });
    eventually("its prompt is rendered", || RENDERS.load(SeqCst)).await;
    assert_eq!(house.get("/health").await.status(), 200);
    assert_eq!(house.chat(&body("hello", false)).await.0, 200);
    let time = begun.elapsed();
    assert!(time < SLOW, "the others waited for it: {time:?}");
    assert_eq!(asked.await.unwrap(), 200);
    house.quiet().await;
}

#[tokio::test]
async fn a_panic_in_the_loop() {
    let backend = says("word").with_time(Duration::from_millis(2), Duration::ZERO);
    let mut plan = Plan::new(backend);
    plan.policies.push(Broken::policy("parse"));
    let house = plan.build().await;
    let mut request = body("hello", true);
    request["model"] = json!("parse");
    let streamed = house.stream(&request).await;
    request["stream"] = json!(false);
    let (status, whole) = house.chat(&request).await;
    assert_eq!(status, 500);
    assert_told(&streamed, &whole, "bug in the server");
    let agent = json!({"model": "parse", "question": "hello", "stream": true});
    let told = house.post("/v1/agent", &agent).await.text().await.unwrap();
    assert!(told.contains("event: error\ndata: ") && !told.contains("event: finished"), "{told}");
    assert_eq!(house.chat(&body("hello", false)).await.0, 200);
    house.quiet().await;
}

/// Finds one passage, or does what the query says.
struct Moody;

impl Find for Moody {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        match query.text.as_str() {
            "panic" => std::panic::panic_any("on purpose"),
            "hang" => std::thread::sleep(Duration::from_secs(3)),
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

/// A house whose policy searches for `query`, with one thread; with 300 ms for a search that hangs, and time for a
/// backtrace to be printed for one that panics.
async fn moody(query: &str) -> House {
    let timeout = Duration::from_millis(if query == "hang" { 300 } else { 20_000 });
    let limits = SearchLimits { threads: 1, waiting: 8, timeout };
    let searcher = Arc::new(Searcher::new(Moody, limits).unwrap()) as Arc<dyn Search>;
    let lines = Lines::new([
        format!("<think>a</think>\n<search>[passage] {query}</search>"),
        "<think>b</think>\n<answer> Goethe </answer>".to_owned(),
    ])
    .terminator("</information>\n\n");
    Plan { searcher: Some(searcher), ..Plan::new(script(&lines)) }.build().await
}

/// What the trace says about the search of an episode, which must end with its answer all the same.
async fn searched(house: &House) -> Value {
    let agent = json!({"model": "routerag", "question": "Who wrote Faust?"});
    let response = house.post("/v1/agent", &agent).await;
    assert_eq!(response.status(), 200);
    let whole: Value = response.json().await.unwrap();
    assert_eq!((&whole["answer"], &whole["finish_reason"]), (&json!("Goethe"), &json!("stop")), "{whole}");
    let trace = whole["trace"].as_array().unwrap();
    trace.iter().find(|event| event["type"] == "search_finished").unwrap().clone()
}

async fn direct(house: &House, query: &str) -> (u16, Value) {
    let response = house.post("/v1/search", &json!({"query": query})).await;
    assert!(response.headers().contains_key("x-request-id"));
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn a_panic_in_a_search() {
    let house = moody("panic").await;
    assert!(searched(&house).await["error"].as_str().unwrap().contains("panicked"));
    let (status, told) = direct(&house, "panic").await;
    assert_eq!((status, &told["error"]["code"]), (500, &json!("search_failed")));
    assert_eq!(direct(&house, "fine").await.0, 200);
    house.quiet().await;
}

#[tokio::test]
async fn a_search_that_fails() {
    let house = moody("fail").await;
    assert_eq!(searched(&house).await["error"], "the disk is gone");
    assert_eq!(direct(&house, "fail").await.1["error"]["code"], "search_failed");
    let metrics = house.get("/metrics").await.text().await.unwrap();
    for line in ["waymark_search_failures_total 1", "waymark_client_search_failures_total 1"] {
        assert!(metrics.lines().any(|found| found == line), "{line:?} is missing in\n{metrics}");
    }
    house.quiet().await;
}

#[tokio::test]
async fn a_search_that_hangs() {
    let house = moody("hang").await;
    let begun = Instant::now();
    let (stuck, (status, told)) = tokio::join!(searched(&house), direct(&house, "hang"));
    assert_eq!(stuck["error"], "it took too long");
    assert_eq!((status, &told["error"]["code"]), (504, &json!("search_timeout")));
    // Both hang for three seconds, on a pool of one thread: the next search gets one all the same.
    assert_eq!(direct(&house, "fine").await.0, 200);
    assert!(begun.elapsed() < Duration::from_secs(3));
    house.quiet().await;
}

/// An embedder that breaks on one text.
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
    let house = Plan { embedder: Some(Arc::new(Fragile)), ..Plan::new(says("hi")) }.build().await;
    let embed = async |text: &str| house.post("/v1/embeddings", &json!({"model": "letters", "input": text})).await;
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
    let house = Plan { store: Some(store), ..Plan::new(backend) }.build().await;
    let load = async || house.post("/v1/policies", &json!({"directory": "one"})).await;
    let request = body("hello", true);
    let (refused, stream) = tokio::join!(load(), house.stream(&request));
    assert_eq!(refused.status(), 400);
    assert!(refused.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().contains("panic"));
    assert_eq!(joined(&chunks(&stream), "content")[&0], "word ".repeat(40));
    faults.panic_on_load(false);
    assert_eq!(load().await.status(), 200);
    let mut request = body("hello", false);
    request["model"] = json!("one");
    assert_eq!(house.chat(&request).await.0, 200);
    house.quiet().await;
}

#[tokio::test]
async fn an_engine_that_only_fails_is_told_by_readiness_and_the_house_stands() {
    let backend = says("hi");
    backend.faults().broken_from(1);
    let mut house = House::new(backend).await;
    for _ in 0..3 {
        assert_eq!(house.chat(&body("hello", false)).await.0, 500);
    }
    eventually("the engine is dead", || house.state.runtime.engine.health() != Health::Ready).await;
    assert_eq!(house.get("/ready").await.status(), 503);
    let (status, told) = house.chat(&body("hello", false)).await;
    assert_eq!((status, &told["error"]["code"]), (503, &json!("engine_unavailable")));
    assert_eq!(house.get("/debug/state").await.status(), 503);
    for path in ["/health", "/metrics", "/v1/models"] {
        assert_eq!(house.get(path).await.status(), 200, "{path}");
    }
    assert_eq!(house.post("/v1/search", &json!({"query": "x"})).await.status(), 200);
    house.terminate();
    house.running.await.unwrap();
}
