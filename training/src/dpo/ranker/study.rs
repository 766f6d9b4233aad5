//! The heads at their work: epochs over pairs of branches, and how well they tell others.

use super::heads::{HEADS, Heads, merit};
use super::loss::{Label, loss};
use super::{Branch, States};
use crate::order;
use crate::recipe::Ranker;
use crate::reward::evo_rag::Steps;
use crate::run::{Learnt, Row};

/// Two branches of a state, the better one first, and what each head is to say of them.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) chosen: Branch,
    pub(super) rejected: Branch,
    pub(super) labels: Vec<Label>,
}

/// What heads learn from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Study<'a> {
    pub(super) ranker: &'a Ranker,
    /// Those of all branches of the pairs.
    pub(super) states: &'a States,
    /// Numbers of a state.
    pub(super) hidden: usize,
}

/// How well heads tell branches that they never learnt from.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Measured {
    /// Pairs.
    pub(super) pairs: usize,
    /// The mean loss.
    pub(super) loss: f64,
    /// Share of the pairs whose better branch is ahead.
    pub(super) accuracy: f64,
    /// The same of each head by what it is to say; none where that is nothing.
    pub(super) heads: Vec<Option<f64>>,
}

impl Study<'_> {
    /// Learns from `pairs`, in orders that `seed` makes. Returns their mean loss, each before the step it is in; 0 without any.
    pub(super) fn learn(&self, learnt: &mut Learnt, pairs: &[Pair], seed: u64) -> f64 {
        let Ranker { epochs, batch, learning_rate, .. } = *self.ranker;
        let Learnt { values, optimizer } = learnt;
        let mut sum = 0.0;
        for epoch in 0..epochs as u64 {
            let order = order::shuffled(pairs.len(), order::seed(seed, "epoch", epoch));
            for batch in order.chunks(batch) {
                let mut gradients = vec![0.0f32; values.len()];
                for &place in batch {
                    let pair = &pairs[place];
                    let (own, slopes) = loss(&self.margins(Heads::new(values, self.hidden), pair), &pair.labels);
                    sum += own;
                    let (chosen, rejected) = (&self.states[&pair.chosen], &self.states[&pair.rejected]);
                    for (row, slope) in gradients.chunks_exact_mut(self.hidden).zip(slopes) {
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

    /// How well `heads` tell `pairs`.
    pub(super) fn measure(&self, heads: Heads<'_>, pairs: &[Pair]) -> Measured {
        let share = 1.0 / pairs.len().max(1) as f64;
        let mut measured = Measured { pairs: pairs.len(), ..Measured::default() };
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

    /// By how much each head has the better branch ahead.
    fn margins(&self, heads: Heads<'_>, pair: &Pair) -> Vec<f64> {
        let (chosen, rejected) = (heads.score(&self.states[&pair.chosen]), heads.score(&self.states[&pair.rejected]));
        chosen.into_iter().zip(rejected).map(|(chosen, rejected)| chosen - rejected).collect()
    }
}

impl Measured {
    /// Adds what is known: without pairs how many there are, and nothing else.
    pub(super) fn tell(&self, row: Row) -> Row {
        let mut row = row.with("ranker_held_out", self.pairs as f64);
        if self.pairs == 0 {
            return row;
        }
        row = row.with("ranker_loss", self.loss).with("ranker_accuracy", self.accuracy);
        // One alone is the whole, and is called nothing else.
        for (name, accuracy) in Steps::NAMES.iter().zip(&self.heads).filter(|_| self.heads.len() == HEADS) {
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

    /// Branches of pairs that differ in both numbers: always the same way in the second one, and in the first one now this
    /// way, now that.
    fn states() -> States {
        let pair = |at: usize| {
            let first = if at.is_multiple_of(2) { 1.0 } else { -1.0 };
            [((at, 0), vec![first, 1.0]), ((at, 1), vec![-first, -1.0])]
        };
        (0..PAIRS).flat_map(pair).collect()
    }

    /// Those pairs for so many heads, of which the first is to go by the first number if `own`.
    fn pairs(heads: usize, own: bool) -> Vec<Pair> {
        let pair = |at: usize| {
            let mut labels = vec![Label::First; heads];
            if own && !at.is_multiple_of(2) {
                labels[0] = Label::Second;
            }
            Pair { chosen: (at, 0), rejected: (at, 1), labels }
        };
        (0..PAIRS).map(pair).collect()
    }

    fn learnt(heads: usize, optimizer: Optimizer) -> Learnt {
        let values = vec![0.0; 2 * heads];
        Learnt { optimizer: AdamW::new(Optimizer { clip: 0.0, weight_decay: 0.0, ..optimizer }, values.len()), values }
    }

    fn ranker(heads: usize) -> Ranker {
        Ranker { heads, learning_rate: 0.05, epochs: 30, batch: PAIRS, ..Ranker::default() }
    }

    #[test]
    fn seven_heads_with_the_same_labels_end_as_one() {
        let states = states();
        let end = |heads: usize| {
            let (ranker, mut learnt) = (Ranker { batch: 5, ..ranker(heads) }, learnt(heads, Optimizer::default()));
            let study = Study { ranker: &ranker, states: &states, hidden: 2 };
            let loss = study.learn(&mut learnt, &pairs(heads, false), 7);
            (loss, learnt.values)
        };
        let ((one_loss, one), (loss, seven)) = (end(1), end(HEADS));
        assert!(one[1] > 0.5 && (loss - one_loss).abs() < 1e-4, "{one:?} {loss} {one_loss}");
        for head in seven.chunks_exact(2) {
            assert_eq!(head, &seven[..2]);
            assert!(head.iter().zip(&one).all(|(a, b)| (a - b).abs() < 1e-3), "{head:?} {one:?}");
        }
    }

    #[test]
    fn a_head_of_its_own_tells_what_the_total_hides() {
        let (states, ranker) = (states(), ranker(HEADS));
        let study = Study { ranker: &ranker, states: &states, hidden: 2 };
        let judged = pairs(HEADS, true);
        let [total, own] = [false, true].map(|own| {
            let mut learnt = learnt(HEADS, Optimizer::default());
            study.learn(&mut learnt, &pairs(HEADS, own), 7);
            study.measure(Heads::new(&learnt.values, 2), &judged)
        });
        assert_eq!((total.heads[0], total.heads[1]), (Some(0.5), Some(1.0)));
        assert_eq!((own.heads[0], own.heads[1]), (Some(1.0), Some(1.0)));
        assert!(own.accuracy == 1.0 && own.loss < total.loss, "{own:?} {total:?}");
        let row = own.tell(Row::new(1, "dpo1", 0.0));
        assert_eq!((row.values["ranker_held_out"], row.values["ranker_accuracy/retrieval_bonus"]), (16.0, 1.0));
    }

    #[test]
    fn the_gradient_is_that_of_the_measured_loss() {
        const STEP: f32 = 1e-2;
        let (states, ranker) = (states(), Ranker { learning_rate: 0.0, epochs: 1, ..ranker(HEADS) });
        let study = Study { ranker: &ranker, states: &states, hidden: 2 };
        // The first moment of its first step is the gradient itself.
        let mut learnt = learnt(HEADS, Optimizer { betas: (0.0, 0.0), ..Optimizer::default() });
        learnt.values.iter_mut().enumerate().for_each(|(at, value)| *value = ((at * 7) % 5) as f32 * 0.2 - 0.4);
        let mut pairs = pairs(HEADS, true);
        pairs[3].labels[2] = Label::Neither;
        let loss = study.learn(&mut learnt, &pairs, 7);
        let at = |values: &[f32]| study.measure(Heads::new(values, 2), &pairs).loss;
        assert!((loss - at(&learnt.values)).abs() < 1e-12);
        for (place, &gradient) in learnt.optimizer.moments().0.iter().enumerate() {
            let moved = |step: f32| {
                let mut values = learnt.values.clone();
                values[place] += step;
                at(&values)
            };
            let measured = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
            assert!((measured - f64::from(gradient)).abs() < 1e-4, "{place}: {gradient}, differences give {measured}");
        }
    }

    #[test]
    fn without_pairs_nothing_is_learnt_and_nothing_measured() {
        let (states, ranker) = (States::new(), ranker(1));
        let study = Study { ranker: &ranker, states: &states, hidden: 2 };
        let mut learnt = learnt(1, Optimizer::default());
        assert_eq!((study.learn(&mut learnt, &[], 7), learnt.optimizer.steps()), (0.0, 0));
        let row = study.measure(Heads::new(&learnt.values, 2), &[]).tell(Row::new(1, "dpo1", 0.0));
        assert_eq!(row.values.into_iter().collect::<Vec<_>>(), [("ranker_held_out".to_owned(), 0.0)]);
    }
}
