//! The whole HTTP interface over a mock backend, called without a socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use futures::future::BoxFuture;
use tempfile::TempDir;
use tower_service::Service;
use waymark::api::{AppState, IndexParts, Library, OpenIndex, PolicyStore, VectorStores, router};
use waymark::config::{FileLimits, HttpConfig};
use waymark::keys::{ApiKeys, KeyEntry, Secret};
use waymark::store::{SqlStore, StateLimits};
use waymark_agent::{Policy, Runtime, Search, SearchError, SearchLimits, SearchQuery, Searcher};
use waymark_engine::mock::Lines;
use waymark_engine::{Engine, EngineConfig, MockBackend};
use waymark_index::{CommitOptions, Evidence, Hit, HitPath, LiveIndex, Mode, OpenOptions, Passage};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;
use waymark_runtime::embedding::TextEmbedder;
use waymark_runtime::reranking::Reranking;

use super::index::{self, Words};

/// ChatML, the form of most chat templates.
pub(super) const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
                                 <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Context length in tokens. A token is a byte here.
const CONTEXT: usize = 4096;

/// A server without a socket.
pub(super) struct TestApp {
    router: Router,
    runtime: tokio::runtime::Runtime,
    /// Key of all requests. The server asks for one only if it keeps keys.
    secret: Secret,
    /// Folder of its files, deleted with the server.
    _folder: Option<TempDir>,
}

/// Response of the server.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl TestApp {
    /// Creates a server whose policies write `lines` and whose searches find `passage`.
    pub(super) fn new(lines: &Lines, passage: &str) -> TestApp {
        TestApp::build(lines, Arc::new(OnePassage(passage.to_owned())), None, |state| state)
    }

    /// Creates a server whose policies write `lines`, with all that a server may have: an index that can be searched
    /// and changed, its embedder, a reranker, a folder from which the policy `one` can be loaded, vector stores, and a
    /// state with keys.
    pub(super) fn whole(lines: &Lines) -> TestApp {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path().canonicalize().expect("it is there");
        let (documents, policies) = (root.join("index"), root.join("policies"));
        index::put(&documents);
        let opening = OpenOptions { concurrency: 1, ..OpenOptions::default() };
        let live = Arc::new(LiveIndex::open(&documents, Arc::new(Words), opening).expect("a whole index"));
        let limits = SearchLimits { threads: 1, timeout: Duration::from_secs(20), ..SearchLimits::default() };
        let searcher = Searcher::new(Arc::clone(&live), limits).expect("a thread");
        let commits = CommitOptions { threads: 1, journal: false, ..CommitOptions::default() };
        let one = policies.join("one");
        fs::create_dir_all(&one).expect("a folder");
        fs::write(one.join("policy.toml"), "name = \"one\"\nprotocol = \"plain\"\n").expect("room for a small file");
        let mut app = TestApp::build(lines, Arc::new(searcher), Some(root.join("state")), |state| {
            let state = state.with_library(Library::new(live, commits)).with_index_name("fuzz");
            let state =
                state.with_embedder("letters", Arc::new(Words)).with_reranker("words", Arc::new(Reranking::Mock));
            let limits = FileLimits { file: 1 << 16, storage: 1 << 20 };
            let stores = VectorStores::open(&root.join("stores"), limits, Arc::new(WordIndexes)).expect("a folder");
            state.with_store(PolicyStore::new(policies)).with_vector_stores(stores)
        });
        app._folder = Some(folder);
        app
    }

    fn build(
        lines: &Lines,
        searcher: Arc<dyn Search>,
        records: Option<PathBuf>,
        furnish: impl FnOnce(AppState) -> AppState,
    ) -> TestApp {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let tokenizer = Arc::new(Tokenizer::bytes());
        let backend = MockBackend::script(&tokenizer, lines).expect("bytes spell everything");
        let backend = backend.with_blocks(1024).with_context(CONTEXT);
        let config = EngineConfig { step_tokens: CONTEXT, ..EngineConfig::default() };
        let engine = Engine::start(Box::new(backend), config, tokenizer.table()).expect("a thread");
        let eos = vec![tokenizer.id("<|im_end|>").expect("it has one")];
        let template = ChatTemplate::new(CHATML, "", "<|im_end|>").expect("a good template");
        let runtime_of = Runtime::new(engine, tokenizer, Some(Arc::new(template)), eos, Some(searcher));
        let policies = ["plain", "routerag", "search-r1"].map(|name| Policy::builtin(name).expect("it is built in"));
        let state = runtime.block_on(async { AppState::new(runtime_of, policies.to_vec(), HttpConfig::default()) });
        let secret = Secret::generate();
        let state = match records {
            Some(dir) => runtime.block_on(keep(state, &dir, &secret)),
            None => state,
        };
        let state = furnish(state);
        let router = runtime.block_on(async { router(state) });
        TestApp { router, runtime, secret, _folder: None }
    }

    /// Sends JSON and reads the answer to its end; `None` where `target` is no URI.
    pub(super) fn send(&self, method: &Method, target: &str, body: &[u8]) -> Option<Answer> {
        self.send_as("application/json", method, target, body)
    }

    /// Sends a body of the media type `kind`.
    pub(super) fn send_as(&self, kind: &str, method: &Method, target: &str, body: &[u8]) -> Option<Answer> {
        let request = Request::builder().method(method).uri(target).header(header::HOST, "localhost");
        let request = request.header(header::AUTHORIZATION, format!("Bearer {}", self.secret.reveal()));
        let request = request.header(header::CONTENT_TYPE, kind).body(Body::from(body.to_vec())).ok()?;
        self.runtime.block_on(async {
            let Ok(response) = self.router.clone().call(request).await;
            let (parts, body) = response.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.expect("a body that ends").to_vec();
            Some(Answer { status: parts.status, headers: parts.headers, body })
        })
    }

    /// Posts JSON.
    pub(super) fn post(&self, path: &str, body: &serde_json::Value) -> Answer {
        self.send(&Method::POST, path, body.to_string().as_bytes()).expect("a path is a URI")
    }
}

