//! Servers that share their state, as over one PostgreSQL database.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};
use tokio::sync::Mutex;
use waymark::store::{
    Record, RecordKey, RecordKind, RecordRange, SqlStore, StateLimits, Store, StoreFuture, StoreSize,
};
use waymark_engine::mock::Lines;

use crate::golden::ask;
use crate::harness::{HangingSearch, ServerPlan, TestServer, eventually, eventually_found, says, script};
use crate::responses::{self, create, fetch};
use crate::tools::template;

/// State in a directory, used by several servers of this process.
#[derive(Debug)]
struct Shared {
    inner: SqlStore,
    /// No trace is written while this is locked.
    traces: Mutex<()>,
}

impl Shared {
    async fn open(dir: &tempfile::TempDir) -> Arc<Shared> {
        let inner = SqlStore::open_directory(dir.path(), StateLimits::default()).await.unwrap();
        Arc::new(Shared { inner, traces: Mutex::default() })
    }
}

impl Store for Shared {
    fn put(&self, record: Record, children: Vec<Record>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            if record.key.kind == RecordKind::Trace {
                drop(self.traces.lock().await);
            }
            self.inner.put(record, children).await
        })
    }

    fn insert(&self, record: Record) -> StoreFuture<'_, bool> {
        self.inner.insert(record)
    }

    fn update<'a>(&'a self, key: &'a RecordKey, body: Vec<u8>) -> StoreFuture<'a, bool> {
        self.inner.update(key, body)
    }

    fn append<'a>(&'a self, parent: &'a RecordKey, children: Vec<Record>) -> StoreFuture<'a, bool> {
        self.inner.append(parent, children)
    }

    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, Option<Record>> {
        self.inner.get(key)
    }

    fn list<'a>(&'a self, range: &'a RecordRange) -> StoreFuture<'a, Vec<Record>> {
        self.inner.list(range)
    }

    fn remove<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, bool> {
        self.inner.remove(key)
    }

    fn size(&self, kind: RecordKind) -> StoreSize {
        self.inner.size(kind)
    }

    fn name(&self) -> &'static str {
        "shared"
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Starts a server whose policy searches, calls the tool `look`, and answers the result of the call.
async fn over(state: &Arc<dyn Store>) -> TestServer {
    let call = r#"{"name": "look", "arguments": {"city": "Bonn"}}"#;
    let lines = Lines::new([
        "<think>Where?</think>\n<search>[passage] Bonn</search>".to_owned(),
        format!("<think>How warm?</think>\n<tool_call>\n{call}\n</tool_call>"),
    ])
    .rule("<tool_response>21 degrees</tool_response>", ["<think>So.</think>\n<answer>It is warm.</answer>"])
    .terminator("</information>\n\n");
    let records = Some(Arc::clone(state));
    let mut plan = ServerPlan { template: template(), records, ..ServerPlan::new(script(&lines)) };
    // Each byte is one token here.
    plan.policies.iter_mut().for_each(|policy| policy.budget.context_tokens = 16_384);
    plan.build().await
}

#[tokio::test]
async fn an_episode_whose_trace_another_server_deletes_is_not_continued() {
    let dir = tempfile::tempdir().unwrap();
    let state: Arc<dyn Store> = Shared::open(&dir).await;
    let first = over(&state).await;
    let second = over(&state).await;
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let look = json!({"type": "function", "function": {"name": "look", "parameters": parameters}});
    let mut body = ask(json!({"model": "routerag", "tools": [look]}));
    let (status, whole) = first.chat(&body).await;
    assert_eq!((status, &whole["choices"][0]["finish_reason"]), (200, &json!("tool_calls")), "{whole}");
    let message = whole["choices"][0]["message"].clone();
    let id = message["tool_calls"][0]["id"].clone();
    let result = json!({"role": "tool", "tool_call_id": id, "content": "21 degrees"});
    body["messages"].as_array_mut().unwrap().extend([message, result]);
    // Returns the number of tokens that the answer to the result continues.
    let continued = async || {
        let (status, answer) = first.chat(&body).await;
        assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("It is warm.")), "{answer}");
        let trace = first.get(&format!("/v1/traces/{}", answer["id"].as_str().unwrap())).await;
        trace.json::<Value>().await.unwrap()["options"]["continued_tokens"].clone()
    };
    assert!(continued().await.is_u64());
    // Traces are written in the background, and only a written one can be deleted elsewhere.
    first.quiet().await;
    let trace = second.url(&format!("/v1/traces/{}", whole["id"].as_str().unwrap()));
    assert_eq!(second.client.delete(trace).send().await.unwrap().status(), 200);
    assert_eq!(continued().await, Value::Null);
}

/// Starts a server whose policy answers `hi`.
async fn greeting(state: &Arc<dyn Store>) -> TestServer {
    ServerPlan { records: Some(Arc::clone(state)), ..ServerPlan::new(says("hi")) }.build().await
}

/// Deletes a response.
async fn delete(server: &TestServer, response: &Value) {
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(server.client.delete(server.url(&path)).send().await.unwrap().status(), 200);
}

/// Checks that neither the state nor the server has a trace of a response.
async fn check_untraced(state: &Arc<dyn Store>, server: &TestServer, response: &Value) {
    // Traces are written in the background.
    server.quiet().await;
    let traces = state.list(&RecordRange::youngest(RecordKind::Trace, None, 100)).await.unwrap();
    assert_eq!(traces.len(), 0);
    assert_eq!(server.get(&format!("/v1/traces/{}", response["id"].as_str().unwrap())).await.status(), 404);
}

#[tokio::test]
async fn a_running_response_that_another_server_deletes_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let state: Arc<dyn Store> = Shared::open(&dir).await;
    let hanging = HangingSearch::default();
    let searching = Arc::clone(&hanging.0);
    let lines = Lines::new(["<think>a</think><search>[passage] b</search>"]);
    let records = Some(Arc::clone(&state));
    let plan = ServerPlan { searcher: Some(Arc::new(hanging)), records, ..ServerPlan::new(script(&lines)) };
    let first = plan.build().await;
    let second = greeting(&state).await;
    let (_, queued) = create(&first, &responses::ask(json!({"background": true, "model": "routerag"}))).await;
    eventually("the policy searches", || searching.load(SeqCst) == 1).await;
    delete(&second, &queued).await;
    let cancel = format!("/v1/responses/{}/cancel", queued["id"].as_str().unwrap());
    assert_eq!(first.post(&cancel, &json!({})).await.status(), 200);
    assert_eq!(fetch(&first, &queued["id"], "").await.0, 404);
    check_untraced(&state, &first, &queued).await;
}

#[tokio::test]
async fn a_response_that_another_server_deletes_before_its_trace_is_written_leaves_none() {
    let dir = tempfile::tempdir().unwrap();
    let shared = Shared::open(&dir).await;
    let state: Arc<dyn Store> = Arc::clone(&shared) as _;
    let first = greeting(&state).await;
    let second = greeting(&state).await;
    for background in [false, true] {
        let writing = shared.traces.lock().await;
        let (status, response) = create(&first, &responses::ask(json!({"background": background}))).await;
        assert_eq!(status, 200, "{response}");
        eventually_found("the response is stored", async || {
            let (_, stored) = fetch(&second, &response["id"], "").await;
            (stored["status"] == "completed").then_some(())
        })
        .await;
        delete(&second, &response).await;
        drop(writing);
        check_untraced(&state, &first, &response).await;
    }
}
