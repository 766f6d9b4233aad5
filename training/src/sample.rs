//! Stored trajectories: tokens with their origins, actions, evidence and reward.
//!
//! Supervised data and rollouts share this format, one JSON object per line of `samples.jsonl`. See
//! [`sample_lines`](crate::sample_lines) for reading and writing.

mod forced_text;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use waymark_agent::{
    Action, ActionRecord, EpisodeEnd, HiddenEvidence, SearchRecord, Tags, Timings, Trajectory, Usage, opened_thought,
};
use waymark_engine::{Origin, Token};
use waymark_index::{Mode, TripleHit};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;
use waymark_runtime::evaluate::Question;

/// Task of an episode: the part of a sample that does not come from its trajectory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SampleTask {
    /// ID of the question in its data set.
    pub question_id: String,
    /// Text of the question.
    pub question: String,
    /// Kind of the question, such as `comparison` or the relation that it asks for. `None` if it is not known.
    pub kind: Option<String>,
    /// Accepted answers.
    pub golds: Vec<String>,
    /// IDs of the supporting passages. Empty if they are not known.
    pub supporting: Vec<String>,
    /// If `true`, `supporting` is incomplete: other passages also hold the answer or are needed for it.
    pub partly: bool,
    /// Name of the data set.
    pub dataset: String,
    /// Name of the protocol.
    pub protocol: String,
    /// Seed of the episode.
    pub seed: u64,
    /// Training step that produced the trajectory. 0 for supervised data.
    pub step: u64,
}

impl SampleTask {
    /// Creates the task of a question, without data set, seed and step.
    pub fn of(question: &Question, protocol: &str) -> SampleTask {
        SampleTask {
            question_id: question.key().to_owned(),
            question: question.question.clone(),
            kind: question.kind.clone(),
            golds: question.answers.clone(),
            supporting: question.supporting.clone(),
            partly: !question.supporting_complete,
            protocol: protocol.to_owned(),
            ..SampleTask::default()
        }
    }
}

/// A stored trajectory with its task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// ID of the episode.
    pub id: String,
    /// ID of the question in its data set.
    pub question_id: String,
    /// Text of the question.
    pub question: String,
    /// Kind of the question, such as `comparison` or the relation that it asks for. `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Accepted answers.
    pub golds: Vec<String>,
    /// IDs of the supporting passages. Empty if they are not known.
    pub supporting: Vec<String>,
    /// If `true`, `supporting` is incomplete: other passages also hold the answer or are needed for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partly: bool,
    /// Name of the data set.
    pub dataset: String,
    /// Name of the protocol.
    pub protocol: String,
    /// Seed of the episode.
    pub seed: u64,
    /// Training step that produced the trajectory. 0 for supervised data.
    pub step: u64,
    /// Trajectory whose tokens this one continues. `None` if it has a beginning of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<BranchOrigin>,
    /// Vocabulary of the token ids, as computed by [`hash::vocabulary`](crate::hash::vocabulary). `None` if it is not
    /// known, as in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// If `true`, the answer is a guess of a teacher that did not find it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guessed: bool,
    /// IDs of the passages that were withheld from the searches. A lesson with such passages ends with the statement
    /// that nothing was found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// All token ids, beginning with the prompt.
    pub tokens: Vec<u32>,
    /// Origins of the tokens, as runs that cover all tokens in order: `[["prompt",380],["policy",41],…]`.
    pub origins: Vec<OriginRun>,
    /// Policy tokens that the protocol inserted instead of sampling, as runs of `[first, length]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<(usize, usize)>,
    /// Run within `forced` that is the last mode written for the policy: it is written in every turn up to the first
    /// search. `None` if the policy chose the mode, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_mode: Option<(usize, usize)>,
    /// Log-probabilities at sampling time in nats, one for each token of origin `policy`; null for a token that was
    /// not sampled. Empty if no token was sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Option<f32>>,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Text after the prompt.
    pub text: String,
    /// Tag that opens a thought at the end of the prompt, in which the text begins. `None` if the prompt does not end
    /// with such a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<String>,
    /// Action of each turn.
    pub actions: Vec<TurnAction>,
    /// Evidence of each search.
    pub evidence: Vec<RetrievalRecord>,
    /// Measure of the evidence (P), by default SF-F1. `None` if the supporting passages are not known or P was not
    /// computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub support: Option<f64>,
    /// Final answer, if there is one.
    pub answer: Option<String>,
    /// Reason why the episode ended.
    pub finish: EpisodeEnd,
    /// Token usage.
    pub usage: Usage,
    /// Timings of the episode.
    #[serde(with = "TimingFields")]
    pub timings: Timings,
    /// Reward. `None` before scoring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<RewardValue>,
    /// Advantage within its group. `None` before it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<f64>,
    /// Trajectories of the same step that this one was preferred to (preference training only).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred_to: Vec<PreferenceRecord>,
}

