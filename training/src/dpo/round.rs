//! Training pairs of a round, read from the file of samples.

use std::collections::BTreeMap;
use std::path::Path;

use super::update::{PairMember, PreferencePair};
use crate::TrainError;
use crate::sample::PreferenceRecord;
use crate::sample_lines::SampleReader;
use crate::seeding;
use crate::sft::MaskedSequence;

/// Pairs of a round.
///
/// The pairs are always read back from the file that the round's first step wrote, so that a run resumed in the middle
/// of a round trains on exactly the same numbers.
#[derive(Debug, Default)]
pub(super) struct Round {
    pairs: Vec<StoredPair>,
}

/// Two trajectories from their first difference on, each as the sequences that its policy saw and with its
/// log-likelihood under the reference.
#[derive(Debug, Default)]
struct StoredPair {
    chosen: (Vec<MaskedSequence>, f64),
    rejected: (Vec<MaskedSequence>, f64),
}

impl Round {
    /// Reads the pairs of the trajectories generated in the step `first`. The file is read twice, once for the chosen
    /// trajectories and once for the rejected ones, so that no others are held in memory.
    pub(super) fn read(samples: &Path, first: u64) -> Result<Self, TrainError> {
        let own = || -> Result<_, TrainError> {
            let all = SampleReader::open(samples)?;
            Ok(all.filter(move |sample| sample.as_ref().map_or(true, |sample| sample.step == first)))
        };
        let mut round = Self::default();
        let mut named: BTreeMap<String, Vec<(usize, usize, f64)>> = BTreeMap::new();
        for sample in own()? {
            let sample = sample?;
            for PreferenceRecord { to, turn, reference, .. } in &sample.preferred_to {
                // Without a reference both likelihoods are zero, which removes them from the margin.
                let (chosen, rejected) = reference.unwrap_or_default();
                named.entry(to.clone()).or_default().push((round.pairs.len(), *turn, rejected));
                let chosen = (MaskedSequence::views_from_turn(&sample, *turn), chosen);
                round.pairs.push(StoredPair { chosen, ..StoredPair::default() });
            }
        }
        for sample in own()? {
            let sample = sample?;
            for (pair, turn, reference) in named.remove(&sample.id).unwrap_or_default() {
                round.pairs[pair].rejected = (MaskedSequence::views_from_turn(&sample, turn), reference);
            }
        }
        match named.into_keys().next() {
            Some(id) => Err(TrainError::Nothing(format!("{}: the sample {id} is missing", samples.display()))),
            None => Ok(round),
        }
    }

    /// Pairs of an optimizer step of the round, counted from 0. Each epoch goes through all pairs in an order of its
    /// own, which `seed` determines.
    pub(super) fn batch(&self, update: u64, batch: usize, seed: impl Fn(u64) -> u64) -> Vec<PreferencePair<'_>> {
        // The last batch of an epoch may be smaller; no pair is seen twice within an epoch.
        let each = self.pairs.len().div_ceil(batch).max(1) as u64;
        let epoch = update / each;
        let first = (update % each) as usize * batch;
        let order = seeding::shuffled(self.pairs.len(), seed(epoch));
        let pair = |at: usize| {
            let StoredPair { chosen, rejected } = &self.pairs[at];
            PreferencePair { chosen: side(chosen), rejected: side(rejected) }
        };
        order.into_iter().skip(first).take(batch).map(pair).collect()
    }
}

fn side((sequences, reference): &(Vec<MaskedSequence>, f64)) -> PairMember<'_> {
    PairMember { sequences, reference: *reference }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_engine::Origin;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::{OriginRun, Sample};
    use crate::sample_lines::SampleWriter;

    /// Trajectory of two turns that is preferred to others from a turn on.
    fn sample(id: &str, step: u64, to: &[(&str, usize)]) -> Sample {
        let preferred = |&(other, turn): &(&str, usize)| {
            let reference = Some((id.len() as f64, other.len() as f64));
            PreferenceRecord { to: other.to_owned(), turn, reference, scores: None }
        };
        let origins = [(Origin::Prompt, 1), (Origin::Policy, 2), (Origin::Environment, 1), (Origin::Policy, 1)];
        let origins = origins.into_iter().map(|(origin, run)| OriginRun(origin, run)).collect();
        let preferred_to = to.iter().map(preferred).collect();
        let tokens = vec![1, 2, 3, 4, step as u32];
        let own = Sample { id: id.to_owned(), step, preferred_to, tokens, origins, ..searched("", &[]) };
        Sample { prompt_tokens: 1, ..own }
    }

    #[test]
    fn a_round_reads_its_own_pairs_and_each_epoch_uses_all_of_them() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("samples.jsonl");
        let mut writer = SampleWriter::open(&path).unwrap();
        let samples = [
            sample("a", 1, &[("b", 1)]),
            sample("b", 1, &[]),
            sample("a", 4, &[("ccc", 0), ("bb", 0)]),
            sample("bb", 4, &[("ccc", 0)]),
            sample("ccc", 4, &[]),
        ];
        samples.iter().for_each(|sample| writer.append(sample).unwrap());
        let round = Round::read(&path, 4).unwrap();
        let told = |pairs: &[PreferencePair<'_>]| -> Vec<(f64, f64)> {
            pairs.iter().map(|pair| (pair.chosen.reference, pair.rejected.reference)).collect()
        };
        let all = [(1.0, 2.0), (1.0, 3.0), (2.0, 3.0)];
        let seed = |epoch| seeding::seed(1, "pairs", epoch);
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
    fn a_pair_trains_only_tokens_after_the_split() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("samples.jsonl");
        let mut writer = SampleWriter::open(&path).unwrap();
        let samples = [sample("b", 1, &[]), sample("a", 1, &[("b", 1), ("b", 0)])];
        samples.iter().for_each(|sample| writer.append(sample).unwrap());
        let round = Round::read(&path, 1).unwrap();
        let mut learned: Vec<[Vec<bool>; 2]> = round
            .batch(0, 2, |_| 1)
            .iter()
            .map(|pair| [pair.chosen, pair.rejected].map(|side| side.sequences[0].learned.clone()))
            .collect();
        learned.sort();
        let [late, early] = [vec![false, false, false, false, true], vec![false, true, true, false, true]];
        assert_eq!(learned, [[late.clone(), late], [early.clone(), early]]);
    }
}
