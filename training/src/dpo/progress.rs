//! Progress of a DPO run: its stage and round.

use super::DpoGoal;
use crate::run::MetricsRow;
use crate::sft::VALIDATION;

/// Metric in the row of a round's first step: number of pairs.
pub(super) const PAIRS: &str = "pairs";
/// Metric in the same row: last step of the round.
pub const ROUND_END: &str = "round_end";
/// Metric of a validation by which rounds are compared.
pub(super) const MERIT: &str = "validation_merit";

/// Progress of a run. It is derived from the metrics of the run, so that it is the same after a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DpoProgress {
    /// Index of the stage. After the last stage the run is complete.
    pub(super) stage: usize,
    /// Number of rounds started so far, in all stages.
    pub(super) rounds: u64,
    /// Number of completed rounds of this stage.
    pub(super) over: usize,
    /// Number of steps before this stage.
    pub(super) before: u64,
    /// Round in progress: its first step, which generated the trajectories, and the number of pairs. `None` between
    /// rounds.
    pub(super) open: Option<(u64, usize)>,
}

impl DpoProgress {
    /// Computes the progress after `step` from the metrics `rows`. Optimizer steps take `batch` pairs.
    ///
    /// A round is better than the earlier ones of its stage if its measurement is higher. A round without pairs is not
    /// measured, and hence never better.
    pub(super) fn of(rows: &[MetricsRow], step: u64, goals: &[DpoGoal], batch: usize) -> Self {
        let mut progress = Self::default();
        let mut best = None;
        let mut stale = 0;
        let merit = |step: u64| {
            let row = rows.iter().find(|row| row.phase == VALIDATION && row.step == step)?;
            row.values.get(MERIT).copied()
        };
        let begun = rows.iter().filter_map(|row| Some((row.step, *row.values.get(PAIRS)? as usize)));
        for (first, pairs) in begun {
            let Some(goal) = goals.get(progress.stage) else { break };
            progress.rounds += 1;
            let last = first + goal.updates(pairs, batch);
            if step < last {
                progress.open = Some((first, pairs));
                break;
            }
            progress.over += 1;
            let own = merit(last).filter(|_| pairs > 0);
            let better = own.is_some_and(|own| best.is_none_or(|best| own > best));
            (best, stale) = if better { (own, 0) } else { (best, stale + 1) };
            if progress.over == goal.rounds || (goal.patience > 0 && stale == goal.patience) {
                let stage = progress.stage + 1;
                let rounds = progress.rounds;
                progress = Self { stage, rounds, before: last, ..Self::default() };
                (best, stale) = (None, 0);
            }
        }
        progress
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use waymark_agent::metric::Cost;
    use waymark_runtime::embedding::Embedding;

    use super::super::loss::DpoTerms;
    use super::super::rule::{PairRule, Siblings};
    use super::*;
    use crate::recipe::dpo::StageStart;
    use crate::reward::{ExactMatch, RewardScorer};

    fn goal(rounds: usize, epochs: usize, patience: usize) -> DpoGoal {
        DpoGoal {
            phase: "dpo".into(),
            rounds,
            patience,
            epochs,
            begins: StageStart::Last,
            terms: DpoTerms { beta: 0.1, nll: 0.0 },
            reward: RewardScorer::new(Box::new(ExactMatch), Arc::new(Embedding::Mock)),
            rule: PairRule::Siblings(Siblings { margin: 0.1 }),
            cost: Cost::default(),
        }
    }

    /// A round: its first step, its number of pairs, and the step and value of its measurement.
    type Told = (u64, f64, Option<(u64, f64)>);

    fn rows(rounds: &[Told]) -> Vec<MetricsRow> {
        let of = |&(first, pairs, measured): &Told| {
            let measured = measured.map(|(step, merit)| MetricsRow::new(step, VALIDATION, 0.0).with(MERIT, merit));
            std::iter::once(MetricsRow::new(first, "dpo1", 0.0).with(PAIRS, pairs)).chain(measured)
        };
        let beginning = MetricsRow::new(0, VALIDATION, 0.0).with(MERIT, 0.9);
        std::iter::once(beginning).chain(rounds.iter().flat_map(of)).collect()
    }

    #[test]
    fn the_number_of_pairs_determines_the_length_of_a_round() {
        // Five pairs, two per step, two epochs: rollouts in step 1, optimizer steps up to 7.
        let goals = [goal(2, 2, 0), goal(1, 1, 0)];
        let rows = rows(&[(1, 5.0, Some((7, 0.1))), (8, 0.0, None), (9, 2.0, Some((10, 0.1)))]);
        let at = |step, known: usize| DpoProgress::of(&rows[..known], step, &goals, 2);
        assert_eq!(at(0, 1), DpoProgress::default());
        let open = DpoProgress { rounds: 1, open: Some((1, 5)), ..DpoProgress::default() };
        assert_eq!((at(1, 2), at(6, 2)), (open, open));
        assert_eq!(at(7, 3), DpoProgress { rounds: 1, over: 1, ..DpoProgress::default() });
        // A round without pairs ends at once.
        let second = DpoProgress { stage: 1, rounds: 2, before: 8, ..DpoProgress::default() };
        assert_eq!(at(8, 4), second);
        assert_eq!(at(9, 5), DpoProgress { rounds: 3, open: Some((9, 2)), ..second });
        assert_eq!(at(10, 6), DpoProgress { stage: 2, rounds: 3, before: 10, ..DpoProgress::default() });
    }

    #[test]
    fn a_stage_ends_without_improvement() {
        let goals = [goal(9, 1, 2), goal(9, 1, 0)];
        let all = |merits: &[f64]| {
            let round = |(&merit, at): (&f64, u64)| (2 * at + 1, 2.0, Some((2 * at + 2, merit)));
            let rounds: Vec<_> = merits.iter().zip(0..).map(round).collect();
            DpoProgress::of(&rows(&rounds), 2 * merits.len() as u64, &goals, 2)
        };
        // The measurement before the first round does not belong to the stage.
        assert_eq!((all(&[0.1, 0.2, 0.2]).stage, all(&[0.1, 0.2, 0.2]).over), (0, 3));
        assert_eq!(
            all(&[0.1, 0.2, 0.2, 0.15]),
            DpoProgress { stage: 1, rounds: 4, before: 8, ..DpoProgress::default() }
        );
        assert_eq!(all(&[0.1, 0.2, 0.1, 0.3, 0.3]).stage, 0);
        let next = all(&[0.1, 0.2, 0.2, 0.15, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!((next.stage, next.over, next.before), (1, 4, 8));
    }
}
