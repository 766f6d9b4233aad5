//! API keys: access to every route without a key, with a wrong one and with the right one; limits; private caches.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, KeyEntry, KeyLimits, Scope, Secret};
use waymark_engine::EngineConfig;
use waymark_engine::mock::Lines;
use waymark_runtime::embedding::TextEmbedder;
use waymark_runtime::query_embedder::QueryEmbedder;

use crate::documents::plan_with;
use crate::harness::{Gated, ServerPlan, TestServer, eventually, key_entry, read_until, says, script, with_fields};
use crate::small_index::HashEmbed;
use crate::traces::loops;

/// Routes that need no key. Adding a route here opens it to the whole world.
const OPEN: [(&str, &str); 7] = [
    ("get", "/"),
    ("get", "/page/{file}"),
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/ping"),
    ("get", "/openapi.yaml"),
    ("get", "/openapi.json"),
];

fn chat() -> Value {
    json!({"model": "plain", "messages": [{"role": "user", "content": "hello"}]})
}

/// Builds a server with one key per scope.
async fn guarded() -> (TestServer, [(Scope, Secret); 3]) {
    let secrets = Scope::ALL.map(|scope| (scope, Secret::generate()));
    let entries = secrets.iter().map(|(scope, secret)| key_entry(scope.name(), secret, &[*scope])).collect();
    let plan = ServerPlan { keys: ApiKeys::open(None, entries).unwrap(), ..ServerPlan::new(says("hi")) };
    (plan.build().await, secrets)
}

/// Sends a request with an empty body, which is not valid for any route, and returns the status and the error code.
async fn knock(server: &TestServer, method: &str, path: &str, key: Option<&str>) -> (u16, String) {
    let mut request = server.client.request(method.to_uppercase().parse().unwrap(), server.url(path));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    if status == 401 {
        assert!(response.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer"), "{path}");
    }
    let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default();
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn every_route_without_a_key_with_a_wrong_one_and_with_the_right_one() {
    let (server, secrets) = guarded().await;
    let document: Value = server.get("/openapi.json").await.json().await.unwrap();
    let mut open = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let at = path.split('/').map(|part| match part {
                // An existing file, because any other name is answered with 404.
                "{file}" => "app.js",
                part if part.starts_with('{') => "x",
                part => part,
            });
            let at = at.collect::<Vec<_>>().join("/");
            let needs = operation["security"][0]["key"][0].as_str();
            let Some(needs) = needs else {
                assert_eq!(knock(&server, method, &at, None).await.0, 200, "{method} {path}");
                open.push((method.as_str(), path.as_str()));
                continue;
            };
            for status in ["401", "403", "429"] {
                assert!(operation["responses"][status].is_object(), "{method} {path}: {status} is not described");
            }
            let unknown = Secret::generate();
            // A header may hold bytes outside ASCII.
            for key in [None, Some(unknown.reveal()), Some("x"), Some("é")] {
                let refused = knock(&server, method, &at, key).await;
                assert_eq!(refused, (401, "invalid_api_key".to_owned()), "{method} {path}");
            }
            for (scope, secret) in &secrets {
                let (status, code) = knock(&server, method, &at, Some(secret.reveal())).await;
                // The request is invalid on purpose: another refusal shows that the key was accepted.
                if scope.name() == needs {
                    assert_ne!((status, code.as_str()), (401, "invalid_api_key"), "{method} {path}");
                    assert_ne!(code, "insufficient_scope", "{method} {path}");
                } else {
                    assert_eq!((status, code.as_str()), (403, "insufficient_scope"), "{method} {path} as {scope}");
                }
            }
        }
    }
    open.sort_unstable();
    let mut expected = OPEN;
    expected.sort_unstable();
    assert_eq!(open, expected);
}

#[tokio::test]
async fn what_is_not_there_is_told_to_known_keys_only() {
    let (server, secrets) = guarded().await;
    let key = Some(secrets[0].1.reveal());
    for (method, path, status) in [
        ("get", "/v1/nothing", 404),
        ("get", "/v1/chat/completions", 405),
        ("delete", "/health", 405),
        ("get", "/v1/chat/completions/", 404),
        ("get", "/V1/models", 404),
        ("get", "//v1/models", 404),
    ] {
        assert_eq!(knock(&server, method, path, None).await.0, 401, "{method} {path}");
        assert_eq!(knock(&server, method, path, key).await.0, status, "{method} {path}");
    }
    // A route that allows GET also allows HEAD, and nothing more.
    assert_eq!(knock(&server, "head", "/v1/models", None).await.0, 401);
    assert_eq!(knock(&server, "head", "/v1/models", key).await.0, 200);
    assert_eq!(knock(&server, "head", "/metrics", key).await.0, 403);
}

