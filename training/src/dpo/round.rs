//! What is learnt in a round: the pairs among its trajectories, as the file of samples has them.

use std::collections::HashMap;
use std::path::Path;

use super::update::{Pair, Side};
use crate::TrainError;
use crate::order;
use crate::sft::Lesson;
use crate::store::Samples;

/// The pairs of a round.
///
/// They are always read back from the file, where the round's first step has put them: so a run that is taken up in the
/// middle of a round learns from exactly the numbers that it would have learnt from without.
#[derive(Debug, Default)]
pub(super) struct Round {
    members: Vec<(Lesson, f64)>,
    /// The chosen one of each pair and the rejected one.
    pairs: Vec<(usize, usize)>,
}

impl Round {
    /// Those of the trajectories that were made in the step `first`.
    pub(super) fn read(samples: &Path, first: u64) -> Result<Self, TrainError> {
        let mut round = Self::default();
        let (mut places, mut named) = (HashMap::new(), Vec::new());
        for sample in Samples::open(samples)? {
            let sample = sample?;
            if sample.step != first {
                continue;
            }
            let place = round.members.len();
            round.members.push((Lesson::new(&sample), sample.reference.unwrap_or(0.0)));
            named.extend(sample.preferred_to.into_iter().map(|other| (place, other)));
            places.insert(sample.id, place);
        }
        for (chosen, other) in named {
            let rejected = places.get(&other).copied();
            let why = || TrainError::Nothing(format!("{}: there is no sample {other} any more", samples.display()));
            round.pairs.push((chosen, rejected.ok_or_else(why)?));
        }
        Ok(round)
    }

    /// The pairs of an optimizer step of the round, counted from 0: each epoch goes through all of them in an order of its
    /// own, which `seed` makes.
    pub(super) fn batch(&self, update: u64, batch: usize, seed: impl Fn(u64) -> u64) -> Vec<Pair<'_>> {
        let each = self.pairs.len().div_ceil(batch).max(1) as u64;
        let (epoch, first) = (update / each, (update % each) as usize * batch);
        let order = order::shuffled(self.pairs.len(), seed(epoch));
        let side = |place: usize| {
            let (lesson, reference) = &self.members[place];
            Side { sequence: lesson.sequence(), reference: *reference }
        };
        let pair = |at: usize| {
            let (chosen, rejected) = self.pairs[at];
            Pair { chosen: side(chosen), rejected: side(rejected) }
        };
        order.into_iter().skip(first).take(batch).map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark::engine::Origin;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::{Sample, Span};
    use crate::store::Writer;

    fn sample(id: &str, step: u64, to: &[&str]) -> Sample {
        let preferred_to = to.iter().map(|id| (*id).to_owned()).collect();
        let (tokens, origins) = (vec![1, 2, step as u32], vec![Span(Origin::Prompt, 1), Span(Origin::Policy, 2)]);
        let own = Sample { id: id.to_owned(), step, preferred_to, tokens, origins, ..searched("", &[]) };
        Sample { prompt_tokens: 1, reference: Some(id.len() as f64), ..own }
    }

    #[test]
    fn a_round_reads_its_own_pairs_and_each_epoch_sees_all_of_them() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("samples.jsonl");
        let mut writer = Writer::open(&path).unwrap();
        let samples = [
            sample("a", 1, &["b"]),
            sample("b", 1, &[]),
            sample("a", 4, &["ccc", "bb"]),
            sample("bb", 4, &["ccc"]),
            sample("ccc", 4, &[]),
        ];
        samples.iter().for_each(|sample| writer.append(sample).unwrap());
        let round = Round::read(&path, 4).unwrap();
        let told = |pairs: &[Pair<'_>]| -> Vec<(f64, f64)> {
            pairs.iter().map(|pair| (pair.chosen.reference, pair.rejected.reference)).collect()
        };
        let all = [(1.0, 2.0), (1.0, 3.0), (2.0, 3.0)];
        let seed = |epoch| order::seed(1, "pairs", epoch);
        let mut orders = Vec::new();
        for epoch in 0..8 {
            let batches = [round.batch(2 * epoch, 2, seed), round.batch(2 * epoch + 1, 2, seed)];
            assert_eq!(batches.each_ref().map(Vec::len), [2, 1]);
            let mut seen = told(&batches.concat());
            orders.push(seen.clone());
            seen.sort_by(|a, b| a.partial_cmp(b).unwrap());
            assert_eq!(seen, all);
        }
        assert!(orders.iter().any(|order| *order != orders[0]));
        let side = round.batch(0, 1, seed)[0].chosen;
        assert_eq!((side.sequence.tokens, side.sequence.targets()), (&[1, 2, 4][..], 2));
        let pairs = |step| Round::read(&path, step).unwrap().pairs.len();
        assert_eq!((pairs(1), pairs(2), pairs(4)), (1, 0, 3));
        writer.append(&sample("d", 5, &["gone"])).unwrap();
        let error = Round::read(&path, 5).unwrap_err().to_string();
        assert!(error.contains("samples.jsonl") && error.contains("gone"), "{error}");
    }
}
