//! `train data`: builds trajectories for the cold start.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use toml::{Table, Value};
use waymark_index::{Embed, LiveIndex, OpenOptions};
use waymark_models::chat::ChatTemplate;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;
use waymark_runtime::config::{DEFAULT_MODEL, EmbedderArgs, LogFormat};
use waymark_runtime::embedding::Embedding;
use waymark_runtime::{assembly, logging, progress};

use super::question_args::query_arithmetic;
use crate::data::build_output::BuildOutput;
use crate::data::build_stats::BuildStats;
use crate::data::lesson_plan::LessonPlan;
use crate::data::player::{LessonPlayer, sample_id};
use crate::data::preview::SearchPreview;
use crate::data::question_files;
use crate::data::recipe::{DataRecipe, LessonSource};
use crate::data::sample_balance::{SampleBalance, SampleTraits};
use crate::data::teacher::LessonTeacherSettings;
use crate::data::voice;
use crate::hash;
use crate::lessons::contamination::ContaminationFilter;
use crate::lessons::rows::{SourceQuestion, rows};
use crate::policy_writer;
use crate::sample_lines;

/// Version of the lesson builder, stored in the facts. It is incremented whenever the same recipe and data yield other
/// lessons, so that no build resumes the output of an older builder.
const BUILDER: i64 = 8;

/// Timeout of a search.
const SEARCH_DEADLINE: Duration = Duration::from_secs(60);

/// Builds trajectories for the cold start.
///
/// Training questions with known answers are played through the agent's own loop with real searches. The same command
/// resumes an interrupted build, and the same seed gives the same bytes. The command also writes FILE.facts.toml, the
/// settings and inputs of the build, and FILE.questions/, the questions behind the trajectories, one file for each data
/// set.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train data --recipe training/recipes/cold_start.toml \\
      --data data --indexes indexes \\
      --out cold/samples.jsonl --held-out cold/held_out.jsonl")]
pub(crate) struct Args {
    /// Path to the recipe of the data.
    #[arg(long, value_name = "FILE")]
    recipe: PathBuf,

    /// Override a field of the recipe, for example `policy.retrieval.ranking=dense`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    set: Vec<String>,

    /// Directory of the data sets.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// Directory of the indexes over the corpora.
    #[arg(long, value_name = "DIR")]
    indexes: PathBuf,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Base model whose tokenizer and chat template are used.
    #[arg(long, default_value = DEFAULT_MODEL, value_name = "NAME")]
    model: String,

    /// Directory for downloaded weights. Defaults to the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// File to write training trajectories to.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// File to write held-out trajectories to.
    #[arg(long, value_name = "FILE")]
    held_out: PathBuf,

    /// Maximum number of trajectories per source, for a quick look. A build resumes only with the same number.
    #[arg(long, value_name = "N")]
    most: Option<usize>,

    /// Source of the recipe to leave out, by its data set. May be repeated.
    #[arg(long, value_name = "DATASET")]
    skip: Vec<String>,
}

