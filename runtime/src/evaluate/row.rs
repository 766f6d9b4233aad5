//! Scores of one episode.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use waymark_agent::metric::{
    Cost, PricedSearch, Unsupported, declines, exact_match, f1, normalize, r1_searcher, support_f1,
};
use waymark_agent::{
    ActionRecord, AgentError, EpisodeEnd, Policy, ReadingRule, Runtime, SearchRecord, SegmentKind, SessionSource,
    Trajectory,
};
use waymark_engine::{Origin, Token};
use waymark_index::Mode;

use super::question::{Question, compared};
use super::verdict::Verdict;

/// Result of a policy on one question.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EpisodeRow {
    /// ID of the question.
    pub id: String,
    /// Text of the question.
    pub question: String,
    /// Kind of the question. `None` if its file gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Accepted answers.
    pub golds: Vec<String>,
    /// Answer of the policy. `None` if it gave none.
    pub answer: Option<String>,
    /// Exact match: 1 or 0.
    pub em: f64,
    /// Token F1 of the answer, from 0 to 1.
    pub f1: f64,
    /// F1 as R1-Searcher and GraphRAG-R1 compute it.
    #[serde(default)]
    pub searcher_f1: f64,
    /// ACC_R of GraphRAG-R1: 1 if the answer contains every word of an accepted answer, otherwise 0.
    #[serde(default)]
    pub covers: f64,
    /// Cosine between the embeddings of the answer and of the most similar accepted answer (SBERT similarity).
    /// `None` without an answer, and where it was not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub similarity: Option<f64>,
    /// Scores of a judge. `None` where no judge was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// SF-F1 of the retrieved text. `None` if the question's support is unknown.
    pub support_f1: Option<f64>,
    /// Share of the answer's words that the retrieved text does not contain. `None` for an answer without words.
    pub unsupported: Option<f64>,
    /// If `true`, the episode ended without an answer or with the statement that there is none.
    #[serde(default)]
    pub refused: bool,
    /// If `true`, the support was retrieved: every supporting passage or, if these are unknown, a passage with an
    /// accepted answer. `None` if that cannot be decided, as for the answers yes and no.
    #[serde(default)]
    pub supported: Option<bool>,
    /// If `true`, every turn was a valid action, and the last one an answer or a refusal that the policy closed by
    /// itself.
    pub valid: bool,
    /// Reason the episode ended. `None` if it failed.
    pub finish: Option<EpisodeEnd>,
    /// Number of the policy's turns.
    pub turns: usize,
    /// Number of searches by mode.
    pub searches: SearchCounts,
    /// Number of searches that repeat the mode and the words of an earlier one. Ignores entities, unlike the filter of
    /// `train keep`.
    #[serde(default)]
    pub duplicates: usize,
    /// Total duration of the searches, in seconds.
    pub retrieval_seconds: f64,
    /// Cost of the searches, in units of the cost model.
    pub cost: f64,
    /// Number of tokens by origin.
    pub tokens: TokenCounts,
    /// Duration of the episode, in seconds.
    pub seconds: f64,
    /// Time until the first token of the episode, in seconds. `None` without a token.
    pub first_token: Option<f64>,
    /// Searches and the passages they found.
    pub evidence: Vec<SearchEntry>,
    /// Text after the prompt.
    pub text: String,
    /// Error that ended the episode, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Number of searches by mode, including those reused from earlier in the episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SearchCounts {
    /// Passage search.
    pub passage: usize,
    /// Graph search.
    pub graph: usize,
    /// Passage and graph search, fused.
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
    /// Failed searches of any mode. They also count under their mode.
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
    /// Tokens of the environment that showed what a search found. `None` in rows of baselines, whose environment shows
    /// nothing else, and in rows written before this field existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<usize>,
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
        EpisodeRow {
            valid: is_valid(runtime, policy, guided, trajectory),
            finish: Some(trajectory.finish),
            turns: trajectory.turns(),
            retrieval_seconds: trajectory.timings.search,
            tokens: TokenCounts::of(trajectory),
            seconds: trajectory.timings.total,
            first_token: trajectory.timings.first_token,
            text: trajectory.text.clone(),
            ..EpisodeRow::scored(question, trajectory.answer.as_deref(), &trajectory.evidence, cost)
        }
        .ended(trajectory.finish)
    }

    /// Scores an answer and its evidence. Fields that depend on the course of the episode keep their default.
    pub(super) fn scored(question: &Question, answer: Option<&str>, evidence: &[SearchRecord], cost: &Cost) -> Self {
        let texts = retrieved(evidence);
        let golds = &question.answers;
        let best = |score: &dyn Fn(&str, &str) -> f64| {
            answer.map_or(0.0, |answer| golds.iter().map(|gold| score(answer, gold)).fold(0.0, f64::max))
        };
        EpisodeRow {
            em: answer.map_or(0.0, |answer| number(exact_match(answer, golds))),
            f1: answer.map_or(0.0, |answer| f1(answer, golds)),
            searcher_f1: best(&|answer, gold| r1_searcher::overlap(answer, gold).f1),
            covers: best(&|answer, gold| number(r1_searcher::covers_words(answer, gold))),
            support_f1: support_f1(&texts, &question.support),
            unsupported: answer.and_then(|answer| Unsupported::of(answer, &texts).rate()),
            refused: answer.is_none_or(declines),
            supported: is_supported(question, evidence, &texts),
            answer: answer.map(str::to_owned),
            searches: SearchCounts::of(evidence),
            duplicates: duplicates(evidence),
            // The empty sum of `f64` is −0 in Rust; adding 0 keeps it from being shown as "-0.00".
            cost: evidence.iter().map(|found| cost.of(&priced(found))).sum::<f64>() + 0.0,
            evidence: evidence.iter().map(SearchEntry::from).collect(),
            ..EpisodeRow::asked(question)
        }
    }

    /// Returns `true` if there is an answer that is not blank.
    pub fn has_answer(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.trim().is_empty())
    }

    /// Marks the row as refused if the policy ended the episode with a refusal action.
    fn ended(mut self, finish: EpisodeEnd) -> Self {
        self.refused |= finish == EpisodeEnd::Refused;
        self
    }

    /// Returns the row of a failed episode, with all scores zero.
    pub(super) fn failed(question: &Question, error: &AgentError) -> EpisodeRow {
        EpisodeRow { error: Some(error.to_string()), ..EpisodeRow::asked(question) }
    }

    fn asked(question: &Question) -> EpisodeRow {
        EpisodeRow {
            id: question.id.clone(),
            question: question.question.clone(),
            kind: question.kind.clone(),
            golds: question.answers.clone(),
            ..EpisodeRow::default()
        }
    }
}

