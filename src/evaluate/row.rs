//! What one episode was worth.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use waymark_index::Mode;

use super::question::{Question, compared};
use crate::agent::{AgentError, Found, Kind, Policy, Reading, Reason, Runtime, Source, Trajectory};
use crate::engine::{Origin, Token};
use crate::metric::{Cost, Searched, Unsupported, exact_match, f1, support_f1};

/// One question, as a policy answered it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Row {
    /// The question's id.
    pub id: String,
    /// What was asked.
    pub question: String,
    /// Answers that count as right.
    pub golds: Vec<String>,
    /// The answer, if there is one.
    pub answer: Option<String>,
    /// Whether it is right: 1 or 0.
    pub em: f64,
    /// Its F1.
    pub f1: f64,
    /// SF-F1 of what was retrieved; none where the support of the question is not known.
    pub support_f1: Option<f64>,
    /// Share of the answer's words that were not retrieved; none without words.
    pub unsupported: Option<f64>,
    /// Whether every turn was a valid action and the last one an answer or a refusal that the policy gave and closed by
    /// itself.
    pub valid: bool,
    /// Why the episode ended; none where it failed.
    pub finish: Option<Reason>,
    /// Turns of the policy.
    pub turns: usize,
    /// Searches that were made, by mode.
    pub searches: Searches,
    /// Seconds of searching.
    pub retrieval_seconds: f64,
    /// What the searches cost, in the units of the cost that was asked for.
    pub cost: f64,
    /// Its tokens.
    pub tokens: Tokens,
    /// Seconds from its beginning to its end.
    pub seconds: f64,
    /// Seconds to its first token.
    pub first_token: Option<f64>,
    /// What was searched for and found.
    pub evidence: Vec<Lookup>,
    /// Everything after the prompt.
    pub text: String,
    /// What broke it off, where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Searches by mode, those reused from earlier in the episode included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Searches {
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
    /// Those that failed, of whatever mode.
    pub failed: usize,
}

/// Tokens of an episode by who wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
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
pub struct Lookup {
    /// How.
    pub mode: Mode,
    /// What was searched for.
    pub query: String,
    /// Ids of the passages found, best first.
    pub passages: Vec<String>,
    /// Seconds it took.
    pub seconds: f64,
}

impl Row {
    /// What a trajectory of `policy` is worth as an answer to `question`.
    pub fn of<S: Source>(
        runtime: &Runtime<S>,
        policy: &Policy,
        guided: bool,
        question: &Question,
        trajectory: &Trajectory,
        cost: &Cost,
    ) -> Row {
        let answer = trajectory.answer.as_deref();
        let texts = retrieved(&trajectory.evidence);
        Row {
            em: answer.map_or(0.0, |answer| f64::from(u8::from(exact_match(answer, &question.answers)))),
            f1: answer.map_or(0.0, |answer| f1(answer, &question.answers)),
            support_f1: support_f1(&texts, &question.support),
            unsupported: answer.and_then(|answer| Unsupported::of(answer, &texts).rate()),
            valid: is_valid(runtime, policy, guided, trajectory),
            answer: trajectory.answer.clone(),
            finish: Some(trajectory.finish),
            turns: trajectory.turns(),
            searches: Searches::of(&trajectory.evidence),
            retrieval_seconds: trajectory.timings.search,
            cost: trajectory.evidence.iter().map(|found| cost.of(&priced(found))).sum(),
            tokens: Tokens::of(trajectory),
            seconds: trajectory.timings.total,
            first_token: trajectory.timings.first_token,
            evidence: trajectory.evidence.iter().map(Lookup::from).collect(),
            text: trajectory.text.clone(),
            ..Row::asked(question)
        }
    }

    /// What an episode that failed is worth: nothing.
    pub(super) fn failed(question: &Question, error: &AgentError) -> Row {
        Row { error: Some(error.to_string()), ..Row::asked(question) }
    }

    fn asked(question: &Question) -> Row {
        Row {
            id: question.id.clone(),
            question: question.question.clone(),
            golds: question.answers.clone(),
            ..Row::default()
        }
    }
}

/// A search as it is priced.
pub fn priced(found: &Found) -> Searched {
    Searched { mode: found.mode, passages: found.hits.len(), seconds: found.seconds, cached: found.cached }
}

/// The texts of all passages found by searches that stand, title first, each once.
fn retrieved(evidence: &[Found]) -> Vec<String> {
    let mut seen = HashSet::new();
    let standing = evidence.iter().filter(|found| found.stands());
    let hits = standing.flat_map(|found| &found.hits).filter(|hit| seen.insert(&hit.passage.id));
    hits.map(|hit| compared(&hit.passage.title, &hit.passage.text)).collect()
}

/// Whether the form of the protocol was kept to the end. What was written for an unguided policy, it did not write.
fn is_valid<S: Source>(runtime: &Runtime<S>, policy: &Policy, guided: bool, trajectory: &Trajectory) -> bool {
    let stopped = matches!(trajectory.finish, Reason::Stop | Reason::Refused);
    // What no tag closes is closed by the end of its turn.
    let mut pairs = policy.protocol.tags().pairs.iter();
    let closed = stopped || pairs.all(|tag| tag.kind != Kind::Answer || !tag.close.is_empty());
    let wrote = |token: &Token| !token.forced || guided;
    if !closed || trajectory.valid_actions() < trajectory.turns() || !trajectory.response().iter().all(wrote) {
        return false;
    }
    // The last turn, as it would be read without any lenience: an answer that is not closed is none.
    let ids: Vec<u32> = trajectory.response().iter().map(|token| token.id).collect();
    let own = trajectory.response().iter().rev().take_while(|token| token.origin == Origin::Policy).count();
    let last = runtime.tokenizer.decode(&ids[ids.len() - own..]);
    policy.protocol.parse(&last, Reading::First).ends()
}

impl Searches {
    fn of(evidence: &[Found]) -> Searches {
        let count = |mode| evidence.iter().filter(|found| found.mode == mode).count();
        Searches {
            passage: count(Mode::Passage),
            graph: count(Mode::Graph),
            hybrid: count(Mode::Hybrid),
            triples: count(Mode::Triples),
            kag: count(Mode::Kag),
            failed: evidence.iter().filter(|found| found.error.is_some()).count(),
        }
    }
}

impl Tokens {
    fn of(trajectory: &Trajectory) -> Tokens {
        let policy = |forced: bool| {
            let own = trajectory.response().iter().filter(|token| token.origin == Origin::Policy);
            own.filter(|token| token.forced == forced).count()
        };
        Tokens {
            prompt: trajectory.prompt_tokens,
            sampled: policy(false),
            forced: policy(true),
            environment: trajectory.usage.environment_tokens,
        }
    }
}

impl From<&Found> for Lookup {
    fn from(found: &Found) -> Lookup {
        let passages = found.hits.iter().map(|hit| hit.passage.id.clone()).collect();
        Lookup { mode: found.mode, query: found.query.clone(), passages, seconds: found.seconds }
    }
}
