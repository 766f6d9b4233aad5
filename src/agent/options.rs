//! What a request may say about its episode.

use std::sync::Arc;

use waymark_index::{Condition, GraphVariant, Mode, Ranking};
use waymark_models::grammar::Json;

use super::AgentError;
use super::budget::Budget;
use super::part::Part;
use super::policy::{Policy, Retrieval};
use super::sampling::Sampling;
use super::search::MAX_K;
use crate::engine::RequestId;

/// What one episode wants otherwise than its policy has it. Bounds can be tightened, never widened.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EpisodeOptions {
    /// The episode's id; a new one where none is given.
    pub id: Option<String>,
    /// Sampling parameters that differ.
    pub sampling: Sampling,
    /// Where the random sequence starts. Of `n` episodes each takes its own.
    pub seed: u64,
    /// Tokens to sample over the whole run.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer and never show in it.
    pub stop: Vec<String>,
    /// The mode of every search, whatever the policy writes.
    pub mode: Option<Mode>,
    /// How passages are ranked within passage search.
    pub ranking: Option<Ranking>,
    /// Passages per search, at most [`MAX_K`].
    pub k: Option<usize>,
    /// Ids of passages that are not found, at most [`MAX_WITHOUT`](super::MAX_WITHOUT): they are left out of what searches
    /// find before anything else sees it.
    pub without: Vec<String>,
    /// What the documents' metadata must say of the passages that its searches find.
    pub only: Option<Arc<Condition>>,
    /// Whose graph search is made.
    pub graph: Option<GraphVariant>,
    /// Rounds with the environment.
    pub turns: Option<usize>,
    /// Executed searches.
    pub searches: Option<usize>,
    /// Tokens of all observations together.
    pub environment_tokens: Option<usize>,
    /// Wall time.
    pub seconds: Option<f64>,
    /// Whether generation is guided.
    pub guided: Option<bool>,
    /// How many alternatives are told for each token; `None` tells no log-probabilities.
    pub logprobs: Option<usize>,
    /// Whether its end tells which passages support the answer.
    pub cites: bool,
    /// What the answer must be: JSON, held to token by token.
    pub json: Option<Json>,
    /// The names of the tools of which the reply must be one call; any reply will do where there are none.
    pub calls: Vec<String>,
    /// The names of the tools of which the first call ends an answer that need not hold any; none does where there are none.
    pub one_call: Vec<String>,
    /// The prompt's ids, in place of what the protocol would make of the conversation.
    pub prompt: Option<Vec<u32>>,
    /// Keeps the prefix caches of tenants apart.
    pub salt: u64,
    /// The request it is run for, for whoever looks at the engine's state.
    pub request: Option<RequestId>,
    /// Whether its trace may be kept; as the server is set up where nothing is said. The loop itself keeps nothing.
    pub store: Option<bool>,
}

impl EpisodeOptions {
    /// The policy's bounds, tightened.
    pub(super) fn budget(&self, policy: &Policy) -> Result<Budget, AgentError> {
        let own = policy.budget;
        if self.max_tokens == Some(0) {
            return Err(AgentError::Option { field: "max_tokens", reason: "must be at least 1" });
        }
        if self.seconds.is_some_and(|seconds| seconds.is_nan() || seconds <= 0.0) {
            return Err(AgentError::Option { field: "seconds", reason: "must be above 0" });
        }
        let tighter = |asked: Option<usize>, own: Option<usize>| [asked, own].into_iter().flatten().min();
        Ok(Budget {
            turns: self.turns.map_or(own.turns, |turns| turns.min(own.turns)),
            searches: tighter(self.searches, own.searches),
            environment_tokens: tighter(self.environment_tokens, own.environment_tokens),
            sampled_tokens: self.max_tokens.map_or(own.sampled_tokens, |tokens| tokens.min(own.sampled_tokens)),
            seconds: self.seconds.map_or(own.seconds, |seconds| seconds.min(own.seconds)),
            ..own
        })
    }

    /// How the policy searches, with what the request says.
    pub(super) fn retrieval(&self, policy: &Policy) -> Result<Retrieval, AgentError> {
        self.check_searches(policy)?;
        if self.k.is_some_and(|k| !(1..=MAX_K).contains(&k)) {
            return Err(AgentError::Option { field: "k", reason: "must be from 1 to 200" });
        }
        let own = policy.retrieval;
        let retrieval = Retrieval {
            mode: self.mode.unwrap_or(own.mode),
            ranking: self.ranking.or(own.ranking),
            k: self.k.unwrap_or(own.k),
            graph: self.graph.unwrap_or(own.graph),
            ..own
        };
        retrieval.check_mode(&*policy.protocol)?;
        self.check_parts()?;
        Ok(retrieval)
    }

