//! Shares of PathRouter's routes among trajectories, for checking thresholds before a run.

use std::fmt;

use super::exact::{ExactMatch, overlap};
use super::path_router::{Route, RouteWeights};
use crate::sample::Sample;

/// Minimum number of trajectories for [`RouteShares::flaw`]. With fewer, a missing route may be chance.
const LEAST: usize = 16;

/// Routes of trajectories whose supporting passages are known.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RouteShares {
    routes: Vec<Route>,
    /// Evidence (P) of the trajectories, sorted.
    evidence: Vec<f64>,
    /// Minimum P of sufficient evidence (θ_P).
    enough: f64,
}

impl RouteShares {
    /// Computes the routes of `samples` under the thresholds of `weights`. Skips samples without known support.
    pub fn of<'s>(samples: impl IntoIterator<Item = &'s Sample>, weights: &RouteWeights) -> RouteShares {
        let mut shares = RouteShares { enough: weights.enough, ..RouteShares::default() };
        for sample in samples {
            let Some(evidence) = sample.support else { continue };
            shares.routes.push(weights.route(ExactMatch::of_sample(sample), overlap(sample), evidence));
            shares.evidence.push(evidence);
        }
        shares.evidence.sort_by(f64::total_cmp);
        shares
    }

    /// Share of a route.
    pub fn share(&self, route: Route) -> f64 {
        self.routes.iter().filter(|own| **own == route).count() as f64 / self.routes.len().max(1) as f64
    }

    /// Returns an error message if P lies on the same side of θ_P for every trajectory, so that routes never differ by
    /// their evidence. `None` if they do differ, or if there are too few trajectories to tell.
    pub fn flaw(&self) -> Option<String> {
        let above = self.routes.iter().filter(|route| route.enough).count();
        if self.routes.len() < LEAST || (above > 0 && above < self.routes.len()) {
            return None;
        }
        let side = if above == 0 { "below" } else { "at or above" };
        Some(format!(
            "grpo.routes.enough = {}: the evidence (P) of all {} trajectories of the initial policy is {side} it, from \
             {:.3} to {:.3}: set it, and that of the teacher and of the reward, to about {:.3}, the median, or choose \
             another measure (grpo.evidence)",
            self.enough,
            self.routes.len(),
            self.quantile(0.0),
            self.quantile(1.0),
            self.quantile(0.5)
        ))
    }

    /// Quantile of P; 0 without trajectories.
    fn quantile(&self, q: f64) -> f64 {
        let last = self.evidence.len().saturating_sub(1);
        self.evidence.get((q * last as f64).round() as usize).copied().unwrap_or(0.0)
    }
}

impl fmt::Display for RouteShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |right, enough| self.share(Route { right, enough });
        write!(
            f,
            "{:.2} right with evidence, {:.2} right without, {:.2} wrong with evidence, {:.2} wrong without; P {:.3} \
             {:.3} {:.3} (quartiles), threshold {}",
            share(true, true),
            share(true, false),
            share(false, true),
            share(false, false),
            self.quantile(0.25),
            self.quantile(0.5),
            self.quantile(0.75),
            self.enough
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::searched;
    use super::*;

    fn samples(evidence: &[f64]) -> Vec<Sample> {
        let sample = |&support: &f64| Sample { support: Some(support), answer: None, ..searched("", &[]) };
        evidence.iter().map(sample).collect()
    }

    #[test]
    fn a_threshold_that_divides_nothing_is_named_with_a_better_one() {
        let flaw = |evidence: &[f64]| RouteShares::of(&samples(evidence), &RouteWeights::default()).flaw();
        let low: Vec<f64> = (0..20).map(|at| 0.002 * f64::from(at)).collect();
        let reason = flaw(&low).unwrap();
        assert!(reason.contains("grpo.routes.enough = 0.1") && reason.contains("is below it"), "{reason}");
        assert!(reason.contains("0.020, the median"), "{reason}");
        assert!(flaw(&[0.5; 16]).unwrap().contains("at or above"));
        assert_eq!((flaw(&low[..15]), flaw(&[&low[..], &[0.1]].concat()), flaw(&[])), (None, None, None));
    }

    #[test]
    fn shares_are_among_trajectories_with_known_support() {
        let mut all = samples(&[0.05, 0.2, 0.3]);
        all.push(Sample { support: None, ..all[0].clone() });
        let shares = RouteShares::of(&all, &RouteWeights::default());
        assert!((shares.share(Route { right: false, enough: true }) - 2.0 / 3.0).abs() < 1e-12);
        assert!(shares.to_string().contains("0.67 wrong with evidence, 0.33 wrong without"), "{shares}");
    }
}
