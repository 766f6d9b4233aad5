//! Rewards of the behaviors by stage, and the check that a recipe allows exactly its traps.

use std::fmt;

use waymark_runtime::embedding::Embedding;

use super::behavior::Behavior;
use super::play::play;
use super::world::HOPS;
use super::{Trap, TrapError};
use crate::data::voice;
use crate::recipe::Recipe;
use crate::reward::evidence_measure::EvidenceMeasure;
use crate::reward::{Efficiency, RewardChoice, RewardContext, TextSimilarity};
use crate::sample::Sample;

/// Maximum difference between two rewards that counts as rounding.
const TIE: f64 = 1e-9;

/// Rewards of all behaviors in the stages of a recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct TrapTable {
    /// Name of the protocol.
    pub protocol: String,
    /// Rewards by stage.
    pub stages: Vec<StageTraps>,
}

/// Rewards of all behaviors in one stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StageTraps {
    /// Field of the stage, such as `grpo.stages[0]`.
    pub stage: String,
    /// Reward of a right answer in two hops.
    pub right: f64,
    /// Rewards of the bad behaviors, in the order of [`Trap::ALL`].
    pub bad: [f64; 4],
    /// Traps that the stage allows.
    pub allowed: Vec<Trap>,
}

/// Reward of a stage, and the traps that the stage allows.
struct RewardedStage<'r> {
    field: String,
    reward: &'r RewardChoice,
    allowed: &'r [Trap],
}

impl TrapTable {
    /// Plays the behaviors in the protocol of a recipe and scores them with its rewards. The table is empty if no voice
    /// writes the protocol, or if the recipe has no rewards. Texts are compared by their words instead of an embedder's
    /// vectors, so that a table needs no weights.
    ///
    /// # Errors
    /// [`TrapError`] if a behavior cannot be played or scored.
    pub async fn of(recipe: &Recipe) -> Result<TrapTable, TrapError> {
        let play_error = |source| TrapError::Play { behavior: Behavior::Right.name(), source: Box::new(source) };
        let policy = recipe.policy().map_err(play_error)?;
        let protocol = policy.protocol.name().to_owned();
        let rewarded = rewarded(recipe);
        let Some(voice) = voice::voice(&protocol).filter(|_| !rewarded.is_empty()) else {
            return Ok(TrapTable { protocol, stages: Vec::new() });
        };
        // Only `grpo` can choose a measure of the evidence.
        let measure = recipe.grpo.as_ref().map_or_else(EvidenceMeasure::default, |grpo| grpo.evidence);
        let mut samples = Vec::new();
        for behavior in Behavior::all() {
            samples.push(play(behavior, &policy, voice, measure).await?);
        }
        let stages = rewarded.into_iter().map(|stage| stage.traps(&samples)).collect::<Result<_, TrapError>>()?;
        Ok(TrapTable { protocol, stages })
    }

    /// Refuses a recipe with a trap that it does not allow, or with a permission for a behavior that is no trap.
    ///
    /// # Errors
    /// [`TrapError::Trapped`] or [`TrapError::Unneeded`] for the first such stage.
    pub fn check(&self) -> Result<(), TrapError> {
        self.stages.iter().try_for_each(StageTraps::check)
    }
}

/// Returns the stages of a recipe that have a reward.
fn rewarded(recipe: &Recipe) -> Vec<RewardedStage<'_>> {
    let grpo = recipe.grpo.iter().flat_map(|grpo| grpo.stages.iter().enumerate()).map(|(at, stage)| RewardedStage {
        field: format!("grpo.stages[{at}]"),
        reward: &stage.reward,
        allowed: &stage.allow_traps,
    });
    let dpo = recipe.dpo.iter().flat_map(|dpo| dpo.stages.iter().enumerate()).map(|(at, stage)| RewardedStage {
        field: format!("dpo.stages[{at}]"),
        reward: &stage.reward,
        allowed: &stage.allow_traps,
    });
    grpo.chain(dpo).collect()
}

impl RewardedStage<'_> {
    /// Scores all behaviors as one batch, because some rewards compare the trajectories of a batch.
    fn traps(&self, samples: &[Sample]) -> Result<StageTraps, TrapError> {
        let reward = self.reward.reward();
        let support = HOPS.map(|hop| hop.support());
        let prices = Efficiency { cost: self.reward.cost().unwrap_or_default(), ..Efficiency::default() };
        let contexts: Vec<RewardContext<'_>> =
            samples.iter().map(|sample| RewardContext { cost: prices.cost_of(sample), support: &support }).collect();
        let texts = samples.iter().zip(&contexts).flat_map(|(sample, context)| reward.texts(sample, context));
        let similarity = TextSimilarity::of(&Embedding::Mock, texts).map_err(TrapError::Embed)?;
        let all: Vec<&Sample> = samples.iter().collect();
        let totals: Vec<f64> =
            reward.score_in_context(&all, &contexts, &similarity).into_iter().map(|value| value.total).collect();
        // The right behavior is the first one.
        let total = |at: usize| totals.get(at).copied().unwrap_or(f64::NAN);
        Ok(StageTraps {
            stage: self.field.clone(),
            right: total(0),
            bad: [total(1), total(2), total(3), total(4)],
            allowed: self.allowed.to_vec(),
        })
    }
}

impl StageTraps {
    /// Returns the bad behaviors that earn more than the right one.
    pub fn traps(&self) -> Vec<Trap> {
        let earned = Trap::ALL.into_iter().zip(self.bad);
        earned.filter(|(_, earned)| *earned > self.right + TIE).map(|(trap, _)| trap).collect()
    }

    fn check(&self) -> Result<(), TrapError> {
        let traps = self.traps();
        if let Some(&trap) = self.allowed.iter().find(|trap| !traps.contains(trap)) {
            return Err(TrapError::Unneeded { stage: self.stage.clone(), trap });
        }
        let worst = Trap::ALL.into_iter().zip(self.bad).filter(|(trap, _)| traps.contains(trap));
        let worst = worst.filter(|(trap, _)| !self.allowed.contains(trap)).max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((trap, earned)) = worst else { return Ok(()) };
        let stage = self.stage.clone();
        // The message proposes a whole list, which must name the traps that are allowed already, too.
        Err(TrapError::Trapped { stage, trap, earned, right: self.right, beaten_by: traps })
    }
}

impl fmt::Display for TrapTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stages.is_empty() {
            return writeln!(f, "no rewards, or no lessons are written in {}: nothing to compare", self.protocol);
        }
        write!(f, "{:<18}{:>9}", self.protocol, "right")?;
        Trap::ALL.iter().try_for_each(|trap| write!(f, "{trap:>9}"))?;
        writeln!(f)?;
        for stage in &self.stages {
            write!(f, "{:<18}{:>9.2}", stage.stage, stage.right)?;
            stage.bad.iter().try_for_each(|earned| write!(f, "{earned:>9.2}"))?;
            let marks: Vec<String> = stage.traps().iter().map(|trap| stage.mark(*trap)).collect();
            writeln!(f, "{}{}", if marks.is_empty() { "" } else { "   " }, marks.join(", "))?;
        }
        Ok(())
    }
}

impl StageTraps {
    fn mark(&self, trap: Trap) -> String {
        let said = if self.allowed.contains(&trap) { "allowed" } else { "refused" };
        format!("{trap} beats right: {said}")
    }
}
