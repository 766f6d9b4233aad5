//! Contenders of an evaluation.

use waymark_agent::Policy;
use waymark_index::{Mode, SearchOptions};

use super::baseline::Baseline;

/// A policy or a baseline, with the search options that are forced on it.
#[derive(Debug, Clone)]
pub struct EvaluationArm {
    /// Display name.
    pub name: String,
    /// Contender that answers.
    pub contender: Contender,
    /// Search options that override those of the contender. A `mode` applies whatever a policy writes.
    pub search: SearchOptions,
}

/// Answerer of the questions.
#[derive(Debug, Clone)]
pub enum Contender {
    /// A policy in its protocol.
    Policy(Box<Policy>),
    /// A fixed procedure around the base model.
    Baseline(Baseline),
}

impl EvaluationArm {
    /// Creates an arm of `contender`. `mode` replaces the mode of its searches, `k` their number of passages; neither
    /// applies to a contender that does not search.
    pub fn new(name: &str, contender: Contender, mode: Option<Mode>, k: Option<usize>) -> EvaluationArm {
        let mode = mode.filter(|_| contender.takes_mode());
        let k = k.filter(|_| contender.searches());
        let name = mode.map_or_else(|| name.to_owned(), |mode| format!("{name}@{mode}"));
        EvaluationArm { name, contender, search: SearchOptions { mode, k, ..SearchOptions::default() } }
    }

    /// Replaces the time limit of a policy's episodes. Baselines take theirs from the evaluation.
    #[must_use]
    pub(super) fn with_seconds(mut self, seconds: f64) -> EvaluationArm {
        if let Contender::Policy(policy) = &mut self.contender {
            policy.budget.seconds = seconds;
        }
        self
    }

    /// Creates an arm that leaves everything to the policy.
    pub fn free(policy: &Policy) -> EvaluationArm {
        EvaluationArm::new(&policy.name, Contender::Policy(Box::new(policy.clone())), None, None)
    }
}

impl Contender {
    /// Returns `true` if the contender searches.
    pub fn searches(&self) -> bool {
        match self {
            Contender::Policy(policy) => policy.searches(),
            Contender::Baseline(baseline) => *baseline != Baseline::NoRetrieval,
        }
    }

    /// Returns the search modes whose results the contender can show completely. Others cannot be forced on it.
    pub fn shows(&self) -> &'static [Mode] {
        match self {
            Contender::Policy(policy) => policy.protocol.shows(),
            Contender::Baseline(baseline) => baseline.shows(),
        }
    }

    /// Returns `true` if the mode of the contender's searches can be forced.
    pub fn takes_mode(&self) -> bool {
        match self {
            Contender::Policy(policy) => policy.searches(),
            Contender::Baseline(baseline) => baseline.takes_mode(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_apply_to_contenders_that_search() {
        let policy = |name: &str| Contender::Policy(Box::new(Policy::builtin(name).unwrap()));
        let graph = Some(Mode::Graph);
        let arm = EvaluationArm::new("r", policy("routerag"), graph, Some(7));
        assert_eq!((arm.name.as_str(), arm.search.mode, arm.search.k), ("r@graph", graph, Some(7)));
        let arm = EvaluationArm::new("p", policy("plain"), graph, Some(7));
        assert_eq!((arm.name.as_str(), arm.search), ("p", SearchOptions::default()));
        let single = EvaluationArm::new("s", Contender::Baseline(Baseline::SingleShot(Mode::Passage)), graph, Some(7));
        assert_eq!((single.name.as_str(), single.search.mode, single.search.k), ("s", None, Some(7)));
        let chain = EvaluationArm::new("i", Contender::Baseline(Baseline::IrCot), graph, None);
        assert_eq!((chain.name.as_str(), chain.search.mode), ("i@graph", graph));
    }

    #[test]
    fn facts_are_shown_by_protocols_that_say_so() {
        let policy = |name: &str| Contender::Policy(Box::new(Policy::builtin(name).unwrap()));
        let shows = |contender: &Contender| Mode::ALL.map(|mode| contender.shows().contains(&mode));
        assert_eq!(shows(&policy("tearag")), [true; 6]);
        for contender in [policy("routerag"), Contender::Baseline(Baseline::IrCot)] {
            assert_eq!(shows(&contender), [true, true, true, false, false, false]);
        }
    }
}
