//! From a configuration to a house that stands: weights, engine, index, policies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use waymark_index::{CommitOptions, Embed, LiveIndex, Manifest, OpenOptions};
use waymark_models::BLOCK;
use waymark_models::catalog::Catalog;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::embedder::Embedder;
use waymark_models::kernel::Team;
use waymark_models::pull::recognise;
use waymark_models::tokenizer::Tokenizer;

use super::embedding::{self, Embedding};
use super::{cache, device, filter, pull};
use crate::agent::{Base, Policy, Runtime, Search, SearchLimits, Searcher};
use crate::api::{AppState, Library, PolicyStore, TextEmbedder};
use crate::config::{ModelConfig, RetrievalConfig, ServeConfig};
use crate::engine::mock::{Lines, MockBackend};
use crate::engine::{Engine, EngineConfig};

/// Searches that may wait for a thread.
pub const SEARCHES_WAITING: usize = 1024;

/// Everything a server needs, made of `config`; `loaded` is its embedder, where somebody has needed it before.
pub async fn assemble(config: &ServeConfig, loaded: Option<Arc<Embedding>>) -> anyhow::Result<AppState> {
    let embedder = match (loaded, &config.model.weights, &config.retrieval.index) {
        (Some(loaded), ..) => Some(loaded),
        // A mock without an index needs no weights at all.
        (None, None, None) => None,
        _ => Some(configured_embedder(config)?),
    };
    let live = match (&config.retrieval.index, &embedder) {
        (Some(dir), Some(embedder)) => Some(live(dir, Arc::clone(embedder), &config.retrieval)?),
        _ => None,
    };
    let searcher = live.as_ref().map(|live| searcher(live, &config.retrieval)).transpose()?;
    let (runtime, base) = runtime(&config.model, Arc::new(Team::new(config.model.threads)), searcher)?;
    let policies = policies(&config.policies, &runtime.engine, &base, config.model.weights.is_none()).await?;
    for policy in &policies {
        tracing::info!(policy = policy.name, protocol = policy.protocol.name(), guided = policy.guided, "serving");
    }
    let keys = config.access.keys()?;
    if !keys.required() && !config.address.ip().is_loopback() {
        tracing::warn!(address = %config.address, "there are no API keys: whoever reaches this address may do everything");
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

/// The embedder that `config` names.
pub fn configured_embedder(config: &ServeConfig) -> anyhow::Result<Arc<Embedding>> {
    // A team of its own: what an embedding takes never stands in the way of a step.
    let team = Arc::new(Team::new(config.model.threads));
    Ok(Arc::new(embedder(&config.retrieval.embedder, config.model.cache.clone(), team)?))
}

/// The embedder called `name`, pulled where it is not there yet.
pub fn embedder(name: &str, cache: Option<PathBuf>, team: Arc<Team>) -> anyhow::Result<Embedding> {
    if name == embedding::MOCK {
        return Ok(Embedding::Mock);
    }
    let dir = pull::fetch(name, &cache::folder(cache)?)?;
    Ok(Embedding::Model(Box::new(Embedder::open(&dir, team)?)))
}

/// The base model that `spec` names, with its path.
pub fn checkpoint(spec: &str, cache: Option<PathBuf>) -> anyhow::Result<(Checkpoint, PathBuf)> {
    let path = pull::fetch(spec, &cache::folder(cache)?)?;
    Ok((Checkpoint::open(&path)?, path))
}

/// How often the server looks for what another process has committed.
const WATCH: Duration = Duration::from_millis(500);

/// The index in `dir`, followed through its snapshots.
///
/// # Errors
/// When it cannot be opened, or was built with another embedder.
pub fn live(dir: &Path, embedder: Arc<Embedding>, config: &RetrievalConfig) -> anyhow::Result<Arc<LiveIndex>> {
    let options = OpenOptions { concurrency: config.threads, ..OpenOptions::default() };
    let mut live = LiveIndex::open(dir, embedder as Arc<dyn Embed>, options)?;
    if let Some(config) = &config.fact_filter {
        live = live.with_fact_filter(filter::fact_filter(config)?);
    }
    let live = Arc::new(live);
    live.watch(WATCH)?;
    let Manifest { snapshot, passages, .. } = *live.current().manifest();
    tracing::info!(index = %dir.display(), snapshot, passages, "index open");
    Ok(live)
}

/// Threads of their own that search `live`.
///
/// # Errors
/// When no thread can be started.
pub fn searcher(live: &Arc<LiveIndex>, config: &RetrievalConfig) -> anyhow::Result<Arc<dyn Search>> {
    let limits = SearchLimits { threads: config.threads, waiting: SEARCHES_WAITING, timeout: config.deadline };
    Ok(Arc::new(Searcher::new(Arc::clone(live), limits)?))
}

fn library(live: Arc<LiveIndex>, config: &RetrievalConfig) -> Library {
    if config.writable { Library::new(live, CommitOptions::default()) } else { Library::read_only(live) }
}

/// The engine with its texts, and the base model.
///
/// # Errors
/// When the weights cannot be had or read.
pub fn runtime(
    config: &ModelConfig,
    team: Arc<Team>,
    searcher: Option<Arc<dyn Search>>,
) -> anyhow::Result<(Runtime, Base)> {
    let engine_config = EngineConfig {
        max_batch_rows: config.max_batch,
        step_tokens: config.step_tokens,
        max_waiting: config.max_waiting,
        ..EngineConfig::default()
    };
    let Some(spec) = &config.weights else {
        let tokenizer = Arc::new(Tokenizer::bytes());
        // Room for a batch of a thousand tokens each.
        let blocks = (config.max_batch * 1024 / BLOCK).max(8192);
        let backend = MockBackend::script(&tokenizer, &mock_lines())?.with_blocks(blocks);
        let backend = backend.with_time(config.mock_step, Duration::ZERO);
        let eos = tokenizer.id("<|im_end|>").into_iter().collect();
        let engine = Engine::start(Box::new(backend), engine_config, tokenizer.table())?;
        let base = Base { names: vec!["mock".to_owned()], ..Base::default() };
        return Ok((Runtime::new(engine, tokenizer, None, eos, searcher), base));
    };
    let (checkpoint, path) = checkpoint(spec, config.cache.clone())?;
    let base = base(spec, &checkpoint, &path)?;
    let backend = device::backend(config, &checkpoint, team)?;
    let tokenizer = Arc::new(checkpoint.tokenizer);
    let engine = Engine::start(backend, engine_config, tokenizer.table())?;
    let template = checkpoint.template.map(Arc::new);
    Ok((Runtime::new(engine, tokenizer, template, checkpoint.eos, searcher), base))
}

/// What policies may know the base model by that `spec` named and that was opened at `path`.
fn base(spec: &str, checkpoint: &Checkpoint, path: &Path) -> anyhow::Result<Base> {
    let catalog = Catalog::bundled();
    let mut names = vec![spec.to_owned(), checkpoint.name.clone()];
    // A file of the catalog's, wherever it was had from, is what policies of that name belong to.
    if !names.iter().any(|name| catalog.get(name).is_some()) {
        names.extend(recognise(path, &catalog)?.map(|entry| entry.name.clone()));
    }
    Ok(Base { names, id: Some(checkpoint.weights.id()), path: path.canonicalize().ok() })
}

/// The policies in `dirs` with their adapters loaded, then the built-in ones over the bare base.
async fn policies(dirs: &[PathBuf], engine: &Engine, base: &Base, mock: bool) -> anyhow::Result<Vec<Policy>> {
    let mut policies = Vec::new();
    for dir in dirs {
        let policy = Policy::load(dir, engine, base).await?;
        ensure!(
            !policies.iter().any(|other: &Policy| other.name == policy.name),
            "two policies are called {}",
            policy.name
        );
        policies.push(policy);
    }
    for name in Policy::BUILTIN {
        if let Some(policy) = Policy::builtin(name)
            && !policies.iter().any(|other| other.name == policy.name)
        {
            // A base that was never trained in the loop stays in its form only when it is guided.
            let guided = !mock && policy.searches();
            policies.push(Policy { guided, ..policy });
        }
    }
    Ok(policies)
}

/// What the mock says to every question.
fn mock_lines() -> Lines {
    Lines::new([
        "<think>I should look this up.</think>\n<search> [passage] the question </search>",
        "<think>That is enough.</think>\n<answer> This is the mock: it has no model behind it. </answer>",
    ])
    .terminator("</information>\n\n")
    .terminator("Let me try again.\n")
}