/// Returns the features of a search that its cost depends on.
pub fn priced(found: &SearchRecord) -> PricedSearch {
    PricedSearch { mode: found.mode, passages: found.hits.len(), seconds: found.seconds, cached: found.cached }
}

/// Returns the distinct texts that searches have shown and not withdrawn: passages, title first, and triples. A search of
/// the hypergraph shows its facts alone.
pub fn retrieved(evidence: &[SearchRecord]) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut texts = Vec::new();
    for found in evidence.iter().filter(|found| found.stands()) {
        if found.mode != Mode::Hypergraph {
            texts.extend(found.hits.iter().map(|hit| compared(&hit.passage.title, &hit.passage.text)));
        }
        let facts = found.triples.iter();
        texts.extend(facts.map(|fact| format!("{} {} {}", fact.subject, fact.relation, fact.object)));
    }
    texts.retain(|text| seen.insert(text.clone()));
    texts
}

fn number(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// Returns the number of searches that repeat the mode and the normalized words of an earlier one.
fn duplicates(evidence: &[SearchRecord]) -> usize {
    let mut seen = HashSet::new();
    evidence.iter().filter(|found| !seen.insert((found.mode, normalize(&found.query)))).count()
}

/// Returns `true` if the support of a question is among the evidence; see [`EpisodeRow::supported`].
fn is_supported(question: &Question, evidence: &[SearchRecord], texts: &[String]) -> Option<bool> {
    if question.lists_support() {
        let standing = evidence.iter().filter(|found| found.stands());
        let found: HashSet<&str> = standing.flat_map(|found| &found.hits).map(|hit| hit.passage.id.as_str()).collect();
        return Some(question.supporting.iter().all(|id| found.contains(id.as_str())));
    }
    let golds: Vec<String> = question.answers.iter().map(|gold| normalize(gold)).collect();
    // The words of these answers stand in too many passages: half of all passages contain "no".
    if golds.iter().all(|gold| matches!(gold.as_str(), "" | "yes" | "no")) {
        return None;
    }
    // Spaces at both ends keep parts of words from matching.
    let texts: Vec<String> = texts.iter().map(|text| format!(" {} ", normalize(text))).collect();
    let holds = |gold: &String| !gold.is_empty() && texts.iter().any(|text| text.contains(&format!(" {gold} ")));
    Some(golds.iter().any(holds))
}

/// Returns `true` if the policy kept the protocol's format to the end. Text forced on an unguided policy counts as a
/// violation.
fn is_valid<S: SessionSource>(runtime: &Runtime<S>, policy: &Policy, guided: bool, trajectory: &Trajectory) -> bool {
    let stopped = matches!(trajectory.finish, EpisodeEnd::Stop | EpisodeEnd::Refused);
    // If the protocol's answers have no closing tag, only the end of the turn can close an answer.
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
            evidence: Some(evidence_tokens(trajectory)),
        }
    }

    /// Returns the number of content tokens, as TeaRAG counts them: those of evidence, or all of the environment where
    /// evidence was not counted.
    pub fn content(&self) -> usize {
        self.evidence.unwrap_or(self.environment)
    }
}