/// State of another trajectory that a branch begins with. The tokens before it are those of the other trajectory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchOrigin {
    /// ID of the other trajectory.
    pub of: String,
    /// First turn of the branch itself, counted from 1.
    pub turn: usize,
}

/// Record that one trajectory was preferred to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreferenceRecord {
    /// ID of the rejected trajectory.
    pub to: String,
    /// Turn, counted from 0, in which the two trajectories diverge. They are compared from there on.
    pub turn: usize,
    /// Sums of the reference's log-probabilities over all training targets from that turn on, in nats: of this
    /// trajectory and of the rejected one. `None` without a reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<(f64, f64)>,
    /// Scores of the ranker's heads for this trajectory and for the rejected one, both up to the end of that turn.
    /// `None` without a ranker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<(Vec<f64>, Vec<f64>)>,
}

/// A run of tokens of one origin: `["policy",41]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginRun(#[serde(with = "OriginName")] pub Origin, pub usize);

/// Part of a trajectory as its policy saw it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SampleView {
    /// Visible tokens.
    pub tokens: Vec<u32>,
    /// Marks the tokens to learn from.
    pub learned: Vec<bool>,
    /// Position of each token in the trajectory.
    pub positions: Vec<usize>,
}

/// Action of one turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnAction {
    /// Turn, counted from 1.
    pub turn: usize,
    /// The action.
    #[serde(flatten)]
    pub action: Action,
    /// If `true`, the environment executed the action.
    pub executed: bool,
    /// If `true`, the turn came after the last round, or after the search limit, and could only answer. Missing
    /// (`false`) in files written before this field existed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// Summary of the preceding evidence, in protocols whose policies summarize.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// A search with its results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RetrievalRecord {
    /// Turn that requested the search.
    pub turn: usize,
    /// Retrieval mode.
    pub mode: Mode,
    /// Query text.
    pub query: String,
    /// Entities that the policy named in its request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<String>,
    /// Passages as `[id, score]`, best first.
    pub passages: Vec<(String, f32)>,
    /// Triples as `[subject, relation, object]`, best first, in modes that return triples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triples: Vec<[String; 3]>,
    /// Duration in seconds.
    pub seconds: f64,
    /// If `true`, the results were reused from an earlier search of the episode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// Error message, if the search failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Turn that withdrew the evidence, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<usize>,
    /// Tokens of the evidence that the policy no longer saw after the withdrawal. `None` if it saw them to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<HiddenEvidence>,
}

/// Reward of a trajectory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RewardValue {
    /// Total reward.
    pub total: f64,
    /// Components of the reward, by name.
    pub parts: BTreeMap<String, f64>,
}

/// Serialization of [`Origin`] by name.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Origin", rename_all = "snake_case")]
enum OriginName {
    Prompt,
    Policy,
    Environment,
}

/// Serialization of [`Timings`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Timings")]
struct TimingFields {
    total: f64,
    first_token: Option<f64>,
    generation: f64,
    search: f64,
}

