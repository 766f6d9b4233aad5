//! Records that outlive a server: what another server over the same state knows, and what a failing state loses.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use waymark::api::PolicyStore;
use waymark::store::{
    Record, RecordKey, RecordKind, RecordRange, SqlStore, StateLimits, Store, StoreError, StoreFuture, StoreSize,
};
use waymark_engine::mock::Lines;

use crate::harness::{HangingSearch, ServerPlan, TestServer, answer, eventually, eventually_found, says, script};
use crate::responses::{self, ask, create, fetch};

async fn open(dir: &tempfile::TempDir) -> Arc<dyn Store> {
    Arc::new(SqlStore::open_directory(dir.path(), StateLimits::default()).await.unwrap())
}

async fn over(store: &Arc<dyn Store>, plan: ServerPlan) -> TestServer {
    ServerPlan { records: Some(Arc::clone(store)), ..plan }.build().await
}

async fn kept(store: &Arc<dyn Store>, kind: RecordKind) -> usize {
    store.list(&RecordRange::youngest(kind, None, 100)).await.unwrap().len()
}

fn path(response: &Value) -> String {
    format!("/v1/responses/{}", response["id"].as_str().unwrap())
}

#[tokio::test]
async fn another_server_continues_a_response_and_a_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let lines = || Lines::new(["one"]).rule("one<|im_end|>\n<|im_start|>user\nagain", ["two"]);
    let first = over(&store, ServerPlan::new(script(&lines()))).await;
    let (_, response) = create(&first, &ask(json!({"metadata": {"a": "b"}}))).await;
    let (_, conversation) = answer(first.post("/v1/conversations", &json!({})).await).await;
    create(&first, &ask(json!({"conversation": conversation["id"]}))).await;
    drop(first);

    let second = over(&store, ServerPlan::new(script(&lines()))).await;
    assert_eq!(fetch(&second, &response["id"], "").await, (200, response.clone()));
    let again = ask(json!({"input": "again", "previous_response_id": response["id"]}));
    assert_eq!(responses::answer(&create(&second, &again).await.1), "two");
    let again = ask(json!({"input": "again", "conversation": conversation["id"]}));
    assert_eq!(responses::answer(&create(&second, &again).await.1), "two");
    assert_eq!(second.client.delete(second.url(&path(&response))).send().await.unwrap().status(), 200);
    assert_eq!(fetch(&second, &response["id"], "").await.0, 404);
}

#[tokio::test]
async fn a_background_response_and_its_stream_stay() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let first = over(&store, ServerPlan::new(says("hello you"))).await;
    let stream = first.post("/v1/responses", &ask(json!({"background": true, "stream": true}))).await;
    let stream = stream.text().await.unwrap();
    let last = responses::events(&stream).pop().unwrap();
    drop(first);
    let second = over(&store, ServerPlan::new(says("other"))).await;
    let again = second.get(&format!("{}?stream=true", path(&last["response"]))).await;
    assert_eq!(again.text().await.unwrap(), stream);
    let later = second.get(&format!("{}?stream=true&starting_after=2", path(&last["response"]))).await;
    assert_eq!(responses::events(&later.text().await.unwrap())[0]["sequence_number"], 3);
    // The response has ended, so canceling it changes nothing.
    let cancelled = second.post(&format!("{}/cancel", path(&last["response"])), &json!({})).await;
    assert_eq!(cancelled.json::<Value>().await.unwrap(), last["response"]);
}

