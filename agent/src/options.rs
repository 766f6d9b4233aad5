//! Options of an episode, set by a request.

use std::sync::Arc;

use serde::Serialize;
use waymark_engine::{Priority, RequestId};
use waymark_index::{Mode, SearchOptions};
use waymark_models::grammar::OutputForm;

use super::AgentError;
use super::budget::Budget;
use super::continued_episode::ContinuedEpisode;
use super::conversation::Conversation;
use super::policy::{Policy, check_mode};
use super::protocol::ModePrefix;
use super::retrieval::Retrieval;
use super::sampling::Sampling;

/// Token conditions for the end of a turn. Only for policies that do not search, because the conditions would apply to
/// every turn of an episode.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TurnEnds {
    /// IDs of tokens that end the turn, in addition to the model's end-of-sequence tokens.
    pub stop_ids: Vec<u32>,
    /// If `true`, the model's own end-of-sequence tokens do not end the turn.
    pub ignores_eos: bool,
    /// Minimum number of tokens in the turn. No token that ends the turn is sampled before.
    pub min_tokens: usize,
}

impl TurnEnds {
    /// Returns `true` if only the model's end-of-sequence tokens end the turn, at any length.
    pub fn is_default(&self) -> bool {
        *self == TurnEnds::default()
    }
}

/// Settings of one episode that differ from its policy. Limits can be tightened, never widened.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EpisodeOptions {
    /// ID of the episode. `None` generates one.
    pub id: Option<String>,
    /// Sampling parameters that override the policy's.
    pub sampling: Sampling,
    /// Seed of the random sequence. Each of `n` episodes needs its own.
    pub seed: u64,
    /// Maximum number of completion tokens of the episode: sampled ones within the policy's own limit, and those that
    /// the loop forces. `None` keeps the policy's limit, which counts sampled tokens only.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer and are not shown.
    pub stop: Vec<String>,
    /// Options of every search, which override those of the policy. A `mode` also overrides the mode that the policy
    /// writes.
    pub search: SearchOptions,
    /// Mode of the first search. The loop writes it for the policy, behind the tag that opens the query, and counts its
    /// tokens as forced. `None` lets the policy choose. Only for protocols whose queries name a mode; not for guided
    /// generation or the training variant.
    pub first_mode: Option<Mode>,
    /// IDs of excluded passages, at most [`MAX_WITHOUT`](super::MAX_WITHOUT): they are removed from search results
    /// before any other code sees them.
    pub without: Vec<String>,
    /// Maximum number of rounds with the environment. `None` keeps the policy's limit.
    pub turns: Option<usize>,
    /// Maximum number of executed searches. `None` keeps the policy's limit.
    pub searches: Option<usize>,
    /// Maximum number of tokens of all observations together. `None` keeps the policy's limit.
    pub environment_tokens: Option<usize>,
    /// Maximum wall time in seconds. `None` keeps the policy's limit.
    pub seconds: Option<f64>,
    /// Enables guided generation. `None` keeps the policy's setting.
    pub guided: Option<bool>,
    /// Number of alternatives per token. `None` disables log-probabilities.
    pub logprobs: Option<usize>,
    /// Maximum size of the passages and triples in the record and in the events, in bytes: further ones are left out,
    /// and citations cannot name them. `None` sets no limit.
    pub evidence_bytes: Option<usize>,
    /// If `true`, the final event contains citations.
    pub cites: bool,
    /// Constrains the answer to a form. `None` allows any answer.
    pub form: Option<OutputForm>,
    /// Tokens that end the only turn of a policy that does not search.
    pub ends: TurnEnds,
    /// Names of tools, one of which the reply must call. If empty, any reply is allowed.
    pub calls: Vec<String>,
    /// Names of tools whose first call ends the answer. The answer need not contain a call. If empty, no call ends the
    /// answer.
    pub one_call: Vec<String>,
    /// Names of tools whose arguments must follow the tool's parameter schema if the policy chooses to call them. Other
    /// tools accept any object as arguments. Without effect if `calls` names tools.
    pub strict: Vec<String>,
    /// Earlier episode that this one continues with the results of its tool call, if the earlier episode's tokens are
    /// known. The conversation contains the earlier messages in either case.
    pub continues: Option<Arc<ContinuedEpisode>>,
    /// If `true`, the oldest turns of a conversation that is too long for the context are dropped. If `false`, it is
    /// refused.
    pub truncates: bool,
    /// Token ids of the prompt, instead of the protocol's rendering of the conversation.
    pub prompt: Option<Vec<u32>>,
    /// Salt of the prefix cache, which separates tenants.
    pub salt: u64,
    /// Tenant of the episode. The engine shares tokens and places in the batch fairly among tenants, and tenants get
    /// the search threads in turn.
    pub tenant: u64,
    /// Priority of the episode's tokens relative to those of other tenants. `None` means normal priority.
    pub priority: Option<Priority>,
    /// ID of the request that the episode serves, shown in the engine's snapshots.
    pub request: Option<RequestId>,
    /// If `true`, the server may keep the trace. `None` keeps the server's setting. The loop itself stores nothing.
    pub store: Option<bool>,
}

