//! Assembly of running parts from a configuration: weights, engine, index, policies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use waymark_agent::{LoadedBase, Policy, Runtime, Search, SearchLimits, Searcher, SessionSource, WeightsSummary};
use waymark_engine::mock::{Lines, MockBackend};
use waymark_engine::{Engine, EngineConfig};
use waymark_index::{Embed, LiveIndex, Manifest, OpenOptions, Rerank};
use waymark_models::BLOCK;
use waymark_models::catalog::Catalog;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::embedder::{Embedder, EncoderPrompts};
use waymark_models::kernel::Team;
use waymark_models::layout::weight_files;
use waymark_models::pull::recognize;
use waymark_models::reranker::Reranker;
use waymark_models::tokenizer::Tokenizer;

use crate::config::{
    EmbedderConfig, FleetConfig, ModelConfig, QueryArithmetic, RerankerConfig, RetrievalConfig, StepSize,
};
use crate::embedding::{self, Embedding};
use crate::environment::key_in;
use crate::fleet::{Fleet, TokenSource};
use crate::remote::{EmbedEndpoint, RerankEndpoint};
use crate::reranking::Reranking;
use crate::trusted_roots::TrustedRoots;
use crate::{cache, device, filter, pull};

/// Maximum number of queued searches.
pub const SEARCHES_WAITING: usize = 1024;

/// Opens the embedder that `config` names, downloading its weights if they are missing.
///
/// # Errors
/// If the weights cannot be fetched or are not those of an encoder, if the endpoint's key, URL or CA file is invalid,
/// or if it returns no vectors.
pub fn embedder(config: &EmbedderConfig, cache: Option<PathBuf>, team: Arc<Team>) -> anyhow::Result<Embedding> {
    let (name, arithmetic) = match config {
        EmbedderConfig::Weights { name, .. } if name == embedding::MOCK => return Ok(Embedding::Mock),
        EmbedderConfig::Weights { name, query_arithmetic } => (name, *query_arithmetic),
        EmbedderConfig::Endpoint { url, model, key_env, ca, timeout } => {
            let roots = TrustedRoots::of_flag("--embedder-ca", ca.as_deref())?;
            let endpoint = EmbedEndpoint::new(url, model, key_in(key_env)?, *timeout, roots).context("--embedder")?;
            // Measured at once, because the index must know the length of the vectors before it takes any.
            let endpoint = endpoint.measured().context("--embedder")?;
            return Ok(Embedding::Endpoint(Box::new(endpoint)));
        }
    };
    let dir = pull::fetch(name, &cache::folder(cache)?)?;
    let mut embedder = Embedder::open(&dir, team)?.with_rounded_queries(arithmetic == QueryArithmetic::Int8);
    // Some authors document the prompts only in the model card, so the catalog has them.
    if let Some(entry) = Catalog::bundled().get(name) {
        let query = entry.query_prompt.clone();
        let document = entry.document_prompt.clone();
        embedder = embedder.or_prompts(EncoderPrompts { query, document });
    }
    // An absolute path is found from any working directory. A name in the catalog takes precedence over a directory of
    // that name.
    let source = match Catalog::bundled().get(name).is_none() && Path::new(name).is_dir() {
        true => std::path::absolute(name).map_or_else(|_| name.clone(), |dir| dir.to_string_lossy().into_owned()),
        false => name.clone(),
    };
    Ok(Embedding::Model(Box::new(embedder), source))
}

/// Opens the reranker that `config` names, downloading its weights if they are missing.
///
/// # Errors
/// If the weights cannot be fetched or are not those of a cross-encoder, or the endpoint's key, URL or CA file is
/// invalid.
pub fn reranker(config: &RerankerConfig, cache: Option<PathBuf>, team: Arc<Team>) -> anyhow::Result<Reranking> {
    match config {
        RerankerConfig::Weights(name) if name == embedding::MOCK => Ok(Reranking::Mock),
        RerankerConfig::Weights(name) => {
            let dir = pull::fetch(name, &cache::folder(cache)?).context("--reranker")?;
            Ok(Reranking::Model(Box::new(Reranker::open(&dir, team).context("--reranker")?)))
        }
        RerankerConfig::Endpoint { url, model, key_env, ca, timeout } => {
            let roots = TrustedRoots::of_flag("--reranker-ca", ca.as_deref())?;
            // No request is sent yet: the endpoint may start after the server.
            let endpoint = RerankEndpoint::new(url, model.clone(), key_in(key_env)?, *timeout, roots);
            Ok(Reranking::Endpoint(Box::new(endpoint.context("--reranker")?)))
        }
    }
}

/// Opens the base model `spec`, downloading it if it is missing. Returns the checkpoint and its path.
pub fn checkpoint(spec: &str, cache: Option<PathBuf>) -> anyhow::Result<(Checkpoint, PathBuf)> {
    let path = pull::fetch(spec, &cache::folder(cache)?)?;
    Ok((Checkpoint::open(&path)?, path))
}

/// Interval at which the server checks for commits of other processes.
const WATCH: Duration = Duration::from_millis(500);