#[tokio::test]
async fn a_response_whose_process_is_gone_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let lines = Lines::new(["<think>a</think><search>[passage] b</search>"]);
    let plan = ServerPlan { searcher: Some(Arc::new(HangingSearch::default())), ..ServerPlan::new(script(&lines)) };
    let first = over(&store, plan).await;
    let (status, queued) = create(&first, &ask(json!({"background": true, "model": "routerag"}))).await;
    assert_eq!((status, &queued["status"]), (200, &json!("queued")), "{queued}");

    // As after a restart: the record is there, and nobody generates the response.
    let second = over(&store, ServerPlan::new(says("hi"))).await;
    let (status, response) = fetch(&second, &queued["id"], "").await;
    assert_eq!((status, &response["status"]), (200, &json!("failed")), "{response}");
    assert_eq!(response["error"]["code"], "server_error");
    let (status, refused) = fetch(&second, &queued["id"], "?stream=true&starting_after=2").await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("stream")), "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("the server stopped"), "{message}");
    let again = ask(json!({"previous_response_id": queued["id"]}));
    assert_eq!(create(&second, &again).await.0, 400);

    // Deleted there, it does not come back when its own server ends it.
    assert_eq!(second.client.delete(second.url(&path(&queued))).send().await.unwrap().status(), 200);
    assert_eq!(first.post(&format!("{}/cancel", path(&queued)), &json!({})).await.status(), 200);
    assert_eq!(fetch(&first, &queued["id"], "").await.0, 404);
}

#[tokio::test]
async fn nothing_is_left_of_a_request_that_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let server = over(&store, ServerPlan::new(says("hi"))).await;
    assert_eq!(create(&server, &ask(json!({"store": false}))).await.0, 200);
    let chat = json!({"model": "plain", "messages": [{"role": "user", "content": "hello"}], "rag": {"store": false}});
    assert_eq!(server.chat(&chat).await.0, 200);
    server.quiet().await;
    for kind in [RecordKind::Response, RecordKind::Trace, RecordKind::Conversation] {
        assert_eq!(kept(&store, kind).await, 0, "{kind}");
    }
}

#[tokio::test]
async fn traces_are_read_by_another_server_until_they_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let first = over(&store, ServerPlan::new(says("hi"))).await;
    let (_, response) = create(&first, &ask(json!({}))).await;
    let trace = format!("/v1/traces/{}", response["id"].as_str().unwrap());
    let (_, recorded) = answer(first.get(&trace).await).await;
    // The write is part of the work that a drain waits for.
    first.quiet().await;
    drop(first);

    let second = over(&store, ServerPlan::new(says("hi"))).await;
    assert_eq!(answer(second.get(&trace).await).await, (200, recorded));
    let (_, list) = answer(second.get("/v1/traces").await).await;
    assert_eq!((&list["data"][0]["id"], &list["has_more"]), (&response["id"], &json!(false)), "{list}");
    let (status, refused) = answer(second.post(&format!("{trace}/replay"), &json!({"mode": "forced"})).await).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("policy_changed")));
    assert_eq!(second.client.delete(second.url(&trace)).send().await.unwrap().status(), 200);
    assert_eq!(second.get(&trace).await.status(), 404);
    assert_eq!(kept(&store, RecordKind::Trace).await, 0);
}

#[tokio::test]
async fn a_policy_loaded_over_http_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("one")).unwrap();
    std::fs::write(root.path().join("one/policy.toml"), "name = \"loaded\"\nprotocol = \"plain\"\n").unwrap();
    let store = open(&dir).await;
    let plan = || {
        let store = Some(PolicyStore::new(root.path().canonicalize().unwrap()));
        ServerPlan { store, ..ServerPlan::new(says("hi")) }
    };
    let first = over(&store, plan()).await;
    assert_eq!(first.post("/v1/policies", &json!({"directory": "one"})).await.status(), 200);
    drop(first);
    let second = over(&store, plan()).await;
    assert_eq!(create(&second, &ask(json!({"model": "loaded"}))).await.0, 200);
    assert_eq!(second.client.delete(second.url("/v1/policies/loaded")).send().await.unwrap().status(), 200);
    drop(second);
    let third = over(&store, plan()).await;
    assert_eq!(create(&third, &ask(json!({"model": "loaded"}))).await.0, 404);
}

/// A policy keeps its directory, but not its name, when its files are read again.
#[tokio::test]
async fn a_policy_that_was_renamed_and_unloaded_is_not_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let text = format!("name = \"{name}\"\nprotocol = \"plain\"\n");
        std::fs::write(root.path().join("one/policy.toml"), text).unwrap();
    };
    std::fs::create_dir(root.path().join("one")).unwrap();
    write("before");
    let store = open(&dir).await;
    let plan = || {
        let store = Some(PolicyStore::new(root.path().canonicalize().unwrap()));
        ServerPlan { store, ..ServerPlan::new(says("hi")) }
    };
    let first = over(&store, plan()).await;
    assert_eq!(first.post("/v1/policies", &json!({"directory": "one"})).await.status(), 200);
    write("after");
    first.state.reload_policies().await;
    assert_eq!(first.client.delete(first.url("/v1/policies/after")).send().await.unwrap().status(), 200);
    assert_eq!(kept(&store, RecordKind::Policy).await, 0);
}

