//! Assembly of the server's state from its configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Context;
use waymark_agent::{LoadedBase, Policy, Runtime, Search};
use waymark_index::{CommitOptions, Embed, LiveIndex};
use waymark_models::kernel::Team;
use waymark_runtime::config::RetrievalConfig;
use waymark_runtime::embedding::{Embedding, TextEmbedder};
use waymark_runtime::fleet::TokenSource;
use waymark_runtime::query_embedder::{QUERY_CACHE_BYTES, QueryEmbedder};
use waymark_runtime::reranking::Reranking;
use waymark_runtime::snapshots::SnapshotLocation;
use waymark_runtime::{assembly, cache, snapshots, trained_policy};

use super::state_store;
use crate::api::{AppState, IndexParts, Library, OpenIndex, PolicyRegistry, PolicyStore, VectorStores};
use crate::config::ServeConfig;
use crate::keys::ApiKeys;

/// Bytes per second that a scrub reads.
const SCRUB_RATE: u64 = 32 << 20;
/// Bytes per second that a merge writes.
const MERGE_RATE: u64 = 64 << 20;
/// Interval between two looks at the size of the log of changes.
const MERGE_CHECK: Duration = Duration::from_secs(2);

/// Maximum number of search threads of each vector store, of which a server may have many.
const STORE_THREADS: usize = 2;

/// Name of an index, the index, and its search threads.
type OpenedIndex = (String, Arc<LiveIndex>, Arc<dyn Search>);

/// Embedder that all indexes share, so their queries share batches and the cache.
type SharedEmbedder = Arc<QueryEmbedder<Embedding>>;

/// Indexes whose snapshots are published elsewhere, in the directories that they are fetched into.
struct LocalIndexes {
    retrieval: RetrievalConfig,
    /// Directories of the replicas, whose documents cannot be changed here.
    replicas: Vec<PathBuf>,
}

impl LocalIndexes {
    /// Fetches the indexes that are named by URLs, and follows them.
    async fn fetch(config: &ServeConfig) -> anyhow::Result<LocalIndexes> {
        let mut retrieval = config.retrieval.clone();
        let mut replicas = Vec::new();
        let own = retrieval.index.iter_mut();
        for dir in own.chain(retrieval.others.iter_mut().map(|(_, dir)| dir)) {
            let url = dir.to_string_lossy().into_owned();
            let Some(location) = SnapshotLocation::of_url(&url).context("--index")? else { continue };
            let cache = cache::folder(config.model.cache.clone())?;
            let fetched = snapshots::local_copy(&location, &cache, config.index_poll).await;
            *dir = fetched.with_context(|| format!("--index {url}"))?;
            replicas.push(dir.clone());
        }
        Ok(LocalIndexes { retrieval, replicas })
    }

    /// Returns the configuration of the index in `dir`.
    fn of(&self, dir: &Path) -> RetrievalConfig {
        let is_replica = self.replicas.iter().any(|replica| replica == dir);
        RetrievalConfig { writable: self.retrieval.writable && !is_replica, ..self.retrieval.clone() }
    }
}

