//! Rollouts: episodes in which the current policy answers questions, in the loop and on the engine that serve it.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use waymark_agent::metric::Cost;
use waymark_agent::{AgentError, EpisodeOptions, Policy, Runtime, Sampling, SessionSource, Trajectory};
use waymark_engine::{Engine, Lease};
use waymark_index::{Manifest, Mode};
use waymark_models::gradient::{Learner, Tune};
use waymark_runtime::evaluate::{self, Question};

use crate::TrainError;
use crate::branching::{self, BranchedTrajectory};
use crate::recipe::dpo::Branches;
use crate::reward::evidence_measure::EvidenceMeasure;
use crate::reward::tearag::is_multi_hop;
use crate::sample::{Sample, SampleTask};
use crate::seeding;

/// Interval between two progress lines in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Questions over one index.
#[derive(Debug, Clone)]
pub struct QuestionSet {
    /// Name in samples and metrics.
    pub name: String,
    /// Engine and index that answer the questions.
    pub runtime: Runtime,
    /// Manifest of the index. Graph searches are priced by the size of its graph.
    pub index: Option<Manifest>,
    /// Questions for training.
    pub questions: Vec<Question>,
    /// Questions for validation.
    pub validation: Vec<Question>,
}

impl QuestionSet {
    /// Number of multi-hop training questions, as defined by [`is_multi_hop`]. All others count as single-hop.
    pub fn multi_hop_count(&self) -> usize {
        self.questions.iter().filter(|question| is_multi_hop(&question.support)).count()
    }

    /// Cost model for searches over this index: see [`Cost::over`].
    pub fn price(&self, cost: Cost) -> Cost {
        self.index.as_ref().map_or(cost, |index| cost.over(index))
    }
}

/// Returns the `size` training questions of a step, counted from 0. Each epoch goes through the questions of all sets in
/// an order of its own, which `seed` decides.
pub(crate) fn epoch_questions(
    question_sets: &[QuestionSet],
    seed: u64,
    size: usize,
    step: u64,
) -> Vec<(&QuestionSet, &Question)> {
    let all: Vec<(&QuestionSet, &Question)> =
        question_sets.iter().flat_map(|set| set.questions.iter().map(move |question| (set, question))).collect();
    let seed = |epoch| seeding::seed(seed, "questions", epoch);
    seeding::batch(all.len(), size, step, seed).into_iter().map(|place| all[place]).collect()
}

/// Settings of a batch of rollouts.
#[derive(Debug, Clone)]
pub struct RolloutSettings<'a> {
    /// Sampling parameters that override the policy's own.
    pub sampling: &'a Sampling,
    /// Number of trajectories per question.
    pub group: usize,
    /// Number of episodes that run at the same time.
    pub concurrent: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// Training step.
    pub step: u64,
    /// Cost model for searches over an index whose manifest does not decide: see [`QuestionSet::price`].
    pub cost: Cost,
    /// Modes of the first search of each question's first trajectories, one per trajectory. In the other trajectories,
    /// the policy chooses the mode.
    pub first_modes: &'a [Mode],
    /// Measure of the evidence (P) of the samples.
    pub evidence: EvidenceMeasure,
    /// Branches of the trajectories. `None` samples none.
    pub branches: Option<Branches>,
}

impl<'a> RolloutSettings<'a> {
    /// Settings for one trajectory per question, without chosen modes.
    pub fn new(sampling: &'a Sampling, concurrent: usize, seed: u64) -> RolloutSettings<'a> {
        RolloutSettings {
            sampling,
            group: 1,
            concurrent,
            seed,
            step: 0,
            cost: Cost::default(),
            first_modes: &[],
            evidence: EvidenceMeasure::default(),
            branches: None,
        }
    }

    /// Mode of the first search of the trajectory at `place` of the batch, if it is chosen for the policy.
    fn first_mode(&self, place: usize) -> Option<Mode> {
        self.first_modes.get(place % self.group).copied()
    }
}

/// A trajectory with its group and its evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// Index of the question within the batch.
    pub group: usize,
    /// The stored trajectory.
    pub sample: Sample,
    /// Evaluation of the answer.
    pub row: evaluate::EpisodeRow,
    /// Texts of the question's supporting passages. Empty if they are not known.
    pub support: Vec<String>,
}

