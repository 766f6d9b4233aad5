//! Where a run stands: in which stage and round, and whether that is over.

use super::Goal;
use crate::run::Row;
use crate::sft::VALIDATION;

/// The name of the number of pairs, in the row of a round's first step.
pub(super) const PAIRS: &str = "pairs";
/// The name of the step that a round ends with, in the same row.
pub const ROUND_END: &str = "round_end";
/// The name of a measurement by which rounds are compared.
pub(super) const MERIT: &str = "validation_merit";

/// Where a run stands. It is read off the numbers that the run has noted, so that it is the same after a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Standing {
    /// The stage, by its place; behind the last one, everything is over.
    pub(super) stage: usize,
    /// Rounds begun so far, in all stages.
    pub(super) rounds: u64,
    /// Rounds of this stage that are over.
    pub(super) over: usize,
    /// Steps made before this stage.
    pub(super) before: u64,
    /// The round that is not over: its first step, which made its trajectories, and how many pairs they gave.
    pub(super) open: Option<(u64, usize)>,
}

impl Standing {
    /// Where the run of `rows` stands after `step`, whose optimizer steps take `batch` pairs.
    ///
    /// A round is better than those of its stage before it where its measurement is higher; one that was not measured, for
    /// it had no pairs, is not.
    pub(super) fn of(rows: &[Row], step: u64, goals: &[Goal], batch: usize) -> Self {
        let mut standing = Self::default();
        let (mut best, mut stale) = (None, 0);
        let merit = |step: u64| {
            let row = rows.iter().find(|row| row.phase == VALIDATION && row.step == step)?;
            row.values.get(MERIT).copied()
        };
        let begun = rows.iter().filter_map(|row| Some((row.step, *row.values.get(PAIRS)? as usize)));
        for (first, pairs) in begun {
            let Some(goal) = goals.get(standing.stage) else { break };
            standing.rounds += 1;
            let last = first + goal.updates(pairs, batch);
            if step < last {
                standing.open = Some((first, pairs));
                break;
            }
            standing.over += 1;
            let own = merit(last).filter(|_| pairs > 0);
            let better = own.is_some_and(|own| best.is_none_or(|best| own > best));
            (best, stale) = if better { (own, 0) } else { (best, stale + 1) };
            if standing.over == goal.rounds || (goal.patience > 0 && stale == goal.patience) {
                let (stage, rounds) = (standing.stage + 1, standing.rounds);
                standing = Self { stage, rounds, before: last, ..Self::default() };
                (best, stale) = (None, 0);
            }
        }
        standing
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use waymark::cli::embedding::Embedding;
    use waymark::metric::Cost;

    use super::super::loss::Terms;
    use super::super::rule::{Rule, Siblings};
    use super::*;
    use crate::recipe::dpo::Begins;
    use crate::reward::{ExactMatch, Judge};

    fn goal(rounds: usize, epochs: usize, patience: usize) -> Goal {
        Goal {
            phase: "dpo".into(),
            rounds,
            patience,
            epochs,
            begins: Begins::Last,
            terms: Terms { beta: 0.1, nll: 0.0 },
            reward: Judge::new(Box::new(ExactMatch), Arc::new(Embedding::Mock)),
            rule: Rule::Siblings(Siblings { margin: 0.1 }),
            cost: Cost::default(),
        }
    }

    /// A round: its first step, its pairs, and what was measured after which step.
    type Told = (u64, f64, Option<(u64, f64)>);

    fn rows(rounds: &[Told]) -> Vec<Row> {
        let of = |&(first, pairs, measured): &Told| {
            let measured = measured.map(|(step, merit)| Row::new(step, VALIDATION, 0.0).with(MERIT, merit));
            std::iter::once(Row::new(first, "dpo1", 0.0).with(PAIRS, pairs)).chain(measured)
        };
        let beginning = Row::new(0, VALIDATION, 0.0).with(MERIT, 0.9);
        std::iter::once(beginning).chain(rounds.iter().flat_map(of)).collect()
    }

    #[test]
    fn a_round_lasts_as_long_as_its_pairs() {
        // Five pairs, two a step, twice: rollouts in step 1, optimizer steps to 7.
        let goals = [goal(2, 2, 0), goal(1, 1, 0)];
        let rows = rows(&[(1, 5.0, Some((7, 0.1))), (8, 0.0, None), (9, 2.0, Some((10, 0.1)))]);
        let at = |step, known: usize| Standing::of(&rows[..known], step, &goals, 2);
        assert_eq!(at(0, 1), Standing::default());
        let open = Standing { rounds: 1, open: Some((1, 5)), ..Standing::default() };
        assert_eq!((at(1, 2), at(6, 2)), (open, open));
        assert_eq!(at(7, 3), Standing { rounds: 1, over: 1, ..Standing::default() });
        // A round without pairs is over at once.
        let second = Standing { stage: 1, rounds: 2, before: 8, ..Standing::default() };
        assert_eq!(at(8, 4), second);
        assert_eq!(at(9, 5), Standing { rounds: 3, open: Some((9, 2)), ..second });
        assert_eq!(at(10, 6), Standing { stage: 2, rounds: 3, before: 10, ..Standing::default() });
    }

    #[test]
    fn a_stage_ends_when_nothing_gets_better() {
        let goals = [goal(9, 1, 2), goal(9, 1, 0)];
        let all = |merits: &[f64]| {
            let round = |(&merit, at): (&f64, u64)| (2 * at + 1, 2.0, Some((2 * at + 2, merit)));
            let rounds: Vec<_> = merits.iter().zip(0..).map(round).collect();
            Standing::of(&rows(&rounds), 2 * merits.len() as u64, &goals, 2)
        };
        // What was measured before the first round is none of the stage.
        assert_eq!((all(&[0.1, 0.2, 0.2]).stage, all(&[0.1, 0.2, 0.2]).over), (0, 3));
        assert_eq!(all(&[0.1, 0.2, 0.2, 0.15]), Standing { stage: 1, rounds: 4, before: 8, ..Standing::default() });
        assert_eq!(all(&[0.1, 0.2, 0.1, 0.3, 0.3]).stage, 0);
        let next = all(&[0.1, 0.2, 0.2, 0.15, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!((next.stage, next.over, next.before), (1, 4, 8));
    }
}
