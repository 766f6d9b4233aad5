//! Stored traces of episodes.

use std::time::Duration;

use serde_json::{Value, json};
use waymark::config::TraceConfig;
use waymark::keys::{ApiKeys, Scope, Secret};
use waymark_engine::EngineConfig;
use waymark_engine::mock::Lines;

use crate::golden::ask;
use crate::harness::{
    ServerPlan, TestServer, answer, eventually, key_entry, read_until, says, script, tokenizer, with_fields,
};

/// Script with one search, then an answer.
pub fn loops() -> Lines {
    Lines::new([
        "<think>I must look.</think>\n<search>[passage] Faust</search>",
        "<think>Found.</think>\n<answer> Goethe </answer>",
    ])
    .terminator("</information>\n\n")
}

fn question(extra: Value) -> Value {
    with_fields(json!({"question": "Who wrote Faust?", "model": "routerag", "seed": -5}), extra)
}

pub async fn trace(server: &TestServer, id: &str) -> (u16, Value) {
    let response = server.get(&format!("/v1/traces/{id}")).await;
    answer(response).await
}

async fn list(server: &TestServer, query: &str) -> Value {
    server.get(&format!("/v1/traces{query}")).await.json().await.unwrap()
}

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|trace| trace["id"].as_str().unwrap()).collect()
}

async fn bounded(count: usize, bytes: usize) -> TestServer {
    let mut plan = ServerPlan::new(says("a few words"));
    plan.http.traces = TraceConfig { count, bytes, ..TraceConfig::default() };
    plan.build().await
}