/// Tokenizer and chat template of the base model.
struct BaseTokenizer {
    tokenizer: Arc<Tokenizer>,
    /// Hash of the vocabulary.
    vocabulary: String,
    template: Option<Arc<ChatTemplate>>,
    eos: Vec<u32>,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        let recipe = DataRecipe::read(&self.recipe, &self.set)?.skipping(&self.skip)?;
        self.check_files(&recipe)?;
        let mut contamination = ContaminationFilter::default();
        for path in &recipe.measured {
            contamination.add(&rows::<SourceQuestion>(&self.data.join(path))?);
        }
        let (checkpoint, base) = assembly::checkpoint(&self.model, self.cache.clone())?;
        let mut facts = self.facts(&recipe)?;
        let vocabulary = hash::vocabulary(&checkpoint.tokenizer);
        facts.insert("base".into(), checkpoint.weights.id().into());
        facts.insert("template".into(), template(&base)?.into());
        facts.insert("tokenizer".into(), vocabulary.clone().into());
        let Checkpoint { tokenizer, template, eos, .. } = checkpoint;
        let base_tokenizer =
            BaseTokenizer { tokenizer: Arc::new(tokenizer), vocabulary, template: template.map(Arc::new), eos };
        let team = Arc::new(Team::new(1));
        let embedder = match recipe.sources.first() {
            Some(source) => self.embedder.resolve_for(&self.indexes.join(&source.index))?,
            None => self.embedder.resolve()?,
        };
        let embedder = Arc::new(assembly::embedder(&embedder, self.cache.clone(), team)?);
        let mut players = Vec::new();
        for source in &recipe.sources {
            let (player, index) = self.player(source, &recipe, &base_tokenizer, &embedder)?;
            facts.insert(format!("index {}", source.dataset), index);
            players.push((player, source));
        }
        let mut output = BuildOutput::open(&self.out, &self.held_out, &facts)?;
        let mut stats = BuildStats::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for (player, source) in &players {
            let plan = LessonPlan::open(source, &self.data, &contamination, recipe.seed)?;
            let lessons = source.lessons.min(self.most.unwrap_or(usize::MAX));
            let source = LessonSource { lessons, ..(*source).clone() };
            let most = recipe.routing.map_or(1.0, |routing| routing.most);
            let mut balance = SampleBalance::new(most, recipe.habits.withhold);
            let progress = (&mut output, &mut stats, &mut balance);
            runtime.block_on(play_lessons(progress, &source, &plan, player, recipe.seed))?;
        }
        output.sync()?;
        for path in [&self.out, &self.held_out] {
            question_files::write(path)?;
            // Read back, because the files may hold samples of an earlier, interrupted run as well.
            for sample in sample_lines::SampleReader::open(path)? {
                stats.add(&sample?);
            }
        }
        write!(io::stdout(), "{stats}")?;
        Ok(())
    }

    /// Refuses a folder of data sets in which a file of the recipe is missing.
    fn check_files(&self, recipe: &DataRecipe) -> anyhow::Result<()> {
        let of_source = |source: &LessonSource| {
            let optional = [source.questions.clone(), source.triples.clone()];
            std::iter::once(source.corpus.clone()).chain(optional.into_iter().flatten())
        };
        for path in recipe.measured.iter().cloned().chain(recipe.sources.iter().flat_map(of_source)) {
            let path = self.data.join(path);
            ensure!(
                path.exists(),
                "{} is missing: docs/training.md tells under \"Data\" how to make the folder of --data",
                path.display()
            );
        }
        Ok(())
    }

    /// Facts that determine the samples, except for the base model and the indexes.
    fn facts(&self, recipe: &DataRecipe) -> anyhow::Result<Table> {
        let mut facts = Table::new();
        facts.insert("trainer".into(), env!("CARGO_PKG_VERSION").into());
        facts.insert("builder".into(), BUILDER.into());
        facts.insert("recipe".into(), Value::try_from(recipe).context("cannot write the recipe into the facts file")?);
        // A whole build that went on after a quick look would differ: the samples of later sources are there already, and
        // decide which questions of earlier ones can be held out.
        if let Some(most) = self.most {
            facts.insert("most".into(), Value::Integer(i64::try_from(most)?));
        }
        facts.extend(query_arithmetic(&self.embedder).map(|(name, value)| (name.to_owned(), value)));
        let mut files = Table::new();
        for source in &recipe.sources {
            let given = [Some(&source.corpus), source.questions.as_ref(), source.triples.as_ref()];
            for path in given.into_iter().flatten().chain(&recipe.measured) {
                let (_, hash) = policy_writer::fingerprint(&self.data.join(path))?;
                files.insert(path.display().to_string(), hash.into());
            }
        }
        facts.insert("data".into(), files.into());
        Ok(facts)
    }

    /// Creates the player for the lessons of a source, and the fact that identifies its index.
    fn player(
        &self,
        source: &LessonSource,
        recipe: &DataRecipe,
        base_tokenizer: &BaseTokenizer,
        embedder: &Arc<Embedding>,
    ) -> anyhow::Result<(LessonPlayer, Value)> {
        let dir = self.indexes.join(&source.index);
        // The index stays at this snapshot even if something is committed to it during the build.
        let embedder = Arc::clone(embedder) as Arc<dyn Embed>;
        let live = Arc::new(LiveIndex::open(&dir, embedder, OpenOptions { concurrency: 1, ..OpenOptions::default() })?);
        let current = live.current();
        let manifest = current.manifest();
        let index_fact =
            format!("{}: snapshot {}, checksum {:08x}", manifest.corpus, manifest.snapshot, manifest.checksum);
        let policy = recipe.policy(&self.recipe)?;
        let protocol = policy.protocol.name();
        let voice = voice::voice(protocol).with_context(|| format!("lessons cannot be written for {protocol}"))?;
        let preview = Arc::new(SearchPreview::new(Arc::clone(&live), &policy));
        let player = LessonPlayer {
            context: policy.budget.context_tokens,
            policy,
            tokenizer: Arc::clone(&base_tokenizer.tokenizer),
            vocabulary: base_tokenizer.vocabulary.clone(),
            template: base_tokenizer.template.clone(),
            eos: base_tokenizer.eos.clone(),
            searcher: assembly::searcher(&live, 1, SEARCH_DEADLINE)?,
            teacher: LessonTeacherSettings { preview, voice, habits: recipe.habits, routing: recipe.routing },
        };
        Ok((player, index_fact.into()))
    }
}