impl Sample {
    /// Creates a sample from a trajectory and its task.
    pub fn from_trajectory(trajectory: Trajectory, task: SampleTask) -> Sample {
        let tokens = &trajectory.tokens;
        Sample {
            origins: spans(tokens),
            guessed: false,
            without: Vec::new(),
            forced: forced(tokens),
            written_mode: None,
            logprobs: logprobs(tokens),
            tokens: tokens.iter().map(|token| token.id).collect(),
            prompt_tokens: trajectory.prompt_tokens,
            id: trajectory.id,
            question_id: task.question_id,
            question: task.question,
            kind: task.kind,
            golds: task.golds,
            supporting: task.supporting,
            partly: task.partly,
            dataset: task.dataset,
            protocol: task.protocol,
            seed: task.seed,
            step: task.step,
            branch: None,
            tokenizer: None,
            text: trajectory.text,
            opened: None,
            actions: trajectory.actions.into_iter().map(TurnAction::from).collect(),
            evidence: trajectory.evidence.iter().map(RetrievalRecord::from).collect(),
            support: None,
            answer: trajectory.answer,
            finish: trajectory.finish,
            usage: trajectory.usage,
            timings: trajectory.timings,
            reward: None,
            advantage: None,
            preferred_to: Vec::new(),
        }
    }

    /// Notes the thought that the prompt has opened, if it has opened one with a tag of the protocol.
    #[must_use]
    pub fn with_opened_thought(self, template: Option<&ChatTemplate>, tokenizer: &Tokenizer, tags: &Tags) -> Sample {
        let prompt = &self.tokens[..self.prompt_tokens.min(self.tokens.len())];
        let opened = opened_thought(template, tokenizer, tags, prompt).map(str::to_owned);
        Sample { opened, ..self }
    }