/// Store whose writes fail while it is full, and whose writes of responses never end while it hangs. No policy is
/// recorded while `policies` is locked.
#[derive(Debug)]
struct Full {
    inner: Arc<dyn Store>,
    full: AtomicBool,
    hangs: AtomicBool,
    /// Kind of the records that are gone when they are changed.
    gone: Mutex<Option<RecordKind>>,
    /// Kind of the records that cannot be removed.
    stuck: Mutex<Option<RecordKind>>,
    policies: tokio::sync::Mutex<()>,
    /// Nothing is appended while this is locked.
    appends: tokio::sync::Mutex<()>,
}

impl Full {
    async fn open(dir: &tempfile::TempDir) -> Arc<Full> {
        Arc::new(Full {
            inner: open(dir).await,
            full: false.into(),
            hangs: false.into(),
            gone: Mutex::default(),
            stuck: Mutex::default(),
            policies: tokio::sync::Mutex::default(),
            appends: tokio::sync::Mutex::default(),
        })
    }

    fn change<'a>(&self, kind: RecordKind, work: StoreFuture<'a, bool>) -> StoreFuture<'a, bool> {
        match *self.gone.lock().unwrap() == Some(kind) {
            true => Box::pin(async { Ok(false) }),
            false => self.write(work),
        }
    }

    fn write<'a, T: Send + 'static>(&self, work: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        match self.full.load(SeqCst) {
            true => Box::pin(async { Err(StoreError::Timeout(Duration::from_secs(1))) }),
            false => work,
        }
    }
}

