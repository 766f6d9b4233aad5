//! What is learnt in a round: the pairs among its trajectories, as the file of samples has them.

use std::collections::BTreeMap;
use std::path::Path;

use super::update::{Pair, Side};
use crate::TrainError;
use crate::order;
use crate::sample::Preferred;
use crate::sft::Lesson;
use crate::store::Samples;

/// The pairs of a round.
///
/// They are always read back from the file, where the round's first step has put them: so a run that is taken up in the
/// middle of a round learns from exactly the numbers that it would have learnt from without.
#[derive(Debug, Default)]
pub(super) struct Round {
    pairs: Vec<Contest>,
}

/// Two trajectories from where they part, each with what it adds up to under the reference.
#[derive(Debug, Default)]
struct Contest {
    chosen: (Lesson, f64),
    rejected: (Lesson, f64),
}

impl Round {
    /// Those of the trajectories that were made in the step `first`. Of the others nothing is kept: the file is read for those
    /// that are chosen, and then for those that they were preferred to.
    pub(super) fn read(samples: &Path, first: u64) -> Result<Self, TrainError> {
        let own = || -> Result<_, TrainError> {
            let all = Samples::open(samples)?;
            Ok(all.filter(move |sample| sample.as_ref().map_or(true, |sample| sample.step == first)))
        };
        let mut round = Self::default();
        let mut named: BTreeMap<String, Vec<(usize, usize, f64)>> = BTreeMap::new();
        for sample in own()? {
            let sample = sample?;
            for Preferred { to, turn, reference, .. } in &sample.preferred_to {
                let (chosen, rejected) = reference.unwrap_or_default();
                named.entry(to.clone()).or_default().push((round.pairs.len(), *turn, rejected));
                let chosen = (Lesson::from_turn(&sample, *turn), chosen);
                round.pairs.push(Contest { chosen, ..Contest::default() });
            }
        }
        for sample in own()? {
            let sample = sample?;
            for (pair, turn, reference) in named.remove(&sample.id).unwrap_or_default() {
                round.pairs[pair].rejected = (Lesson::from_turn(&sample, turn), reference);
            }
        }
        match named.into_keys().next() {
            Some(id) => Err(TrainError::Nothing(format!("{}: there is no sample {id} any more", samples.display()))),
            None => Ok(round),
        }
    }

    /// The pairs of an optimizer step of the round, counted from 0: each epoch goes through all of them in an order of its
    /// own, which `seed` makes.
    pub(super) fn batch(&self, update: u64, batch: usize, seed: impl Fn(u64) -> u64) -> Vec<Pair<'_>> {
        let each = self.pairs.len().div_ceil(batch).max(1) as u64;
        let (epoch, first) = (update / each, (update % each) as usize * batch);
        let order = order::shuffled(self.pairs.len(), seed(epoch));
        let pair = |at: usize| {
            let Contest { chosen, rejected } = &self.pairs[at];
            Pair { chosen: side(chosen), rejected: side(rejected) }
        };
        order.into_iter().skip(first).take(batch).map(pair).collect()
    }
}

fn side((lesson, reference): &(Lesson, f64)) -> Side<'_> {
    Side { sequence: lesson.sequence(), reference: *reference }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark::engine::Origin;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::{Sample, Span};
    use crate::store::Writer;

    /// A trajectory of two turns, which was preferred to others from a turn on.
    fn sample(id: &str, step: u64, to: &[(&str, usize)]) -> Sample {
        let preferred = |&(other, turn): &(&str, usize)| {
            let reference = Some((id.len() as f64, other.len() as f64));
            Preferred { to: other.to_owned(), turn, reference, scores: None }
        };
        let origins = [(Origin::Prompt, 1), (Origin::Policy, 2), (Origin::Environment, 1), (Origin::Policy, 1)];
        let origins = origins.into_iter().map(|(origin, run)| Span(origin, run)).collect();
        let (preferred_to, tokens) = (to.iter().map(preferred).collect(), vec![1, 2, 3, 4, step as u32]);
        let own = Sample { id: id.to_owned(), step, preferred_to, tokens, origins, ..searched("", &[]) };
        Sample { prompt_tokens: 1, ..own }
    }

    #[test]
    fn a_round_reads_its_own_pairs_and_each_epoch_sees_all_of_them() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("samples.jsonl");
        let mut writer = Writer::open(&path).unwrap();
        let samples = [
            sample("a", 1, &[("b", 1)]),
            sample("b", 1, &[]),
            sample("a", 4, &[("ccc", 0), ("bb", 0)]),
            sample("bb", 4, &[("ccc", 0)]),
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
        let pairs = |step| Round::read(&path, step).unwrap().pairs.len();
        assert_eq!((pairs(1), pairs(2), pairs(4)), (1, 0, 3));
        writer.append(&sample("d", 5, &[("gone", 0)])).unwrap();
        let error = Round::read(&path, 5).unwrap_err().to_string();
        assert!(error.contains("samples.jsonl") && error.contains("gone"), "{error}");
    }

    #[test]
    fn a_pair_is_learnt_from_where_it_parts() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("samples.jsonl");
        let mut writer = Writer::open(&path).unwrap();
        let samples = [sample("b", 1, &[]), sample("a", 1, &[("b", 1), ("b", 0)])];
        samples.iter().for_each(|sample| writer.append(sample).unwrap());
        let round = Round::read(&path, 1).unwrap();
        let mut learnt: Vec<[Vec<bool>; 2]> = round
            .batch(0, 2, |_| 1)
            .iter()
            .map(|pair| [pair.chosen, pair.rejected].map(|side| side.sequence.learnt.to_vec()))
            .collect();
        learnt.sort();
        let [late, early] = [vec![false, false, false, false, true], vec![false, true, true, false, true]];
        assert_eq!(learnt, [[late.clone(), late], [early.clone(), early]]);
    }
}
