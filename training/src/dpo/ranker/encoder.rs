//! Hidden states of branches from the frozen encoder.

use waymark_models::gradient::{Learner, ScoredModel, Tune};

use super::{BranchKey, BranchStates};
use crate::TrainError;
use crate::dpo::DpoTraining;
use crate::logprobs::with_values;
use crate::pack::{TrainingSequence, pack, passes};
use crate::rollout::Rollout;
use crate::sample::Sample;

impl DpoTraining<'_> {
    /// Computes the hidden state of each branch. Branches must be sorted by trajectory.
    pub(super) fn encode(
        &self,
        branches: &[BranchKey],
        batch: &[Rollout],
        learner: &mut Learner,
    ) -> Result<BranchStates, TrainError> {
        let tokens = self.settings.pack_tokens;
        // Without an adapter to leave out, the frozen encoder is the model with the run's initial values.
        if *learner.tune() == Tune::Full {
            return with_values(learner, self.initial, |learner| {
                encode(learner, branches, batch, tokens, ScoredModel::Adapted)
            });
        }
        encode(learner, branches, batch, tokens, ScoredModel::Base)
    }
}

/// Encodes one question at a time, so that memory holds copies of only one question's prefixes.
fn encode(
    learner: &mut Learner,
    branches: &[BranchKey],
    batch: &[Rollout],
    pack_tokens: usize,
    model: ScoredModel,
) -> Result<BranchStates, TrainError> {
    let context = learner.config().context;
    let mut states = BranchStates::new();
    for own in branches.chunk_by(|one, other| batch[one.0].group == batch[other.0].group) {
        let prefix = |&(member, turn): &BranchKey| prefix(&batch[member].sample, turn, context);
        let prefixes: Vec<(Vec<u32>, Vec<bool>)> = own.iter().map(prefix).collect();
        let sequences: Vec<TrainingSequence<'_>> =
            prefixes.iter().map(|(tokens, learned)| TrainingSequence { tokens, learned }).collect();
        for pass in passes(learner, &sequences, pack_tokens) {
            let first = pass.start;
            let packed = pack(&sequences[pass]);
            let found = learner.states(&packed.pack, model)?;
            states.extend(packed.places.iter().zip(found).map(|(place, state)| (own[first + place.sequence], state)));
        }
    }
    Ok(states)
}

/// Visible tokens up to the end of a turn, then one placeholder. The placeholder is the only target. Its ID does not
/// matter, because the encoder returns the state that predicts it. The placeholder takes one position of the context,
/// so a trajectory that fills the context loses its last token.
fn prefix(sample: &Sample, turn: usize, context: usize) -> (Vec<u32>, Vec<bool>) {
    let seen = sample.seen_before(sample.turn_end(turn));
    let mut tokens: Vec<u32> = seen.into_iter().map(|at| sample.tokens[at]).collect();
    tokens.truncate(context.saturating_sub(1));
    let end = tokens.len();
    tokens.push(0);
    (tokens, (0..=end).map(|at| at == end).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_engine::Origin;
    use waymark_runtime::evaluate;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::OriginRun;
    use crate::tiny;

    /// Rollout with a prompt of 20 tokens, which all rollouts share, and two turns of the policy.
    fn rollout(group: usize, own: u32) -> Rollout {
        let origins = [(Origin::Prompt, 20), (Origin::Policy, 3), (Origin::Environment, 2), (Origin::Policy, 4)];
        let origins = origins.into_iter().map(|(origin, run)| OriginRun(origin, run)).collect();
        let tokens = (0..29).map(|at| if at < 20 { at % 7 } else { (at * own + 3) % 48 }).collect();
        let sample = Sample { tokens, origins, prompt_tokens: 20, ..searched("", &[]) };
        Rollout { group, sample, row: evaluate::EpisodeRow::default(), support: Vec::new() }
    }

    #[test]
    fn a_branch_is_encoded_at_the_end_of_its_turn_independent_of_packing() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 48);
        let mut learner = tiny::learner(&weights);
        let batch = [rollout(0, 3), rollout(0, 5), rollout(1, 7)];
        let branches = [(0, 0), (0, 1), (1, 0), (2, 1)];
        let found = encode(&mut learner, &branches, &batch, 1000, ScoredModel::Base).unwrap();
        assert!(found.keys().copied().eq(branches) && found.values().all(|state| state.len() == 64));
        for (&(member, turn), state) in &found {
            // The same state predicts the next token of the trajectory.
            let tokens = &batch[member].sample.tokens;
            let end = [23, 29][turn];
            let tokens: Vec<u32> = tokens[..end].iter().copied().chain([9]).collect();
            let learned: Vec<bool> = (0..=end).map(|at| at == end).collect();
            let alone = pack(&[TrainingSequence { tokens: &tokens, learned: &learned }]).pack;
            let alone = learner.states(&alone, ScoredModel::Base).unwrap().remove(0);
            assert!(state.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-4), "{member} {turn}");
        }
        // Neither the adapter nor the size of passes has an effect.
        tiny::nudge(&mut learner);
        let parted = encode(&mut learner, &branches, &batch, 30, ScoredModel::Base).unwrap();
        for (one, other) in found.values().zip(parted.values()) {
            assert!(one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4));
        }
        assert_eq!(encode(&mut learner, &branches, &batch, 1000, ScoredModel::Base).unwrap(), found);
    }

    #[test]
    fn a_trajectory_that_fills_the_context_loses_its_last_token() {
        let sample = rollout(0, 3).sample;
        let (tokens, learned) = prefix(&sample, 1, 29);
        assert_eq!((&tokens[..28], tokens.len()), (&sample.tokens[..28], 29));
        assert_eq!((learned.len(), learned.iter().position(|&learned| learned)), (29, Some(28)));
        assert_eq!(prefix(&sample, 1, 30).0[..29], sample.tokens[..]);
    }
}