impl Store for Full {
    fn put(&self, record: Record, children: Vec<Record>) -> StoreFuture<'_, ()> {
        if record.key.kind == RecordKind::Response && self.hangs.load(SeqCst) {
            return Box::pin(std::future::pending());
        }
        if record.key.kind == RecordKind::Policy {
            return Box::pin(async move {
                drop(self.policies.lock().await);
                self.write(self.inner.put(record, children)).await
            });
        }
        self.write(self.inner.put(record, children))
    }

    fn insert(&self, record: Record) -> StoreFuture<'_, bool> {
        self.write(self.inner.insert(record))
    }

    fn update<'a>(&'a self, key: &'a RecordKey, body: Vec<u8>) -> StoreFuture<'a, bool> {
        self.change(key.kind, self.inner.update(key, body))
    }

    fn append<'a>(&'a self, parent: &'a RecordKey, children: Vec<Record>) -> StoreFuture<'a, bool> {
        let append = self.change(parent.kind, self.inner.append(parent, children));
        Box::pin(async move {
            drop(self.appends.lock().await);
            append.await
        })
    }

    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, Option<Record>> {
        self.inner.get(key)
    }

    fn list<'a>(&'a self, range: &'a RecordRange) -> StoreFuture<'a, Vec<Record>> {
        self.inner.list(range)
    }

    fn remove<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, bool> {
        if *self.stuck.lock().unwrap() == Some(key.kind) {
            return Box::pin(async { Err(StoreError::Timeout(Duration::from_secs(1))) });
        }
        self.write(self.inner.remove(key))
    }

    fn size(&self, kind: RecordKind) -> StoreSize {
        self.inner.size(kind)
    }

    fn name(&self) -> &'static str {
        "full"
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn is_shared(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn with_a_full_state_answers_go_out_and_their_loss_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let full = Full::open(&dir).await;
    let store: Arc<dyn Store> = Arc::clone(&full) as _;
    let server = over(&store, ServerPlan::new(says("hi"))).await;
    let (_, early) = create(&server, &ask(json!({}))).await;
    server.quiet().await;
    full.full.store(true, SeqCst);

    let response = server.post("/v1/responses", &ask(json!({}))).await;
    assert_eq!(response.headers()["x-waymark-not-stored"], "response");
    let (status, lost) = answer(response).await;
    assert_eq!((status, responses::answer(&lost)), (200, "hi"));
    assert_eq!(fetch(&server, &lost["id"], "").await.0, 404);
    assert_eq!(fetch(&server, &early["id"], "").await, (200, early.clone()));
    let again = ask(json!({"previous_response_id": early["id"]}));
    assert_eq!(create(&server, &again).await.0, 200);
    for (path, body) in [("/v1/responses", ask(json!({"background": true}))), ("/v1/conversations", json!({}))] {
        let (status, refused) = answer(server.post(path, &body).await).await;
        assert_eq!((status, &refused["error"]["code"]), (503, &json!("state_unavailable")), "{path}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("may or may not"), "{refused}");
    }
    // Two responses with their traces, the background response and its trace, and the conversation: traces are written
    // in the background.
    server.quiet().await;
    let metrics = server.metrics().await;
    let line = metrics.lines().find(|line| line.starts_with("waymark_state_write_failures_total ")).unwrap();
    let failures: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(failures >= 6, "{line}");

    full.full.store(false, SeqCst);
    let response = server.post("/v1/responses", &ask(json!({}))).await;
    assert!(!response.headers().contains_key("x-waymark-not-stored"));
    eventually("the state is written again", || server.state.drain.running() == 0).await;
}

async fn items(server: &TestServer, conversation: &Value) -> usize {
    let path = format!("/v1/conversations/{}/items", conversation["id"].as_str().unwrap());
    answer(server.get(&path).await).await.1["data"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_response_whose_conversation_is_gone_is_stored_and_tells_what_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let full = Full::open(&dir).await;
    let store: Arc<dyn Store> = Arc::clone(&full) as _;
    let server = over(&store, ServerPlan::new(says("hi"))).await;
    let (_, conversation) = answer(server.post("/v1/conversations", &json!({})).await).await;
    *full.gone.lock().unwrap() = Some(RecordKind::Conversation);
    let response = server.post("/v1/responses", &ask(json!({"conversation": conversation["id"]}))).await;
    assert_eq!(response.headers()["x-waymark-not-stored"], "conversation");
    let (status, response) = answer(response).await;
    assert_eq!((status, fetch(&server, &response["id"], "").await.0), (200, 200));
    assert!(server.metrics().await.lines().any(|line| line == "waymark_state_write_failures_total 1"));
}

#[tokio::test]
async fn a_response_whose_client_leaves_while_it_is_stored_is_in_its_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let full = Full::open(&dir).await;
    let store: Arc<dyn Store> = Arc::clone(&full) as _;
    let server = over(&store, ServerPlan::new(says("hi"))).await;
    let (_, conversation) = answer(server.post("/v1/conversations", &json!({})).await).await;
    let appending = full.appends.lock().await;
    let body = ask(json!({"conversation": conversation["id"]}));
    let asked = tokio::spawn(server.client.post(server.url("/v1/responses")).json(&body).send());
    eventually_found("the response is stored", async || (kept(&store, RecordKind::Response).await == 1).then_some(()))
        .await;
    asked.abort();
    // The storing itself continues.
    eventually("the request has ended", || server.state.drain.running() == 1).await;
    drop(appending);
    server.quiet().await;
    assert_eq!(items(&server, &conversation).await, 2);
}

#[tokio::test]
async fn a_deletion_of_a_response_that_fails_halfway_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let full = Full::open(&dir).await;
    let store: Arc<dyn Store> = Arc::clone(&full) as _;
    let server = over(&store, ServerPlan::new(says("hi"))).await;
    let (_, response) = create(&server, &ask(json!({}))).await;
    // Traces are written in the background.
    server.quiet().await;
    assert_eq!(kept(&store, RecordKind::Trace).await, 1);
    for (stuck, status) in [(Some(RecordKind::Trace), 503), (None, 200), (None, 404)] {
        *full.stuck.lock().unwrap() = stuck;
        let deleted = server.client.delete(server.url(&path(&response))).send().await.unwrap();
        assert_eq!(deleted.status(), status);
    }
    assert_eq!(kept(&store, RecordKind::Trace).await + kept(&store, RecordKind::Response).await, 0);
}

