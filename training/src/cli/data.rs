//! `train data`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use toml::{Table, Value};
use waymark::agent::Policy;
use waymark::cli::embedding::Embedding;
use waymark::cli::{assembly, logging, progress};
use waymark::config::{LogFormat, RetrievalConfig};
use waymark_index::{Embed, LiveIndex, OpenOptions};
use waymark_models::chat::ChatTemplate;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;

use crate::data::builder::{Stage, name};
use crate::data::course::Course;
use crate::data::guard::Guard;
use crate::data::output::Output;
use crate::data::question::{Question, rows};
use crate::data::recipe::{Recipe, Source};
use crate::data::report::Report;
use crate::data::taught;
use crate::data::teacher::Prober;
use crate::hash;
use crate::product;
use crate::store;

/// Counted on when the builder makes other lessons of the same recipe and data, so that no build goes on with them.
const BUILDER: i64 = 2;

/// Builds trajectories for the cold start.
///
/// Training questions with known answers are played through the agent's own loop with real searches. The same command
/// goes on where it was broken off; the same seed gives the same bytes. Beside FILE.jsonl lie FILE.facts.toml, which says
/// what it was made by, and FILE.questions/, the questions it is about, one file for each data set.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train data --recipe training/recipes/cold_start.toml --data data --indexes indexes \\
             --out cold/samples.jsonl --held-out cold/held_out.jsonl")]
pub(crate) struct Args {
    /// What to make.
    #[arg(long, value_name = "FILE")]
    recipe: PathBuf,

    /// The folder of the data sets.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// The folder of the indexes over their corpora.
    #[arg(long, value_name = "DIR")]
    indexes: PathBuf,

    /// The embedder that the indexes were built with: a catalog name or a directory.
    #[arg(long, default_value = "all-minilm-l6-v2", value_name = "NAME")]
    embedder: String,

    /// The base model whose tokenizer and chat template are meant.
    #[arg(long, default_value = "smollm2-135m-instruct", value_name = "NAME")]
    model: String,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Where trajectories are written.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Where those held out are written.
    #[arg(long, value_name = "FILE")]
    held_out: PathBuf,

    /// Trajectories of each source at most, for a first look.
    #[arg(long, value_name = "N")]
    most: Option<usize>,
}

