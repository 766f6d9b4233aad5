//! What every handler can reach.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::drain::Drain;
use super::embeddings::{ServedEmbedder, TextEmbedder};
use super::error::{ApiError, Code};
use super::library::Library;
use super::metrics::Metrics;
use crate::agent::{Policy, Runtime, Search};
use crate::config::HttpConfig;

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
    /// How requests are taken.
    pub config: HttpConfig,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// How the server goes down.
    pub drain: Drain,
}

impl AppState {
    /// A state that serves `policies`.
    pub fn new(runtime: Runtime, policies: Vec<Policy>, config: HttpConfig) -> Self {
        Self {
            metrics: Metrics::new(&runtime.engine),
            runtime: Arc::new(runtime),
            policies: Arc::new(Policies::new(policies)),
            embedder: None,
            library: None,
            config,
            drain: Drain::default(),
        }
    }

    /// What is searched.
    ///
    /// # Errors
    /// 400 when the server has no index.
    pub fn searcher(&self) -> Result<&dyn Search, ApiError> {
        let none = || ApiError::new(Code::NotConfigured, "this server has no index: start it with `--index`");
        self.runtime.searcher.as_deref().ok_or_else(none)
    }

    /// The same state, with the documents of `library` under `/v1/documents`.
    pub fn with_library(mut self, library: Library) -> Self {
        self.library = Some(Arc::new(library));
        self
    }

    /// The same state, with embeddings by the embedder called `name`.
    pub fn with_embedder(mut self, name: impl Into<String>, embedder: Arc<dyn TextEmbedder>) -> Self {
        self.embedder = Some(Arc::new(ServedEmbedder { name: name.into(), embedder, created: now() }));
        self
    }
}

/// A policy and when it was loaded.
#[derive(Debug)]
pub struct Served {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Seconds since 1970.
    pub created: u64,
}

/// The policies that are served, in the order they were configured; the first is the default where one is needed.
#[derive(Debug)]
pub struct Policies(Vec<Served>);

impl Policies {
    /// Policies loaded now.
    pub fn new(policies: Vec<Policy>) -> Self {
        let created = now();
        Self(policies.into_iter().map(|policy| Served { policy: Arc::new(policy), created }).collect())
    }

    /// The policy called `name`.
    ///
    /// # Errors
    /// 404 with what there is.
    pub fn get(&self, name: &str) -> Result<&Served, ApiError> {
        self.0.iter().find(|served| served.policy.name == name).ok_or_else(|| {
            let known: Vec<_> = self.0.iter().map(|served| served.policy.name.as_str()).collect();
            let message = format!("the model `{name}` does not exist: there is {}", known.join(", "));
            ApiError::new(Code::ModelNotFound, message).with_param("model")
        })
    }

    /// The policy called `name`, or the first one.
    ///
    /// # Errors
    /// 404 when there is no such policy, or none at all.
    pub fn get_or_first(&self, name: Option<&str>) -> Result<&Served, ApiError> {
        match (name, self.0.first()) {
            (Some(name), _) => self.get(name),
            (None, Some(first)) => Ok(first),
            (None, None) => Err(ApiError::new(Code::ModelNotFound, "no model is served").with_param("model")),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Served> {
        self.0.iter()
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