impl Rollout {
    /// Number of tokens that were sampled for this trajectory. A branch takes the earlier ones from another trajectory.
    pub fn sampled(&self) -> usize {
        let Some(branch) = &self.sample.branch else { return self.row.tokens.sampled };
        self.sample.sampled_from(self.sample.turn_start(branch.turn.saturating_sub(1)))
    }
}

/// Rollouts of a batch of questions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SampledRollouts {
    /// Trajectories in the order of their questions.
    pub rollouts: Vec<Rollout>,
    /// Number of episodes that failed and were played again.
    pub failed: usize,
}

/// Returns `policy` with the learner's values, loaded into `engine`. An adapter is written to the directory
/// `exchange` and loaded as a new generation, so no KV cache entry of other weights is reused; the engine unloads it
/// when the policy is dropped. When all weights are trained, they replace those of the engine, which must be idle.
///
/// # Errors
/// If the engine refuses the weights or the adapter cannot be written.
pub async fn serve(policy: &Policy, engine: &Engine, exchange: &Path, learner: &Learner) -> Result<Policy, TrainError> {
    let lease = match learner.tune() {
        Tune::Lora(_) => {
            learner.save_adapter(exchange, "rollout")?;
            Some(engine.lease_adapter(exchange.to_owned()).await?)
        }
        Tune::Full => {
            engine.replace_weights(learner.weights()?).await?;
            None
        }
    };
    Ok(rollout_policy(policy, lease))
}

/// Returns `policy` as rollouts use it: with the adapter in `lease`, without guided decoding, and without a time
/// limit. Many episodes share the machine, so a time limit would make their results depend on its load.
pub fn rollout_policy(policy: &Policy, lease: Option<Lease>) -> Policy {
    let mut policy = Policy { lease, guided: false, ..policy.clone() };
    // A day is effectively no limit.
    policy.budget.seconds = 86_400.0;
    policy
}

/// Answers every validation question of `question_sets` once, with the sampling parameters that the policy is served
/// with. Searches are priced by `cost`, and the evidence is measured by `evidence`. The seeds are the same in every
/// call, so two measurements differ only by the policy.
///
/// # Errors
/// Same as [`rollouts`].
pub async fn measure(
    policy: &Policy,
    question_sets: &[QuestionSet],
    concurrent: usize,
    seed: u64,
    cost: Cost,
    evidence: EvidenceMeasure,
) -> Result<Vec<Rollout>, TrainError> {
    let asked: Vec<(&QuestionSet, &Question)> =
        question_sets.iter().flat_map(|set| set.validation.iter().map(move |question| (set, question))).collect();
    // Nothing is overridden: the policy is measured with the parameters that it is served with.
    let sampling = Sampling::default();
    let seed = seeding::seed(seed, "validation", 0);
    let settings = RolloutSettings { cost, evidence, ..RolloutSettings::new(&sampling, concurrent, seed) };
    Ok(rollouts(policy, &asked, &settings).await?.rollouts)
}

/// Answers each of `questions` several times and returns the rollouts in the order of the questions, each before its
/// branches. An episode that fails is logged and played once more with the same seed.
///
/// # Errors
/// [`TrainError::Rollout`] if an episode fails twice: a group without it would be a different group.
pub async fn rollouts(
    policy: &Policy,
    questions: &[(&QuestionSet, &Question)],
    settings: &RolloutSettings<'_>,
) -> Result<SampledRollouts, TrainError> {
    let count = questions.len() * settings.group;
    let episodes = (0..count).map(|place| async move {
        let (set, question) = questions[place / settings.group];
        (place, with_retry(policy, set, question, settings, place).await)
    });
    // Episodes end in any order. The results are sorted below, so that training does not depend on timing.
    let mut running = futures::stream::iter(episodes).buffer_unordered(settings.concurrent.max(1));
    let mut done = Vec::with_capacity(count);
    let mut failed = 0;
    let mut last_log = Instant::now();
    while let Some((place, played)) = running.next().await {
        let (played, again) = played?;
        failed += usize::from(again);
        let group = place / settings.group;
        let (_, question) = questions[group];
        let rollout = |(sample, row)| Rollout { group, sample, row, support: question.support.clone() };
        done.push((place, played.into_iter().map(rollout).collect::<Vec<_>>()));
        if last_log.elapsed() >= LOG_INTERVAL {
            last_log = Instant::now();
            tracing::info!(step = settings.step, done = done.len(), of = count, "rolling out");
        }
    }
    done.sort_by_key(|(place, _)| *place);
    Ok(SampledRollouts { rollouts: done.into_iter().flat_map(|(_, rollouts)| rollouts).collect(), failed })
}