/// How the base model reads and writes.
struct Voice {
    tokenizer: Arc<Tokenizer>,
    /// What the vocabulary is known by.
    vocabulary: String,
    template: Option<Arc<ChatTemplate>>,
    eos: Vec<u32>,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        let recipe = Recipe::read(&self.recipe)?;
        let mut guard = Guard::default();
        for path in &recipe.measured {
            guard.add(&rows::<Question>(&self.data.join(path))?);
        }
        let (checkpoint, base) = assembly::checkpoint(&self.model, self.cache.clone())?;
        let mut facts = self.facts(&recipe)?;
        let vocabulary = hash::vocabulary(&checkpoint.tokenizer);
        facts.insert("base".into(), checkpoint.weights.id().into());
        facts.insert("template".into(), template(&base)?.into());
        facts.insert("tokenizer".into(), vocabulary.clone().into());
        let Checkpoint { tokenizer, template, eos, .. } = checkpoint;
        let voice = Voice { tokenizer: Arc::new(tokenizer), vocabulary, template: template.map(Arc::new), eos };
        let team = Arc::new(Team::new(1));
        let embedder = Arc::new(assembly::embedder(&self.embedder, self.cache.clone(), team)?);
        let mut stages = Vec::new();
        for source in &recipe.sources {
            let (stage, index) = self.stage(source, &recipe, &voice, &embedder)?;
            facts.insert(format!("index {}", source.dataset), index);
            stages.push((stage, source));
        }
        let mut output = Output::open(&self.out, &self.held_out, &facts)?;
        let mut report = Report::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for (stage, source) in &stages {
            let course = Course::open(source, &self.data, &guard, recipe.seed)?;
            let lessons = source.lessons.min(self.most.unwrap_or(usize::MAX));
            let source = Source { lessons, ..(*source).clone() };
            runtime.block_on(teach(&mut output, &mut report, &source, &course, stage, recipe.seed))?;
        }
        output.sync()?;
        for path in [&self.out, &self.held_out] {
            taught::write(path)?;
            for sample in store::Samples::open(path)? {
                report.add(&sample?);
            }
        }
        write!(io::stdout(), "{report}")?;
        Ok(())
    }

    /// What the samples depend on, but for the base model and the indexes.
    fn facts(&self, recipe: &Recipe) -> anyhow::Result<Table> {
        let mut facts = Table::new();
        facts.insert("trainer".into(), env!("CARGO_PKG_VERSION").into());
        facts.insert("builder".into(), BUILDER.into());
        facts.insert("recipe".into(), Value::try_from(recipe).context("the recipe cannot be kept")?);
        let mut files = Table::new();
        for source in &recipe.sources {
            let given = [Some(&source.corpus), source.questions.as_ref(), source.triples.as_ref()];
            for path in given.into_iter().flatten().chain(&recipe.measured) {
                let (_, hash) = product::fingerprint(&self.data.join(path))?;
                files.insert(path.display().to_string(), hash.into());
            }
        }
        facts.insert("data".into(), files.into());
        Ok(facts)
    }

    /// What the lessons of a source are played with, and what its index is known by.
    fn stage(
        &self,
        source: &Source,
        recipe: &Recipe,
        voice: &Voice,
        embedder: &Arc<Embedding>,
    ) -> anyhow::Result<(Stage, Value)> {
        let config = RetrievalConfig {
            index: None,
            writable: false,
            embedder: self.embedder.clone(),
            threads: 1,
            deadline: Duration::from_secs(60),
            fact_filter: None,
        };
        // It stays at this snapshot, whatever is committed to the index meanwhile.
        let (dir, embedder) = (self.indexes.join(&source.index), Arc::clone(embedder) as Arc<dyn Embed>);
        let live = Arc::new(LiveIndex::open(&dir, embedder, OpenOptions { concurrency: 1, ..OpenOptions::default() })?);
        let current = live.current();
        let manifest = current.manifest();
        let known = format!("{}: snapshot {}, checksum {:08x}", manifest.corpus, manifest.snapshot, manifest.checksum);
        let mut policy = Policy::builtin("routerag").context("RouteRAG is built in")?;
        // As the teacher tries them beforehand: passages are ranked by what the mode has where nothing is said, which is ours
        // (see `routerag-smollm2.toml`).
        policy.retrieval.ranking = None;
        let stage = Stage {
            context: policy.budget.context_tokens,
            policy,
            tokenizer: Arc::clone(&voice.tokenizer),
            vocabulary: voice.vocabulary.clone(),
            template: voice.template.clone(),
            eos: voice.eos.clone(),
            searcher: assembly::searcher(&live, &config)?,
            prober: Arc::new(Prober::new(live)),
            habits: recipe.habits,
        };
        Ok((stage, known.into()))
    }
}

/// The hashes of what the folder of a base model says of its prompts; a single file says it in its header, by which its
/// weights are known.
fn template(base: &Path) -> anyhow::Result<String> {
    let names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"];
    let there = names.iter().map(|name| base.join(name)).filter(|path| path.is_file());
    let hashes = there.map(|path| Ok(product::fingerprint(&path)?.1)).collect::<anyhow::Result<Vec<String>>>()?;
    Ok(hashes.join(" "))
}

/// Plays the lessons of a source until there are enough. The first ones are held out, and their questions never played
/// again, here or in another source that asks in the same words.
async fn teach(
    output: &mut Output,
    report: &mut Report,
    source: &Source,
    course: &Course,
    stage: &Stage,
    seed: u64,
) -> anyhow::Result<()> {
    for (why, count) in &course.refused {
        report.drop(&source.dataset, why, *count);
    }
    let bar = progress::things();
    bar.set_message(source.dataset.clone());
    bar.set_length(source.lessons as u64);
    let mut made = 0;
    for (lesson, variant) in &course.lessons {
        if made == source.lessons {
            break;
        }
        if !output.has(&name(&source.dataset, lesson, *variant)) {
            let id = &lesson.question_id;
            let Some(place) = output.place(&source.dataset, id, &lesson.question, source.held_out) else { continue };
            match stage.play(lesson, &source.dataset, *variant, seed).await? {
                Ok(sample) => output.append(&sample, place)?,
                Err(why) => {
                    report.drop(&source.dataset, why, 1);
                    continue;
                }
            }
        }
        made += 1;
        bar.inc(1);
    }
    bar.finish();
    Ok(())
}
