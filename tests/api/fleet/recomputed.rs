//! Tokens that another Waymark computes twice: none, in the loops of every policy.

use serde_json::{Value, json};
use waymark_agent::Policy;
use waymark_engine::MockBackend;
use waymark_engine::mock::Lines;

use super::{config, connect};
use crate::harness::{ServerPlan, TestServer, answer, script};
use crate::traces::loops;

/// Every policy, free and guided.
fn policies() -> Vec<Policy> {
    let built_in = Policy::BUILTIN.iter().map(|name| Policy::builtin(name).unwrap());
    let guided = |policy: &Policy| Policy { name: format!("guided-{}", policy.name), guided: true, ..policy.clone() };
    built_in.flat_map(|policy| [guided(&policy), policy]).collect()
}

/// A server over the engine of another one.
struct Remote {
    server: TestServer,
    engine: TestServer,
}

impl Remote {
    async fn new(backend: impl Fn() -> MockBackend) -> Remote {
        let engine = TestServer::new(backend()).await;
        let fleet = connect(&config("waymark", &[&engine.url("")])).await.unwrap();
        let plan = ServerPlan { fleet: Some(fleet), policies: policies(), ..ServerPlan::new(backend()) };
        Remote { server: plan.build().await, engine }
    }

    async fn ask(&self, model: &str, seed: u64, extra: Value) -> Value {
        let mut body = json!({"question": "Who wrote Faust?", "model": model, "seed": seed, "max_tokens": 400});
        if !model.ends_with("plain") {
            // The only mode of the searcher of these tests.
            body["rag"] = json!({"mode": "passage"});
        }
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (status, told) = answer(self.server.post("/v1/agent", &body).await).await;
        assert_eq!(status, 200, "{told}");
        told
    }

    /// Number of tokens that the engine computed twice so far.
    fn recomputed(&self) -> u64 {
        self.server.state.runtime.engine.remote_counters().unwrap().recomputed_tokens_total.get()
    }
}

/// Script of a policy whose turns end at lines.
fn lines() -> Lines {
    Lines::new([
        "Step 1:\nImportant entity: Faust\nSubquery: Who wrote Faust?\n",
        " Summary: Goethe did.\nFinal answer: Goethe",
    ])
    .terminator(" </Reference>")
}

#[tokio::test]
async fn loops_that_search_compute_each_token_once() {
    for (script_of, models) in [
        (loops as fn() -> Lines, ["routerag", "search-r1", "guided-routerag", "guided-search-r1"].as_slice()),
        (lines as fn() -> Lines, ["tearag"].as_slice()),
    ] {
        let remote = Remote::new(|| script(&script_of())).await;
        for model in models {
            for seed in 0..8 {
                let told = remote.ask(model, seed, json!({})).await;
                // Forced text takes a guided policy off the script of the mock, so its answer may differ.
                assert!(model.starts_with("guided") || told["answer"] == "Goethe", "{model}: {told}");
                assert_eq!(remote.recomputed(), 0, "{model}, seed {seed}");
            }
        }
    }
}

#[tokio::test]
async fn random_loops_compute_each_token_once() {
    let remote = Remote::new(|| MockBackend::random(5, 259).with_confidence(3.0)).await;
    for policy in policies() {
        for seed in 0..3 {
            remote.ask(&policy.name, seed, json!({"temperature": 1.0})).await;
            assert_eq!(remote.recomputed(), 0, "{}, seed {seed}", policy.name);
        }
    }
}

/// A guide lets the policy write the first token of a span and then the rest, with nothing between them.
#[tokio::test]
async fn a_turn_that_goes_on_from_the_last_one_computes_its_last_token_alone() {
    let remote = Remote::new(|| MockBackend::random(5, 259)).await;
    let engine = remote.engine.state.runtime.engine.counters();
    remote.ask("guided-routerag", 1, json!({})).await;
    assert_eq!((remote.recomputed(), engine.prefill_tokens_recomputed_total.get()), (0, 0));
}

#[tokio::test]
async fn a_line_ends_the_turn_at_the_engine_too() {
    let remote = Remote::new(|| script(&lines())).await;
    let sampled = || remote.engine.state.runtime.engine.counters().decode_tokens_total.get();
    let start = sampled();
    let told = remote.ask("tearag", 1, json!({})).await;
    let written = told["usage"]["completion_tokens"].as_u64().unwrap();
    // The end of the sequence is sampled after the answer alone; without the label it would follow the line as well.
    assert!(sampled() - start <= written + 1, "{} sampled for {written}", sampled() - start);
}
