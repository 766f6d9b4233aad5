//! `train data`.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use waymark::agent::Policy;
use waymark::cli::embedding::Embedding;
use waymark::cli::{assembly, logging, progress};
use waymark::config::{LogFormat, RetrievalConfig};
use waymark_models::chat::ChatTemplate;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;

use crate::data::builder::{Stage, name};
use crate::data::course::Course;
use crate::data::guard::Guard;
use crate::data::question::{Question, rows};
use crate::data::recipe::{Recipe, Source};
use crate::data::report::Report;
use crate::data::teacher::Prober;
use crate::store::{self, Writer};

/// Builds trajectories for the cold start.
///
/// Training questions with known answers are played through the agent's own loop with real searches. The same command
/// goes on where it was broken off; the same seed gives the same bytes.
#[derive(Debug, clap::Args)]
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
    template: Option<Arc<ChatTemplate>>,
    eos: Vec<u32>,
}

/// Where samples go: those to learn from and those held out.
struct Files {
    out: Writer,
    held: Writer,
    /// Ids that were there before.
    done: HashSet<String>,
    report: Report,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        let recipe = Recipe::read(&self.recipe)?;
        let mut guard = Guard::default();
        for path in &recipe.measured {
            guard.add(&rows::<Question>(&self.data.join(path))?);
        }
        let (Checkpoint { tokenizer, template, eos, .. }, _) = assembly::checkpoint(&self.model, self.cache.clone())?;
        let voice = Voice { tokenizer: Arc::new(tokenizer), template: template.map(Arc::new), eos };
        let team = Arc::new(Team::new(1));
        let embedder = Arc::new(assembly::embedder(&self.embedder, self.cache.clone(), team)?);
        let mut files = Files::open(&self.out, &self.held_out)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for source in &recipe.sources {
            let stage = self.stage(source, &recipe, &voice, &embedder)?;
            let course = Course::open(source, &self.data, &guard, recipe.seed)?;
            let mut source = source.clone();
            source.lessons = source.lessons.min(self.most.unwrap_or(usize::MAX));
            runtime.block_on(files.teach(&source, &course, &stage, recipe.seed))?;
        }
        files.out.sync()?;
        files.held.sync()?;
        for path in [&self.out, &self.held_out] {
            for sample in store::Samples::open(path)? {
                files.report.add(&sample?);
            }
        }
        write!(io::stdout(), "{}", files.report)?;
        Ok(())
    }

    fn stage(
        &self,
        source: &Source,
        recipe: &Recipe,
        voice: &Voice,
        embedder: &Arc<Embedding>,
    ) -> anyhow::Result<Stage> {
        let config = RetrievalConfig {
            index: None,
            writable: false,
            embedder: self.embedder.clone(),
            threads: 1,
            deadline: Duration::from_secs(60),
            fact_filter: None,
        };
        let live = assembly::live(&self.indexes.join(&source.index), Arc::clone(embedder), &config)?;
        let policy = Policy::builtin("routerag").context("RouteRAG is built in")?;
        Ok(Stage {
            context: policy.budget.context_tokens,
            policy,
            tokenizer: Arc::clone(&voice.tokenizer),
            template: voice.template.clone(),
            eos: voice.eos.clone(),
            searcher: assembly::searcher(&live, &config)?,
            prober: Arc::new(Prober::new(live)),
            habits: recipe.habits,
        })
    }
}

impl Files {
    fn open(out: &Path, held: &Path) -> anyhow::Result<Files> {
        let mut files = Files {
            out: Writer::open(out)?,
            held: Writer::open(held)?,
            done: HashSet::new(),
            report: Report::default(),
        };
        for path in [out, held] {
            for sample in store::Samples::open(path)? {
                files.done.insert(sample?.id);
            }
        }
        Ok(files)
    }

    /// Plays the lessons of a source until there are enough. The first ones are held out, and their questions never
    /// played again.
    async fn teach(&mut self, source: &Source, course: &Course, stage: &Stage, seed: u64) -> anyhow::Result<()> {
        for (why, count) in &course.refused {
            self.report.drop(&source.dataset, why, *count);
        }
        let bar = progress::things();
        bar.set_message(source.dataset.clone());
        bar.set_length(source.lessons as u64);
        let (mut made, mut held) = (0, HashSet::new());
        for (lesson, variant) in &course.lessons {
            if made == source.lessons {
                break;
            }
            let hold = held.len() < source.held_out;
            if !hold && held.contains(&lesson.question_id) {
                continue;
            }
            if !self.done.contains(&name(&source.dataset, lesson, *variant)) {
                match stage.play(lesson, &source.dataset, *variant, seed).await? {
                    Ok(sample) if hold => self.held.append(&sample)?,
                    Ok(sample) => self.out.append(&sample)?,
                    Err(why) => {
                        self.report.drop(&source.dataset, why, 1);
                        continue;
                    }
                }
            }
            if hold {
                held.insert(lesson.question_id.clone());
            }
            made += 1;
            bar.inc(1);
        }
        bar.finish();
        Ok(())
    }
}