    /// Returns the text with the tag of the thought that the prompt has opened. Format checks read this text, because a
    /// policy that wrote the tag again would open two thoughts.
    pub fn opened_text(&self) -> Cow<'_, str> {
        match &self.opened {
            Some(open) => Cow::Owned(format!("{open}{}", self.text)),
            None => Cow::Borrowed(&self.text),
        }
    }

    /// Marks the tokens that training learns from in one pass over all tokens: those of `own_tokens` that the policy
    /// wrote while it saw everything before them. See [`views`](Self::views) for the others.
    pub fn loss_mask(&self) -> Vec<bool> {
        let mut mask = self.own_tokens();
        if let Some(first) = self.hidden().map(|hidden| hidden.from).min() {
            mask.iter_mut().skip(first).for_each(|learned| *learned = false);
        }
        mask
    }

    /// Evidence that the policy stopped seeing.
    fn hidden(&self) -> impl Iterator<Item = HiddenEvidence> {
        self.evidence.iter().filter_map(|found| found.hidden)
    }

    /// Returns the positions of the tokens before `end` that the policy saw when it wrote the last of them.
    pub fn seen_before(&self, end: usize) -> Vec<usize> {
        let hides = |hidden: HiddenEvidence, at: usize| hidden.from < end && hidden.range().contains(&at);
        (0..end.min(self.tokens.len())).filter(|&at| !self.hidden().any(|hidden| hides(hidden, at))).collect()
    }

    /// Returns the parts of the trajectory, each with the tokens that the policy saw when it wrote the end of it. A new
    /// part begins where evidence was hidden. Every token that training learns from is marked in exactly one part, and
    /// the tokens before it in that part are those that the policy saw.
    pub fn views(&self) -> Vec<SampleView> {
        let own = self.own_tokens();
        let length = self.tokens.len();
        let mut edges: Vec<usize> = self.hidden().map(|hidden| hidden.from).filter(|from| *from < length).collect();
        edges.sort_unstable();
        let starts = std::iter::once(0).chain(edges.iter().copied());
        let ends = edges.iter().copied().chain(std::iter::once(length));
        let view = |(start, end): (usize, usize)| {
            let positions = self.seen_before(end);
            SampleView {
                tokens: positions.iter().map(|&at| self.tokens[at]).collect(),
                learned: positions.iter().map(|&at| own[at] && at >= start).collect(),
                positions,
            }
        };
        starts.zip(ends).map(view).collect()
    }

    /// Marks the tokens that the policy wrote itself, after the prompt, and before the protocol forced an answer. If a
    /// mode was written for the policy, only the mode is left out. The reference implementations have no forced answers
    /// and give them no reward; training on one with its trajectory's reward would make a correct forced answer less
    /// probable.
    fn own_tokens(&self) -> Vec<bool> {
        let length = self.tokens.len();
        let mut mask: Vec<bool> = Vec::with_capacity(length);
        for &OriginRun(origin, run) in &self.origins {
            // Origins come from a file and may cover too many tokens (see `flaw`), so lengths saturate.
            mask.resize(mask.len().saturating_add(run).min(length), origin == Origin::Policy);
        }
        mask.resize(length, false);
        for &(first, run) in &self.forced {
            mask.iter_mut().skip(first).take(run).for_each(|learned| *learned = false);
        }
        let asked = self.forced_answer().unwrap_or(length);
        mask.iter_mut().skip(asked).for_each(|learned| *learned = false);
        mask.iter_mut().take(self.prompt_tokens).for_each(|learned| *learned = false);
        mask
    }

    /// Returns the index of the first token of the policy's turn `turn`, counted from 0. Environment tokens separate
    /// any two turns; a turn without tokens is not counted, see [`has_every_turn`](Self::has_every_turn). Returns the
    /// number of tokens if there is no such turn.
    pub fn turn_start(&self, turn: usize) -> usize {
        self.turn(turn).start
    }

    /// Returns the end of the policy's turn `turn`, before the environment's reply. Returns the number of tokens if
    /// there is no such turn.
    pub fn turn_end(&self, turn: usize) -> usize {
        self.turn(turn).end
    }

    fn turn(&self, turn: usize) -> Range<usize> {
        let length = self.tokens.len();
        let run = self.policy_runs().nth(turn).unwrap_or(length..length);
        // Spans of a sample that was not checked may be longer than its tokens.
        run.start.min(length)..run.end.min(length)
    }

    /// Returns `true` if each turn with an action has tokens. A turn of the training variant may have none, and a
    /// response may be cut before its last turn: then the turns cannot be told from the origins of the tokens.
    pub fn has_every_turn(&self) -> bool {
        self.policy_runs().count() == self.actions.len()
    }

    /// Returns the runs of tokens that the policy wrote after the prompt, one for each turn with tokens.
    fn policy_runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0usize;
        self.origins.iter().filter_map(move |&OriginRun(origin, run)| {
            let start = at;
            at = at.saturating_add(run);
            (origin == Origin::Policy && start >= self.prompt_tokens).then_some(start..at)
        })
    }

    /// Returns the log-probability of each token at sampling time. `None` for tokens that were not sampled.
    pub fn sampled_logprobs(&self) -> Vec<Option<f32>> {
        let length = self.tokens.len();
        // `logprobs` has one entry per policy token, and none for other tokens.
        let mut left = self.logprobs.iter().copied();
        let mut all = Vec::with_capacity(length);
        for &OriginRun(origin, run) in &self.origins {
            let policy = origin == Origin::Policy;
            let run = run.min(length - all.len());
            all.extend((0..run).map(|_| if policy { left.next().flatten() } else { None }));
        }
        all.resize(length, None);
        all
    }

    /// Returns the mode of the first search. `None` without searches.
    pub fn first_mode(&self) -> Option<Mode> {
        self.evidence.first().map(|found| found.mode)
    }

    /// Number of tokens of `origin`.
    pub fn count(&self, origin: Origin) -> usize {
        self.origins.iter().filter(|span| span.0 == origin).fold(0, |sum, span| sum.saturating_add(span.1))
    }

    /// Number of tokens from position `first` on that the policy sampled.
    pub fn sampled_from(&self, first: usize) -> usize {
        let beyond = |start: usize, run: usize| start.saturating_add(run).saturating_sub(start.max(first));
        let mut at = 0usize;
        let mut written = 0usize;
        for &OriginRun(origin, run) in &self.origins {
            written = written.saturating_add(if origin == Origin::Policy { beyond(at, run) } else { 0 });
            at = at.saturating_add(run);
        }
        let forced = self.forced.iter().fold(0usize, |sum, &(start, run)| sum.saturating_add(beyond(start, run)));
        written.saturating_sub(forced)
    }

    /// Describes an inconsistency between the sample's fields. `None` means that every index and length in the sample
    /// is valid.
    pub fn flaw(&self) -> Option<String> {
        let length = self.tokens.len();
        // `checked_add`, because the sum of hostile lengths could wrap around to the right total.
        let within = |sum: usize, span: &OriginRun| sum.checked_add(span.1).filter(|sum| *sum <= length);
        match self.origins.iter().try_fold(0, within) {
            Some(covered) if covered == length => {}
            Some(covered) => return Some(format!("the origins cover {covered} of {length} tokens")),
            None => return Some(format!("the origins cover more than {length} tokens")),
        }
        if self.prompt_tokens > length {
            return Some(format!("the prompt has {} tokens, but the sample only {length}", self.prompt_tokens));
        }
        let policy = self.count(Origin::Policy);
        if !self.logprobs.is_empty() && self.logprobs.len() != policy {
            return Some(format!("{} log-probabilities for {policy} tokens of the policy", self.logprobs.len()));
        }
        if let Some(hidden) = self.hidden().find(|hidden| hidden.range().end > hidden.from || hidden.from > length) {
            return Some(format!("the hidden evidence {hidden:?} does not lie before the {length} tokens' end"));
        }
        let beyond = |&(first, run): &(usize, usize)| first.checked_add(run).is_none_or(|end| end > length);
        self.forced
            .iter()
            .chain(&self.written_mode)
            .find(|run| beyond(run))
            .map(|run| format!("the forced run {run:?} exceeds the {length} tokens"))
    }
}