/// Builds the server's state from `config` and its API keys. `loaded` is the embedder if the caller has loaded it
/// already.
///
/// # Errors
/// If weights, index or policies cannot be loaded, or the state cannot be opened.
pub(crate) async fn assemble(
    config: &ServeConfig,
    keys: ApiKeys,
    loaded: Option<Arc<Embedding>>,
) -> anyhow::Result<AppState> {
    assembly::check_policies(&config.policies)?;
    let embedder = match (loaded, &config.model.weights, &config.retrieval.index) {
        (Some(loaded), ..) => Some(loaded),
        // A mock without an index needs no weights at all.
        (None, None, None) if config.files.folder.is_none() => None,
        _ => Some(configured_embedder(config)?),
    };
    let embedder = embedder.map(|embedder| Arc::new(QueryEmbedder::new(embedder, QUERY_CACHE_BYTES)));
    let reranker = configured_reranker(config)?;
    let indexes = LocalIndexes::fetch(config).await?;
    let live = match (&indexes.retrieval.index, &embedder) {
        (Some(dir), Some(embedder)) => {
            Some(assembly::live(dir, searched(embedder), reranker.clone(), &config.retrieval)?)
        }
        _ => None,
    };
    let searcher = live.as_ref().map(|live| searcher(live, &config.retrieval)).transpose()?;
    let others = match &embedder {
        Some(embedder) => other_indexes(&indexes.retrieval, embedder, reranker.as_ref())?,
        None => Vec::new(),
    };
    let (runtime, base) = token_runtime(config, searcher).await?;
    let mock = config.model.weights.is_none();
    let mut policies = assembly::policies(&config.policies, &runtime.engine, &base, mock).await?;
    if let Some(protocol) = &config.protocol {
        policies = with_trained(trained_policy(protocol, &base)?, policies)?;
    }
    for policy in &policies {
        tracing::info!(policy = policy.name, protocol = policy.protocol.name(), guided = policy.guided, "serving");
    }
    if !keys.required() && !config.address.ip().is_loopback() {
        tracing::warn!(address = %config.address, "no API keys are set: every client that reaches this address has full access");
    }
    let mut state = AppState::new(runtime, Vec::new(), config.http.clone()).with_keys(keys).with_base(base);
    state.policies = Arc::new(PolicyRegistry::given_in(policies, &config.policies));
    if let Some(store) = state_store::open(config).await? {
        state = state.with_records(store);
    }
    state.load_stored_keys().await.context("cannot read the keys of the state")?;
    if let Some(root) = &config.policy_root {
        let root = root.canonicalize().with_context(|| format!("--policy-root {}", root.display()))?;
        state = state.with_store(PolicyStore::new(root));
    }
    if let Some(live) = live {
        let own = indexes.of(live.dir());
        tend(&live, &own)?;
        state = state.with_library(library(live, &own));
    }
    let dir_name = || config.retrieval.index.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    if let Some(name) = config.retrieval.index_name.clone().or_else(|| dir_name().map(Into::into)) {
        state = state.with_index_name(name);
    }
    let opener = embedder.clone().map(|embedder| store_opener(config, embedder, reranker.clone()));
    if let Some(embedder) = embedder {
        state = state.with_embedder(config.retrieval.embedder.name(), embedder as Arc<dyn TextEmbedder>);
    }
    if let (Some(config), Some(reranker)) = (&config.retrieval.reranker, reranker) {
        state = state.with_reranker(config.name(), reranker);
    }
    for (name, live, searcher) in others {
        let own = indexes.of(live.dir());
        tend(&live, &own)?;
        state = state.with_other_index(&name, searcher, library(live, &own));
    }
    if let (Some(folder), Some(opener)) = (&config.files.folder, opener) {
        state = state.with_vector_stores(VectorStores::open(folder, config.files.limits, Arc::new(opener))?);
    }
    state.restore_policies().await;
    state.resume_changes();
    Ok(state)
}

/// Returns `trained`, the policy of `--protocol`, before the other policies, without a built-in one of the same name.
///
/// # Errors
/// If a policy of `--policy` has its name.
fn with_trained(trained: Policy, others: Vec<Policy>) -> anyhow::Result<Vec<Policy>> {
    let name = trained.name.clone();
    let kept = others.into_iter().filter(|other| other.name != name || other.dir.is_some());
    let policies: Vec<Policy> = std::iter::once(trained).chain(kept).collect();
    assembly::check_names(&policies)?;
    Ok(policies)
}

/// Returns the opener of the vector stores' indexes. There may be many of them, so each has few search threads.
fn store_opener(config: &ServeConfig, embedder: SharedEmbedder, reranker: Option<Arc<Reranking>>) -> IndexOpener {
    let threads = config.retrieval.threads.min(STORE_THREADS);
    IndexOpener { embedder, reranker, config: RetrievalConfig { threads, writable: true, ..config.retrieval.clone() } }
}

/// Returns the embedder of an index to search.
fn searched(embedder: &SharedEmbedder) -> Arc<dyn Embed> {
    Arc::clone(embedder) as Arc<dyn Embed>
}

/// Starts the search threads of an index.
fn searcher(live: &Arc<LiveIndex>, config: &RetrievalConfig) -> anyhow::Result<Arc<dyn Search>> {
    assembly::searcher(live, config.threads, config.deadline)
}

/// Opens the indexes other than the default one. Each has search threads of its own.
fn other_indexes(
    config: &RetrievalConfig,
    embedder: &SharedEmbedder,
    reranker: Option<&Arc<Reranking>>,
) -> anyhow::Result<Vec<OpenedIndex>> {
    let mut opened = Vec::with_capacity(config.others.len());
    for (name, dir) in &config.others {
        let live = assembly::live(dir, searched(embedder), reranker.cloned(), config)
            .with_context(|| format!("--index {name}={}", dir.display()))?;
        let searcher = searcher(&live, config)?;
        opened.push((name.clone(), live, searcher));
    }
    Ok(opened)
}

