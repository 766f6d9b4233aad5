//! Question files of a training command, each with the index to search for its questions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use toml::Value;
use waymark_agent::{Runtime, Search};
use waymark_index::{Embed, Index, LiveIndex, Manifest, OpenOptions};
use waymark_models::kernel::Team;
use waymark_runtime::assembly;
use waymark_runtime::config::{EmbedderArgs, QueryArithmetic};
use waymark_runtime::query_embedder::{QUERY_CACHE_BYTES, QueryEmbedder};

use super::host_args::HostArgs;
use super::run_facts;
use crate::question_file::QuestionFile;
use crate::rollout::QuestionSet;

/// Timeout of a search. It is generous because training results must not depend on the load of the machine.
const SEARCH_DEADLINE: Duration = Duration::from_secs(120);

/// Error for question files without `supporting`, if the recipe needs it.
const UNSUPPORTED: &str = "the recipe uses the supporting passages of questions (path_router, evo_rag, grpo.routes, \
    grpo.teacher), but none of these questions has any in the index: give `supporting`, the IDs of all passages that \
    answer a question";

/// Facts that identify a run, by name.
pub(super) type RunFacts = Vec<(&'static str, Value)>;

/// Question files and their indexes.
#[derive(Debug, clap::Args)]
pub(super) struct QuestionArgs {
    /// Path to questions with answers, as JSON lines. May be repeated. Recipes that use support also need `supporting`
    /// (passage IDs in the index). The file name without its extension names the questions in metrics and samples.
    #[arg(long, required = true, value_name = "FILE")]
    pub(super) questions: Vec<PathBuf>,

    /// Directory of the index to search: one for each --questions, in the same order. The run keeps the snapshot that
    /// is current when it starts, whatever is committed meanwhile.
    #[arg(long, required = true, value_name = "DIR")]
    pub(super) index: Vec<PathBuf>,

    #[command(flatten)]
    pub(super) embedder: EmbedderArgs,
}

/// Index that is open for searching.
#[derive(Clone)]
struct OpenIndex {
    searcher: Arc<dyn Search>,
    index: Arc<Index>,
}

impl QuestionArgs {
    /// Reads the question files.
    pub(super) fn files(&self) -> anyhow::Result<Vec<QuestionFile>> {
        let given = self.questions.len();
        let indexes = self.index.len();
        ensure!(given == indexes, "{given} --questions but {indexes} --index: give one --index for each --questions");
        QuestionFile::open_all(&self.questions)
    }

    /// Loads the embedder for queries and for rewards that compare texts.
    pub(super) fn embedder(&self, team: &Arc<Team>, host_args: &HostArgs) -> anyhow::Result<Arc<dyn Embed>> {
        // Searches embed their queries while the engine computes, so the embedder has threads of its own.
        let own_team = Arc::new(Team::new(team.threads()));
        let embedder =
            assembly::embedder(&self.embedder.resolve_for(&self.index[0])?, host_args.cache.clone(), own_team)?;
        Ok(Arc::new(QueryEmbedder::new(Arc::new(embedder), QUERY_CACHE_BYTES)))
    }

    /// Opens the indexes and pairs each with a copy of `runtime` that searches it. Returns the question sets and the
    /// facts that identify them. If `needs_support`, fails for a file without a question whose support is known.
    pub(super) fn open_question_sets(
        &self,
        files: Vec<QuestionFile>,
        runtime: &Runtime,
        embedder: &Arc<dyn Embed>,
        threads: usize,
        needs_support: bool,
    ) -> anyhow::Result<(Vec<QuestionSet>, RunFacts)> {
        let mut open: BTreeMap<&Path, OpenIndex> = BTreeMap::new();
        let mut question_sets = Vec::new();
        let mut index_facts = Vec::new();
        for (file, dir) in files.into_iter().zip(&self.index) {
            // Several question files may share an index, which is opened once.
            let opened = match open.get(dir.as_path()) {
                Some(opened) => opened.clone(),
                None => self.open(dir, embedder, threads)?,
            };
            open.insert(dir, opened.clone());
            let OpenIndex { searcher, index } = opened;
            let file = file.support_from(&index);
            ensure!(!needs_support || file.is_supported(), "{}: {UNSUPPORTED}", file.name);
            let manifest = index.manifest().clone();
            let Manifest { corpus, snapshot, checksum, .. } = &manifest;
            index_facts.push(Value::String(format!("{corpus} snapshot {snapshot} {checksum:08x}")));
            let mut runtime = runtime.clone();
            runtime.searcher = Some(searcher);
            let QuestionFile { name, questions, validation, .. } = file;
            question_sets.push(QuestionSet { name, runtime, index: Some(manifest), questions, validation });
        }
        let mut facts = vec![
            ("embedder", Value::String(embedder.id().to_owned())),
            ("indexes", Value::Array(index_facts)),
            ("questions", run_facts::hash_list(&run_facts::fingerprints(&self.questions)?)),
        ];
        facts.extend(query_arithmetic(&self.embedder));
        Ok((question_sets, facts))
    }

    /// Opens an index at its current snapshot, which later commits do not change.
    fn open(&self, dir: &Path, embedder: &Arc<dyn Embed>, threads: usize) -> anyhow::Result<OpenIndex> {
        let options = OpenOptions { concurrency: threads, ..OpenOptions::default() };
        let live = LiveIndex::open(dir, Arc::clone(embedder), options)
            .with_context(|| format!("--index {}", dir.display()))?;
        let live = Arc::new(live);
        let index = live.current();
        let manifest = index.manifest();
        tracing::info!(index = %dir.display(), manifest.snapshot, manifest.passages, "index open");
        Ok(OpenIndex { searcher: assembly::searcher(&live, threads, SEARCH_DEADLINE)?, index })
    }
}

/// Logs how many questions count as multi-hop for a reward that counts hops. Questions whose support is unknown or not
/// in the index count as single-hop.
pub(super) fn log_hops(question_sets: &[QuestionSet]) {
    for set in question_sets {
        let all = set.questions.len();
        let several = set.multi_hop_count();
        tracing::info!(
            questions = set.name,
            several,
            single = all - several,
            "multi-hop and single-hop questions, as the reward counts them"
        );
    }
}

/// Fact that the queries of searches are embedded in another arithmetic than `f32`, which changes what they find. `None`
/// for `f32`, so that runs started before this fact existed can resume.
pub(super) fn query_arithmetic(embedder: &EmbedderArgs) -> Option<(&'static str, Value)> {
    match embedder.query_arithmetic.unwrap_or_default() {
        QueryArithmetic::F32 => None,
        QueryArithmetic::Int8 => Some(("query_arithmetic", "int8".into())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_runtime::embedding::Embedding;

    use super::*;
    use crate::tiny;

    #[tokio::test]
    async fn a_run_is_identified_by_another_arithmetic_of_queries() {
        let temp = tempfile::tempdir().unwrap();
        let runtime = tiny::engine(&tiny::weights(temp.path(), 259));
        let embedder: Arc<dyn Embed> = Arc::new(Embedding::Mock);
        let fact = |query_arithmetic| {
            let embedder_args = EmbedderArgs { query_arithmetic, ..EmbedderArgs::weights("encoder") };
            let args = QuestionArgs { questions: Vec::new(), index: Vec::new(), embedder: embedder_args };
            let (_, facts) = args.open_question_sets(Vec::new(), &runtime, &embedder, 1, false).unwrap();
            facts.into_iter().find(|(name, _)| *name == "query_arithmetic").map(|(_, value)| value)
        };
        assert_eq!(fact(Some(QueryArithmetic::Int8)), Some("int8".into()));
        // Runs that were started before this fact existed had the default.
        assert_eq!([None, Some(QueryArithmetic::F32)].map(fact), [None, None]);
    }
}
