//! State shared by all handlers.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use waymark_agent::{LoadedBase, Policy, Runtime, Search, SessionSource};
use waymark_runtime::embedding::TextEmbedder;
use waymark_runtime::fleet::TokenSource;
use waymark_runtime::reranking::Reranking;

use super::api_keys::StoredKeys;
use super::commits::{self, BackgroundChange};
use super::compile_slots::CompileSlots;
use super::drain::Drain;
use super::embeddings::ServedEmbedder;
use super::encoder_queue::EncoderQueue;
use super::encoding::EncodingBudget;
use super::error::{ApiError, Code};
use super::generate::ParkedSessions;
use super::indexes::OtherIndex;
use super::library::Library;
use super::metrics::{MeasuredStores, ServerMetrics};
use super::policy_registry::{PolicyRegistry, PolicyStore, ServedPolicy};
use super::records::Records;
use super::rerank::ServedReranker;
use super::responses::Responses;
use super::resume::Streams;
use super::traces::Traces;
use super::vector_stores::VectorStores;
use crate::config::HttpConfig;
use crate::keys::ApiKeys;
use crate::store::{Archive, MemoryLimits, MemoryStore, Store};

/// Maximum number of schemas compiled at once: each occupies a thread for the whole time. A key leaves one of the slots
/// to other keys, so one key can use two of the three.
const COMPILING: usize = 3;

/// State shared by all handlers; clones share it.
#[derive(Debug, Clone)]
pub struct AppState {
    /// Components that an episode needs: engine, tokenizer, template, searcher.
    pub runtime: Arc<Runtime<TokenSource>>,
    /// Served policies, by name.
    pub policies: Arc<PolicyRegistry>,
    /// Embedder of `/v1/embeddings`. `None` if the server has none.
    pub embedder: Option<Arc<ServedEmbedder>>,
    /// Reranker of `/v1/rerank`. `None` if the server has none.
    pub reranker: Option<Arc<ServedReranker>>,
    /// Documents of the index. `None` if the server has no index.
    pub library: Option<Arc<Library>>,
    /// Name of the index. `None` if there is no index or it has no name.
    pub index: Option<String>,
    /// Indexes other than the default one.
    pub(crate) others: Arc<Vec<Arc<OtherIndex>>>,
    /// If `true`, this is the view of a request to an index other than the default one.
    pub(crate) is_other: bool,
    /// Vector stores and files of clients. `None` if clients cannot create any.
    pub(crate) vector_stores: Option<Arc<VectorStores>>,
    /// Slots for compiling schemas.
    pub(crate) compiling: CompileSlots,
    /// Memory for encoding texts.
    pub(crate) encoding: EncodingBudget,
    /// Base model.
    pub(crate) base: Arc<LoadedBase>,
    /// Directory from which policies are loaded at run time. `None` if the policies are fixed.
    pub store: Option<Arc<PolicyStore>>,
    /// Records of requests, and of policies loaded over HTTP.
    pub(crate) records: Records,
    /// Stored responses and background responses in progress.
    pub responses: Responses,
    /// API keys.
    pub keys: ApiKeys,
    /// API keys in the state.
    pub(crate) stored_keys: StoredKeys,
    /// Options of the HTTP interface.
    pub config: HttpConfig,
    /// Status of background changes to documents.
    pub(crate) commits: Archive<BackgroundChange>,
    /// Traces of finished episodes.
    pub(crate) traces: Traces,
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
        let limits = MemoryLimits { count: config.responses.kept, bytes: config.responses.bytes };
        let records = Records::new(Arc::new(MemoryStore::new(limits)));
        let drain = Drain::default();
        let traces = Traces::new(config.traces, records.clone(), drain.clone());
        let streams = Streams::new(config.resume);
        let stores = measured_stores(&traces, &records, &streams);
        Self {
            metrics: ServerMetrics::new(&runtime.engine, stores),
            runtime: Arc::new(runtime),
            policies: Arc::new(PolicyRegistry::new(policies)),
            embedder: None,
            reranker: None,
            library: None,
            index: None,
            others: Arc::default(),
            is_other: false,
            vector_stores: None,
            compiling: CompileSlots::new(COMPILING),
            encoding: EncodingBudget::new(config.encoding_bytes),
            base: Arc::default(),
            store: None,
            responses: Responses::new(records.clone(), config.responses),
            stored_keys: StoredKeys::new(ApiKeys::default(), records.clone()),
            records,
            commits: commits::archive(),
            traces,
            streams,
            parked: ParkedSessions::default(),
            keys: ApiKeys::default(),
            config,
            drain,
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

    /// Returns the policy `name`.
    ///
    /// # Errors
    /// 404 with the names of the policies, or with the route of the embedder or the reranker that has this name.
    pub(crate) fn policy(&self, name: &str) -> Result<Arc<ServedPolicy>, ApiError> {
        self.policies.get(name).map_err(|unknown| self.encoder_refusal(name).unwrap_or(unknown))
    }

    /// Returns the policy `name`, or the first policy.
    ///
    /// # Errors
    /// Same as [`policy`](Self::policy), and 404 if there is no policy at all.
    pub(crate) fn policy_or_first(&self, name: Option<&str>) -> Result<Arc<ServedPolicy>, ApiError> {
        match name {
            Some(name) => self.policy(name),
            None => self.policies.first(),
        }
    }

    /// Returns the error for a request that names the embedder or the reranker as its policy. `None` if neither has the
    /// name.
    fn encoder_refusal(&self, name: &str) -> Option<ApiError> {
        let is_embedder = self.embedder.as_ref().is_some_and(|served| served.name == name);
        let is_reranker = self.reranker.as_ref().is_some_and(|served| served.name == name);
        let message = match (is_embedder, is_reranker) {
            (true, _) => format!("`{name}` is an embedder: use /v1/embeddings"),
            (false, true) => format!("`{name}` is a reranker: use /v1/rerank"),
            (false, false) => return None,
        };
        Some(ApiError::new(Code::ModelNotFound, message).with_param("model"))
    }

    /// Sets the store of records. By default, records are in memory.
    pub fn with_records(mut self, store: Arc<dyn Store>) -> Self {
        // Rebuilds everything that holds the previous store.
        self.records = Records::new(store);
        self.stored_keys = StoredKeys::new(self.keys.clone(), self.records.clone());
        self.responses = Responses::new(self.records.clone(), self.config.responses);
        self.traces = Traces::new(self.config.traces, self.records.clone(), self.drain.clone());
        let stores = measured_stores(&self.traces, &self.records, &self.streams);
        self.metrics = self.metrics.with_stores(stores);
        self
    }

    /// Loads the API keys of the state. Call it when keys and records are set.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub async fn load_stored_keys(&self) -> Result<(), ApiError> {
        self.stored_keys.load().await
    }