/// An episode and its branches.
type Played = Vec<(Sample, evaluate::EpisodeRow)>;

/// Plays one episode and its branches, with one retry. The second value is `true` if the retry was needed.
async fn with_retry(
    policy: &Policy,
    set: &QuestionSet,
    question: &Question,
    settings: &RolloutSettings<'_>,
    place: usize,
) -> Result<(Played, bool), TrainError> {
    let error = match play(policy, set, question, settings, place).await {
        Ok(played) => return Ok((played, false)),
        Err(error) => error,
    };
    let step = settings.step;
    let asked = &question.question;
    tracing::warn!(step, set = set.name, question = asked, %error, "a rollout failed and is retried");
    let played = play(policy, set, question, settings, place).await.map_err(|source| TrainError::Rollout {
        question_set: set.name.clone(),
        question: asked.clone(),
        source: Box::new(source),
    })?;
    Ok((played, true))
}

async fn play(
    policy: &Policy,
    set: &QuestionSet,
    question: &Question,
    settings: &RolloutSettings<'_>,
    place: usize,
) -> Result<Played, AgentError> {
    // The step goes to the upper half of the seed, where it cannot cancel bits of small seeds.
    let seed = seeding::seed(settings.seed ^ settings.step.rotate_left(32), "rollout", place as u64);
    let options = EpisodeOptions {
        id: Some(format!("step-{}-{}-{}", settings.step, place / settings.group, place % settings.group)),
        sampling: settings.sampling.clone(),
        seed,
        guided: Some(false),
        first_mode: settings.first_mode(place),
        without: question.without.clone(),
        ..EpisodeOptions::default()
    };
    let played = branching::play(&set.runtime, policy, &question.question, options, settings.branches).await?;
    let task = |seed| SampleTask {
        dataset: set.name.clone(),
        seed,
        step: settings.step,
        ..SampleTask::of(question, policy.protocol.name())
    };
    let judge = RolloutJudge {
        cost: set.price(settings.cost),
        first_mode: settings.first_mode(place),
        evidence: settings.evidence,
    };
    let sample = |BranchedTrajectory { trajectory, seed, origin }| {
        let (sample, row) = judge.evaluate(&set.runtime, policy, question, trajectory, task(seed));
        (Sample { branch: origin, ..sample }, row)
    };
    Ok(played.into_iter().map(sample).collect())
}

/// Evaluation of trajectories.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RolloutJudge {
    /// Cost model of searches.
    pub cost: Cost,
    /// Mode of the first search, which was written for the policy. That is no violation of the format, as in a guided
    /// episode. `None` if the policy chose the mode.
    pub first_mode: Option<Mode>,
    /// Measure of the evidence (P) of the samples.
    pub evidence: EvidenceMeasure,
}

