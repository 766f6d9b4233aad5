//! Test harness: a real server on a free port over a mock backend, and clients that see every byte.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use waymark::api::{AppState, IndexParts, Library, OpenIndex, PolicyStore, VectorStores};
use waymark::config::{FileLimits, HttpConfig};
use waymark::keys::{ApiKeys, IndexScope, KeyEntry, KeyId, KeyLimits, RequestPriority, Scope, Secret};
use waymark::server::Server;
use waymark::store::Store;
use waymark_agent::{LoadedBase, Policy, Runtime, Search, SearchError, SearchLimits, SearchQuery, Searcher};
use waymark_engine::mock::Lines;
use waymark_engine::{Engine, EngineConfig, MockBackend};
use waymark_index::{CommitOptions, Embed, EmbedError, Evidence, Hit, HitPath, LiveIndex, Mode, OpenOptions, Passage};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;
use waymark_runtime::embedding::{Embedding, TextEmbedder};
use waymark_runtime::fleet::{Fleet, TokenSource};
use waymark_runtime::reranking::Reranking;

const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Time that a test gives to anything it waits for: enough for a busy machine with a slow disk.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Options of a test server.
pub struct ServerPlan {
    pub backend: MockBackend,
    pub engine: EngineConfig,
    pub http: HttpConfig,
    pub searcher: Option<Arc<dyn Search>>,
    pub embedder: Option<Arc<dyn TextEmbedder>>,
    pub reranker: Option<Arc<Reranking>>,
    pub library: Option<Library>,
    /// Indexes other than the default one: names, searchers and documents.
    pub others: Vec<(String, Arc<dyn Search>, Library)>,
    /// Folder of vector stores that clients create.
    pub vector_stores: Option<PathBuf>,
    pub store: Option<PolicyStore>,
    pub keys: ApiKeys,
    pub policies: Vec<Policy>,
    /// Store of records. Without one they are in memory.
    pub records: Option<Arc<dyn Store>>,
    pub template: ChatTemplate,
    /// Engines elsewhere. Without them the backend's engine runs in this process.
    pub fleet: Option<Fleet>,
}

/// Running test server.
pub struct TestServer {
    pub address: SocketAddr,
    pub state: AppState,
    pub client: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    pub running: JoinHandle<()>,
}

pub fn tokenizer() -> Tokenizer {
    Tokenizer::bytes()
}

pub fn template() -> ChatTemplate {
    ChatTemplate::new(CHATML, "", "<|im_end|>").unwrap()
}

/// Mock backend that gives the same answer to everyone.
pub fn says(text: &str) -> MockBackend {
    script(&Lines::new([text]))
}

pub fn script(lines: &Lines) -> MockBackend {
    MockBackend::script(&tokenizer(), lines).unwrap()
}

impl ServerPlan {
    pub fn new(backend: MockBackend) -> Self {
        let mut policies: Vec<Policy> =
            ["plain", "routerag"].iter().map(|name| Policy::builtin(name).unwrap()).collect();
        // A name with a slash must work in every route.
        policies.push(Policy { name: "a/b".into(), ..Policy::builtin("plain").unwrap() });
        Self {
            backend,
            engine: EngineConfig::default(),
            http: HttpConfig::default(),
            searcher: Some(Arc::new(OnePassage)),
            embedder: None,
            reranker: None,
            library: None,
            others: Vec::new(),
            vector_stores: None,
            store: None,
            keys: ApiKeys::default(),
            policies,
            records: None,
            template: template(),
            fleet: None,
        }
    }

    pub async fn build(self) -> TestServer {
        let tokenizer = Arc::new(tokenizer());
        let engine = Engine::start(Box::new(self.backend), self.engine, tokenizer.table()).unwrap();
        let eos = vec![tokenizer.id("<|im_end|>").unwrap()];
        let source = self.fleet.map_or_else(|| TokenSource::from(engine), TokenSource::from);
        let runtime = Runtime::new(source, tokenizer, Some(Arc::new(self.template)), eos, self.searcher);
        let base = LoadedBase { names: vec!["mock".into()], ..LoadedBase::default() };
        let mut state = AppState::new(runtime, self.policies, self.http).with_keys(self.keys).with_base(base);
        state = state.with_index_name("shelf");
        if let Some(records) = self.records {
            state = state.with_records(records);
        }
        if let Some(embedder) = self.embedder {
            state = state.with_embedder("letters", embedder);
        }
        if let Some(reranker) = self.reranker {
            state = state.with_reranker("words", reranker);
        }
        if let Some(library) = self.library {
            state = state.with_library(library);
        }
        if let Some(store) = self.store {
            state = state.with_store(store);
        }
        for (name, searcher, library) in self.others {
            state = state.with_other_index(&name, searcher, library);
        }
        state.load_stored_keys().await.unwrap();
        if let Some(folder) = self.vector_stores {
            let limits = FileLimits { file: 64 << 10, storage: 1 << 20 };
            state = state.with_vector_stores(VectorStores::open(&folder, limits, Arc::new(MockIndexes)).unwrap());
        }
        state.restore_policies().await;
        let server = Server::bind(([127, 0, 0, 1], 0).into(), state.clone()).await.unwrap();
        let address = server.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        TestServer { address, state, client: reqwest::Client::new(), stop: Some(stop), running }
    }
}