/// Opens the indexes of vector stores as the server opens its own.
#[derive(Debug)]
struct IndexOpener {
    embedder: SharedEmbedder,
    reranker: Option<Arc<Reranking>>,
    config: RetrievalConfig,
}

impl OpenIndex for IndexOpener {
    fn embedder(&self) -> Arc<dyn TextEmbedder> {
        Arc::clone(&self.embedder) as Arc<dyn TextEmbedder>
    }

    fn open(&self, dir: &Path) -> anyhow::Result<IndexParts> {
        let live = assembly::live(dir, searched(&self.embedder), self.reranker.clone(), &self.config)?;
        let searcher = searcher(&live, &self.config)?;
        tend(&live, &self.config)?;
        Ok(IndexParts { searcher, library: library(live, &self.config) })
    }
}

/// Starts the engine, or connects to those elsewhere.
///
/// # Errors
/// If the base model cannot be loaded, or the engines elsewhere serve another one.
async fn token_runtime(
    config: &ServeConfig,
    searcher: Option<Arc<dyn Search>>,
) -> anyhow::Result<(Runtime<TokenSource>, LoadedBase)> {
    if let Some(fleet) = &config.fleet {
        return assembly::remote_runtime(&config.model, fleet, searcher).await;
    }
    let (runtime, base) = assembly::runtime(&config.model, Arc::new(Team::new(config.model.threads)), searcher)?;
    Ok((runtime.with_source(TokenSource::from), base))
}

/// Loads the embedder that `config` names.
///
/// # Errors
/// If its weights cannot be fetched or read, or its endpoint cannot be reached.
pub(crate) fn configured_embedder(config: &ServeConfig) -> anyhow::Result<Arc<Embedding>> {
    // A separate team, so embedding a text never delays a decoding step.
    let team = Arc::new(Team::new(config.model.threads));
    Ok(Arc::new(assembly::embedder(&config.retrieval.embedder, config.model.cache.clone(), team)?))
}

/// Loads the reranker that `config` names, if any.
fn configured_reranker(config: &ServeConfig) -> anyhow::Result<Option<Arc<Reranking>>> {
    let Some(reranker) = &config.retrieval.reranker else { return Ok(None) };
    // A separate team, as for the embedder.
    let team = Arc::new(Team::new(config.model.threads));
    Ok(Some(Arc::new(assembly::reranker(reranker, config.model.cache.clone(), team)?)))
}

fn library(live: Arc<LiveIndex>, config: &RetrievalConfig) -> Library {
    if config.writable { Library::new(live, commit_options(config)) } else { Library::read_only(live) }
}

fn commit_options(config: &RetrievalConfig) -> CommitOptions {
    // Leaves half of the cores to searches.
    let threads = available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
    CommitOptions { keep: config.keep_snapshots, threads, ..CommitOptions::default() }
}

/// Starts the background work on an index: scrubbing, and merging if documents can be changed.
fn tend(live: &Arc<LiveIndex>, config: &RetrievalConfig) -> std::io::Result<()> {
    live.scrub_in_background(SCRUB_RATE, config.scrub)?;
    if config.writable {
        live.merge_in_background(commit_options(config), Some(MERGE_RATE), MERGE_CHECK)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_trained_policy_comes_first_and_shares_its_name_with_no_given_one() {
        let named = |name: &str, dir: Option<&str>| Policy {
            name: name.to_owned(),
            dir: dir.map(PathBuf::from),
            ..Policy::builtin("plain").unwrap()
        };
        let others = || vec![named("given", Some("dirs/given")), named("plain", None)];
        let names = |policies: Vec<Policy>| policies.into_iter().map(|policy| policy.name).collect::<Vec<_>>();
        assert_eq!(names(with_trained(named("weights", None), others()).unwrap()), ["weights", "given", "plain"]);
        assert_eq!(names(with_trained(named("plain", None), others()).unwrap()), ["plain", "given"]);
        let refused = with_trained(named("given", None), others()).unwrap_err().to_string();
        assert!(refused.contains("share the name given") && refused.contains("dirs/given"), "{refused}");
    }
}
