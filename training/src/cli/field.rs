//! What training by rewards or preferences asks: question files, each with the index that its questions are asked over.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use toml::Value;
use waymark::agent::{Runtime, Search};
use waymark::cli::assembly;
use waymark::config::RetrievalConfig;
use waymark::evaluate::Question;
use waymark_index::{Embed, Index, LiveIndex, Manifest, OpenOptions};
use waymark_models::kernel::Team;

use super::asked;
use super::machine::Machine;
use crate::rollout::Field;

/// How long a search may take: what is learnt is not to depend on the load of the machine.
const SEARCH_DEADLINE: Duration = Duration::from_secs(120);
/// Of a file at most one question in so many is kept aside to measure with.
const ASIDE: usize = 4;

/// Why questions cannot be learnt from where support counts.
const UNSUPPORTED: &str = "the recipe rewards or weighs the support of answers (path_router, evo_rag, grpo.routes), which is \
    known of none of these questions: give `supporting`, the ids of all passages that a question takes, as they are in its index";

/// What a run is known by, by name.
pub(super) type Facts = Vec<(&'static str, Value)>;

/// What is asked.
#[derive(Debug, clap::Args)]
pub(super) struct Asking {
    /// Questions with answers, as JSON lines, and for recipes that go by support with `supporting` (ids in the index); may be
    /// given several times. The name of the file without its ending is what they are called in numbers and samples.
    ///
    /// The last ones of each file (`grpo.validation` or `dpo.validation` of the recipe, at most a quarter) are not learnt
    /// from, but measured with. Supervised training may have seen them: --validation gives others.
    #[arg(long, required = true, value_name = "FILE")]
    pub(super) questions: Vec<PathBuf>,

    /// The index that the questions are asked over: one for each --questions, in the same order. It is searched as it is
    /// when the run begins, whatever is committed to it meanwhile.
    #[arg(long, required = true, value_name = "DIR")]
    index: Vec<PathBuf>,

    /// Questions to measure with, instead of the last ones of --questions: one file for each, in the same order, of which
    /// the first ones are asked (`validation` of the recipe).
    #[arg(long, value_name = "FILE")]
    validation: Vec<PathBuf>,

    /// Embedding model: must be the one the indexes were built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,
}

/// The questions of a file, divided.
#[derive(Debug)]
pub(super) struct Sheet {
    name: String,
    questions: Vec<Question>,
    validation: Vec<Question>,
}

/// An index that is open.
#[derive(Clone)]
struct Opened {
    searcher: Arc<dyn Search>,
    index: Arc<Index>,
}

impl Asking {
    /// Reads the questions; `measured` of each file are to be measured with, as the recipe's `field` says.
    pub(super) fn sheets(&self, field: &str, measured: usize) -> anyhow::Result<Vec<Sheet>> {
        let (files, indexes, kept) = (self.questions.len(), self.index.len(), self.validation.len());
        ensure!(files == indexes, "{files} --questions for {indexes} --index: give one index each");
        ensure!(kept == 0 || files == kept, "{files} --questions for {kept} --validation: give one file each, or none");
        ensure!(kept == 0 || measured > 0, "--validation: the recipe asks none of them, set {field} above 0");
        let mut names: BTreeMap<String, &Path> = BTreeMap::new();
        let mut sheets = Vec::new();
        for (place, file) in self.questions.iter().enumerate() {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(other) = names.insert(name.clone(), file) {
                let (one, two) = (other.display(), file.display());
                anyhow::bail!("{one} and {two} would both be called {name} in numbers and samples: rename one of them");
            }
            let questions = Question::read(file)?;
            ensure!(!questions.is_empty(), "{}: there is no question in it", file.display());
            let sheet = match self.validation.get(place) {
                Some(apart) => Sheet::apart(name, questions, file, apart, measured)?,
                None => Sheet::divided(name, questions, file, (field, measured))?,
            };
            sheets.push(sheet);
        }
        Ok(sheets)
    }

    /// What embeds queries for searches, and texts for rewards that compare them.
    pub(super) fn embedder(&self, team: &Arc<Team>, machine: &Machine) -> anyhow::Result<Arc<dyn Embed>> {
        let aside = Arc::new(Team::new(team.threads()));
        Ok(Arc::new(assembly::embedder(&self.embedder, machine.cache.clone(), aside)?))
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
            let Sheet { name, questions, validation } = sheet;
            fields.push(Field { name, runtime, index: Some(manifest), questions, validation });
        }
        let facts = vec![
            ("embedder", Value::String(embedder.id().to_owned())),
            ("indexes", Value::Array(known)),
            ("questions", asked::hashes(&asked::fingerprints(&self.questions)?)),
            ("validation", asked::hashes(&asked::fingerprints(&self.validation)?)),
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

impl Sheet {
    /// With the texts of the supporting passages.
    fn support_from(mut self, index: &Index) -> Sheet {
        self.questions.iter_mut().chain(&mut self.validation).for_each(|question| question.support_from(index));
        self
    }

    /// Whether the support of a question to learn from is known.
    fn is_supported(&self) -> bool {
        self.questions.iter().any(|question| !question.support.is_empty())
    }

    /// Keeps the last `measured` questions aside.
    fn divided(
        name: String,
        mut questions: Vec<Question>,
        file: &Path,
        (field, measured): (&str, usize),
    ) -> anyhow::Result<Sheet> {
        let (all, most) = (questions.len(), questions.len() / ASIDE);
        ensure!(
            measured <= most,
            "{}: {field} = {measured} would keep more than a quarter of its {all} questions aside: set \
             {field} to at most {most}, or give others to measure with by --validation",
            file.display()
        );
        let validation = questions.split_off(all - measured);
        Ok(Sheet { name, questions, validation })
    }

    /// Takes the first `measured` questions of `apart`, none of which may be in `file`.
    fn apart(
        name: String,
        questions: Vec<Question>,
        file: &Path,
        apart: &Path,
        measured: usize,
    ) -> anyhow::Result<Sheet> {
        let mut validation = Question::read(apart)?;
        ensure!(!validation.is_empty(), "{}: there is no question in it", apart.display());
        validation.truncate(measured);
        let learnt: HashSet<&str> = questions.iter().map(|question| question.question.trim()).collect();
        if let Some(both) = validation.iter().find(|question| learnt.contains(question.question.trim())) {
            let (file, apart) = (file.display(), apart.display());
            anyhow::bail!("{apart}: {:?} is in {file} too: it would be learnt and measured with", both.question);
        }
        Ok(Sheet { name, questions, validation })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(dir: &Path, name: &str, first: usize, count: usize) -> PathBuf {
        let line = |at| format!("{{\"question\": \"question {at}?\", \"answers\": [\"a\"]}}\n");
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(name), (first..first + count).map(line).collect::<String>()).unwrap();
        dir.join(name)
    }

    fn asking(questions: &[&PathBuf], validation: &[&PathBuf]) -> Asking {
        let owned = |files: &[&PathBuf]| files.iter().map(|file| (*file).clone()).collect::<Vec<_>>();
        let index = vec![PathBuf::from("index"); questions.len()];
        Asking { questions: owned(questions), index, validation: owned(validation), embedder: String::new() }
    }

    fn refused(asking: &Asking, measured: usize) -> String {
        asking.sheets("grpo.validation", measured).unwrap_err().to_string()
    }

    #[test]
    fn questions_are_named_by_their_file_and_divided() {
        let temp = tempfile::tempdir().unwrap();
        let (one, two) = (file(temp.path(), "single.jsonl", 0, 8), file(temp.path(), "2wiki.jsonl", 0, 9));
        let sheets = asking(&[&one, &two], &[]).sheets("grpo.validation", 2).unwrap();
        let told: Vec<_> =
            sheets.iter().map(|sheet| (sheet.name.as_str(), sheet.questions.len(), sheet.validation.len())).collect();
        assert_eq!(told, [("single", 6, 2), ("2wiki", 7, 2)]);
        assert_eq!(sheets[0].validation[0].question, "question 6?");
        let kept = [file(temp.path(), "a.jsonl", 100, 3), file(temp.path(), "b.jsonl", 200, 9)];
        let sheets = asking(&[&one, &two], &[&kept[0], &kept[1]]).sheets("grpo.validation", 4).unwrap();
        let told: Vec<_> = sheets.iter().map(|sheet| (sheet.questions.len(), sheet.validation.len())).collect();
        assert_eq!(told, [(8, 3), (9, 4)]);
        assert_eq!(sheets[1].validation[0].question, "question 200?");
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let one = file(temp.path(), "single.jsonl", 0, 8);
        let two = file(&temp.path().join("other"), "single.jsonl", 0, 8);
        let error = refused(&asking(&[&one, &two], &[]), 1);
        assert!(error.contains(&one.display().to_string()) && error.contains(&two.display().to_string()), "{error}");
        let error = refused(&asking(&[&one], &[]), 3);
        for words in ["single.jsonl", "grpo.validation = 3", "8 questions", "at most 2", "--validation"] {
            assert!(error.contains(words), "{error}");
        }
        let empty = file(temp.path(), "empty.jsonl", 0, 0);
        assert!(refused(&asking(&[&empty], &[]), 0).contains("empty.jsonl: there is no question"));
        let apart = file(temp.path(), "apart.jsonl", 7, 3);
        let error = refused(&asking(&[&one], &[&apart]), 3);
        assert!(error.contains("apart.jsonl: \"question 7?\" is in"), "{error}");
        assert!(refused(&asking(&[&one], &[&apart]), 0).contains("grpo.validation"));
        assert!(refused(&asking(&[&one], &[&apart, &one]), 1).contains("2 --validation"));
        let mut unpaired = asking(&[&one], &[]);
        unpaired.index.clear();
        assert!(refused(&unpaired, 1).contains("0 --index"));
    }
}
