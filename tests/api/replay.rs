//! Replays: forced along the recorded tokens, and free.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use waymark::api::{Library, PolicyStore};
use waymark::keys::KeyLimits;
use waymark_agent::{SearchLimits, Searcher};
use waymark_engine::MockBackend;
use waymark_index::{BuildOptions, CommitOptions, Corpus, Document, LiveIndex, OpenOptions, build};

use crate::harness::{PATIENCE, ServerPlan, TestServer, answer, eventually, says, script, tokenizer};
use crate::small_index::HashEmbed;
use crate::traces::{loops, trace};

async fn ask(server: &TestServer, body: &Value) -> String {
    let response = server.post("/v1/agent", body).await;
    assert_eq!(response.status(), 200);
    response.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
}

async fn replay(server: &TestServer, id: &str, mode: &str) -> (u16, Value) {
    let response = server.post(&format!("/v1/traces/{id}/replay"), &json!({"mode": mode})).await;
    answer(response).await
}

/// Checks that both replays match the trace: equal IDs, and log-probabilities equal to the bit.
pub async fn check_equal(server: &TestServer, id: &str) {
    let (_, kept) = trace(server, id).await;
    let sampled = kept["tokens"]["logprobs"].as_array().unwrap().iter().filter(|logprob| logprob.is_number()).count();
    assert!(sampled > 0);
    for mode in ["forced", "free"] {
        let (status, replay) = replay(server, id, mode).await;
        assert_eq!(
            (status, &replay["ids_equal"], &replay["divergence"]),
            (200, &json!(true), &Value::Null),
            "{replay}"
        );
        assert_eq!((&replay["logprobs"]["tokens"], &replay["logprobs"]["max"]), (&json!(sampled), &json!(0.0)));
        assert!(replay["searches"].as_array().unwrap().iter().all(|search| search["equal"] == true), "{replay}");
        let finished = mode == "free" && kept["status"] == "finished";
        if finished {
            assert_eq!((&replay["answer"], &replay["finish_reason"]), (&kept["answer"], &kept["finish_reason"]));
        }
        assert_eq!(replay["answer_changed"], if finished { json!(false) } else { Value::Null });
    }
}

#[tokio::test]
async fn a_loop_is_the_same_again() {
    let server = TestServer::new(script(&loops())).await;
    let id = ask(&server, &json!({"question": "Who wrote Faust?", "model": "routerag"})).await;
    check_equal(&server, &id).await;
    let (_, replay) = replay(&server, &id, "forced").await;
    assert_eq!(replay["searches"][0]["snapshot"], json!({"then": 3, "now": 3}));
    assert_eq!((&replay["answer"], &replay["finish_reason"]), (&Value::Null, &Value::Null));
    // Replays are not stored.
    let listed: Value = server.get("/v1/traces").await.json().await.unwrap();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    server.quiet().await;
}

#[tokio::test]
async fn chance_is_the_same_again_and_forced_words_are_forced_again() {
    let server = TestServer::new(MockBackend::random(5, tokenizer().vocab()).with_confidence(2.0)).await;
    for body in [
        json!({"question": "say something", "model": "plain", "seed": 3, "temperature": 1.5, "top_p": 0.9, "max_tokens": 80}),
        json!({"question": "look for it", "model": "routerag", "seed": 4, "rag": {"guided": true}, "max_tokens": 200}),
    ] {
        let id = ask(&server, &body).await;
        check_equal(&server, &id).await;
    }
    server.quiet().await;
}

#[tokio::test]
async fn a_continued_text_is_the_same_again() {
    let server = TestServer::new(MockBackend::random(5, tokenizer().vocab()).with_confidence(2.0)).await;
    for prompt in [json!("Once upon"), json!([79, 110, 99, 101])] {
        let body =
            json!({"model": "routerag", "prompt": prompt, "n": 2, "seed": 3, "temperature": 1.5, "max_tokens": 40});
        let whole: Value = server.post("/v1/completions", &body).await.json().await.unwrap();
        let id = whole["id"].as_str().unwrap();
        check_equal(&server, id).await;
        check_equal(&server, &format!("{id}-1")).await;
    }
    server.quiet().await;
}

