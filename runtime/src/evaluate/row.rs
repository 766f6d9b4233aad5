//! Scores of one episode.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use waymark_agent::metric::{Cost, PricedSearch, Unsupported, exact_match, f1, support_f1};
use waymark_agent::{
    AgentError, EpisodeEnd, Policy, ReadingRule, Runtime, SearchRecord, SegmentKind, SessionSource, Trajectory,
};
use waymark_engine::{Origin, Token};
use waymark_index::Mode;

use super::question::{Question, compared};

/// Result of a policy on one question.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EpisodeRow {
    /// ID of the question.
    pub id: String,
    /// Text of the question.
    pub question: String,
    /// Accepted answers.
    pub golds: Vec<String>,
    /// Answer of the policy. `None` if it gave none.
    pub answer: Option<String>,
    /// Exact match: 1 or 0.
    pub em: f64,
    /// Token F1 of the answer, from 0 to 1.
    pub f1: f64,
    /// SF-F1 of the retrieved text. `None` if the question's support is unknown.
    pub support_f1: Option<f64>,
    /// Share of the answer's words that were not retrieved. `None` for an answer without words.
    pub unsupported: Option<f64>,
    /// If `true`, every turn was a valid action, and the last one an answer or a refusal that the policy closed by
    /// itself.
    pub valid: bool,
    /// Reason the episode ended. `None` if it failed.
    pub finish: Option<EpisodeEnd>,
    /// Number of the policy's turns.
    pub turns: usize,
    /// Number of searches by mode.
    pub searches: SearchCounts,
    /// Seconds of searching.
    pub retrieval_seconds: f64,
    /// Cost of the searches, in units of the cost model.
    pub cost: f64,
    /// Number of tokens by origin.
    pub tokens: TokenCounts,
    /// Duration of the episode, in seconds.
    pub seconds: f64,
    /// Seconds to its first token.
    pub first_token: Option<f64>,
    /// Searches and the passages they found.
    pub evidence: Vec<SearchEntry>,
    /// Text after the prompt.
    pub text: String,
    /// Error that ended the episode, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Searches by mode, those reused from earlier in the episode included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SearchCounts {
    /// Passage search.
    pub passage: usize,
    /// Graph search.
    pub graph: usize,
    /// Both fused.
    pub hybrid: usize,
    /// Graph search with triples.
    #[serde(default)]
    pub triples: usize,
    /// Passages and triples ranked together.
    #[serde(default)]
    pub kag: usize,
    /// Facts of the hypergraph.
    #[serde(default)]
    pub hypergraph: usize,
    /// Failed searches of any mode.
    pub failed: usize,
}

/// Number of an episode's tokens by origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenCounts {
    /// The prompt.
    pub prompt: usize,
    /// Sampled by the policy.
    pub sampled: usize,
    /// Written for the policy.
    pub forced: usize,
    /// Put in by the environment.
    pub environment: usize,
}

/// A search of an episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchEntry {
    /// Mode of the search.
    pub mode: Mode,
    /// Search query.
    pub query: String,
    /// Ids of the passages found, best first.
    pub passages: Vec<String>,
    /// Duration of the search, in seconds.
    pub seconds: f64,
}

impl EpisodeRow {
    /// Scores a trajectory of `policy` as an answer to `question`.
    pub fn of<S: SessionSource>(
        runtime: &Runtime<S>,
        policy: &Policy,
        guided: bool,
        question: &Question,
        trajectory: &Trajectory,
        cost: &Cost,
    ) -> EpisodeRow {
        let answer = trajectory.answer.as_deref();
        let texts = retrieved(&trajectory.evidence);
        EpisodeRow {
            em: answer.map_or(0.0, |answer| f64::from(u8::from(exact_match(answer, &question.answers)))),
            f1: answer.map_or(0.0, |answer| f1(answer, &question.answers)),
            support_f1: support_f1(&texts, &question.support),
            unsupported: answer.and_then(|answer| Unsupported::of(answer, &texts).rate()),
            valid: is_valid(runtime, policy, guided, trajectory),
            answer: trajectory.answer.clone(),
            finish: Some(trajectory.finish),
            turns: trajectory.turns(),
            searches: SearchCounts::of(&trajectory.evidence),
            retrieval_seconds: trajectory.timings.search,
            cost: trajectory.evidence.iter().map(|found| cost.of(&priced(found))).sum(),
            tokens: TokenCounts::of(trajectory),
            seconds: trajectory.timings.total,
            first_token: trajectory.timings.first_token,
            evidence: trajectory.evidence.iter().map(SearchEntry::from).collect(),
            text: trajectory.text.clone(),
            ..EpisodeRow::asked(question)
        }
    }