impl RolloutJudge {
    /// Returns the sample of a trajectory that answers `question`, and its scores.
    pub fn evaluate<S: SessionSource>(
        &self,
        runtime: &Runtime<S>,
        policy: &Policy,
        question: &Question,
        trajectory: Trajectory,
        task: SampleTask,
    ) -> (Sample, evaluate::EpisodeRow) {
        let steered = self.first_mode.is_some();
        let mut row = evaluate::EpisodeRow::of(runtime, policy, steered, question, &trajectory, &self.cost);
        let support = self.evidence.of(&evaluate::retrieved(&trajectory.evidence), &question.support);
        let without = question.without.clone();
        let sample = Sample { support, without, ..Sample::from_trajectory(trajectory, task) };
        let template = runtime.template.as_deref();
        let sample = sample.with_opened_thought(template, &runtime.tokenizer, policy.protocol.tags());
        let sample = match self.first_mode.and_then(|mode| policy.protocol.mode_prefix(mode)) {
            Some(prefix) => sample.with_written_mode(prefix.marker, &runtime.tokenizer),
            None => sample,
        };
        // The row of a steered episode allows any forced text, but only a mode may be written for the policy.
        row.valid &= !sample.is_forced();
        (sample, row)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use waymark_agent::Budget;
    use waymark_models::tokenizer::Tokenizer;

    use super::*;
    use crate::data::scripted::{Author, ScriptedGenerator};
    use crate::tiny::OnePassage;

    /// Room for all tokens of an episode: the tokenizer has one per byte.
    const ROOM: usize = 1 << 16;

    /// Token of the byte tokenizer that ends a turn.
    const TURN_END: u32 = 257;

    /// Author of prepared texts, one for each generation.
    struct PreparedTexts(VecDeque<&'static str>);

    impl Author for PreparedTexts {
        fn turn(&mut self, _: Option<&str>) -> String {
            self.0.pop_front().unwrap_or_default().to_owned()
        }
    }

    /// Evaluates an episode in which the mode of the only search is written for the policy after "<search>". `texts` are
    /// those that it writes next.
    async fn steered(texts: &[&'static str]) -> (Sample, evaluate::EpisodeRow) {
        let texts = std::iter::once("<search>").chain(texts.iter().copied()).collect();
        let tokenizer = Arc::new(Tokenizer::bytes());
        let author = Arc::new(Mutex::new(PreparedTexts(texts)));
        let script = ScriptedGenerator::new(Arc::clone(&tokenizer), author, ROOM).with_turn_end(Some(TURN_END));
        let runtime = Runtime::new(script, tokenizer, None, vec![TURN_END], Some(Arc::new(OnePassage)));
        let mut policy = Policy::builtin("routerag").unwrap();
        policy.budget = Budget {
            turns: 1,
            turn_tokens: ROOM / 16,
            observation_tokens: ROOM / 16,
            sampled_tokens: ROOM,
            context_tokens: ROOM,
            ..Budget::default()
        };
        let question =
            Question { question: "Where is it?".into(), answers: vec!["Paris".into()], ..Question::default() };
        let options =
            EpisodeOptions { guided: Some(false), first_mode: Some(Mode::Passage), ..EpisodeOptions::default() };
        let trajectory = evaluate::play(&runtime, &policy, &question.question, options).await.unwrap();
        let judge = RolloutJudge { first_mode: Some(Mode::Passage), ..RolloutJudge::default() };
        judge.evaluate(&runtime, &policy, &question, trajectory, SampleTask::default())
    }

    #[tokio::test]
    async fn a_mode_may_be_written_for_the_policy_but_no_answer() {
        const SEARCH: &str = " Where is it? </search>";
        const ANSWER: &str = " <answer> Paris </answer>";
        // Without a search, the answer stands in a turn whose mode was written, the first or a later one.
        for texts in [&[SEARCH, ANSWER][..], &[ANSWER], &[" It is", "<search>", ANSWER]] {
            let (own, row) = steered(texts).await;
            assert_eq!((own.own_answer(), row.em), (Some("Paris"), 1.0), "{}", own.text);
            let marker = own.written_mode.map(|(first, run)| own.tokens[first..first + run].to_vec());
            assert_eq!(marker.map(|ids| Tokenizer::bytes().decode(&ids)).as_deref(), Some(" [passage]"));
            // A turn without an action is invalid.
            assert_eq!((own.is_forced(), row.valid), (false, texts.len() < 3), "{}", own.text);
        }
        let (forced, row) = steered(&[SEARCH, "I do not know.", " Paris </answer>"]).await;
        assert_eq!(forced.answer.as_deref(), Some("Paris"));
        assert!(forced.is_forced() && !row.valid, "{}", forced.text);
    }
}
