#![allow(clippy::unwrap_used)]
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Limits of batches without a limit of time, which tests that hold a call would exceed.
const UNTIMED: QueueLimits = QueueLimits { batch_time: Duration::from_secs(1_000_000), ..QueueLimits::BATCHED };

/// Salt and deadline of most queries: none.
const PLAIN: QueryContext = QueryContext { cache_salt: 0, deadline: None };

/// Embedder that records its calls and can be held.
#[derive(Debug, Default)]
struct Recording {
    calls: Mutex<Vec<Vec<String>>>,
    held: AtomicBool,
    is_remote: bool,
    /// Duration of each text.
    delay: Duration,
}

impl Recording {
    fn calls(&self) -> Vec<Vec<String>> {
        self.calls.lock().unwrap().clone()
    }
}

fn vector(text: &str) -> Vec<f32> {
    vec![text.len() as f32, text.bytes().map(f32::from).sum()]
}

impl Embed for Recording {
    fn id(&self) -> &str {
        "recording"
    }

    fn dims(&self) -> usize {
        2
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.calls.lock().unwrap().push(texts.iter().map(|&text| text.to_owned()).collect());
        while self.held.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(self.delay * texts.len() as u32);
        if texts.contains(&"bad") {
            return Err("a bad text".into());
        }
        if texts.contains(&"panic") {
            std::panic::panic_any("on purpose");
        }
        Ok(texts.iter().map(|text| vector(text)).collect())
    }
}

impl TextEmbedder for Recording {
    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }

    fn max_tokens(&self) -> usize {
        100
    }

    fn is_remote(&self) -> bool {
        self.is_remote
    }
}

fn until(ready: impl Fn() -> bool) {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Embedder whose time per query is known from a first one.
fn embedder(cache_bytes: usize) -> (Arc<Recording>, QueryEmbedder<Recording>) {
    embedder_with(Recording::default(), UNTIMED, cache_bytes)
}

fn embedder_with(
    inner: Recording,
    limits: QueueLimits,
    cache_bytes: usize,
) -> (Arc<Recording>, QueryEmbedder<Recording>) {
    let inner = Arc::new(inner);
    let queries = QueryEmbedder::with_limits(Arc::clone(&inner), limits, cache_bytes);
    ask(&queries, "warm up").unwrap();
    inner.calls.lock().unwrap().clear();
    (inner, queries)
}

fn ask(queries: &QueryEmbedder<Recording>, text: &str) -> Result<Vec<Vec<f32>>, String> {
    queries.embed_queries(&[text], PLAIN).map_err(|error| error.to_string())
}

/// Embeds `first` in a call that is held until `waiting` is ready, and meanwhile each of `others`.
fn concurrently(
    inner: &Recording,
    queries: &QueryEmbedder<Recording>,
    first: &str,
    others: &[&str],
    waiting: impl Fn() -> bool,
) -> Vec<thread::Result<Result<Vec<Vec<f32>>, String>>> {
    inner.held.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let first = scope.spawn(|| ask(queries, first));
        until(|| inner.calls().len() == 1);
        let others: Vec<_> = others.iter().map(|text| scope.spawn(move || ask(queries, text))).collect();
        until(waiting);
        inner.held.store(false, Ordering::SeqCst);
        std::iter::once(first).chain(others).map(thread::ScopedJoinHandle::join).collect()
    })
}