#[tokio::test]
async fn a_trace_holds_all_that_was_written_down() {
    let server = TestServer::new(script(&loops())).await;
    let told: Value = server.post("/v1/agent", &question(json!({"logprobs": 0}))).await.json().await.unwrap();
    let (status, kept) = trace(&server, told["id"].as_str().unwrap()).await;
    assert_eq!(status, 200, "{kept}");
    assert_eq!(
        (&kept["status"], &kept["error"], &kept["protocol"]),
        (&json!("finished"), &Value::Null, &json!("routerag"))
    );
    assert_eq!((&kept["seed"], &kept["generation"]), (&json!(-5), &Value::Null));
    for field in ["id", "model", "answer", "finish_reason", "usage"] {
        assert_eq!(kept[field], told[field], "{field}");
    }
    assert_eq!(kept["messages"], json!([{"role": "user", "content": "Who wrote Faust?"}]));
    let number = |list: &Value, at: usize| list[at].as_u64().unwrap();
    let tokens = &kept["tokens"];
    let ids: Vec<u32> =
        (0..tokens["ids"].as_array().unwrap().len()).map(|at| number(&tokens["ids"], at) as u32).collect();
    let prompt = kept["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(kept["text"], tokenizer().decode(&ids[prompt..]));
    // The runs cover the sequence, and agree with the usage.
    let runs = tokens["runs"].as_array().unwrap();
    let of = |origin: &str| -> u64 {
        runs.iter().filter(|run| run["origin"] == origin).map(|run| run["tokens"].as_u64().unwrap()).sum()
    };
    let usage = |name: &str| kept["usage"][name].as_u64().unwrap();
    assert_eq!(of("prompt"), usage("prompt_tokens"));
    assert_eq!(of("policy"), usage("completion_tokens"));
    assert_eq!(of("environment"), usage("environment_tokens"));
    assert_eq!(of("prompt") + of("policy") + of("environment"), ids.len() as u64);
    // Log-probabilities equal those returned with the tokens.
    let sampled: Vec<f64> = tokens["logprobs"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert_eq!(sampled.len() as u64, of("policy"));
    let events = told["trace"].as_array().unwrap();
    let think = events.iter().find(|event| event["type"] == "think").unwrap();
    let first = think["tokens"].as_array().unwrap().iter().find(|token| token["text"] == "I").unwrap();
    assert!(sampled.contains(&first["logprob"].as_f64().unwrap()));
    // The search equals the one in the stream, and the actions are those of the turns.
    let search = events.iter().find(|event| event["type"] == "search_finished").unwrap();
    for field in ["turn", "query", "mode", "hits", "snapshot", "cached", "neutralised"] {
        assert_eq!(kept["searches"][0][field], search[field], "{field}");
    }
    assert_eq!(kept["actions"][0]["action"]["type"], "search");
    let action = json!({"type": "answer", "text": "Goethe"});
    assert_eq!(
        kept["actions"][1],
        json!({"turn": 2, "executed": true, "action": action, "thought": "Found.", "summary": null})
    );
    let time = |name: &str| kept["timings"][name].as_f64().unwrap();
    assert!(time("total") >= time("generation") && time("total") >= time("first_token"));
}

#[tokio::test]
async fn every_completion_has_a_trace_of_its_own() {
    let server = TestServer::new(says("hi")).await;
    let (_, whole) = server.chat(&ask(json!({"n": 3, "seed": 7, "stop": ["x"], "temperature": 0.5}))).await;
    let id = whole["id"].as_str().unwrap();
    for (index, name) in [id.to_owned(), format!("{id}-1"), format!("{id}-2")].iter().enumerate() {
        let (status, kept) = trace(&server, name).await;
        assert_eq!((status, &kept["seed"]), (200, &json!(7 + index)), "{kept}");
        assert_eq!(
            (&kept["options"]["stop"], &kept["options"]["sampling"]["temperature"]),
            (&json!(["x"]), &json!(0.5))
        );
    }
    let listed = list(&server, "?limit=2").await;
    assert_eq!((ids(&listed).len(), &listed["has_more"]), (2, &json!(true)));
    assert_eq!(listed["data"][0]["question"], "hello");
    assert_eq!(list(&server, "").await["has_more"], false);
}

#[tokio::test]
async fn a_continued_text_has_a_trace_for_every_answer() {
    let server = TestServer::new(script(&Lines::new(["?"]).rule("Once", [" upon"]).rule("Twice", [" told"]))).await;
    let ask = |store: Value| json!({"model": "routerag", "prompt": ["Once", "Twice"], "n": 2, "seed": 7, "logprobs": 1, "store": store});
    let whole: Value = server.post("/v1/completions", &ask(Value::Null)).await.json().await.unwrap();
    let id = whole["id"].as_str().unwrap();
    for (place, (text, answer, seed)) in
        [("Once", " upon", 7), ("Once", " upon", 8), ("Twice", " told", 7), ("Twice", " told", 8)].iter().enumerate()
    {
        let name = if place == 0 { id.to_owned() } else { format!("{id}-{place}") };
        let (status, kept) = trace(&server, &name).await;
        assert_eq!(
            (status, &kept["protocol"], &kept["model"]),
            (200, &json!("verbatim"), &json!("routerag")),
            "{kept}"
        );
        assert_eq!(kept["messages"], json!([{"role": "user", "content": text}]));
        assert_eq!((&kept["answer"], &kept["seed"]), (&json!(answer), &json!(seed)));
        assert_eq!(whole["choices"][place]["text"], *answer);
    }
    assert_eq!(server.post("/v1/completions", &ask(json!(false))).await.status(), 200);
    assert_eq!(ids(&list(&server, "").await).len(), 4);
}

#[tokio::test]
async fn a_response_has_a_trace_unless_it_is_not_to_be_stored() {
    let server = TestServer::new(script(&loops())).await;
    for store in [true, false] {
        let body = json!({"model": "routerag", "input": "Who wrote Faust?", "store": store});
        let response: Value = server.post("/v1/responses", &body).await.json().await.unwrap();
        let (status, kept) = trace(&server, response["id"].as_str().unwrap()).await;
        assert_eq!(status, if store { 200 } else { 404 }, "{kept}");
        assert!(!store || (kept["answer"] == "Goethe" && kept["searches"][0]["query"] == "Faust"), "{kept}");
    }
}

#[tokio::test]
async fn what_fails_or_is_given_up_leaves_a_trace_too() {
    // Slow enough for the server to notice in time that the client has left.
    let backend = script(&loops()).with_time(Duration::from_millis(25), Duration::ZERO);
    let faults = backend.faults();
    let server = TestServer::new(backend).await;
    // Canceled while it writes.
    let mut socket = server.raw("/v1/agent", &question(json!({"stream": true}))).await;
    let begun = read_until(&mut socket, "event: think").await;
    drop(socket);
    server.quiet().await;
    let id = begun.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    let (status, kept) = trace(&server, id).await;
    assert_eq!((status, &kept["status"], &kept["finish_reason"]), (200, &json!("cancelled"), &Value::Null), "{kept}");
    assert!("<think>I must look.</think>".starts_with(kept["text"].as_str().unwrap().get(..8).unwrap()));
    // A forward pass fails in the middle.
    faults.error_at(server.state.runtime.engine.counters().steps_total.get() + 30);
    let response = server.post("/v1/agent", &question(json!({}))).await;
    assert_eq!(response.status(), 500);
    let listed = list(&server, "").await;
    let (_, kept) = trace(&server, ids(&listed)[0]).await;
    assert_eq!((&kept["status"], &kept["error"]["code"]), (&json!("failed"), &json!("internal_error")), "{kept}");
    assert!(!kept["text"].as_str().unwrap().is_empty());
}

/// A request is refused as a whole or not at all, however many answers it wants, and a refused one evicts no trace.
#[tokio::test]
async fn what_is_refused_leaves_none() {
    let backend = says(&"long ".repeat(6000)).with_time(Duration::from_millis(5), Duration::ZERO);
    let engine = EngineConfig { max_batch_rows: 1, max_waiting: 1, ..EngineConfig::default() };
    let server = ServerPlan { engine, ..ServerPlan::new(backend) }.build().await;
    let many = json!({"model": "plain", "prompt": ["a", "b", "c", "d"], "n": 10, "stream": true});
    for (path, body) in [("/v1/chat/completions", ask(json!({"n": 16}))), ("/v1/completions", many)] {
        let refused = server.post(path, &body).await;
        assert_eq!(refused.status(), 503, "{path}");
        assert_eq!(refused.headers()["retry-after"], "1", "{path}");
        server.quiet().await;
        assert_eq!(ids(&list(&server, "").await), Vec::<&str>::new(), "{path}");
    }
}

#[tokio::test]
async fn whoever_wants_none_leaves_none() {
    let server = TestServer::new(says("hi")).await;
    for body in [ask(json!({"store": false})), ask(json!({"rag": {"store": false}}))] {
        assert_eq!(server.chat(&body).await.0, 200);
    }
    let body = json!({"question": "x", "rag": {"store": false}, "model": "plain"});
    assert_eq!(server.post("/v1/agent", &body).await.status(), 200);
    assert_eq!(ids(&list(&server, "").await), Vec::<&str>::new());
    assert_eq!(server.chat(&ask(json!({"rag": {"store": true}}))).await.0, 200);
    assert_eq!(ids(&list(&server, "").await).len(), 1);
}

#[tokio::test]
async fn a_server_that_keeps_none_refuses_to_keep_one() {
    for (count, bytes) in [(0, 1 << 20), (10, 0)] {
        let server = bounded(count, bytes).await;
        assert_eq!(server.chat(&ask(json!({}))).await.0, 200);
        let (status, refused) = server.chat(&ask(json!({"rag": {"store": true}}))).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!("rag.store")));
        let response = server.post("/v1/completions", &json!({"model": "plain", "prompt": "x", "store": true})).await;
        assert_eq!(response.status(), 400);
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["param"], "store");
        assert_eq!(list(&server, "").await["data"], json!([]));
    }
}