/// Hashes of the tokenizer and template files in the base model's directory. A model in a single file holds them in its
/// header, which the hash of its weights covers.
fn template(base: &Path) -> anyhow::Result<String> {
    let names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"];
    let existing = names.iter().map(|name| base.join(name)).filter(|path| path.is_file());
    let hashes =
        existing.map(|path| Ok(policy_writer::fingerprint(&path)?.1)).collect::<anyhow::Result<Vec<String>>>()?;
    Ok(hashes.join(" "))
}

/// Plays the lessons of a source until enough samples exist. The first questions are held out: the builder never makes
/// a training sample of them, neither in this source nor in another one that asks the same words.
async fn play_lessons(
    (output, stats, balance): (&mut BuildOutput, &mut BuildStats, &mut SampleBalance),
    source: &LessonSource,
    plan: &LessonPlan,
    player: &LessonPlayer,
    seed: u64,
) -> anyhow::Result<()> {
    for (why, count) in &plan.dropped {
        stats.drop(&source.dataset, why, *count);
    }
    let bar = progress::things();
    bar.set_message(source.dataset.clone());
    bar.set_length(source.lessons as u64);
    let mut made = 0;
    for (lesson, variant) in &plan.lessons {
        if made == source.lessons {
            break;
        }
        let sample_id = sample_id(&source.dataset, lesson, *variant);
        // This sample was made before an interruption: it counts, and is not played again.
        if let Some(known) = output.traits(&sample_id) {
            balance.add(known);
        } else {
            let id = &lesson.question_id;
            let Some(split) = output.split_for(&source.dataset, id, &lesson.question, source.held_out) else {
                continue;
            };
            match player.play(lesson, &source.dataset, *variant, seed).await? {
                Ok(sample) if balance.admits(SampleTraits::of(&sample)) => {
                    balance.add(SampleTraits::of(&sample));
                    output.append(&sample, split)?;
                }
                Ok(_) => {
                    stats.drop(&source.dataset, "enough of this kind", 1);
                    continue;
                }
                Err(why) => {
                    stats.drop(&source.dataset, why, 1);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::data::build_output::SampleSplit;
    use crate::sample::{Sample, SampleTask, tests::trajectory};

    #[derive(Debug, Parser)]
    struct DataFlags {
        #[command(flatten)]
        args: Args,
    }

    const RECIPE: &str = r#"
seed = 1
measured = []
[habits]
mislead = 0.0
explore = 0.0
wide = 0.0
concede = 0.0
[[source]]
dataset = "small_talk"
form = "small_talk"
corpus = "corpus.jsonl"
index = "index"
lessons = 3
held_out = 1
variants = 1
"#;

    #[test]
    fn a_missing_file_is_named_with_the_place_that_tells_how_to_make_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
        let recipe = path("recipe.toml");
        fs::write(&recipe, RECIPE).unwrap();
        let data = path("");
        let out = path("samples.jsonl");
        let held_out = path("held_out.jsonl");
        let flags = ["data", "--recipe", &recipe, "--data", &data, "--indexes", &data, "--out", &out];
        let flags = flags.into_iter().chain(["--held-out", &held_out]);
        let args = DataFlags::try_parse_from(flags).unwrap().args;
        let recipe = DataRecipe::read(&args.recipe, &args.set).unwrap();
        let refused = args.check_files(&recipe).unwrap_err().to_string();
        assert!(refused.contains("corpus.jsonl is missing") && refused.contains("docs/training.md"), "{refused}");
        fs::write(temp.path().join("corpus.jsonl"), "").unwrap();
        args.check_files(&recipe).unwrap();
    }

    #[test]
    fn a_whole_build_does_not_go_on_after_a_quick_look() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let recipe = path("recipe.toml");
        fs::write(&recipe, RECIPE).unwrap();
        fs::write(dir.join("corpus.jsonl"), "").unwrap();
        let out = path("samples.jsonl");
        let held_out = path("held_out.jsonl");
        let data = path("");
        let open = |most: Option<&str>| {
            let mut flags = vec!["data", "--recipe", &recipe, "--data", &data, "--indexes", &data];
            flags.extend(["--out", &out, "--held-out", &held_out]);
            if let Some(most) = most {
                flags.extend(["--most", most]);
            }
            let args = DataFlags::try_parse_from(flags).unwrap().args;
            let facts = args.facts(&DataRecipe::read(&args.recipe, &args.set).unwrap()).unwrap();
            BuildOutput::open(&args.out, &args.held_out, &facts)
        };
        let mut quick = open(Some("1")).unwrap();
        let sample = Sample::from_trajectory(trajectory(Vec::new(), 0, ""), SampleTask::default());
        quick.append(&sample, SampleSplit::Learned).unwrap();
        drop(quick);
        for (most, now) in [(None, "nothing"), (Some("2"), "2")] {
            let error = open(most).unwrap_err().to_string();
            assert!(error.contains(&format!("most was 1, now it is {now}")), "{error}");
        }
        assert!(open(Some("1")).is_ok());
    }
}
