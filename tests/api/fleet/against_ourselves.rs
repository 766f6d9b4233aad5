//! The loop in one server over the engine of another, both Waymark: the outcome is the one of a single server.

use std::time::Duration;

use serde_json::{Value, json};
use waymark_agent::Policy;
use waymark_engine::MockBackend;

use super::{config, connect};
use crate::harness::{ServerPlan, TestServer, answer, eventually, says, script, with_fields};
use crate::traces::{loops, trace};

/// A server with its engine, one over the engine of another server, and that server.
struct Pair {
    local: TestServer,
    remote: TestServer,
    engine: TestServer,
}

impl Pair {
    async fn new(backend: impl Fn() -> MockBackend) -> Pair {
        let engine = TestServer::new(backend()).await;
        let fleet = connect(&config("waymark", &[&engine.url("")])).await.unwrap();
        let policies = || {
            let mut policies: Vec<Policy> =
                ["plain", "routerag", "search-r1"].iter().map(|name| Policy::builtin(name).unwrap()).collect();
            policies.push(Policy { name: "guided".into(), guided: true, ..Policy::builtin("routerag").unwrap() });
            policies
        };
        let remote = ServerPlan { fleet: Some(fleet), policies: policies(), ..ServerPlan::new(backend()) };
        let local = ServerPlan { policies: policies(), ..ServerPlan::new(backend()) };
        Pair { local: local.build().await, remote: remote.build().await, engine }
    }

    /// Asks both servers. Returns the answer, which is the same up to IDs and times.
    async fn ask(&self, body: &Value) -> Value {
        let [local, remote] = [&self.local, &self.remote];
        let (status, local) = answer(local.post("/v1/agent", body).await).await;
        let (other, remote) = answer(remote.post("/v1/agent", body).await).await;
        assert_eq!((status, other), (200, 200), "{body}: {local} {remote}");
        let shown = steady(local);
        assert_eq!(steady(remote), shown, "{body}");
        shown
    }
}

/// Removes what differs from run to run, and what depends on the cache.
fn steady(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for name in ["id", "created", "milliseconds", "search_ms", "cached_tokens"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(|field| *field = steady(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = steady(item.take())),
        _ => {}
    }
    value
}

fn question(model: &str, extra: Value) -> Value {
    with_fields(json!({"question": "Who wrote Faust?", "model": model, "seed": 11, "logprobs": 1}), extra)
}

#[tokio::test]
async fn a_scripted_loop_searches_and_answers_the_same_over_the_wire() {
    let pair = Pair::new(|| script(&loops())).await;
    let shown = pair.ask(&question("routerag", json!({}))).await;
    assert_eq!((&shown["answer"], &shown["searches"]), (&json!("Goethe"), &json!(1)));
    let fleet = pair.remote.state.runtime.engine.remote_counters().unwrap();
    assert_eq!(fleet.recomputed_tokens_total.get(), 0, "the other server keeps the session");
    for model in ["search-r1", "guided"] {
        let shown = pair.ask(&question(model, json!({}))).await;
        assert!(shown["trace"].as_array().unwrap().len() > 5, "{shown}");
    }
    assert_eq!((fleet.failures_total.get(), fleet.resumptions_total.get()), (0, 0));
}

#[tokio::test]
async fn sampled_text_is_the_same_for_the_same_seed() {
    // Low confidence: what is sampled depends on the random numbers of the seed.
    let pair = Pair::new(|| MockBackend::random(5, 259).with_confidence(1.5)).await;
    let mut texts = Vec::new();
    for seed in [1, 2, -3] {
        for model in ["plain", "routerag", "guided"] {
            let extra = json!({"seed": seed, "max_tokens": 300, "temperature": 1.0, "top_p": 0.95});
            let shown = pair.ask(&question(model, extra)).await;
            texts.push(shown["trace"].to_string());
        }
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 9, "each seed and policy has its own text");
}

#[tokio::test]
async fn answers_under_a_schema_are_the_same_where_nothing_is_drawn() {
    let pair = Pair::new(|| MockBackend::random(5, 259)).await;
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
                        "required": ["a", "b"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": schema}});
    let extra = json!({"temperature": 0.0, "max_tokens": 200, "response_format": format});
    let shown = pair.ask(&question("plain", extra)).await;
    assert!(shown["answer"].as_str().unwrap().starts_with('{'), "{shown}");
    let fleet = pair.remote.state.runtime.engine.remote_counters().unwrap();
    assert!(fleet.corrected_tokens_total.get() > 0, "random text is no JSON");
}

#[tokio::test]
async fn a_trace_is_replayed_token_by_token_over_the_wire() {
    let pair = Pair::new(|| MockBackend::random(5, 259).with_confidence(3.0)).await;
    let (_, told) = answer(pair.remote.post("/v1/agent", &question("routerag", json!({"max_tokens": 60}))).await).await;
    let path = format!("/v1/traces/{}/replay", told["id"].as_str().unwrap());
    let (status, replay) = answer(pair.remote.post(&path, &json!({"mode": "forced"})).await).await;
    assert_eq!(status, 200, "{replay}");
    assert_eq!((&replay["ids_equal"], replay["logprobs"]["max"].as_f64()), (&json!(true), Some(0.0)), "{replay}");
}

#[tokio::test]
async fn a_trace_that_fills_the_context_is_replayed_to_its_last_token() {
    const CONTEXT: usize = 256;
    let pair = Pair::new(|| MockBackend::random(5, 259).with_confidence(3.0).with_context(CONTEXT)).await;
    // The most probable tokens of the mock never end a text.
    let body = question("plain", json!({"temperature": 0.0}));
    let (_, told) = answer(pair.remote.post("/v1/agent", &body).await).await;
    assert_eq!(told["finish_reason"], "length", "{told}");
    let id = told["id"].as_str().unwrap();
    let (_, kept) = trace(&pair.remote, id).await;
    assert_eq!(kept["tokens"]["ids"].as_array().unwrap().len(), CONTEXT);
    let path = format!("/v1/traces/{id}/replay");
    let (status, replay) = answer(pair.remote.post(&path, &json!({"mode": "forced"})).await).await;
    assert_eq!(status, 200, "{replay}");
    assert_eq!((&replay["ids_equal"], replay["logprobs"]["max"].as_f64()), (&json!(true), Some(0.0)), "{replay}");
}

#[tokio::test]
async fn a_client_that_leaves_stops_the_other_server_too() {
    // The whole answer would take twenty seconds.
    let slow = || says(&"word ".repeat(1000)).with_time(Duration::from_millis(20), Duration::ZERO);
    let pair = Pair::new(slow).await;
    let body = question("plain", json!({"stream": true, "max_tokens": 1000}));
    let mut socket = pair.remote.raw("/v1/agent", &body).await;
    crate::harness::read_until(&mut socket, "turn_started").await;
    let counters = pair.engine.state.runtime.engine.counters();
    // Without work there, its end would prove nothing.
    eventually("the other server generates", || counters.sessions_running.get() == 1).await;
    drop(socket);
    eventually("the other server is idle", || counters.sessions_running.get() == 0).await;
    let sampled = counters.decode_tokens_total.get();
    assert!(sampled < 800, "it went on for {sampled} tokens");
}
