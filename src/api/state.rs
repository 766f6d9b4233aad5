//! State shared by all handlers.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Semaphore;
use waymark_agent::{LoadedBase, Policy, Runtime, Search, SessionSource};
use waymark_runtime::embedding::TextEmbedder;
use waymark_runtime::fleet::TokenSource;

use super::archive::Archive;
use super::commits::{self, BackgroundChange};
use super::drain::Drain;
use super::embeddings::{EmbedQueue, ServedEmbedder};
use super::encoding::EncodingBudget;
use super::error::ApiError;
use super::generate::ParkedSessions;
use super::library::Library;
use super::metrics::{MeasuredStores, ServerMetrics};
use super::policy_registry::{PolicyRegistry, PolicyStore};
use super::responses::Responses;
use super::resume::Streams;
use super::traces::StoredTrace;
use crate::config::HttpConfig;
use crate::keys::ApiKeys;

/// Name of the index in requests; the name of its directory is accepted as well.
pub(crate) const INDEX: &str = "default";

/// Maximum number of schemas compiled at once: each occupies a thread for the whole time.
const COMPILING: usize = 2;

/// State shared by all handlers; clones share it.
#[derive(Debug, Clone)]
pub struct AppState {
    /// Components that an episode needs: engine, tokenizer, template, searcher.
    pub runtime: Arc<Runtime<TokenSource>>,
    /// Served policies, by name.
    pub policies: Arc<PolicyRegistry>,
    /// Embedder of `/v1/embeddings`. `None` if the server has none.
    pub embedder: Option<Arc<ServedEmbedder>>,
    /// Documents of the index. `None` if the server has no index.
    pub library: Option<Arc<Library>>,
    /// Name of the index. `None` if there is no index or it has no name.
    pub index: Option<String>,
    /// Slots for compiling schemas.
    pub(crate) compiling: Arc<Semaphore>,
    /// Memory for encoding texts.
    pub(crate) encoding: EncodingBudget,
    /// Base model.
    pub(crate) base: Arc<LoadedBase>,
    /// Directory from which policies are loaded at run time. `None` if the policies are fixed.
    pub store: Option<Arc<PolicyStore>>,
    /// Stored responses and background responses in progress.
    pub responses: Responses,
    /// API keys.
    pub keys: ApiKeys,
    /// Options of the HTTP interface.
    pub config: HttpConfig,
    /// Status of background changes to documents.
    pub(crate) commits: Archive<BackgroundChange>,
    /// Traces of finished episodes.
    pub(crate) traces: Archive<StoredTrace>,
    /// Resumable streams.
    pub(crate) streams: Streams,
    /// Sessions of `/inference/v1/generate` between two requests.
    pub(crate) parked: ParkedSessions,
    /// Metrics exposed at `/metrics`.
    pub metrics: ServerMetrics,
    /// Shutdown state.
    pub drain: Drain,
    /// Creation time of the state, from which uptimes are counted.
    pub(crate) started: Instant,
}

impl AppState {
    /// Creates the state of a server with `policies`.
    pub fn new<S: SessionSource + Into<TokenSource>>(
        runtime: Runtime<S>,
        policies: Vec<Policy>,
        config: HttpConfig,
    ) -> Self {
        let runtime: Runtime<TokenSource> = runtime.with_source(Into::into);
        let traces = Archive::new(config.traces.count, config.traces.bytes);
        let responses = Responses::new(config.responses);
        let streams = Streams::new(config.resume);
        let stores = MeasuredStores { traces: traces.clone(), responses: responses.clone(), streams: streams.clone() };
        Self {
            metrics: ServerMetrics::new(&runtime.engine, stores),
            runtime: Arc::new(runtime),
            policies: Arc::new(PolicyRegistry::new(policies)),
            embedder: None,
            library: None,
            index: None,
            compiling: Arc::new(Semaphore::new(COMPILING)),
            encoding: EncodingBudget::new(config.encoding_bytes),
            base: Arc::default(),
            store: None,
            responses,
            commits: commits::archive(),
            traces,
            streams,
            parked: ParkedSessions::default(),
            keys: ApiKeys::default(),
            config,
            drain: Drain::default(),
            started: Instant::now(),
        }
    }

    /// Returns the searcher.
    ///
    /// # Errors
    /// 400 if the server has no index.
    pub fn searcher(&self) -> Result<&dyn Search, ApiError> {
        self.runtime.searcher.as_deref().ok_or_else(ApiError::no_index)
    }

    /// Sets the documents for `/v1/documents`.
    pub fn with_library(mut self, library: Library) -> Self {
        self.metrics.index.show(&library.live);
        self.library = Some(Arc::new(library));
        self
    }

    /// Queues the changes of documents that an earlier process acknowledged and did not commit. Call it once, within the
    /// async runtime, when the state is complete.
    pub fn resume_changes(&self) {
        commits::resume(self);
    }

    /// Sets the name of the index.
    pub fn with_index_name(mut self, name: impl Into<String>) -> Self {
        self.index = Some(name.into());
        self
    }

    /// Checks that the index named in a request is the served one.
    ///
    /// # Errors
    /// 400 if another index is named, or if there is no index.
    pub(crate) fn check_index(&self, param: &str, named: Option<&str>) -> Result<(), ApiError> {
        let Some(named) = named else { return Ok(()) };
        self.searcher().map_err(|error| error.with_param(param))?;
        if self.is_index(named) {
            return Ok(());
        }
        Err(ApiError::invalid(param, format!("unknown index `{named}`: expected {}", self.index_names())))
    }

    /// Returns `true` if `name` is a name of the served index.
    pub(crate) fn is_index(&self, name: &str) -> bool {
        name == INDEX || self.index.as_deref() == Some(name)
    }

    /// Lists the names of the served index, for error messages.
    pub(crate) fn index_names(&self) -> String {
        match self.index.as_deref() {
            Some(own) => format!("`{INDEX}` or `{own}`"),
            None => format!("`{INDEX}`"),
        }
    }

    /// Sets the base model. Policies loaded later must belong to it.
    pub fn with_base(mut self, base: LoadedBase) -> Self {
        self.base = Arc::new(base);
        self
    }

    /// Reloads all policies that were read from a directory. A policy that cannot be read is kept, and the error is
    /// logged.
    pub async fn reload_policies(&self) {
        self.policies.reload(&self.runtime.engine, &self.base, self.store.as_deref()).await;
    }

    /// Sets the directory from which policies are loaded at run time.
    pub fn with_store(mut self, store: PolicyStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets the API keys.
    pub fn with_keys(mut self, keys: ApiKeys) -> Self {
        self.keys = keys;
        self
    }

    /// Sets the embedder and its name.
    pub fn with_embedder(mut self, name: impl Into<String>, embedder: Arc<dyn TextEmbedder>) -> Self {
        let queue = EmbedQueue::default();
        self.embedder = Some(Arc::new(ServedEmbedder { name: name.into(), embedder, created: now(), queue }));
        self
    }
}

/// Returns the current time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