#[tokio::test]
async fn what_was_broken_off_is_the_same_as_far_as_it_went() {
    let backend = says("one two three four five").with_time(Duration::from_millis(2), Duration::ZERO);
    let faults = backend.faults();
    let server = TestServer::new(backend).await;
    faults.error_at(8);
    assert_eq!(server.post("/v1/agent", &json!({"question": "x", "model": "plain"})).await.status(), 500);
    let listed: Value = server.get("/v1/traces").await.json().await.unwrap();
    assert_eq!(listed["data"][0]["status"], "failed");
    check_equal(&server, listed["data"][0]["id"].as_str().unwrap()).await;
}

fn document(id: &str, text: &str) -> Value {
    json!({"id": id, "title": id, "text": text})
}

/// Builds a server that searches a changing index for `faust`.
async fn living() -> (tempfile::TempDir, TestServer) {
    let dir = tempfile::tempdir().unwrap();
    let texts =
        [("a", "Faust is a play by Goethe."), ("b", "Another Faust is by Marlowe."), ("c", "The Thames is a river.")];
    let documents = texts.iter().map(|(id, text)| serde_json::from_value::<Document>(document(id, text)).unwrap());
    let corpus = Corpus::from_documents("test", documents.collect());
    let options = BuildOptions::default();
    build(corpus, &HashEmbed::default(), dir.path(), &options, &()).unwrap();
    let live = LiveIndex::open(dir.path(), Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    let live = Arc::new(live);
    let limits = SearchLimits { threads: 2, waiting: 64, timeout: 2 * PATIENCE };
    let searcher = Searcher::new(Arc::clone(&live), limits).unwrap();
    let library = Library::new(live, CommitOptions::default());
    let plan =
        ServerPlan { searcher: Some(Arc::new(searcher)), library: Some(library), ..ServerPlan::new(script(&loops())) };
    (dir, plan.build().await)
}

#[tokio::test]
async fn an_index_that_has_changed_shows_in_the_searches() {
    let (_dir, server) = living().await;
    let body = json!({"question": "Who wrote Faust?", "model": "routerag", "rag": {"k": 2, "ranking": "bm25"}});
    let id = ask(&server, &body).await;
    check_equal(&server, &id).await;
    // The text of `a` changes, `b` is removed, and `d` is added.
    let changed = json!({"documents": [document("a", "Faust, Faust, Faust! A play by Goethe."), document("d", "Faust is an opera by Gounod.")]});
    assert_eq!(server.post("/v1/documents", &changed).await.status(), 200);
    server.client.delete(server.url("/v1/documents/b")).send().await.unwrap();

    let (_, forced) = replay(&server, &id, "forced").await;
    assert_eq!((&forced["ids_equal"], &forced["logprobs"]["max"]), (&json!(true), &json!(0.0)), "{forced}");
    let search = &forced["searches"][0];
    assert_eq!(
        (&search["equal"], &search["query"], &search["mode"]),
        (&json!(false), &json!("Faust"), &json!("passage"))
    );
    let names = |list: &Value| list.as_array().unwrap().iter().map(|hit| hit["id"].clone()).collect::<Vec<_>>();
    assert_eq!((names(&search["added"]), names(&search["lost"])), (vec![json!("d")], vec![json!("b")]));
    assert_eq!(search["changed"], json!(["a"]));
    assert!(search["snapshot"]["now"].as_u64() > search["snapshot"]["then"].as_u64());

    // In a free replay the policy sees other evidence, where the sequences diverge.
    let (_, free) = replay(&server, &id, "free").await;
    assert_eq!(free["ids_equal"], false);
    let divergence = &free["divergence"];
    assert_eq!(
        (&divergence["then"]["origin"], &divergence["now"]["origin"]),
        (&json!("environment"), &json!("environment"))
    );
    let (_, kept) = trace(&server, &id).await;
    let at = divergence["at"].as_u64().unwrap() as usize;
    assert_eq!(kept["tokens"]["ids"][at], divergence["then"]["id"]);
    assert_ne!(divergence["then"]["id"], divergence["now"]["id"]);
    assert_eq!(free["logprobs"]["max"], 0.0);
    assert!(free["logprobs"]["tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn without_its_policy_a_trace_is_not_run_again() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("one/adapter")).unwrap();
    let text = "name = \"one\"\nprotocol = \"routerag\"\nadapter = \"adapter\"\n";
    std::fs::write(root.path().join("one/policy.toml"), text).unwrap();
    let store = PolicyStore::new(root.path().canonicalize().unwrap());
    let server = ServerPlan { store: Some(store), ..ServerPlan::new(script(&loops())) }.build().await;
    let load = async || assert_eq!(server.post("/v1/policies", &json!({"directory": "one"})).await.status(), 200);
    load().await;
    for gone in ["replaced", "unloaded"] {
        // The policy loaded last is still served, so its trace can be replayed until it goes as well.
        let id = ask(&server, &json!({"question": "Who wrote Faust?", "model": "one"})).await;
        check_equal(&server, &id).await;
        let generation = trace(&server, &id).await.1["generation"].as_u64().unwrap();
        if gone == "replaced" {
            load().await;
        } else {
            let unloaded = server.client.delete(server.url("/v1/policies/one")).send().await.unwrap();
            assert_eq!(unloaded.status(), 200);
        }
        for mode in ["forced", "free"] {
            let (status, refused) = replay(&server, &id, mode).await;
            assert_eq!((status, &refused["error"]["code"]), (409, &json!("policy_changed")), "{gone}");
            assert!(refused["error"]["message"].as_str().unwrap().contains(&format!("generation {generation}")));
        }
        assert_eq!(trace(&server, &id).await.0, 200, "the trace itself stays");
    }
}

#[tokio::test]
async fn the_tokens_of_a_replay_count_towards_the_limits() {
    let mut plan = ServerPlan::new(says(&"word ".repeat(100)));
    plan.http.address_limits = KeyLimits { tokens_per_minute: Some(1_300), ..KeyLimits::default() };
    let server = plan.build().await;
    // One token per byte: each of the three episodes takes 500 tokens and a prompt, and the third overdraws the limit.
    let body = json!({"question": "x", "model": "plain", "max_tokens": 600});
    let id = ask(&server, &body).await;
    for mode in ["free", "forced"] {
        assert_eq!(replay(&server, &id, mode).await.0, 200, "{mode}");
    }
    assert_eq!(server.post("/v1/agent", &body).await.status(), 429);
}

#[tokio::test]
async fn a_replay_is_refused_by_name_and_given_up_with_its_client() {
    // Forced tokens are computed many in a step, so the time is that of tokens.
    let slow = says(&"word ".repeat(500)).with_time(Duration::ZERO, Duration::from_millis(2));
    let server = TestServer::new(slow).await;
    let id = ask(&server, &json!({"question": "x", "model": "plain", "max_tokens": 2000})).await;
    for (path, body, status, code) in [
        (id.as_str(), json!({}), 400, "missing_required_parameter"),
        (&id, json!({"mode": "backwards"}), 400, "invalid_value"),
        (&id, json!({"mode": "free", "seed": 1}), 400, "unknown_parameter"),
        ("ep-nobody", json!({"mode": "free"}), 404, "trace_not_found"),
    ] {
        let response = server.post(&format!("/v1/traces/{path}/replay"), &body).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], code);
    }
    for mode in ["forced", "free"] {
        let counters = server.state.runtime.engine.counters();
        let before = counters.decode_tokens_total.get();
        let socket = server.raw(&format!("/v1/traces/{id}/replay"), &json!({"mode": mode})).await;
        eventually("tokens are computed", || counters.decode_tokens_total.get() > before + 3).await;
        drop(socket);
        server.quiet().await;
        assert!(counters.decode_tokens_total.get() < before + 2000, "{mode}");
    }
}
