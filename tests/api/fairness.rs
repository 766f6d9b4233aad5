//! Sharing of the engine and of the search threads among keys, and priorities.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, KeyEntry, RequestPriority, Scope, Secret};
use waymark_agent::{BlockingSearch, SearchError, SearchLimits, Searcher};
use waymark_engine::mock::Lines;
use waymark_engine::{EngineConfig, MockBackend};
use waymark_index::{Evidence, Mode, Query, QueryAnnouncement};

use crate::harness::{PATIENCE, ServerPlan, TestServer, answer, eventually, evidence, key_entry, says, script, send};

/// Creates a key of each of these priorities.
fn two_keys(priorities: [RequestPriority; 2]) -> (ApiKeys, [Secret; 2]) {
    let secrets = [Secret::generate(), Secret::generate()];
    let entries = secrets.iter().zip(priorities).enumerate().map(|(index, (secret, priority))| KeyEntry {
        priority,
        ..key_entry(&format!("key-{index}"), secret, &[Scope::Infer])
    });
    (ApiKeys::open(None, entries.collect()).unwrap(), secrets)
}

/// Builds a server with a key of each of these priorities. Its steps take 5 ms, and its batch has four places.
async fn guarded(priorities: [RequestPriority; 2]) -> (TestServer, [Secret; 2]) {
    let (keys, secrets) = two_keys(priorities);
    let backend = MockBackend::random(7, 259).with_time(Duration::from_millis(5), Duration::ZERO);
    let engine = EngineConfig { max_batch_rows: 4, ..EngineConfig::default() };
    (ServerPlan { keys, engine, ..ServerPlan::new(backend) }.build().await, secrets)
}

/// Asks for completions of `prompts` prompts.
async fn complete(server: &TestServer, key: &Secret, prompts: usize, max_tokens: usize) -> (u16, Value) {
    let texts: Vec<_> = (0..prompts).map(|index| format!("prompt {index}")).collect();
    // Every end of a text is forbidden, so all answers have the same length.
    let body = json!({"model": "plain", "prompt": texts, "max_tokens": max_tokens, "logit_bias": {"256": -100, "257": -100, "258": -100}});
    let request = server.client.post(server.url("/v1/completions")).bearer_auth(key.reveal()).json(&body);
    answer(request.send().await.unwrap()).await
}

/// Measures two durations until they fit, up to three times, because another process may take the CPU during one.
async fn check(measure: impl AsyncFn() -> [Duration; 2], fits: impl Fn([Duration; 2]) -> bool) {
    let mut found = Vec::new();
    while found.len() < 3 {
        let times = measure().await;
        if fits(times) {
            return;
        }
        found.push(times);
    }
    panic!("{found:?}");
}

#[tokio::test]
async fn a_request_with_many_prompts_does_not_hold_up_another_key() {
    let measure = async || {
        let (server, [many, one]) = guarded([RequestPriority::Normal; 2]).await;
        let counters = server.state.runtime.engine.counters();
        let long = complete(&server, &many, 64, 40);
        let short = async {
            let full = || counters.sessions_running.get() == 4 && counters.sessions_waiting.get() > 0;
            eventually("the other key's prompts fill the batch and the queue", full).await;
            let begin = Instant::now();
            let (status, body) = complete(&server, &one, 1, 10).await;
            assert_eq!(status, 200, "{body}");
            begin.elapsed()
        };
        let begin = Instant::now();
        let ((status, body), short) = tokio::join!(long, short);
        assert_eq!(status, 200, "{body}");
        let long = begin.elapsed();
        server.quiet().await;
        [short, long]
    };
    // In the order of arrival, it would take almost as long.
    check(measure, |[short, long]| short < long / 3).await;
}

#[tokio::test]
async fn a_key_of_a_higher_priority_takes_more_places() {
    let measure = async || {
        let (server, [low, high]) = guarded([RequestPriority::Low, RequestPriority::High]).await;
        let timed = async |key: &Secret| {
            let begin = Instant::now();
            let (status, body) = complete(&server, key, 32, 60).await;
            assert_eq!(status, 200, "{body}");
            begin.elapsed()
        };
        let (low, high) = tokio::join!(timed(&low), timed(&high));
        server.quiet().await;
        [high, low]
    };
    // With equal places, both would end together.
    check(measure, |[high, low]| high < low * 5 / 6).await;
}