    /// Row of a failed episode, with all scores zero.
    pub(super) fn failed(question: &Question, error: &AgentError) -> EpisodeRow {
        EpisodeRow { error: Some(error.to_string()), ..EpisodeRow::asked(question) }
    }

    fn asked(question: &Question) -> EpisodeRow {
        EpisodeRow {
            id: question.id.clone(),
            question: question.question.clone(),
            golds: question.answers.clone(),
            ..EpisodeRow::default()
        }
    }
}

/// Returns the features of a search that its cost depends on.
pub fn priced(found: &SearchRecord) -> PricedSearch {
    PricedSearch { mode: found.mode, passages: found.hits.len(), seconds: found.seconds, cached: found.cached }
}

/// Texts that searches have shown and that were not withdrawn, each once: passages, title first. A search of the
/// hypergraph shows facts instead.
pub fn retrieved(evidence: &[SearchRecord]) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut texts = Vec::new();
    for found in evidence.iter().filter(|found| found.stands()) {
        if found.mode == Mode::Hypergraph {
            let facts = found.triples.iter();
            texts.extend(facts.map(|fact| format!("{} {} {}", fact.subject, fact.relation, fact.object)));
        } else {
            texts.extend(found.hits.iter().map(|hit| compared(&hit.passage.title, &hit.passage.text)));
        }
    }
    texts.retain(|text| seen.insert(text.clone()));
    texts
}

/// Returns `true` if the protocol's format was kept to the end. Text forced on an unguided policy counts as a
/// violation.
fn is_valid<S: SessionSource>(runtime: &Runtime<S>, policy: &Policy, guided: bool, trajectory: &Trajectory) -> bool {
    let stopped = matches!(trajectory.finish, EpisodeEnd::Stop | EpisodeEnd::Refused);
    // An answer whose tag has no closing form ends with its turn.
    let mut pairs = policy.protocol.tags().pairs.iter();
    let closed = stopped || pairs.all(|tag| tag.kind != SegmentKind::Answer || !tag.close.is_empty());
    let wrote = |token: &Token| !token.forced || guided;
    if !closed || trajectory.valid_actions() < trajectory.turns() || !trajectory.response().iter().all(wrote) {
        return false;
    }
    // Parses the last turn strictly: an answer without its closing tag does not count.
    let ids: Vec<u32> = trajectory.response().iter().map(|token| token.id).collect();
    let own = trajectory.response().iter().rev().take_while(|token| token.origin == Origin::Policy).count();
    let last = runtime.tokenizer.decode(&ids[ids.len() - own..]);
    policy.protocol.parse(&last, ReadingRule::First).ends()
}

impl SearchCounts {
    fn of(evidence: &[SearchRecord]) -> SearchCounts {
        let count = |mode| evidence.iter().filter(|found| found.mode == mode).count();
        SearchCounts {
            passage: count(Mode::Passage),
            graph: count(Mode::Graph),
            hybrid: count(Mode::Hybrid),
            triples: count(Mode::Triples),
            kag: count(Mode::Kag),
            hypergraph: count(Mode::Hypergraph),
            failed: evidence.iter().filter(|found| found.error.is_some()).count(),
        }
    }
}

impl TokenCounts {
    fn of(trajectory: &Trajectory) -> TokenCounts {
        let policy = |forced: bool| {
            let own = trajectory.response().iter().filter(|token| token.origin == Origin::Policy);
            own.filter(|token| token.forced == forced).count()
        };
        TokenCounts {
            prompt: trajectory.prompt_tokens,
            sampled: policy(false),
            forced: policy(true),
            environment: trajectory.usage.environment_tokens,
        }
    }
}

impl From<&SearchRecord> for SearchEntry {
    fn from(found: &SearchRecord) -> SearchEntry {
        let passages = found.hits.iter().map(|hit| hit.passage.id.clone()).collect();
        SearchEntry { mode: found.mode, query: found.query.clone(), passages, seconds: found.seconds }
    }
}