/// Gives the server a state in `dir`, and `secret` as the key of requests.
async fn keep(state: AppState, dir: &Path, secret: &Secret) -> AppState {
    let store = SqlStore::open_directory(dir, StateLimits::default()).await.expect("a folder for the state");
    let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(secret)]).expect("one key");
    state.with_keys(keys).with_records(Arc::new(store))
}

impl Answer {
    /// Returns `true` if the response is a stream of events.
    pub(super) fn is_stream(&self) -> bool {
        self.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
    }

    /// Returns the body as text, for messages.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Opens the indexes of vector stores.
#[derive(Debug)]
struct WordIndexes;

impl OpenIndex for WordIndexes {
    fn embedder(&self) -> Arc<dyn TextEmbedder> {
        Arc::new(Words)
    }

    fn open(&self, dir: &Path) -> anyhow::Result<IndexParts> {
        let opening = OpenOptions { concurrency: 1, ..OpenOptions::default() };
        let live = Arc::new(LiveIndex::open(dir, Arc::new(Words), opening)?);
        let limits = SearchLimits { threads: 1, ..SearchLimits::default() };
        let searcher = Searcher::new(Arc::clone(&live), limits)?;
        Ok(IndexParts { searcher: Arc::new(searcher), library: Library::new(live, CommitOptions::default()) })
    }
}

impl TextEmbedder for Words {
    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }

    fn max_tokens(&self) -> usize {
        200
    }
}

/// Finds one passage for everything.
#[derive(Debug)]
struct OnePassage(String);

impl Search for OnePassage {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        let passage = Passage { id: "p1".into(), title: "A title".into(), text: self.0.clone() };
        let hit = Hit { rank: 1, score: 0.5, passage, metadata: None, path: HitPath::default() };
        Box::pin(async move { Ok(Evidence::of(1, query.wanted.mode, vec![hit])) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage, Mode::Graph, Mode::Hybrid]
    }
}