/// Number of queries in each call, in ascending order.
fn call_sizes(inner: &Recording) -> Vec<usize> {
    let mut sizes: Vec<usize> = inner.calls().iter().map(Vec::len).collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn a_lone_query_is_embedded_at_once_and_a_second_time_from_the_cache() {
    let inner = Arc::new(Recording::default());
    let queries = QueryEmbedder::new(Arc::clone(&inner), 1 << 16);
    for _ in 0..3 {
        let found = queries.embed_queries(&["one", "two", "one"], PLAIN).unwrap();
        assert_eq!(found, ["one", "two", "one"].map(vector));
    }
    assert_eq!(inner.calls(), [["one", "two"]]);
    let counters = queries.query_counters().unwrap();
    assert_eq!((counters.queries(), counters.cached(), counters.calls()), (9, 6, 1));
    assert!(counters.cache_bytes() > 0);
}

#[test]
fn without_a_cache_each_query_is_embedded_again() {
    let (inner, queries) = embedder(0);
    for _ in 0..2 {
        assert_eq!(ask(&queries, "one").unwrap(), [vector("one")]);
    }
    assert_eq!(inner.calls().len(), 2);
    assert!(queries.queue.is_idle());
}

#[test]
fn queries_of_different_salts_share_batches_and_no_vectors() {
    let (inner, queries) = embedder(1 << 16);
    let salted = |cache_salt| QueryContext { cache_salt, ..PLAIN };
    for _ in 0..2 {
        for salt in [0, 1, 2] {
            assert_eq!(queries.embed_queries(&["one"], salted(salt)).unwrap(), [vector("one")]);
        }
    }
    assert_eq!(inner.calls(), [["one"]; 3], "once for each salt");
    // The query that another caller has announced is not this one's.
    let announced = queries.announce_query("two", salted(1));
    assert!(announced.is_some() && queries.announce_query("one", salted(1)).is_none());
    assert_eq!(queries.embed_queries(&["two"], salted(2)).unwrap(), [vector("two")]);
    assert_eq!(inner.calls()[3], ["two", "two"]);
}

#[test]
fn queries_that_wait_are_embedded_together() {
    let (inner, queries) = embedder(0);
    let texts: Vec<String> = (0..8).map(|i| format!("query {}", "x".repeat(i))).collect();
    let others: Vec<&str> = texts.iter().map(String::as_str).collect();
    let found = concurrently(&inner, &queries, "first", &others, || queries.queue.waiting() == 8);
    let expected: Vec<Vec<f32>> = std::iter::once("first").chain(others).map(vector).collect();
    let found: Vec<Vec<f32>> = found.into_iter().flat_map(|vectors| vectors.unwrap().unwrap()).collect();
    assert_eq!(found, expected);
    assert_eq!(call_sizes(&inner), [1, 8]);
    assert!(queries.queue.is_idle());
}

#[test]
fn a_batch_has_at_most_the_queries_and_the_bytes_of_its_limits() {
    let (inner, queries) = embedder(0);
    let announce = |texts: &[String]| -> Vec<_> {
        let announced = texts.iter().map(|text| queries.announce_query(text, PLAIN));
        announced.collect::<Option<_>>().unwrap()
    };
    let many: Vec<String> = (0..40).map(|number| format!("query {number}")).collect();
    let large: Vec<String> = (0..5).map(|number| number.to_string().repeat(1024)).collect();
    for (texts, expected) in [(many, 32), (large, 1 + 3)] {
        let announced = announce(&texts);
        assert_eq!(ask(&queries, "now").unwrap(), [vector("now")]);
        assert_eq!(inner.calls().last().unwrap().len(), expected);
        drop(announced);
    }
}

#[test]
fn a_batch_takes_no_longer_than_its_limit_by_the_time_of_the_last_call() {
    let limits = QueueLimits { batch_time: Duration::from_millis(100), ..QueueLimits::BATCHED };
    let slow = Recording { delay: Duration::from_millis(20), ..Recording::default() };
    let (inner, queries) = embedder_with(slow, limits, 0);
    let texts: Vec<String> = (0..20).map(|number| format!("text {number:02}")).collect();
    let announced: Vec<_> = texts.iter().map(|text| queries.announce_query(text, PLAIN)).collect();
    assert!(announced.iter().all(Option::is_some));
    assert_eq!(ask(&queries, "text xx").unwrap(), [vector("text xx")]);
    // Five texts of 20 ms fit, fewer if the first call was delayed.
    let size = inner.calls()[0].len();
    assert!((1..=5).contains(&size), "{size}");
    // The time of the first call of all is unknown, so that it takes no other query.
    let inner = Arc::new(Recording::default());
    let fresh = QueryEmbedder::new(Arc::clone(&inner), 0);
    let announced = fresh.announce_query("announced", PLAIN);
    assert_eq!(ask(&fresh, "now").unwrap(), [vector("now")]);
    assert_eq!(inner.calls(), [["now"]]);
    drop(announced);
}

#[test]
fn an_announced_query_is_embedded_with_the_next_one_and_a_withdrawn_one_is_not() {
    let (inner, queries) = embedder(0);
    let announced = queries.announce_query("announced", PLAIN);
    let withdrawn = queries.announce_query("withdrawn", PLAIN);
    assert!(announced.is_some() && withdrawn.is_some());
    drop(withdrawn);
    assert_eq!(ask(&queries, "now").unwrap(), [vector("now")]);
    assert_eq!(ask(&queries, "announced").unwrap(), [vector("announced")]);
    assert_eq!(inner.calls(), [["now", "announced"]]);
    drop(announced);
    assert!(queries.queue.is_idle());
    // A text that fills a call by itself keeps no other caller waiting.
    assert!(queries.announce_query(&"x".repeat(1 << 16), PLAIN).is_none());
}

#[test]
fn a_long_text_that_waits_keeps_no_others_apart() {
    let (inner, queries) = embedder(0);
    inner.held.store(true, Ordering::SeqCst);
    let long = "x".repeat(5000);
    thread::scope(|scope| {
        let queries = &queries;
        let first = scope.spawn(|| ask(queries, "first"));
        until(|| inner.calls().len() == 1);
        // The long one is the oldest of those that wait.
        let mut waiting = Vec::new();
        for (count, text) in (1..).zip([long.as_str(), "one", "two"]) {
            waiting.push(scope.spawn(move || ask(queries, text)));
            until(|| queries.queue.waiting() == count);
        }
        inner.held.store(false, Ordering::SeqCst);
        assert!(first.join().unwrap().is_ok() && waiting.into_iter().all(|asked| asked.join().unwrap().is_ok()));
    });
    assert_eq!(call_sizes(&inner), [1, 1, 2]);
    assert!(inner.calls().contains(&vec![long]), "alone");
}

#[test]
fn a_text_that_cannot_be_embedded_fails_its_own_caller_alone() {
    for broken in ["bad", "panic"] {
        let (inner, queries) = embedder(1 << 16);
        let texts = ["one", broken, "two", "three"];
        let mut found = concurrently(&inner, &queries, "first", &texts, || queries.queue.waiting() == 4);
        match found.remove(2) {
            Ok(failed) => assert_eq!((broken, failed), ("bad", Err("a bad text".to_owned()))),
            Err(_) => assert_eq!(broken, "panic"),
        }
        let found: Vec<_> = found.into_iter().flat_map(|vectors| vectors.unwrap().unwrap()).collect();
        assert_eq!(found, ["first", "one", "two", "three"].map(vector));
        // One batch fails, and then each of its texts is embedded alone.
        assert_eq!(call_sizes(&inner), [1, 1, 1, 1, 1, 4], "{broken}");
        assert!(queries.queue.is_idle());
        assert_eq!(ask(&queries, "later").unwrap(), [vector("later")]);
    }
}

#[test]
fn a_search_past_its_deadline_waits_no_longer_and_is_not_embedded() {
    let (inner, queries) = embedder(0);
    inner.held.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let first = scope.spawn(|| ask(&queries, "first"));
        until(|| inner.calls().len() == 1);
        let soon = QueryContext { deadline: Some(Instant::now() + Duration::from_millis(20)), ..PLAIN };
        let late = queries.embed_queries(&["late"], soon).unwrap_err().to_string();
        assert!(late.contains("deadline"), "{late}");
        assert_eq!(queries.queue.waiting(), 0);
        inner.held.store(false, Ordering::SeqCst);
        assert!(first.join().unwrap().is_ok());
    });
    let past = QueryContext { deadline: Some(Instant::now()), ..PLAIN };
    assert!(queries.embed_queries(&["late"], past).is_err());
    assert_eq!(inner.calls(), [["first"]]);
    assert!(queries.queue.is_idle());
}

#[test]
fn an_endpoint_gets_each_query_at_once() {
    let inner = Arc::new(Recording { is_remote: true, ..Recording::default() });
    let queries = QueryEmbedder::new(Arc::clone(&inner), 0);
    assert!(queries.announce_query("one", PLAIN).is_none());
    let found = concurrently(&inner, &queries, "first", &["one", "two"], || inner.calls().len() == 3);
    assert!(found.into_iter().all(|vectors| vectors.unwrap().is_ok()));
    assert!(inner.calls().iter().all(|call| call.len() == 1));
}
