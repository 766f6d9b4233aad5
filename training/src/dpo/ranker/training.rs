//! Training and evaluation of the ranker's heads on pairs of branches.

use super::heads::{HEADS, LinearHeads, merit};
use super::loss::{HeadLabel, loss};
use super::{BranchKey, BranchStates};
use crate::recipe::Ranker;
use crate::reward::evo_rag::StepRewards;
use crate::run::{MetricsRow, RankerState};
use crate::seeding;

/// Two branches of a state, the better one first, with the label of each head.
#[derive(Debug, Clone)]
pub(super) struct BranchPair {
    pub(super) chosen: BranchKey,
    pub(super) rejected: BranchKey,
    pub(super) labels: Vec<HeadLabel>,
}

/// Inputs of training and evaluation.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankerTraining<'a> {
    pub(super) ranker: &'a Ranker,
    /// Hidden states of all branches of the pairs.
    pub(super) states: &'a BranchStates,
    /// Length of a hidden state.
    pub(super) hidden: usize,
}

/// Evaluation of the heads on held-out pairs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RankerEval {
    /// Number of pairs.
    pub(super) pairs: usize,
    /// Mean loss.
    pub(super) loss: f64,
    /// Share of pairs whose better branch has the higher merit.
    pub(super) accuracy: f64,
    /// Share of pairs that each head ranks as labeled. `None` for a head without labeled pairs.
    pub(super) heads: Vec<Option<f64>>,
}

impl RankerTraining<'_> {
    /// Trains `learned` on `pairs` in orders determined by `seed`. Returns the mean loss, each pair measured before its
    /// step; 0 without pairs.
    pub(super) fn learn(&self, learned: &mut RankerState, pairs: &[BranchPair], seed: u64) -> f64 {
        let Ranker { epochs, batch, learning_rate, .. } = *self.ranker;
        let RankerState { values, optimizer } = learned;
        let mut sum = 0.0;
        for epoch in 0..epochs as u64 {
            let order = seeding::shuffled(pairs.len(), seeding::seed(seed, "epoch", epoch));
            for batch in order.chunks(batch) {
                let mut gradients = vec![0.0f32; values.len()];
                for &place in batch {
                    let pair = &pairs[place];
                    let (own, slopes) = loss(&self.margins(LinearHeads::new(values, self.hidden), pair), &pair.labels);
                    sum += own;
                    let chosen = &self.states[&pair.chosen];
                    let rejected = &self.states[&pair.rejected];
                    for (row, slope) in gradients.chunks_exact_mut(self.hidden).zip(slopes) {
                        // The loss of a batch is the mean over its pairs.
                        let slope = (slope / batch.len() as f64) as f32;
                        let apart = chosen.iter().zip(rejected).map(|(chosen, rejected)| chosen - rejected);
                        row.iter_mut().zip(apart).for_each(|(gradient, apart)| *gradient += slope * apart);
                    }
                }
                optimizer.step(values, &mut gradients, learning_rate);
            }
        }
        sum / (epochs * pairs.len()).max(1) as f64
    }

    /// Evaluates `heads` on `pairs`.
    pub(super) fn measure(&self, heads: LinearHeads<'_>, pairs: &[BranchPair]) -> RankerEval {
        let share = 1.0 / pairs.len().max(1) as f64;
        let mut measured = RankerEval { pairs: pairs.len(), ..RankerEval::default() };
        let mut told = vec![(0usize, 0usize); self.ranker.heads];
        for pair in pairs {
            let margins = self.margins(heads, pair);
            measured.loss += share * loss(&margins, &pair.labels).0;
            measured.accuracy += share * f64::from(u8::from(merit(&margins) > 0.0));
            for ((right, all), (&margin, label)) in told.iter_mut().zip(margins.iter().zip(&pair.labels)) {
                let agrees = label.agrees(margin);
                *right += usize::from(agrees == Some(true));
                *all += usize::from(agrees.is_some());
            }
        }
        let accuracy = |(right, all): (usize, usize)| (all > 0).then(|| right as f64 / all as f64);
        measured.heads = told.into_iter().map(accuracy).collect();
        measured
    }

    /// Lead of the better branch by each head.
    fn margins(&self, heads: LinearHeads<'_>, pair: &BranchPair) -> Vec<f64> {
        let chosen = heads.score(&self.states[&pair.chosen]);
        let rejected = heads.score(&self.states[&pair.rejected]);
        chosen.into_iter().zip(rejected).map(|(chosen, rejected)| chosen - rejected).collect()
    }
}