#[tokio::test]
async fn the_metrics_can_be_opened() {
    let secret = Secret::generate();
    let keys = ApiKeys::open(None, vec![key_entry("a", &secret, &[Scope::Infer])]).unwrap();
    let mut plan = ServerPlan { keys, ..ServerPlan::new(says("hi")) };
    plan.http.open_metrics = true;
    let server = plan.build().await;
    assert_eq!(server.get("/metrics").await.status(), 200);
    assert_eq!(server.get("/v1/models").await.status(), 401);
}

#[tokio::test]
async fn a_key_is_refused_before_its_body_is_read() {
    let (server, _) = guarded().await;
    let mut socket = server.raw_head("/v1/chat/completions", "content-length: 100000").await;
    let answer = read_until(&mut socket, "invalid_api_key").await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn a_key_that_asks_too_often_waits() {
    let secret = Secret::generate();
    let limits = KeyLimits { requests_per_minute: Some(3), ..KeyLimits::default() };
    let other = Secret::generate();
    let entries = vec![
        KeyEntry { limits, ..key_entry("often", &secret, &[Scope::Infer]) },
        KeyEntry { limits, ..key_entry("other", &other, &[Scope::Infer]) },
    ];
    let server =
        ServerPlan { keys: ApiKeys::open(None, entries).unwrap(), ..ServerPlan::new(says("hi")) }.build().await;
    let ask = async |secret: &Secret| {
        let request = server.client.post(server.url("/v1/chat/completions")).bearer_auth(secret.reveal());
        request.json(&chat()).send().await.unwrap()
    };
    for _ in 0..3 {
        assert_eq!(ask(&secret).await.status(), 200);
    }
    let refused = ask(&secret).await;
    assert_eq!(refused.status(), 429);
    let header = |name: &str| refused.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
    let seconds = header("retry-after");
    let milliseconds = header("retry-after-ms");
    // One of three requests a minute comes back after 20 seconds.
    assert!((1..=20).contains(&seconds) && milliseconds.div_ceil(1000) == seconds, "{seconds} {milliseconds}");
    let body: Value = refused.json().await.unwrap();
    assert_eq!(body["error"]["type"], "rate_limit_error");
    assert_eq!(body["error"]["code"], "rate_limit_exceeded");
    assert_eq!(ask(&other).await.status(), 200, "another key has minutes of its own");
}

#[tokio::test]
async fn a_key_has_so_much_running_until_it_is_sent_or_given_up() {
    let secret = Secret::generate();
    let limits = KeyLimits { concurrent: Some(1), ..KeyLimits::default() };
    let entries = vec![KeyEntry { limits, ..key_entry("a", &secret, &[Scope::Infer]) }];
    // Two minutes: it runs until it is given up, and ends long after the test has waited for that.
    let backend = says(&"word ".repeat(6000)).with_time(Duration::from_millis(4), Duration::ZERO);
    let server = ServerPlan { keys: ApiKeys::open(None, entries).unwrap(), ..ServerPlan::new(backend) }.build().await;
    let mut body = chat();
    body["stream"] = json!(true);
    let header = format!("authorization: Bearer {}", secret.reveal());
    let mut socket = server.raw_with("/v1/chat/completions", &header, &body).await;
    read_until(&mut socket, "\"content\":\"w\"").await;
    let refused = knock(&server, "get", "/v1/models", Some(secret.reveal())).await;
    assert_eq!(refused, (429, "concurrency_limit_exceeded".to_owned()));
    drop(socket);
    eventually("the stream was given up", || server.state.drain.running() == 0).await;
    assert_eq!(knock(&server, "get", "/v1/models", Some(secret.reveal())).await.0, 200);
    server.quiet().await;
}

#[tokio::test]
async fn cached_prefixes_are_shared_unless_a_key_keeps_its_own() {
    for (private, everybody) in [(false, false), (true, false), (false, true)] {
        let secrets = [Secret::generate(), Secret::generate()];
        let entries = secrets.iter().enumerate().map(|(index, secret)| KeyEntry {
            private_cache: private && index == 0,
            ..key_entry(&format!("key-{index}"), secret, &[Scope::Infer])
        });
        let keys = ApiKeys::open(None, entries.collect()).unwrap();
        let mut plan = ServerPlan { keys, ..ServerPlan::new(script(&Lines::new(["an answer"]))) };
        plan.http.private_cache = everybody;
        let server = plan.build().await;
        let mut body = chat();
        body["messages"][0]["content"] = json!("a prompt that fills several blocks ".repeat(8));
        let cached = async |secret: &Secret, path: &str, body: &Value| {
            let request = server.client.post(server.url(path)).bearer_auth(secret.reveal()).json(body);
            let answer: Value = request.send().await.unwrap().json().await.unwrap();
            let details = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
            details.as_u64().or(answer["usage"]["cached_tokens"].as_u64()).unwrap()
        };
        let path = "/v1/chat/completions";
        assert_eq!(cached(&secrets[0], path, &body).await, 0);
        // The prompt has 280 bytes, each of them a token.
        assert!(cached(&secrets[0], path, &body).await >= 256, "one's own are always found");
        let shared = !private && !everybody;
        assert_eq!(cached(&secrets[1], path, &body).await > 0, shared, "private {private}, everybody {everybody}");

        let question = json!({"model": "plain", "question": "another prompt that fills several blocks ".repeat(8)});
        // The part of the template before the question is shorter than two blocks, so nothing else can be shared.
        let before = cached(&secrets[0], "/v1/agent", &question).await;
        let after = cached(&secrets[1], "/v1/agent", &question).await;
        assert_eq!(after >= before + 256, shared, "private {private}, everybody {everybody}: {before} {after}");
        server.quiet().await;
    }
}

/// Returns the routes that embed a query, each with a request of its own query.
fn searches() -> [(&'static str, Value); 7] {
    let call = json!({"name": "search", "arguments": {"query": "river six"}});
    [
        ("/v1/search", json!({"query": "river one", "ranking": "dense"})),
        ("/v1/vector_stores/default/search", json!({"query": "river two"})),
        ("/retrieve", json!({"queries": ["river three"]})),
        ("/search", json!({"queries": ["[passage] river four"]})),
        ("/query", json!({"query": ["river five"]})),
        ("/mcp", json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})),
        ("/v1/agent", json!({"model": "routerag", "question": "Where is the river?"})),
    ]
}