/// Groups tokens into runs of equal origin.
fn spans(tokens: &[Token]) -> Vec<OriginRun> {
    tokens.chunk_by(|a, b| a.origin == b.origin).map(|run| OriginRun(run[0].origin, run.len())).collect()
}

/// Returns the forced tokens as runs of first index and length.
fn forced(tokens: &[Token]) -> Vec<(usize, usize)> {
    let mut at = 0;
    let mut runs = Vec::new();
    for run in tokens.chunk_by(|a, b| a.forced == b.forced) {
        if run[0].forced {
            runs.push((at, run.len()));
        }
        at += run.len();
    }
    runs
}

fn logprobs(tokens: &[Token]) -> Vec<Option<f32>> {
    let all: Vec<_> = tokens.iter().filter(|token| token.origin == Origin::Policy).map(|token| token.logprob).collect();
    // Without any sampled token, as in lessons, the list would hold nothing but nulls.
    if all.iter().all(Option::is_none) { Vec::new() } else { all }
}

impl From<ActionRecord> for TurnAction {
    fn from(acted: ActionRecord) -> TurnAction {
        TurnAction {
            turn: acted.turn,
            action: acted.action,
            executed: acted.executed,
            late: acted.late,
            summary: acted.summary,
        }
    }
}

impl From<&SearchRecord> for RetrievalRecord {
    fn from(found: &SearchRecord) -> RetrievalRecord {
        RetrievalRecord {
            turn: found.turn,
            mode: found.mode,
            query: found.query.clone(),
            entities: found.entities.clone(),
            passages: found.hits.iter().map(|hit| (hit.passage.id.clone(), hit.score)).collect(),
            triples: found.triples.iter().map(parts).collect(),
            seconds: found.seconds,
            cached: found.cached,
            error: found.error.clone(),
            withdrawn: found.withdrawn,
            hidden: found.hidden,
        }
    }
}

/// Subject, relation and object of a triple.
fn parts(triple: &TripleHit) -> [String; 3] {
    [triple.subject.clone(), triple.relation.clone(), triple.object.clone()]
}

#[cfg(test)]
pub(crate) mod tests;