#[tokio::test]
async fn the_oldest_go_first_by_number_and_by_size() {
    let server = bounded(2, 1 << 20).await;
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(server.chat(&ask(json!({}))).await.1["id"].as_str().unwrap().to_owned());
    }
    asked.remove(0);
    asked.reverse();
    let listed = list(&server, "").await;
    assert_eq!(ids(&listed), asked);
    let size = listed["data"][0]["bytes"].as_u64().unwrap() as usize;
    let server = bounded(10, 3 * size + size / 2).await;
    for _ in 0..5 {
        server.chat(&ask(json!({}))).await;
    }
    assert_eq!(ids(&list(&server, "").await).len(), 3);
}

#[tokio::test]
async fn a_trace_can_be_forgotten() {
    let server = TestServer::new(says("hi")).await;
    let (_, whole) = server.chat(&ask(json!({}))).await;
    let id = whole["id"].as_str().unwrap();
    let forget = async || {
        let response = server.client.delete(server.url(&format!("/v1/traces/{id}"))).send().await.unwrap();
        answer(response).await
    };
    assert_eq!(forget().await, (200, json!({"id": id, "object": "trace.deleted", "deleted": true})));
    assert_eq!(forget().await.0, 404);
    let (status, refused) = trace(&server, id).await;
    assert_eq!((status, &refused["error"]["code"]), (404, &json!("trace_not_found")));
    for value in ["0", "101", "x"] {
        let error = &list(&server, &format!("?limit={value}")).await["error"];
        assert_eq!(error["param"], "limit");
        assert!(error["message"].as_str().unwrap().ends_with(&format!("not `{value}`")), "{error}");
    }
    assert_eq!(list(&server, "?after=x").await["error"]["param"], "after");
}