impl RankerEval {
    /// Adds the metrics. Without pairs only their number is added.
    pub(super) fn add_metrics(&self, row: MetricsRow) -> MetricsRow {
        let mut row = row.with("ranker_held_out", self.pairs as f64);
        if self.pairs == 0 {
            return row;
        }
        row = row.with("ranker_loss", self.loss).with("ranker_accuracy", self.accuracy);
        // A single head has no name of its own: its accuracy is the total.
        for (name, accuracy) in StepRewards::NAMES.iter().zip(&self.heads).filter(|_| self.heads.len() == HEADS) {
            if let Some(share) = accuracy {
                row = row.with(format!("ranker_accuracy/{name}"), *share);
            }
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::AdamW;
    use crate::recipe::Optimizer;

    const PAIRS: usize = 16;

    /// States of pairs that differ in both numbers: always in the same direction in the second number, and in
    /// alternating directions in the first.
    fn states() -> BranchStates {
        let pair = |at: usize| {
            let first = if at.is_multiple_of(2) { 1.0 } else { -1.0 };
            [((at, 0), vec![first, 1.0]), ((at, 1), vec![-first, -1.0])]
        };
        (0..PAIRS).flat_map(pair).collect()
    }

    /// Pairs of these states for this many heads. If `own`, the first head is labeled by the first number.
    fn pairs(heads: usize, own: bool) -> Vec<BranchPair> {
        let pair = |at: usize| {
            let mut labels = vec![HeadLabel::First; heads];
            if own && !at.is_multiple_of(2) {
                labels[0] = HeadLabel::Second;
            }
            BranchPair { chosen: (at, 0), rejected: (at, 1), labels }
        };
        (0..PAIRS).map(pair).collect()
    }

    fn learned(heads: usize, optimizer: Optimizer) -> RankerState {
        let values = vec![0.0; 2 * heads];
        RankerState {
            optimizer: AdamW::new(Optimizer { clip: 0.0, weight_decay: 0.0, ..optimizer }, values.len()),
            values,
        }
    }

    fn ranker(heads: usize) -> Ranker {
        Ranker { heads, learning_rate: 0.05, epochs: 30, batch: PAIRS, ..Ranker::default() }
    }

    #[test]
    fn seven_heads_with_the_same_labels_end_as_one() {
        let states = states();
        let end = |heads: usize| {
            let ranker = Ranker { batch: 5, ..ranker(heads) };
            let mut learned = learned(heads, Optimizer::default());
            let study = RankerTraining { ranker: &ranker, states: &states, hidden: 2 };
            let loss = study.learn(&mut learned, &pairs(heads, false), 7);
            (loss, learned.values)
        };
        let (one_loss, one) = end(1);
        let (loss, seven) = end(HEADS);
        assert!(one[1] > 0.5 && (loss - one_loss).abs() < 1e-4, "{one:?} {loss} {one_loss}");
        for head in seven.chunks_exact(2) {
            assert_eq!(head, &seven[..2]);
            assert!(head.iter().zip(&one).all(|(a, b)| (a - b).abs() < 1e-3), "{head:?} {one:?}");
        }
    }

    #[test]
    fn own_labels_train_a_head_that_the_total_label_does_not() {
        let states = states();
        let ranker = ranker(HEADS);
        let study = RankerTraining { ranker: &ranker, states: &states, hidden: 2 };
        let judged = pairs(HEADS, true);
        let [total, own] = [false, true].map(|own| {
            let mut learned = learned(HEADS, Optimizer::default());
            study.learn(&mut learned, &pairs(HEADS, own), 7);
            study.measure(LinearHeads::new(&learned.values, 2), &judged)
        });
        // The judged labels of the first head alternate with the first number, the others do not.
        assert_eq!((total.heads[0], total.heads[1]), (Some(0.5), Some(1.0)));
        assert_eq!((own.heads[0], own.heads[1]), (Some(1.0), Some(1.0)));
        assert!(own.accuracy == 1.0 && own.loss < total.loss, "{own:?} {total:?}");
        let row = own.add_metrics(MetricsRow::new(1, "dpo1", 0.0));
        assert_eq!((row.values["ranker_held_out"], row.values["ranker_accuracy/retrieval_bonus"]), (16.0, 1.0));
    }

    #[test]
    fn the_gradient_matches_the_measured_loss() {
        const STEP: f32 = 1e-2;
        let states = states();
        let ranker = Ranker { learning_rate: 0.0, epochs: 1, ..ranker(HEADS) };
        let study = RankerTraining { ranker: &ranker, states: &states, hidden: 2 };
        // With β₁ = 0, the first moment after one step is the gradient itself.
        let mut learned = learned(HEADS, Optimizer { betas: (0.0, 0.0), ..Optimizer::default() });
        learned.values.iter_mut().enumerate().for_each(|(at, value)| *value = ((at * 7) % 5) as f32 * 0.2 - 0.4);
        let mut pairs = pairs(HEADS, true);
        pairs[3].labels[2] = HeadLabel::Neither;
        let loss = study.learn(&mut learned, &pairs, 7);
        let at = |values: &[f32]| study.measure(LinearHeads::new(values, 2), &pairs).loss;
        assert!((loss - at(&learned.values)).abs() < 1e-12);
        for (place, &gradient) in learned.optimizer.moments().0.iter().enumerate() {
            let moved = |step: f32| {
                let mut values = learned.values.clone();
                values[place] += step;
                at(&values)
            };
            let measured = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
            assert!((measured - f64::from(gradient)).abs() < 1e-4, "{place}: {gradient}, differences give {measured}");
        }
    }

    #[test]
    fn without_pairs_nothing_is_trained_or_measured() {
        let states = BranchStates::new();
        let ranker = ranker(1);
        let study = RankerTraining { ranker: &ranker, states: &states, hidden: 2 };
        let mut learned = learned(1, Optimizer::default());
        assert_eq!((study.learn(&mut learned, &[], 7), learned.optimizer.steps()), (0.0, 0));
        let row = study.measure(LinearHeads::new(&learned.values, 2), &[]).add_metrics(MetricsRow::new(1, "dpo1", 0.0));
        assert_eq!(row.values.into_iter().collect::<Vec<_>>(), [("ranker_held_out".to_owned(), 0.0)]);
    }
}