/// Returns the number of tokens that showed what a search found. The environment also replies to invalid turns, failed
/// searches and withdrawals.
fn evidence_tokens(trajectory: &Trajectory) -> usize {
    let showed = |acted: &ActionRecord| {
        trajectory.evidence.iter().any(|found| found.turn == acted.turn && found.error.is_none())
    };
    let end = trajectory.tokens.len();
    let shown = |acted: &ActionRecord| acted.reply.end.min(end).saturating_sub(acted.reply.start);
    trajectory.actions.iter().filter(|acted| showed(acted)).map(shown).sum()
}

impl From<&SearchRecord> for SearchEntry {
    fn from(found: &SearchRecord) -> SearchEntry {
        let passages = found.hits.iter().map(|hit| hit.passage.id.clone()).collect();
        SearchEntry { mode: found.mode, query: found.query.clone(), passages, seconds: found.seconds }
    }
}

#[cfg(test)]
mod tests {
    use waymark_agent::{Action, PolicySearch, Timings, Usage};

    use super::*;

    /// A turn of the training variant may be empty, so that two replies follow each other.
    #[test]
    fn replies_around_an_empty_turn_are_told_apart() {
        let runs = [(Origin::Prompt, 1), (Origin::Policy, 1), (Origin::Environment, 8), (Origin::Policy, 1)];
        let runs = runs.into_iter().chain([(Origin::Environment, 7), (Origin::Policy, 1)]);
        let tokens = runs.flat_map(|(origin, run)| vec![Token::given(1, origin, false); run]).collect();
        let search = || Action::Search(PolicySearch::plain("q"));
        let turns = [
            (search(), 2..7),
            (Action::Invalid, 7..10),
            (search(), 11..18),
            (Action::Answer { text: "x".to_owned() }, 0..0),
        ];
        let acted = |(turn, (action, reply))| ActionRecord {
            turn,
            action,
            executed: true,
            late: false,
            thought: String::new(),
            summary: None,
            reply,
        };
        let found = |turn| SearchRecord::asked(turn, "q".to_owned(), Vec::new(), Mode::Passage);
        let mut trajectory = Trajectory {
            id: String::new(),
            tokens,
            prompt_tokens: 1,
            text: String::new(),
            actions: (1..).zip(turns).map(acted).collect(),
            evidence: vec![found(1), found(3)],
            answer: None,
            finish: EpisodeEnd::Stop,
            usage: Usage::default(),
            timings: Timings::default(),
        };
        assert_eq!(evidence_tokens(&trajectory), 5 + 7);
        trajectory.tokens.truncate(13);
        assert_eq!(evidence_tokens(&trajectory), 5 + 2, "a response that was cut");
    }

    #[test]
    fn an_episode_without_searches_costs_zero_without_a_sign() {
        for cost in [Cost::default(), Cost::WallTime] {
            let row = EpisodeRow::scored(&Question::default(), Some("Paris"), &[], &cost);
            assert_eq!(format!("{:.2}", row.cost), "0.00");
        }
    }

    #[test]
    fn rows_of_older_versions_count_all_tokens_of_the_environment() {
        let older = r#"{"prompt": 9, "sampled": 5, "forced": 0, "environment": 7}"#;
        let read = |text: &str| serde_json::from_str::<TokenCounts>(text).map(|tokens| tokens.content()).ok();
        assert_eq!(read(older), Some(7));
        assert_eq!(read(&older.replace('}', r#", "evidence": 4}"#)), Some(4));
    }
}
