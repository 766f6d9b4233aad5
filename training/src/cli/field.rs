//! What policies are asked while they learn, and by `train rollout`: question files, each with the index that its questions are asked over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use toml::Value;
use waymark::agent::{Runtime, Search};
use waymark::cli::assembly;
use waymark::config::RetrievalConfig;
use waymark_index::{Embed, Index, LiveIndex, Manifest, OpenOptions};
use waymark_models::kernel::Team;

use super::asked;
use super::host::Host;
use super::sheet::Sheet;
use crate::rollout::Field;

/// How long a search may take: what is learnt is not to depend on the load of the machine.
const SEARCH_DEADLINE: Duration = Duration::from_secs(120);

/// Why questions cannot be learnt from where support counts.
const UNSUPPORTED: &str = "the recipe rewards or weighs the support of answers (path_router, evo_rag, grpo.routes, \
    grpo.teacher), which is known of none of these questions: give `supporting`, the ids of all passages that a question \
    takes, as they are in its index";

/// What a run is known by, by name.
pub(super) type Facts = Vec<(&'static str, Value)>;

/// What is asked.
#[derive(Debug, clap::Args)]
pub(super) struct Asking {
    /// Questions with answers, as JSON lines, and for recipes that go by support with `supporting` (ids in the index); may be
    /// given several times. The name of the file without its ending is what they are called in numbers and samples.
    #[arg(long, required = true, value_name = "FILE")]
    pub(super) questions: Vec<PathBuf>,

    /// The index that the questions are asked over: one for each --questions, in the same order. It is searched as it is
    /// when the run begins, whatever is committed to it meanwhile.
    #[arg(long, required = true, value_name = "DIR")]
    pub(super) index: Vec<PathBuf>,

    /// Embedding model: must be the one the indexes were built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    pub(super) embedder: String,
}

/// An index that is open.
#[derive(Clone)]
struct Opened {
    searcher: Arc<dyn Search>,
    index: Arc<Index>,
}

impl Asking {
    /// Reads the questions.
    pub(super) fn sheets(&self) -> anyhow::Result<Vec<Sheet>> {
        let (files, indexes) = (self.questions.len(), self.index.len());
        ensure!(files == indexes, "{files} --questions for {indexes} --index: give one index each");
        let mut names: BTreeMap<String, &Path> = BTreeMap::new();
        let mut sheets = Vec::new();
        for file in &self.questions {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(other) = names.insert(name.clone(), file) {
                let (one, two) = (other.display(), file.display());
                anyhow::bail!("{one} and {two} would both be called {name} in numbers and samples: rename one of them");
            }
            sheets.push(Sheet::open(name, file)?);
        }
        Ok(sheets)
    }

    /// What embeds queries for searches, and texts for rewards that compare them.
    pub(super) fn embedder(&self, team: &Arc<Team>, host: &Host) -> anyhow::Result<Arc<dyn Embed>> {
        let aside = Arc::new(Team::new(team.threads()));
        Ok(Arc::new(assembly::embedder(&self.embedder, host.cache.clone(), aside)?))
    }

    /// Opens the indexes, and puts `runtime` around each. Returns the fields, and what a run over them is known by. Where
    /// training goes by the support of questions (`supported`), that of each file must be known.
    pub(super) fn fields(
        &self,
        sheets: Vec<Sheet>,
        runtime: &Runtime,
        embedder: &Arc<dyn Embed>,
        threads: usize,
        supported: bool,
    ) -> anyhow::Result<(Vec<Field>, Facts)> {
        let mut open: BTreeMap<&Path, Opened> = BTreeMap::new();
        let (mut fields, mut known) = (Vec::new(), Vec::new());
        for (sheet, dir) in sheets.into_iter().zip(&self.index) {
            let opened = match open.get(dir.as_path()) {
                Some(opened) => opened.clone(),
                None => self.open(dir, embedder, threads)?,
            };
            open.insert(dir, opened.clone());
            let Opened { searcher, index } = opened;
            let sheet = sheet.support_from(&index);
            ensure!(!supported || sheet.is_supported(), "{}: {UNSUPPORTED}", sheet.name);
            let manifest = index.manifest().clone();
            let Manifest { corpus, snapshot, checksum, .. } = &manifest;
            known.push(Value::String(format!("{corpus} snapshot {snapshot} {checksum:08x}")));
            let mut runtime = runtime.clone();
            runtime.searcher = Some(searcher);
            let Sheet { name, questions, validation, .. } = sheet;
            fields.push(Field { name, runtime, index: Some(manifest), questions, validation });
        }
        let facts = vec![
            ("embedder", Value::String(embedder.id().to_owned())),
            ("indexes", Value::Array(known)),
            ("questions", asked::hashes(&asked::fingerprints(&self.questions)?)),
        ];
        Ok((fields, facts))
    }

    /// Opens an index at its present snapshot, and stays there.
    fn open(&self, dir: &Path, embedder: &Arc<dyn Embed>, threads: usize) -> anyhow::Result<Opened> {
        let options = OpenOptions { concurrency: threads, ..OpenOptions::default() };
        let live = LiveIndex::open(dir, Arc::clone(embedder), options)
            .with_context(|| format!("--index {}", dir.display()))?;
        let retrieval = RetrievalConfig {
            index: Some(dir.to_owned()),
            writable: false,
            embedder: self.embedder.clone(),
            threads,
            deadline: SEARCH_DEADLINE,
            fact_filter: None,
        };
        let live = Arc::new(live);
        let index = live.current();
        let manifest = index.manifest();
        tracing::info!(index = %dir.display(), manifest.snapshot, manifest.passages, "index open");
        Ok(Opened { searcher: assembly::searcher(&live, &retrieval)?, index })
    }
}

/// Says how many questions a reward that counts hops takes for single ones: also those whose support is not known, or not in
/// the index.
pub(super) fn tell_hops(fields: &[Field]) {
    for field in fields {
        let (several, all) = (field.composed(), field.questions.len());
        tracing::info!(questions = field.name, several, single = all - several, "hops, as the reward counts them");
    }
}