impl TextEmbedder for HashEmbed {
    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }

    fn max_tokens(&self) -> usize {
        usize::MAX
    }
}

#[tokio::test]
async fn vectors_of_queries_are_shared_unless_a_key_keeps_its_own() {
    for (private, everybody) in [(false, false), (true, false), (false, true)] {
        let secrets = [Secret::generate(), Secret::generate()];
        let entries = secrets.iter().enumerate().map(|(index, secret)| KeyEntry {
            private_cache: private && index == 0,
            ..key_entry(&format!("key-{index}"), secret, &[Scope::Infer])
        });
        let keys = ApiKeys::open(None, entries.collect()).unwrap();
        let embedder = Arc::new(QueryEmbedder::new(Arc::new(HashEmbed::default()), 1 << 20));
        let (_dir, _, plan) = plan_with(false, embedder.clone());
        let turns = ["<think>a</think><search>[passage] river seven</search>", "<answer> here </answer>"];
        let lines = Lines::new(turns).terminator("</information>\n\n");
        let mut plan = ServerPlan { keys, backend: script(&lines), ..plan };
        plan.http.private_cache = everybody;
        let server = plan.build().await;
        for (path, body) in searches() {
            let embedded = async |secret: &Secret| {
                let calls = || embedder.query_counters().unwrap().calls();
                let before = calls();
                let request = server.client.post(server.url(path)).bearer_auth(secret.reveal()).json(&body);
                let response = request.header("accept", "application/json, text/event-stream").send().await.unwrap();
                assert_eq!(response.status(), 200, "{path}");
                response.text().await.unwrap();
                calls() - before
            };
            assert_eq!(embedded(&secrets[0]).await, 1, "{path}");
            assert_eq!(embedded(&secrets[0]).await, 0, "{path}: one's own are always found");
            let shared = !private && !everybody;
            let expected = u64::from(!shared);
            assert_eq!(embedded(&secrets[1]).await, expected, "{path}: private {private}, everybody {everybody}");
        }
        server.quiet().await;
    }
}

#[tokio::test]
async fn keys_are_read_again_while_requests_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.toml");
    let old = Secret::generate();
    let new = Secret::generate();
    std::fs::write(&path, key_entry("old", &old, &[Scope::Infer]).to_string()).unwrap();
    let keys = ApiKeys::open(Some(&path), Vec::new()).unwrap();
    let searcher = Gated::default();
    let plan = ServerPlan { searcher: Some(Arc::new(searcher.clone())), ..ServerPlan::new(script(&loops())) };
    let server = ServerPlan { keys: keys.clone(), ..plan }.build().await;
    let body = with_fields(chat(), json!({"model": "routerag"}));
    let running = (0..8).map(|_| {
        let request = server.client.post(server.url("/v1/chat/completions")).bearer_auth(old.reveal()).json(&body);
        tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() })
    });
    let running: Vec<_> = running.collect();
    eventually("all search", || searcher.searches.load(SeqCst) == 8).await;
    std::fs::write(&path, key_entry("new", &new, &[Scope::Infer]).to_string()).unwrap();
    keys.reload().unwrap();
    assert_eq!(knock(&server, "get", "/v1/models", Some(old.reveal())).await.0, 401);
    assert_eq!(knock(&server, "get", "/v1/models", Some(new.reveal())).await.0, 200);
    searcher.release();
    for answer in running {
        assert_eq!(answer.await.unwrap()["choices"][0]["message"]["content"], "Goethe");
    }
}