/// Opens the index in `dir` and follows its snapshots.
///
/// # Errors
/// If the index cannot be opened, or was built with another embedder.
pub fn live(
    dir: &Path,
    embedder: Arc<dyn Embed>,
    reranker: Option<Arc<Reranking>>,
    config: &RetrievalConfig,
) -> anyhow::Result<Arc<LiveIndex>> {
    let options = OpenOptions { concurrency: config.threads, ..OpenOptions::default() };
    let mut live = LiveIndex::open(dir, embedder, options)?;
    if let Some(config) = &config.fact_filter {
        live = live.with_fact_filter(filter::fact_filter(config)?);
    }
    if let Some(reranker) = reranker {
        live = live.with_reranker(reranker as Arc<dyn Rerank>);
    }
    let live = Arc::new(live);
    live.watch(WATCH)?;
    let Manifest { snapshot, passages, .. } = *live.current().manifest();
    tracing::info!(index = %dir.display(), snapshot, passages, "index open");
    Ok(live)
}

/// Starts search threads over `live`. A search has `timeout`.
///
/// # Errors
/// If a thread cannot be started.
pub fn searcher(live: &Arc<LiveIndex>, threads: usize, timeout: Duration) -> anyhow::Result<Arc<dyn Search>> {
    let limits = SearchLimits { threads, waiting: SEARCHES_WAITING, timeout };
    Ok(Arc::new(Searcher::new(Arc::clone(live), limits)?))
}

/// Starts the engine and returns it with the tokenizer and template, and the base model's identity.
///
/// # Errors
/// If the weights cannot be fetched or read.
pub fn runtime(
    config: &ModelConfig,
    team: Arc<Team>,
    searcher: Option<Arc<dyn Search>>,
) -> anyhow::Result<(Runtime, LoadedBase)> {
    let engine_config = |size: StepSize| EngineConfig {
        max_batch_rows: size.max_batch,
        step_tokens: size.step_tokens,
        lookup_tokens: config.lookup,
        max_waiting: config.max_waiting,
        ..EngineConfig::default()
    };
    // The mock has a tokenizer of bytes, so that any text can be encoded without a vocabulary file.
    let Some(spec) = &config.weights else {
        let tokenizer = Arc::new(Tokenizer::bytes());
        let size = config.cpu_step();
        // Enough blocks for a full batch of sequences of 1024 tokens.
        let blocks = (size.max_batch * 1024 / BLOCK).max(8192);
        let backend = MockBackend::script(&tokenizer, &mock_lines())?.with_blocks(blocks);
        let backend = backend.with_time(config.mock_step, Duration::ZERO);
        let eos = tokenizer.id("<|im_end|>").into_iter().collect();
        let engine = Engine::start(Box::new(backend), engine_config(size), tokenizer.table())?;
        let base = LoadedBase { names: vec!["mock".to_owned()], ..LoadedBase::default() };
        return Ok((Runtime::new(engine, tokenizer, None, eos, searcher), base));
    };
    let (checkpoint, path) = checkpoint(spec, config.cache.clone())?;
    let base = base(spec, &checkpoint, &path)?;
    log_weights(spec, &base);
    if checkpoint.template.is_none() {
        tracing::warn!(model = spec, "the checkpoint has no chat template: messages are joined by line breaks");
    }
    let (backend, size) = device::backend(config, &checkpoint, team)?;
    let tokenizer = Arc::new(checkpoint.tokenizer);
    let engine = Engine::start(backend, engine_config(size), tokenizer.table())?;
    let template = checkpoint.template.map(Arc::new);
    Ok((Runtime::new(engine, tokenizer, template, checkpoint.eos, searcher), base))
}

/// Connects to engines elsewhere, and returns them with the tokenizer and template of the base model that `config`
/// names, and the base model's identity. The weights are opened, but not loaded.
///
/// # Errors
/// If the base model's files cannot be fetched or read, or the engines serve another model.
pub async fn remote_runtime(
    config: &ModelConfig,
    fleet: &FleetConfig,
    searcher: Option<Arc<dyn Search>>,
) -> anyhow::Result<(Runtime<TokenSource>, LoadedBase)> {
    let Some(spec) = &config.weights else {
        let tokenizer = Arc::new(Tokenizer::bytes());
        let eos = tokenizer.id("<|im_end|>").into_iter().collect();
        let fleet = Fleet::connect(fleet, Arc::clone(&tokenizer), config.context).await?;
        let base = LoadedBase { names: vec!["mock".to_owned()], ..LoadedBase::default() };
        return Ok((Runtime::new(fleet.into(), tokenizer, None, eos, searcher), base));
    };
    let (checkpoint, path) = checkpoint(spec, config.cache.clone())?;
    let base = base(spec, &checkpoint, &path)?;
    let Checkpoint { tokenizer, template, eos, .. } = checkpoint;
    let tokenizer = Arc::new(tokenizer);
    let fleet = Fleet::connect(fleet, Arc::clone(&tokenizer), config.context).await?;
    Ok((Runtime::new(fleet.into(), tokenizer, template.map(Arc::new), eos, searcher), base))
}