#[tokio::test]
async fn a_priority_is_one_of_three() {
    let server = TestServer::new(says("hi")).await;
    for (priority, status) in [("low", 200), ("high", 200), ("urgent", 400)] {
        let rag = json!({"priority": priority});
        let bodies = [
            (
                "/v1/chat/completions",
                json!({"model": "plain", "messages": [{"role": "user", "content": "hello"}], "rag": rag}),
            ),
            ("/v1/agent", json!({"model": "plain", "question": "Who?", "rag": rag})),
            ("/v1/responses", json!({"model": "plain", "input": "Who?", "rag": rag})),
            ("/v1/completions", json!({"model": "plain", "prompt": "Who?", "priority": priority})),
        ];
        for (path, body) in bodies {
            let (got, answer) = answer(server.post(path, &body).await).await;
            assert_eq!(got, status, "{path}: {answer}");
            assert!(status == 200 || answer.to_string().contains("urgent"), "{answer}");
        }
    }
}

/// Searcher whose first search lasts until the sender of `held` is dropped.
struct HeldSearch {
    held: Mutex<Receiver<()>>,
    /// Queries that have begun to wait for a thread.
    waiting: Mutex<Vec<String>>,
    /// Queries that have got a thread.
    begun: Mutex<Vec<String>>,
}

impl BlockingSearch for HeldSearch {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        self.begun.lock().unwrap().push(query.text.clone());
        // Fails as soon as the sender is dropped.
        let _ = self.held.lock().unwrap().recv();
        Ok(evidence("Goethe wrote Faust."))
    }

    fn announce_query(&self, query: &Query) -> Option<QueryAnnouncement> {
        self.waiting.lock().unwrap().push(query.text.clone());
        None
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }

    fn snapshot(&self) -> u64 {
        3
    }
}

#[tokio::test]
async fn a_batch_of_searches_does_not_hold_up_the_searches_of_another_key() {
    let question = json!({"model": "routerag", "question": "Who wrote Faust?"});
    for (path, body) in [("/v1/search", json!({"query": "single"})), ("/v1/agent", question)] {
        let (keys, [many, one]) = two_keys([RequestPriority::Normal; 2]);
        let (release, held) = channel();
        let held = Mutex::new(held);
        let search = Arc::new(HeldSearch { held, waiting: Mutex::default(), begun: Mutex::default() });
        let limits = SearchLimits { threads: 1, waiting: 64, timeout: 2 * PATIENCE };
        let searcher = Arc::new(Searcher::new(Arc::clone(&search), limits).unwrap());
        let lines = Lines::new([
            "<think>a</think>\n<search>[passage] single</search>",
            "<think>b</think>\n<answer> Goethe </answer>",
        ])
        .terminator("</information>\n\n");
        let plan = ServerPlan { keys, searcher: Some(searcher), ..ServerPlan::new(script(&lines)) };
        let server = plan.build().await;
        let queries: Vec<_> = (0..24).map(|number| format!("batch {number}")).collect();
        let batch = json!({"queries": queries});
        let single = async {
            eventually("the batch waits", || search.waiting.lock().unwrap().len() == 8).await;
            send(&server, &one, "POST", path, &body).await
        };
        let released = async {
            let waits = || search.waiting.lock().unwrap().iter().any(|text| text == "single");
            eventually("the search of the other key waits", waits).await;
            drop(release);
        };
        let (batch, (status, found), ()) =
            tokio::join!(send(&server, &many, "POST", "/retrieve", &batch), single, released);
        assert_eq!((batch.0, status), (200, 200), "{batch:?} {found}");
        assert!(!found.to_string().contains("\"error\":\""), "{found}");
        let begun = search.begun.lock().unwrap().clone();
        // One search of the batch runs meanwhile, and the next one had its turn before.
        assert_eq!(begun.iter().position(|text| text == "single"), Some(2), "{path}: {begun:?}");
        server.quiet().await;
    }
}
