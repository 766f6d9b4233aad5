//! Assembly of the server's state from its configuration.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use waymark_index::{CommitOptions, LiveIndex};
use waymark_models::kernel::Team;
use waymark_runtime::assembly;
use waymark_runtime::config::RetrievalConfig;
use waymark_runtime::embedding::{Embedding, TextEmbedder};

use crate::api::{AppState, Library, PolicyStore};
use crate::config::ServeConfig;

/// Builds the server's state from `config`. `loaded` is the embedder if the caller has loaded it already.
///
/// # Errors
/// If weights, index, policies or keys cannot be loaded.
pub(crate) async fn assemble(config: &ServeConfig, loaded: Option<Arc<Embedding>>) -> anyhow::Result<AppState> {
    let embedder = match (loaded, &config.model.weights, &config.retrieval.index) {
        (Some(loaded), ..) => Some(loaded),
        // A mock without an index needs no weights at all.
        (None, None, None) => None,
        _ => Some(configured_embedder(config)?),
    };
    let live = match (&config.retrieval.index, &embedder) {
        (Some(dir), Some(embedder)) => Some(assembly::live(dir, Arc::clone(embedder), &config.retrieval)?),
        _ => None,
    };
    let searcher = live.as_ref().map(|live| assembly::searcher(live, &config.retrieval)).transpose()?;
    let (runtime, base) = assembly::runtime(&config.model, Arc::new(Team::new(config.model.threads)), searcher)?;
    let policies = assembly::policies(&config.policies, &runtime.engine, &base, config.model.weights.is_none()).await?;
    for policy in &policies {
        tracing::info!(policy = policy.name, protocol = policy.protocol.name(), guided = policy.guided, "serving");
    }
    let keys = config.access.keys()?;
    if !keys.required() && !config.address.ip().is_loopback() {
        tracing::warn!(address = %config.address, "no API keys are set: every client that reaches this address has full access");
    }
    let mut state = AppState::new(runtime, policies, config.http.clone()).with_keys(keys).with_base(base);
    if let Some(root) = &config.policy_root {
        let root = root.canonicalize().with_context(|| format!("--policy-root {}", root.display()))?;
        state = state.with_store(PolicyStore::new(root));
    }
    if let Some(live) = live {
        state = state.with_library(library(live, &config.retrieval));
    }
    if let Some(name) = config.retrieval.index.as_deref().and_then(Path::file_name) {
        state = state.with_index_name(name.to_string_lossy());
    }
    Ok(match embedder {
        Some(embedder) => {
            let spec = Path::new(&config.retrieval.embedder);
            let name = spec.file_name().map_or("embedder".into(), |name| name.to_string_lossy());
            state.with_embedder(name, embedder as Arc<dyn TextEmbedder>)
        }
        None => state,
    })
}

/// Loads the embedder that `config` names.
///
/// # Errors
/// If its weights cannot be fetched or read.
pub(crate) fn configured_embedder(config: &ServeConfig) -> anyhow::Result<Arc<Embedding>> {
    // A separate team, so that embedding a text never delays a decoding step.
    let team = Arc::new(Team::new(config.model.threads));
    Ok(Arc::new(assembly::embedder(&config.retrieval.embedder, config.model.cache.clone(), team)?))
}

fn library(live: Arc<LiveIndex>, config: &RetrievalConfig) -> Library {
    if config.writable { Library::new(live, CommitOptions::default()) } else { Library::read_only(live) }
}