impl TestServer {
    pub async fn new(backend: MockBackend) -> Self {
        ServerPlan::new(backend).build().await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Asks the server to stop, like SIGTERM.
    pub fn terminate(&mut self) {
        drop(self.stop.take());
    }

    pub async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        self.client.post(self.url(path)).json(body).send().await.unwrap()
    }

    pub async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    /// Sends a chat request and returns its JSON response.
    pub async fn chat(&self, body: &Value) -> (u16, Value) {
        answer(self.post("/v1/chat/completions", body).await).await
    }

    /// Returns the metrics in the classic text format.
    pub async fn metrics(&self) -> String {
        self.get("/metrics").await.text().await.unwrap()
    }

    /// Sends a chat request and returns its whole stream.
    pub async fn stream(&self, body: &Value) -> String {
        let response = self.post("/v1/chat/completions", body).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        response.text().await.unwrap()
    }

    /// Opens a connection and sends a POST request over it by hand.
    pub async fn raw(&self, path: &str, body: &Value) -> TcpStream {
        self.raw_with(path, "accept: */*", body).await
    }

    /// Same as [`TestServer::raw`], with an additional header.
    pub async fn raw_with(&self, path: &str, header: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let mut socket = self.raw_head(path, &format!("{header}\r\ncontent-length: {}", body.len())).await;
        socket.write_all(body.as_bytes()).await.unwrap();
        socket
    }

    /// Same as [`TestServer::raw`], with these headers and without a body.
    pub async fn raw_head(&self, path: &str, headers: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        socket
    }

    /// Waits until the engine is idle: no block and no session is held, and no step runs.
    pub async fn quiet(&self) {
        let counters = self.state.runtime.engine.counters();
        let idle = || {
            counters.blocks_used.get() == 0
                && counters.sessions_running.get() == 0
                && counters.sessions_waiting.get() == 0
                && counters.sessions_parked.get() == 0
                && self.state.drain.running() == 0
        };
        eventually_found("all blocks are free, all sessions gone, and the engine makes no step", async || {
            let steps = counters.steps_total.get();
            if !idle() {
                return None;
            }
            // Longer than a step, so a step that still runs is seen, and so is the request of a client that left
            // before its connection was accepted.
            tokio::time::sleep(Duration::from_millis(30)).await;
            (idle() && counters.steps_total.get() == steps).then_some(())
        })
        .await;
        assert_eq!(counters.invariant_violations_total.get(), 0);
    }
}

/// Opens the indexes of vector stores with the mock embedder.
#[derive(Debug)]
struct MockIndexes;

impl OpenIndex for MockIndexes {
    fn embedder(&self) -> Arc<dyn TextEmbedder> {
        Arc::new(Embedding::Mock)
    }

    fn open(&self, dir: &Path) -> anyhow::Result<IndexParts> {
        let live = Arc::new(LiveIndex::open(dir, Arc::new(Embedding::Mock), OpenOptions::default())?);
        let searcher = Searcher::new(Arc::clone(&live), SearchLimits::default())?;
        Ok(IndexParts { searcher: Arc::new(searcher), library: Library::new(live, CommitOptions::default()) })
    }
}

/// Returns the status of a response and its JSON.
pub async fn answer(response: reqwest::Response) -> (u16, Value) {
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Sends a request with a key, and with `body` unless it is null. Returns the status and the JSON of the response: null
/// if it is of another kind.
pub async fn send(server: &TestServer, secret: &Secret, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = server.client.request(method.parse().unwrap(), server.url(path)).bearer_auth(secret.reveal());
    let response = if body.is_null() { request } else { request.json(body) }.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap_or_default())
}

/// Entry of a key for all indexes, with default limits and priority.
pub fn key_entry(name: &str, secret: &Secret, scopes: &[Scope]) -> KeyEntry {
    KeyEntry {
        id: KeyId::new(name),
        digest: secret.digest(),
        scopes: scopes.to_vec(),
        limits: KeyLimits::default(),
        priority: RequestPriority::default(),
        private_cache: false,
        indexes: IndexScope::default(),
    }
}