/// The trace is stored by the time its client sees the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_is_there_with_the_last_event() {
    let server = TestServer::new(says("hi")).await;
    for _ in 0..20 {
        let body = json!({"question": "x", "model": "plain", "stream": true});
        let mut socket = server.raw("/v1/agent", &body).await;
        let text = read_until(&mut socket, "event: finished").await;
        let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(trace(&server, id).await.1["status"], "finished");
    }
    eventually("nothing runs", || server.state.drain.running() == 0).await;
}

#[tokio::test]
async fn what_one_key_did_no_other_key_sees() {
    let secrets = [Secret::generate(), Secret::generate()];
    let entry = |(name, secret): (&str, &Secret)| key_entry(name, secret, &[Scope::Infer]);
    let entries = ["a", "b"].into_iter().zip(&secrets).map(entry).collect();
    let server =
        ServerPlan { keys: ApiKeys::open(None, entries).unwrap(), ..ServerPlan::new(says("hi")) }.build().await;
    let send = async |secret: &Secret, method: &str, path: &str, body: Value| {
        let request = server.client.request(method.parse().unwrap(), server.url(path)).bearer_auth(secret.reveal());
        request.json(&body).send().await.unwrap()
    };
    let [owner, other] = &secrets;
    let body = json!({"question": "x", "model": "plain", "stream": true, "resumable": true});
    let response = send(owner, "POST", "/v1/agent", body).await;
    let location = response.headers()["content-location"].to_str().unwrap().to_owned();
    assert!(response.text().await.unwrap().contains("event: finished"));
    let trace = location.replace("agent", "traces");
    let replay = format!("{trace}/replay");
    for (method, path) in [("GET", &location), ("GET", &trace), ("POST", &replay), ("DELETE", &trace)] {
        let mode = json!({"mode": "forced"});
        assert_eq!(send(other, method, path, mode.clone()).await.status(), 404, "{method} {path}");
        assert_eq!(send(owner, method, path, mode).await.status(), 200, "{method} {path}");
    }
    send(owner, "POST", "/v1/chat/completions", ask(json!({}))).await;
    for (secret, count) in [(owner, 1), (other, 0)] {
        let listed: Value = send(secret, "GET", "/v1/traces", json!({})).await.json().await.unwrap();
        assert_eq!(ids(&listed).len(), count);
    }
}