impl EpisodeOptions {
    /// Returns `true` if an episode of `policy` compiles grammars, which may take seconds.
    pub fn compiles(&self, policy: &Policy, conversation: &Conversation) -> bool {
        let guided = self.guided.unwrap_or(policy.guided) && !conversation.tools().is_empty();
        self.form.is_some() || !self.calls.is_empty() || !self.strict.is_empty() || guided
    }

    /// Returns the policy's limits, tightened by the options.
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

    /// Returns the beginning of the first query if the options set its mode.
    pub(super) fn mode_prefix(&self, policy: &Policy, guided: bool) -> Result<Option<ModePrefix>, AgentError> {
        let Some(mode) = self.first_mode else { return Ok(None) };
        let reason = match policy.protocol.mode_prefix(mode) {
            Some(_) if guided || policy.variant.is_training() => "is not for guided or training episodes",
            Some(prefix) => return Ok(Some(prefix)),
            None => "is not a mode that queries of this protocol name",
        };
        Err(AgentError::Option { field: "first_mode", reason })
    }

    /// Returns the policy's retrieval settings, overridden by the options.
    pub(super) fn retrieval(&self, policy: &Policy) -> Result<Retrieval, AgentError> {
        if let Some(field) = self.search.given().next().filter(|_| !policy.searches()) {
            return Err(refusal(field.name, "this policy does not search"));
        }
        // Checked before the policy's options are added, so that the error is about the request.
        self.search.check().map_err(|invalid| AgentError::of_search("rag", &invalid))?;
        let search = self.search.clone().or(&policy.retrieval.search);
        check_mode(search.mode(), &*policy.protocol)?;
        // If the policy chooses the mode, it may use every option.
        let unused = self.search.mode.and_then(|mode| self.search.unused(mode));
        match unused {
            Some((field, _)) => Err(refusal(field.name, "is not used in the mode of `rag.mode`")),
            None => Ok(Retrieval { search, ..policy.retrieval.clone() }),
        }
    }
}

fn refusal(option: &str, reason: &str) -> AgentError {
    AgentError::SearchOption { field: format!("rag.{option}"), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_index::{Condition, GraphVariant, MAX_K, Ranking};

    use super::*;

    fn searching(search: SearchOptions) -> EpisodeOptions {
        EpisodeOptions { search, ..EpisodeOptions::default() }
    }

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
            let options = searching(SearchOptions { k: Some(k), ..SearchOptions::default() });
            let refused = options.retrieval(&policy).unwrap_err().to_string();
            assert_eq!(refused, format!("rag.k: must be from 1 to 200, not {k}"));
        }
        let ranking = Some(Ranking::Bm25);
        let graph = Some(GraphVariant::HippoRag.into());
        for (mode, refused) in [(Mode::Graph, "rag.ranking"), (Mode::Passage, "rag.graph")] {
            let options = searching(SearchOptions { mode: Some(mode), ranking, graph, ..SearchOptions::default() });
            assert!(options.retrieval(&policy).unwrap_err().to_string().starts_with(refused));
        }
        let chosen = searching(SearchOptions { ranking, graph, ..SearchOptions::default() });
        assert!(chosen.retrieval(&policy).is_ok(), "the policy may search in any mode");
    }

    #[test]
    fn a_policy_that_does_not_search_is_told_nothing_about_it() {
        let policy = Policy::builtin("plain").unwrap();
        let none = EpisodeOptions { turns: Some(0), ..EpisodeOptions::default() };
        assert!(none.retrieval(&policy).is_ok());
        let mode = Some(Mode::Passage);
        let ranking = Some(Ranking::Bm25);
        let graph = Some(GraphVariant::HippoRag.into());
        let filters = Some(Arc::new(Condition::Among { key: "a".into(), values: Vec::new(), within: true }));
        let none = SearchOptions::default;
        for (search, refused) in [
            (SearchOptions { mode, ranking, ..none() }, "rag.mode: "),
            (SearchOptions { k: Some(2), ..none() }, "rag.k: "),
            (SearchOptions { ranking, ..none() }, "rag.ranking: "),
            (SearchOptions { graph, ..none() }, "rag.graph: "),
            (SearchOptions { filters, ..none() }, "rag.filters: "),
        ] {
            let options = searching(search);
            assert!(options.retrieval(&policy).unwrap_err().to_string().starts_with(refused), "{options:?}");
        }
        // A request may forbid a policy to search, and still set search options that other requests need.
        let two = SearchOptions { k: Some(2), ..SearchOptions::default() };
        let kept = EpisodeOptions { turns: Some(0), ..searching(two) };
        assert!(kept.retrieval(&Policy::builtin("routerag").unwrap()).is_ok());
    }
}