#[tokio::test]
async fn a_background_response_that_another_server_deletes_adds_nothing_to_its_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let full = Full::open(&dir).await;
    let store: Arc<dyn Store> = Arc::clone(&full) as _;
    let server = over(&store, ServerPlan::new(says("hi"))).await;
    let (_, conversation) = answer(server.post("/v1/conversations", &json!({})).await).await;
    let body = ask(json!({"conversation": conversation["id"], "background": true}));
    for (gone, added) in [(Some(RecordKind::Response), 0), (None, 2)] {
        *full.gone.lock().unwrap() = gone;
        assert_eq!(create(&server, &body).await.0, 200);
        server.quiet().await;
        assert_eq!(items(&server, &conversation).await, added, "{gone:?}");
    }
}

#[tokio::test]
async fn a_background_response_whose_client_leaves_before_it_is_stored_takes_no_place() {
    let dir = tempfile::tempdir().unwrap();
    let full = Full::open(&dir).await;
    full.hangs.store(true, SeqCst);
    let store: Arc<dyn Store> = Arc::clone(&full) as _;
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.responses.background = 1;
    let server = over(&store, plan).await;
    let body = ask(json!({"background": true}));
    let asked = server.client.post(server.url("/v1/responses")).json(&body).timeout(Duration::from_millis(500));
    assert!(asked.send().await.unwrap_err().is_timeout());
    full.hangs.store(false, SeqCst);
    let status = eventually_found("the place is free again", async || {
        let (status, _) = create(&server, &body).await;
        (status != 503).then_some(status)
    })
    .await;
    assert_eq!(status, 200);
}

/// Starts a server over `store` whose policies are in `root`, which gets a policy `loaded` in its folder `one`.
async fn with_loadable_policy(store: &Arc<dyn Store>, root: &tempfile::TempDir) -> TestServer {
    std::fs::create_dir(root.path().join("one")).unwrap();
    std::fs::write(root.path().join("one/policy.toml"), "name = \"loaded\"\nprotocol = \"plain\"\n").unwrap();
    let policies = Some(PolicyStore::new(root.path().canonicalize().unwrap()));
    over(store, ServerPlan { store: policies, ..ServerPlan::new(says("hi")) }).await
}

#[tokio::test]
async fn a_policy_that_is_unloaded_while_it_is_recorded_leaves_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let full = Full::open(&dir).await;
    let store: Arc<dyn Store> = Arc::clone(&full) as _;
    let server = with_loadable_policy(&store, &root).await;
    let recording = full.policies.lock().await;
    let body = json!({"directory": "one"});
    let load = server.post("/v1/policies", &body);
    let unload = async {
        eventually("the policy is served", || server.state.policies.get("loaded").is_ok()).await;
        let release = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(recording);
        };
        let unload = server.client.delete(server.url("/v1/policies/loaded")).send();
        let (unloaded, ()) = tokio::join!(unload, release);
        unloaded.unwrap()
    };
    let (loaded, unloaded) = tokio::join!(load, unload);
    assert_eq!((loaded.status(), unloaded.status()), (reqwest::StatusCode::OK, reqwest::StatusCode::OK));
    assert!(server.state.policies.get("loaded").is_err());
    assert_eq!(kept(&store, RecordKind::Policy).await, 0);
}

#[tokio::test]
async fn a_policy_whose_client_leaves_before_it_is_recorded_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let full = Full::open(&dir).await;
    let store: Arc<dyn Store> = Arc::clone(&full) as _;
    let server = with_loadable_policy(&store, &root).await;
    let recording = full.policies.lock().await;
    let body = json!({"directory": "one"});
    let asked = tokio::spawn(server.client.post(server.url("/v1/policies")).json(&body).send());
    eventually("the policy is served", || server.state.policies.get("loaded").is_ok()).await;
    asked.abort();
    // The load itself continues.
    eventually("the request has ended", || server.state.drain.running() == 1).await;
    drop(recording);
    eventually_found("the policy is recorded", async || (kept(&store, RecordKind::Policy).await == 1).then_some(()))
        .await;
}
