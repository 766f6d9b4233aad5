#![allow(clippy::unwrap_used)]
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Embedder that records its calls and can be held.
#[derive(Debug, Default)]
struct Recording {
    calls: Mutex<Vec<Vec<String>>>,
    held: AtomicBool,
    is_remote: bool,
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
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(1));
    }
}

fn embedder(cache_bytes: usize) -> (Arc<Recording>, QueryEmbedder<Recording>) {
    let inner = Arc::new(Recording::default());
    (Arc::clone(&inner), QueryEmbedder::new(inner, cache_bytes))
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
    let ask = |text: &str| queries.embed_queries(&[text]).map_err(|error| error.to_string());
    thread::scope(|scope| {
        let first = scope.spawn(|| ask(first));
        until(|| inner.calls().len() == 1);
        let others: Vec<_> = others.iter().map(|text| scope.spawn(move || ask(text))).collect();
        until(waiting);
        inner.held.store(false, Ordering::SeqCst);
        std::iter::once(first).chain(others).map(thread::ScopedJoinHandle::join).collect()
    })
}

#[test]
fn a_lone_query_is_embedded_at_once_and_a_second_time_from_the_cache() {
    let (inner, queries) = embedder(1 << 16);
    for _ in 0..3 {
        assert_eq!(queries.embed_queries(&["one", "two", "one"]).unwrap(), ["one", "two", "one"].map(vector));
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
        assert_eq!(queries.embed_queries(&["one"]).unwrap(), [vector("one")]);
    }
    assert_eq!(inner.calls().len(), 2);
    assert!(queries.queue.is_idle());
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
    let calls = inner.calls();
    assert_eq!(calls.iter().map(Vec::len).collect::<Vec<_>>(), [1, 8]);
    assert!(queries.queue.is_idle());
}

#[test]
fn an_announced_query_is_embedded_with_the_next_one_and_a_withdrawn_one_is_not() {
    let (inner, queries) = embedder(0);
    let announced = queries.queue_query("announced");
    let withdrawn = queries.queue_query("withdrawn");
    assert!(announced.is_some() && withdrawn.is_some());
    drop(withdrawn);
    assert_eq!(queries.embed_queries(&["now"]).unwrap(), [vector("now")]);
    assert_eq!(queries.embed_queries(&["announced"]).unwrap(), [vector("announced")]);
    assert_eq!(inner.calls(), [["now", "announced"]]);
    drop(announced);
    assert!(queries.queue.is_idle());
    // A text that fills a call by itself keeps no other caller waiting.
    assert!(queries.queue_query(&"x".repeat(1 << 16)).is_none());
}

#[test]
fn a_text_that_cannot_be_embedded_fails_its_own_caller_alone() {
    for (broken, panics) in [("bad", false), ("panic", true)] {
        let (inner, queries) = embedder(1 << 16);
        let mut found =
            concurrently(&inner, &queries, "first", &["one", broken, "two"], || queries.queue.waiting() == 3);
        // A panic ends the call of the caller that makes it, which is one of the three.
        let failed = found.iter().filter(|vectors| !matches!(vectors, Ok(Ok(_)))).count();
        if panics {
            assert!((1..=3).contains(&failed), "{failed}");
        } else {
            assert_eq!(found.remove(2).unwrap(), Err("a bad text".to_owned()));
            let found: Vec<_> = found.into_iter().flat_map(|vectors| vectors.unwrap().unwrap()).collect();
            assert_eq!(found, ["first", "one", "two"].map(vector));
        }
        assert!(queries.queue.is_idle());
        assert_eq!(queries.embed_queries(&["later"]).unwrap(), [vector("later")]);
    }
}

#[test]
fn an_endpoint_gets_each_query_at_once() {
    let inner = Arc::new(Recording { is_remote: true, ..Recording::default() });
    let queries = QueryEmbedder::new(Arc::clone(&inner), 0);
    assert!(queries.queue_query("one").is_none());
    let found = concurrently(&inner, &queries, "first", &["one", "two"], || inner.calls().len() == 3);
    assert!(found.into_iter().all(|vectors| vectors.unwrap().is_ok()));
    assert!(inner.calls().iter().all(|call| call.len() == 1));
}
