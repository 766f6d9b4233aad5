//! What the frozen encoder makes of branches.

use waymark_models::gradient::{Learner, Tune};

use super::{Branch, States};
use crate::TrainError;
use crate::dpo::Campaign;
use crate::grpo::under;
use crate::pack::{Sequence, pack, passes};
use crate::rollout::Rollout;
use crate::sample::Sample;

impl Campaign<'_> {
    /// The state of each branch, all of which are in the order of their trajectories.
    pub(super) fn encode(
        &self,
        branches: &[Branch],
        made: &[Rollout],
        learner: &mut Learner,
    ) -> Result<States, TrainError> {
        let tokens = self.settings.pack_tokens;
        if *learner.tune() == Tune::Full {
            return under(learner, self.initial, |learner| encode(learner, branches, made, tokens, false));
        }
        encode(learner, branches, made, tokens, true)
    }
}

/// Question by question, so that no more than the prefixes of one are there a second time.
fn encode(
    learner: &mut Learner,
    branches: &[Branch],
    made: &[Rollout],
    pack_tokens: usize,
    base: bool,
) -> Result<States, TrainError> {
    let context = learner.config().context;
    let mut states = States::new();
    for own in branches.chunk_by(|one, other| made[one.0].group == made[other.0].group) {
        let prefix = |&(member, turn): &Branch| prefix(&made[member].sample, turn, context);
        let prefixes: Vec<(Vec<u32>, Vec<bool>)> = own.iter().map(prefix).collect();
        let sequences: Vec<Sequence<'_>> =
            prefixes.iter().map(|(tokens, learnt)| Sequence { tokens, learnt }).collect();
        for pass in passes(learner, &sequences, pack_tokens) {
            let first = pass.start;
            let packed = pack(&sequences[pass]);
            let found = learner.states(&packed.pack, base)?;
            states.extend(packed.places.iter().zip(found).map(|(place, state)| (own[first + place.sequence], state)));
        }
    }
    Ok(states)
}

/// All tokens up to the end of a turn, and behind them the only target, whose own id does not matter: what it is predicted from is
/// read. It takes a token's place in the context, of which a trajectory that fills it gives up its last.
fn prefix(sample: &Sample, turn: usize, context: usize) -> (Vec<u32>, Vec<bool>) {
    let end = sample.turn_end(turn).min(context.saturating_sub(1));
    let mut tokens = sample.tokens[..end].to_vec();
    tokens.push(0);
    (tokens, (0..=end).map(|at| at == end).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark::engine::Origin;
    use waymark::evaluate;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::Span;
    use crate::tiny;

    /// A prompt of 20 tokens that all share, and two turns of the policy's own.
    fn rollout(group: usize, own: u32) -> Rollout {
        let origins = [(Origin::Prompt, 20), (Origin::Policy, 3), (Origin::Environment, 2), (Origin::Policy, 4)];
        let origins = origins.into_iter().map(|(origin, run)| Span(origin, run)).collect();
        let tokens = (0..29).map(|at| if at < 20 { at % 7 } else { (at * own + 3) % 48 }).collect();
        let sample = Sample { tokens, origins, prompt_tokens: 20, ..searched("", &[]) };
        Rollout { group, sample, row: evaluate::Row::default(), support: Vec::new() }
    }

    #[test]
    fn a_branch_is_read_at_the_end_of_its_turn_whatever_is_beside_it() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 48);
        let mut learner = tiny::learner(&weights);
        let made = [rollout(0, 3), rollout(0, 5), rollout(1, 7)];
        let branches = [(0, 0), (0, 1), (1, 0), (2, 1)];
        let found = encode(&mut learner, &branches, &made, 1000, true).unwrap();
        assert!(found.keys().copied().eq(branches) && found.values().all(|state| state.len() == 64));
        for (&(member, turn), state) in &found {
            // The next token of the trajectory is predicted from the same state.
            let tokens = &made[member].sample.tokens;
            let end = [23, 29][turn];
            let tokens: Vec<u32> = tokens[..end].iter().copied().chain([9]).collect();
            let learnt: Vec<bool> = (0..=end).map(|at| at == end).collect();
            let alone = pack(&[Sequence { tokens: &tokens, learnt: &learnt }]).pack;
            let alone = learner.states(&alone, true).unwrap().remove(0);
            assert!(state.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-4), "{member} {turn}");
        }
        // Neither an adapter nor the size of passes has a say.
        tiny::nudge(&mut learner);
        let parted = encode(&mut learner, &branches, &made, 30, true).unwrap();
        for (one, other) in found.values().zip(parted.values()) {
            assert!(one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4));
        }
        assert_eq!(encode(&mut learner, &branches, &made, 1000, true).unwrap(), found);
    }

    #[test]
    fn a_trajectory_that_fills_the_context_is_read_a_token_before_its_end() {
        let sample = rollout(0, 3).sample;
        let (tokens, learnt) = prefix(&sample, 1, 29);
        assert_eq!((&tokens[..28], tokens.len()), (&sample.tokens[..28], 29));
        assert_eq!((learnt.len(), learnt.iter().position(|&learnt| learnt)), (29, Some(28)));
        assert_eq!(prefix(&sample, 1, 30).0[..29], sample.tokens[..]);
    }
}