/// Returns the text of a completion's first choice.
pub fn content(whole: &Value) -> &str {
    whole["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{whole}"))
}

/// Adds the fields of `extra` to a request, replacing fields of the same name.
pub fn with_fields(mut request: Value, extra: Value) -> Value {
    request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    request
}

/// Waits for a condition, for up to [`PATIENCE`].
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    eventually_found(what, async || condition().then_some(())).await;
}

/// Repeats `look` until it finds something, for up to [`PATIENCE`].
pub async fn eventually_found<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "it never came about that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reads until `text` has been received.
pub async fn read_until(socket: &mut TcpStream, text: &str) -> String {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = tokio::time::timeout(PATIENCE, socket.read(&mut buffer)).await.unwrap().unwrap();
        assert!(count > 0, "closed before {text:?}: {:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..count]);
        if String::from_utf8_lossy(&seen).contains(text) {
            return String::from_utf8_lossy(&seen).into_owned();
        }
    }
}

/// Returns the JSON of every `data:` line but `[DONE]`. Fails on anything else that is not a comment.
pub fn chunks(stream: &str) -> Vec<Value> {
    let (body, done) = match stream.strip_suffix("data: [DONE]\n\n") {
        Some(body) => (body, true),
        None => (stream, false),
    };
    // A stream that failed ends with its error, without `[DONE]`.
    assert!(done || body.contains("\"error\""), "neither done nor failed: {stream}");
    body.split_terminator("\n\n")
        .filter(|message| !message.starts_with(':'))
        .map(|message| {
            let data = message.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {message:?}"));
            assert!(!data.contains(['\n', '\r']), "{data:?}");
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data:?} in {stream}"))
        })
        .collect()
}

/// Concatenates the text of each choice's deltas under `key`.
pub fn joined(chunks: &[Value], key: &str) -> BTreeMap<u64, String> {
    let mut texts = BTreeMap::new();
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        let text: &mut String = texts.entry(choice["index"].as_u64().unwrap()).or_default();
        *text += choice["delta"][key].as_str().unwrap_or_default();
    }
    texts
}

/// Searcher that finds the same passage for every query.
#[derive(Debug)]
pub struct OnePassage;

pub fn evidence(text: &str) -> Evidence {
    let passage = Passage { id: "p1".into(), title: "Faust".into(), text: text.into() };
    Evidence::of(3, Mode::Passage, vec![Hit { rank: 1, score: 0.5, passage, metadata: None, path: HitPath::default() }])
}

impl Search for OnePassage {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async move { Ok(evidence(&format!("About {}: Goethe wrote Faust.", query.wanted.text))) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

/// Searcher that never returns, and counts the searches that wait for it.
#[derive(Debug, Default)]
pub struct HangingSearch(pub Arc<AtomicUsize>);

struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Search for HangingSearch {
    fn search(&self, _: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        self.0.fetch_add(1, SeqCst);
        let waiting = Waiting(self.0.clone());
        Box::pin(async move {
            // Moved into the future, so a search that is canceled no longer counts.
            let _waiting = waiting;
            std::future::pending().await
        })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

/// Searcher that finds its passage only when it is released, and counts the searches so far.
#[derive(Debug, Clone)]
pub struct Gated {
    pub searches: Arc<AtomicUsize>,
    go: Arc<Semaphore>,
}

impl Default for Gated {
    fn default() -> Self {
        Self { searches: Arc::default(), go: Arc::new(Semaphore::new(0)) }
    }
}

impl Gated {
    /// Releases all searches, those to come as well.
    pub fn release(&self) {
        self.go.close();
    }
}

impl Search for Gated {
    fn search(&self, _: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        self.searches.fetch_add(1, SeqCst);
        Box::pin(async {
            // Fails once the semaphore is closed, and never succeeds.
            let _ = self.go.acquire().await;
            Ok(evidence("Goethe wrote Faust."))
        })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

/// Searcher that finds one passage too large for any socket buffer.
#[derive(Debug)]
pub struct Large;

impl Search for Large {
    fn search(&self, _: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async { Ok(evidence(&"x".repeat(32 << 20))) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

/// Embedder that counts letters: the vector of a text holds its numbers of `a`, `b` and `c`.
#[derive(Debug)]
pub struct Letters;

impl Embed for Letters {
    fn id(&self) -> &str {
        "letters@0123"
    }

    fn dims(&self) -> usize {
        3
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let count = |text: &str, letter| text.matches(letter).count() as f32;
        Ok(texts.iter().map(|text| ['a', 'b', 'c'].map(|letter| count(text, letter)).to_vec()).collect())
    }
}

impl TextEmbedder for Letters {
    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }

    fn max_tokens(&self) -> usize {
        200
    }
}