    /// Refuses what is said about searching where there is none.
    fn check_searches(&self, policy: &Policy) -> Result<(), AgentError> {
        let given = [
            ("rag.mode", self.mode.is_some()),
            ("rag.k", self.k.is_some()),
            ("rag.ranking", self.ranking.is_some()),
            ("rag.graph", self.graph.is_some()),
            ("rag.filters", self.only.is_some()),
        ];
        match given.into_iter().find(|&(_, given)| given && !policy.searches()) {
            Some((field, _)) => Err(AgentError::Option { field, reason: "this policy does not search" }),
            None => Ok(()),
        }
    }

    /// Refuses what no search would read. Where the policy chooses the mode, any may be made.
    fn check_parts(&self) -> Result<(), AgentError> {
        let given =
            [("rag.ranking", Part::Ranking, self.ranking.is_some()), ("rag.graph", Part::Graph, self.graph.is_some())];
        let unread =
            |&(_, part, given): &(&str, Part, bool)| given && self.mode.is_some_and(|mode| part.unread(mode).is_some());
        match given.into_iter().find(unread) {
            Some((field, ..)) => Err(AgentError::Option { field, reason: "is not read in the mode of `rag.mode`" }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bounds_are_tightened_never_widened() {
        let policy = Policy::builtin("routerag").unwrap();
        let options = |turns, max_tokens, seconds| EpisodeOptions {
            turns: Some(turns),
            max_tokens: Some(max_tokens),
            seconds: Some(seconds),
            ..EpisodeOptions::default()
        };
        let tight = options(2, 100, 1.0).budget(&policy).unwrap();
        assert_eq!((tight.turns, tight.sampled_tokens, tight.seconds), (2, 100, 1.0));
        assert_eq!(options(9, 1_000_000, 1e9).budget(&policy).unwrap(), policy.budget);
    }

    #[test]
    fn what_a_policy_leaves_open_a_request_may_bound() {
        let mut policy = Policy::builtin("routerag").unwrap();
        assert_eq!((policy.budget.searches, policy.budget.environment_tokens), (None, None));
        for (own, asked, both) in [
            (None, Some(3), Some(3)),
            (Some(2), None, Some(2)),
            (Some(2), Some(9), Some(2)),
            (Some(2), Some(0), Some(0)),
        ] {
            (policy.budget.searches, policy.budget.environment_tokens) = (own, own);
            let options = EpisodeOptions { searches: asked, environment_tokens: asked, ..EpisodeOptions::default() };
            let budget = options.budget(&policy).unwrap();
            assert_eq!((budget.searches, budget.environment_tokens), (both, both), "{own:?} {asked:?}");
        }
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        let policy = Policy::builtin("routerag").unwrap();
        let none = EpisodeOptions { max_tokens: Some(0), ..EpisodeOptions::default() };
        assert!(none.budget(&policy).unwrap_err().to_string().starts_with("max_tokens"));
        for k in [0, MAX_K + 1] {
            let options = EpisodeOptions { k: Some(k), ..EpisodeOptions::default() };
            assert!(options.retrieval(&policy).unwrap_err().to_string().starts_with("k:"));
        }
        let (ranking, graph) = (Some(Ranking::Bm25), Some(GraphVariant::HippoRag));
        for (mode, refused) in [(Mode::Graph, "rag.ranking"), (Mode::Passage, "rag.graph")] {
            let options = EpisodeOptions { mode: Some(mode), ranking, graph, ..EpisodeOptions::default() };
            assert!(options.retrieval(&policy).unwrap_err().to_string().starts_with(refused));
        }
        let chosen = EpisodeOptions { ranking, graph, ..EpisodeOptions::default() };
        assert!(chosen.retrieval(&policy).is_ok(), "the policy may search in any mode");
    }

    #[test]
    fn a_policy_that_does_not_search_is_told_nothing_about_it() {
        let policy = Policy::builtin("plain").unwrap();
        let none = EpisodeOptions { turns: Some(0), ..EpisodeOptions::default() };
        assert!(none.retrieval(&policy).is_ok());
        let (mode, ranking) = (Some(Mode::Passage), Some(Ranking::Bm25));
        let only = Arc::new(Condition::Among { key: "a".into(), values: Vec::new(), within: true });
        for (options, refused) in [
            (EpisodeOptions { mode, ranking, ..EpisodeOptions::default() }, "rag.mode: "),
            (EpisodeOptions { k: Some(2), ..EpisodeOptions::default() }, "rag.k: "),
            (EpisodeOptions { ranking, ..EpisodeOptions::default() }, "rag.ranking: "),
            (EpisodeOptions { graph: Some(GraphVariant::HippoRag), ..EpisodeOptions::default() }, "rag.graph: "),
            (EpisodeOptions { only: Some(only), ..EpisodeOptions::default() }, "rag.filters: "),
        ] {
            assert!(options.retrieval(&policy).unwrap_err().to_string().starts_with(refused), "{options:?}");
        }
        // A policy that searches may be kept from it by a single request, and told what another one reads.
        let kept = EpisodeOptions { turns: Some(0), k: Some(2), ..EpisodeOptions::default() };
        assert!(kept.retrieval(&Policy::builtin("routerag").unwrap()).is_ok());
    }
}