/// Returns the identity of the base model that `spec` named and that was opened at `path`, with the names by which
/// policies may refer to it.
fn base(spec: &str, checkpoint: &Checkpoint, path: &Path) -> anyhow::Result<LoadedBase> {
    let catalog = Catalog::bundled();
    let mut names = vec![spec.to_owned(), checkpoint.name.clone()];
    // A file is recognized by its content, so that policies for a catalog entry also accept a copy under another name.
    if !names.iter().any(|name| catalog.get(name).is_some()) {
        names.extend(recognize(path, &catalog)?.map(|entry| entry.name.clone()));
    }
    // The path is canonical, because policies name their base by relative paths and links.
    let weights = WeightsSummary { files: weight_files(path), parameters: checkpoint.weights.config().parameters() };
    Ok(LoadedBase { names, id: Some(checkpoint.weights.id()), path: path.canonicalize().ok(), weights: Some(weights) })
}

/// Logs the path, files and ID of the loaded weights, whatever name the user gave.
fn log_weights(spec: &str, base: &LoadedBase) {
    let LoadedBase { id: Some(id), path: Some(path), weights: Some(weights), .. } = base else { return };
    let path = path.display();
    let files = weights.files.join(", ");
    tracing::info!(model = spec, %path, files, parameters = weights.parameters, id, "loaded the weights");
}

/// Loads the policies in `dirs` with their adapters, then adds the built-in ones over the bare base model.
///
/// # Errors
/// If a policy cannot be loaded, or two share a name.
pub async fn policies(
    dirs: &[PathBuf],
    engine: &impl SessionSource,
    base: &LoadedBase,
    mock: bool,
) -> anyhow::Result<Vec<Policy>> {
    let mut policies = Vec::new();
    for dir in dirs {
        policies.push(Policy::load(dir, engine, base).await?);
        check_names(&policies)?;
    }
    // A loaded policy replaces a built-in one of the same name.
    for name in Policy::BUILTIN {
        if !policies.iter().any(|other| other.name == *name) {
            policies.extend(builtin(name, mock));
        }
    }
    Ok(policies)
}

/// Returns the built-in policy `name` as it is served over the bare base model, or over the mock. `None` if there is no
/// such policy.
pub fn builtin(name: &str, mock: bool) -> Option<Policy> {
    let policy = Policy::builtin(name)?;
    // A base model that was not trained in the protocol follows it only with guided decoding.
    let guided = !mock && policy.searches();
    Some(Policy { guided, ..policy })
}

/// Reads the policies in `dirs`, without their adapters and their base model, to refuse them before weights are loaded.
///
/// # Errors
/// If a policy cannot be read, or two share a name.
pub fn check_policies(dirs: &[PathBuf]) -> anyhow::Result<()> {
    let policies: Vec<Policy> = dirs.iter().map(|dir| Policy::open(dir)).collect::<Result<_, _>>()?;
    check_names(&policies)
}

/// Refuses policies of which two share a name.
///
/// # Errors
/// Names the directories of the two.
pub fn check_names(policies: &[Policy]) -> anyhow::Result<()> {
    for (position, policy) in policies.iter().enumerate() {
        if let Some(other) = policies[..position].iter().find(|other| other.name == policy.name) {
            bail!(
                "two policies share the name {}: {} and {}; change `name` in one `policy.toml`",
                policy.name,
                origin(other),
                origin(policy)
            );
        }
    }
    Ok(())
}

/// Returns the directory of a policy, or the flag that gives a policy without a directory.
fn origin(policy: &Policy) -> String {
    policy.dir.as_deref().map_or_else(|| "--protocol".to_owned(), |dir| dir.display().to_string())
}

/// Script that the mock answers every question with.
fn mock_lines() -> Lines {
    Lines::new([
        "<think>I should look this up.</think>\n<search> [passage] the question </search>",
        "<think>That is enough.</think>\n<answer> This is the mock: it has no model behind it. </answer>",
    ])
    .terminator("</information>\n\n")
    .terminator("Let me try again.\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn two_policies_of_one_name_are_refused_with_their_directories() {
        let root = tempfile::tempdir().unwrap();
        let dirs = ["sft", "stage1", "other"].map(|dir| root.path().join(dir));
        for (dir, name) in dirs.iter().zip(["small", "small", "large"]) {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join("policy.toml"), format!("name = \"{name}\"\nprotocol = \"plain\"\n")).unwrap();
        }
        check_policies(&dirs[1..]).unwrap();
        let refused = check_policies(&dirs).unwrap_err().to_string();
        let first = dirs[0].to_str().unwrap();
        let second = dirs[1].to_str().unwrap();
        for words in ["share the name small", first, second, "change `name` in one `policy.toml`"] {
            assert!(refused.contains(words), "{refused}");
        }
        assert!(check_policies(&[root.path().join("none")]).is_err());
    }

    #[test]
    fn built_in_policies_that_search_are_guided_unless_over_the_mock() {
        let guided = |name: &str, mock: bool| builtin(name, mock).map(|policy| policy.guided);
        assert_eq!((guided("routerag", false), guided("routerag", true)), (Some(true), Some(false)));
        assert_eq!((guided("plain", false), guided("unknown", false)), (Some(false), None));
    }
}