#[tokio::test]
async fn tokens_and_every_prompt_of_a_list_count_towards_the_limits() {
    let secret = Secret::generate();
    let limits = KeyLimits { requests_per_minute: Some(10), tokens_per_minute: Some(1_000), ..KeyLimits::default() };
    let entry = KeyEntry { limits, ..key_entry("a", &secret, &[Scope::Infer]) };
    let keys = ApiKeys::open(None, vec![entry]).unwrap();
    let server = ServerPlan { keys, ..ServerPlan::new(says("hi")) }.build().await;
    let ask = async |path: &str, body: Value| {
        let response =
            server.client.post(server.url(path)).bearer_auth(secret.reveal()).json(&body).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    // Nine of the ten requests of a minute, so no second list fits.
    let prompts = vec!["x"; 9];
    assert_eq!(ask("/v1/completions", json!({"model": "plain", "prompt": prompts})).await.0, 200);
    let (status, refused) = ask("/v1/completions", json!({"model": "plain", "prompt": prompts})).await;
    assert_eq!((status, &refused["error"]["message"]), (429, &json!("this key may ask 10 times a minute")));

    let limits = KeyLimits { requests_per_minute: None, tokens_per_minute: Some(1_000), ..KeyLimits::default() };
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.address_limits = limits;
    let server = plan.build().await;
    // One token per byte: the first request overdraws the limit, and the next one has to wait.
    let long = json!({"model": "plain", "messages": [{"role": "user", "content": "x".repeat(2_000)}]});
    assert_eq!(server.post("/v1/chat/completions", &long).await.status(), 200);
    let response = server.post("/v1/chat/completions", &chat()).await;
    assert_eq!(response.status(), 429);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    // About a minute until what was overdrawn is paid back; some of it has passed since on a slow machine.
    assert!((30..=65).contains(&wait), "{wait}");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["message"], "this address may use 1000 tokens a minute");
    assert_eq!(server.get("/health").await.status(), 200);
}

#[tokio::test]
async fn a_request_that_is_refused_because_the_queue_is_full_uses_up_no_tokens() {
    let secrets = [Secret::generate(), Secret::generate()];
    let limits = KeyLimits { tokens_per_minute: Some(600), ..KeyLimits::default() };
    let limited = KeyEntry { limits, ..key_entry("limited", &secrets[0], &[Scope::Infer]) };
    let keys = ApiKeys::open(None, vec![limited, key_entry("other", &secrets[1], &[Scope::Infer])]).unwrap();
    let backend = says(&"long ".repeat(6000)).with_time(Duration::from_millis(5), Duration::ZERO);
    let engine = EngineConfig { max_batch_rows: 1, max_waiting: 1, ..EngineConfig::default() };
    let server = ServerPlan { keys, engine, ..ServerPlan::new(backend) }.build().await;
    let counters = server.state.runtime.engine.counters();
    let other = format!("authorization: Bearer {}", secrets[1].reveal());
    let streamed = with_fields(chat(), json!({"stream": true}));
    let running = server.raw_with("/v1/chat/completions", &other, &streamed).await;
    eventually("one runs", || counters.sessions_running.get() == 1).await;
    let waiting = server.raw_with("/v1/chat/completions", &other, &streamed).await;
    eventually("one waits", || counters.sessions_waiting.get() == 1).await;
    // Any of them would use up the tokens of a minute.
    let messages = json!([{"role": "user", "content": "x".repeat(1_000)}]);
    let asked = json!({"model": "plain", "messages": messages, "max_tokens": 1});
    let several = with_fields(asked.clone(), json!({"n": 2}));
    let generate = json!({"token_ids": vec![65; 1_000], "sampling_params": {"max_tokens": 1}});
    let ask = async |path: &str, body: &Value| {
        server.client.post(server.url(path)).bearer_auth(secrets[0].reveal()).json(body).send().await.unwrap().status()
    };
    for _ in 0..2 {
        assert_eq!(ask("/v1/chat/completions", &several).await, 503);
        assert_eq!(ask("/inference/v1/generate", &generate).await, 503);
    }
    drop((running, waiting));
    server.quiet().await;
    assert_eq!(ask("/v1/chat/completions", &asked).await, 200);
    assert_eq!(ask("/v1/chat/completions", &asked).await, 429);
}