    /// Loads the policies that clients of earlier processes have loaded. Those that cannot be loaded are logged.
    pub async fn restore_policies(&self) {
        if let Some(store) = &self.store {
            store.restore(&self.records, &self.policies, &self.runtime.engine, &self.base).await;
        }
    }

    /// Sets the documents for `/v1/documents`.
    pub fn with_library(mut self, library: Library) -> Self {
        self.metrics.index.show(&library.live);
        self.library = Some(Arc::new(library));
        self
    }

    /// Queues the changes of documents that an earlier process acknowledged and did not commit. Call it once, within
    /// the async runtime, when the state is complete.
    pub fn resume_changes(&self) {
        self.views().iter().for_each(commits::resume);
    }

    /// Sets the vector stores and files of clients. Call it after all settings of the state, within the async runtime:
    /// files that an earlier process was given and did not index are indexed now.
    pub fn with_vector_stores(mut self, stores: VectorStores) -> Self {
        let stores = Arc::new(stores);
        self.vector_stores = Some(Arc::clone(&stores));
        stores.resume(&self);
        self
    }

    /// Returns the vector stores.
    ///
    /// # Errors
    /// 400 if clients cannot create any.
    pub(crate) fn vector_stores(&self) -> Result<&Arc<VectorStores>, ApiError> {
        let message = "this server keeps no files: start it with `--vector-stores`";
        self.vector_stores.as_ref().ok_or_else(|| ApiError::new(Code::NotConfigured, message))
    }

    /// Sets the name of the index.
    pub fn with_index_name(mut self, name: impl Into<String>) -> Self {
        self.index = Some(name.into());
        self
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
        self.stored_keys = StoredKeys::new(self.keys.clone(), self.records.clone());
        self
    }

    /// Sets the embedder and its name.
    pub fn with_embedder(mut self, name: impl Into<String>, embedder: Arc<dyn TextEmbedder>) -> Self {
        let queue = EncoderQueue::new("requests for embeddings");
        self.metrics = self.metrics.with_embedder(Arc::clone(&embedder));
        self.embedder = Some(Arc::new(ServedEmbedder { name: name.into(), embedder, created: now(), queue }));
        self
    }

    /// Sets the reranker and its name. Searches use the reranker of their index.
    pub fn with_reranker(mut self, name: impl Into<String>, reranker: Arc<Reranking>) -> Self {
        let queue = EncoderQueue::new("requests for rerankings");
        self.reranker = Some(Arc::new(ServedReranker { name: name.into(), reranker, created: now(), queue }));
        self
    }
}

/// Returns the stores whose sizes are metrics.
fn measured_stores(traces: &Traces, records: &Records, streams: &Streams) -> MeasuredStores {
    MeasuredStores { traces: traces.recent().clone(), records: records.clone(), streams: streams.clone() }
}

/// Returns the current time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
