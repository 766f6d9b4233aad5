//! What every handler can reach.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::Semaphore;

use super::archive::Archive;
use super::auth::Keys;
use super::commits::{self, Background};
use super::drain::Drain;
use super::embeddings::{Gate, ServedEmbedder, TextEmbedder};
use super::error::ApiError;
use super::library::Library;
use super::metrics::{HeldCollector, Metrics};
use super::responses::Responses;
use super::resume::Streams;
use super::shelf::{Policies, PolicyStore};
use super::traces::Kept;
use crate::agent::{Base, Policy, Runtime, Search};
use crate::config::HttpConfig;

/// What the index that is searched is called everywhere, beside the name of its folder.
pub(crate) const INDEX: &str = "default";

/// Schemas compiled at once: each holds a thread for as long as it takes.
const COMPILING: usize = 2;

/// What every handler can reach; clones share it.
#[derive(Debug, Clone)]
pub struct AppState {
    /// What an episode needs: engine, tokenizer, template, searcher.
    pub runtime: Arc<Runtime>,
    /// The policies, by name.
    pub policies: Arc<Policies>,
    /// What `/v1/embeddings` uses, if anything.
    pub embedder: Option<Arc<ServedEmbedder>>,
    /// The documents of the index, if there is one.
    pub library: Option<Arc<Library>>,
    /// The name of the index that is searched, if there is one and it has a name.
    pub index: Option<String>,
    /// Schemas that may be compiled at once.
    pub(crate) compiling: Arc<Semaphore>,
    /// The base model.
    pub(crate) base: Arc<Base>,
    /// Where policies are loaded from while serving, if anywhere.
    pub store: Option<Arc<PolicyStore>>,
    /// The responses that are kept or made in the background.
    pub responses: Responses,
    /// Who may do what.
    pub keys: Keys,
    /// How requests are taken.
    pub config: HttpConfig,
    /// Changes of documents that nobody waits for, and what became of them.
    pub(crate) commits: Archive<Background>,
    /// What was written down about episodes that are over.
    pub(crate) traces: Archive<Kept>,
    /// Streams whose clients may come back.
    pub(crate) streams: Streams,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// How the server goes down.
    pub drain: Drain,
}

impl AppState {
    /// A state that serves `policies`.
    pub fn new(runtime: Runtime, policies: Vec<Policy>, config: HttpConfig) -> Self {
        let traces = Archive::new(config.traces.count, config.traces.bytes);
        let (responses, streams) = (Responses::new(config.responses), Streams::new(config.resume));
        let held = HeldCollector { traces: traces.clone(), responses: responses.clone(), streams: streams.clone() };
        Self {
            metrics: Metrics::new(&runtime.engine, held),
            runtime: Arc::new(runtime),
            policies: Arc::new(Policies::new(policies)),
            embedder: None,
            library: None,
            index: None,
            compiling: Arc::new(Semaphore::new(COMPILING)),
            base: Arc::default(),
            store: None,
            responses,
            commits: commits::archive(),
            traces,
            streams,
            keys: Keys::default(),
            config,
            drain: Drain::default(),
        }
    }

    /// What is searched.
    ///
    /// # Errors
    /// 400 when the server has no index.
    pub fn searcher(&self) -> Result<&dyn Search, ApiError> {
        self.runtime.searcher.as_deref().ok_or_else(ApiError::no_index)
    }

    /// The same state, with the documents of `library` under `/v1/documents`.
    pub fn with_library(mut self, library: Library) -> Self {
        self.metrics.index.show(&library.live);
        self.library = Some(Arc::new(library));
        self
    }

    /// The same state, whose index is called `name`.
    pub fn with_index_name(mut self, name: impl Into<String>) -> Self {
        self.index = Some(name.into());
        self
    }

    /// Whether the index that a request names is the one that is searched.
    ///
    /// # Errors
    /// 400 when it is another one, or there is none.
    pub(crate) fn check_index(&self, param: &str, named: Option<&str>) -> Result<(), ApiError> {
        let Some(named) = named else { return Ok(()) };
        self.searcher().map_err(|error| error.with_param(param))?;
        if self.is_index(named) {
            return Ok(());
        }
        Err(ApiError::invalid(param, format!("there is no index `{named}` here, only {}", self.index_names())))
    }

    /// Whether the index that is searched goes by this name.
    pub(crate) fn is_index(&self, name: &str) -> bool {
        name == INDEX || self.index.as_deref() == Some(name)
    }

    /// The names that it goes by.
    pub(crate) fn index_names(&self) -> String {
        match self.index.as_deref() {
            Some(own) => format!("`{INDEX}`, which is `{own}`"),
            None => format!("`{INDEX}`"),
        }
    }

    /// The same state, over the base model `base`: policies that are read later may belong to it.
    pub fn with_base(mut self, base: Base) -> Self {
        self.base = Arc::new(base);
        self
    }

    /// Reads every policy again that was read from a directory; what cannot be read stays as it was, and the log says why.
    pub async fn reload_policies(&self) {
        self.policies.reload(&self.runtime.engine, &self.base).await;
    }

    /// The same state, with policies that come and go.
    pub fn with_store(mut self, store: PolicyStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// The same state, for those who have one of `keys`.
    pub fn with_keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    /// The same state, with embeddings by the embedder called `name`.
    pub fn with_embedder(mut self, name: impl Into<String>, embedder: Arc<dyn TextEmbedder>) -> Self {
        let gate = Gate::default();
        self.embedder = Some(Arc::new(ServedEmbedder { name: name.into(), embedder, created: now(), gate }));
        self
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
