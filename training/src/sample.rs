//! One trajectory as it is kept: what was written by whom, what was found, and what it was worth.
//!
//! Supervised data and rollouts have the same form, one JSON object per line of `samples.jsonl`; see
//! [`store`](crate::store) for reading and writing it.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use waymark::agent::{Acted, Action, Found, Reason, Timings, Trajectory, Usage};
use waymark::engine::{Origin, Token};
use waymark_index::{Mode, TripleHit};

/// What an episode was about: all of a sample that its trajectory does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Task {
    /// The question's id in its data set.
    pub question_id: String,
    /// The question.
    pub question: String,
    /// Answers that count as right.
    pub golds: Vec<String>,
    /// Ids of the passages that hold the answer; empty where they are not known.
    pub supporting: Vec<String>,
    /// Whether others hold it too, or are needed beside those.
    pub partly: bool,
    /// The data set.
    pub dataset: String,
    /// The protocol's name.
    pub protocol: String,
    /// The seed of the episode.
    pub seed: u64,
    /// The step of training that made it; 0 for supervised data.
    pub step: u64,
}

/// One trajectory with what it was about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The episode's id.
    pub id: String,
    /// The question's id in its data set.
    pub question_id: String,
    /// The question.
    pub question: String,
    /// Answers that count as right.
    pub golds: Vec<String>,
    /// Ids of the passages that hold the answer; empty where they are not known.
    pub supporting: Vec<String>,
    /// Whether others hold it too, or are needed beside those.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partly: bool,
    /// The data set.
    pub dataset: String,
    /// The protocol's name.
    pub protocol: String,
    /// The seed of the episode.
    pub seed: u64,
    /// The step of training that made it; 0 for supervised data.
    pub step: u64,
    /// The tokenizer that its ids are of, as [`hash::vocabulary`](crate::hash::vocabulary) knows it; files written before
    /// it was kept do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Whether its answer is the guess of a teacher that did not find it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guessed: bool,
    /// Every token id, the prompt's first.
    pub tokens: Vec<u32>,
    /// Who wrote them, as runs that cover all tokens in order: `[["prompt",380],["policy",41],…]`.
    pub origins: Vec<Span>,
    /// Policy tokens that the protocol wrote for it, as runs of `[first, length]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<(usize, usize)>,
    /// Log-probabilities at sampling time in nats, one for each token of origin policy and null where it was not
    /// sampled; empty where none was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Option<f32>>,
    /// How many tokens are the prompt.
    pub prompt_tokens: usize,
    /// The text after the prompt.
    pub text: String,
    /// What each turn asked for.
    pub actions: Vec<Act>,
    /// What each search found.
    pub evidence: Vec<Retrieved>,
    /// SF-F1 of what was found; none where the support of the question is not known, or nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub support: Option<f64>,
    /// The answer, if there is one.
    pub answer: Option<String>,
    /// Why it ended.
    pub finish: Reason,
    /// What it took, in tokens.
    pub usage: Usage,
    /// Where its time went.
    #[serde(with = "Clock")]
    pub timings: Timings,
    /// What it was worth, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<Reward>,
    /// Its advantage over the others of its group, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<f64>,
    /// The trajectories of the same step that it was preferred to, in training by preferences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred_to: Vec<Preferred>,
}

/// What a trajectory was preferred to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preferred {
    /// The id of the other trajectory.
    pub to: String,
    /// The turn, counted from 0, in which the two part: they are compared from there on.
    pub turn: usize,
    /// What the log-probabilities of all that is learnt from there on add up to under the reference, in nats: of this
    /// trajectory and of the other. None where there is no reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<(f64, f64)>,
    /// What each of the ranker's heads says of this trajectory and of the other, both up to the end of that turn. None without
    /// a ranker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<(Vec<f64>, Vec<f64>)>,
}

/// A run of tokens of one origin: `["policy",41]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span(#[serde(with = "Who")] pub Origin, pub usize);

/// A turn's action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// The turn, counted from 1.
    pub turn: usize,
    /// What it asked for.
    #[serde(flatten)]
    pub action: Action,
    /// Whether the environment did anything about it.
    pub executed: bool,
    /// Whether it came after the last round, or where a bound allowed no other search: it could only answer; files written before this was kept do not say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// What the turn says of the evidence before it, in protocols whose policies summarise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// A search and what it found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retrieved {
    /// The turn that asked for it.
    pub turn: usize,
    /// How.
    pub mode: Mode,
    /// What was searched for.
    pub query: String,
    /// The names that the policy said it is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<String>,
    /// Passages, best first, as `[id, score]`.
    pub passages: Vec<(String, f32)>,
    /// Triples, best first, as `[subject, relation, object]`, in the modes that return any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triples: Vec<[String; 3]>,
    /// Seconds it took.
    pub seconds: f64,
    /// Whether it was taken from an earlier search of the episode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// Why it failed, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The turn that withdrew it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<usize>,
}

/// What a trajectory was worth.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Reward {
    /// All together.
    pub total: f64,
    /// What it is made of, by name.
    pub parts: BTreeMap<String, f64>,
}

/// [`Origin`] by name.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Origin", rename_all = "snake_case")]
enum Who {
    Prompt,
    Policy,
    Environment,
}

/// [`Timings`] by name.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Timings")]
struct Clock {
    total: f64,
    first_token: Option<f64>,
    generation: f64,
    search: f64,
}

impl Sample {
    /// What is kept of a trajectory.
    pub fn from_trajectory(trajectory: Trajectory, task: Task) -> Sample {
        let tokens = &trajectory.tokens;
        Sample {
            origins: spans(tokens),
            guessed: false,
            forced: forced(tokens),
            logprobs: logprobs(tokens),
            tokens: tokens.iter().map(|token| token.id).collect(),
            prompt_tokens: trajectory.prompt_tokens,
            id: trajectory.id,
            question_id: task.question_id,
            question: task.question,
            golds: task.golds,
            supporting: task.supporting,
            partly: task.partly,
            dataset: task.dataset,
            protocol: task.protocol,
            seed: task.seed,
            step: task.step,
            tokenizer: None,
            text: trajectory.text,
            actions: trajectory.actions.into_iter().map(Act::from).collect(),
            evidence: trajectory.evidence.iter().map(Retrieved::from).collect(),
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

    /// For each token, whether training learns it: written by the policy itself, after the prompt, and before an answer was
    /// asked for. The references have no such answer, and pay none: learnt by the worth of its trajectory, a right one would
    /// become less probable.
    pub fn loss_mask(&self) -> Vec<bool> {
        let length = self.tokens.len();
        let mut mask: Vec<bool> = Vec::with_capacity(length);
        for &Span(origin, run) in &self.origins {
            mask.resize(mask.len().saturating_add(run).min(length), origin == Origin::Policy);
        }
        mask.resize(length, false);
        let asked = self.forced.iter().map(|&(first, _)| first).min().unwrap_or(length);
        mask.iter_mut().skip(asked).for_each(|learnt| *learnt = false);
        mask.iter_mut().take(self.prompt_tokens).for_each(|learnt| *learnt = false);
        mask
    }

    /// Where the policy's turn `turn`, counted from 0, begins; behind all tokens where there is none. What the environment
    /// answers stands between any two turns.
    pub fn turn_start(&self, turn: usize) -> usize {
        self.turn(turn).start
    }

    /// Where that turn ends, before what the environment answers; behind all tokens where there is none.
    pub fn turn_end(&self, turn: usize) -> usize {
        self.turn(turn).end
    }

    fn turn(&self, turn: usize) -> Range<usize> {
        let (length, mut at, mut turns) = (self.tokens.len(), 0usize, 0);
        for &Span(origin, run) in &self.origins {
            let end = at.saturating_add(run);
            if origin == Origin::Policy && at >= self.prompt_tokens {
                if turns == turn {
                    return at.min(length)..end.min(length);
                }
                turns += 1;
            }
            at = end;
        }
        length..length
    }

    /// For each token, its log-probability at sampling time; `None` where it was not sampled.
    pub fn sampled_logprobs(&self) -> Vec<Option<f32>> {
        let length = self.tokens.len();
        let mut left = self.logprobs.iter().copied();
        let mut all = Vec::with_capacity(length);
        for &Span(origin, run) in &self.origins {
            let (policy, run) = (origin == Origin::Policy, run.min(length - all.len()));
            all.extend((0..run).map(|_| if policy { left.next().flatten() } else { None }));
        }
        all.resize(length, None);
        all
    }

    /// Whether its answer was asked for: the protocol wrote the beginning of it. The reference programs end there without
    /// an answer. Rollouts are not guided, and nothing else is forced in them.
    pub fn is_forced(&self) -> bool {
        !self.forced.is_empty()
    }

    /// The answer that the policy gave by itself; none where it was asked for.
    pub fn own_answer(&self) -> Option<&str> {
        self.answer.as_deref().filter(|_| !self.is_forced())
    }

    /// How many tokens are of `origin`.
    pub fn count(&self, origin: Origin) -> usize {
        self.origins.iter().filter(|span| span.0 == origin).fold(0, |sum, span| sum.saturating_add(span.1))
    }

    /// Says what is wrong with it, where its parts do not fit together. What has no flaw can be taken apart by its own
    /// numbers.
    pub fn flaw(&self) -> Option<String> {
        let length = self.tokens.len();
        let within = |sum: usize, span: &Span| sum.checked_add(span.1).filter(|sum| *sum <= length);
        match self.origins.iter().try_fold(0, within) {
            Some(covered) if covered == length => {}
            Some(covered) => return Some(format!("the origins cover {covered} of {length} tokens")),
            None => return Some(format!("the origins cover more than {length} tokens")),
        }
        if self.prompt_tokens > length {
            return Some(format!("a prompt of {} in {length} tokens", self.prompt_tokens));
        }
        let policy = self.count(Origin::Policy);
        if !self.logprobs.is_empty() && self.logprobs.len() != policy {
            return Some(format!("{} log-probabilities for {policy} tokens of the policy", self.logprobs.len()));
        }
        let beyond = |&(first, run): &(usize, usize)| first.checked_add(run).is_none_or(|end| end > length);
        self.forced.iter().find(|run| beyond(run)).map(|run| format!("a forced run {run:?} in {length} tokens"))
    }
}

/// The origins as runs.
fn spans(tokens: &[Token]) -> Vec<Span> {
    tokens.chunk_by(|a, b| a.origin == b.origin).map(|run| Span(run[0].origin, run.len())).collect()
}

/// Where tokens were forced, as first index and length.
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
    if all.iter().all(Option::is_none) { Vec::new() } else { all }
}

impl From<Acted> for Act {
    fn from(acted: Acted) -> Act {
        Act {
            turn: acted.turn,
            action: acted.action,
            executed: acted.executed,
            late: acted.late,
            summary: acted.summary,
        }
    }
}

impl From<&Found> for Retrieved {
    fn from(found: &Found) -> Retrieved {
        Retrieved {
            turn: found.turn,
            mode: found.mode,
            query: found.query.clone(),
            entities: found.entities.clone(),
            passages: found.hits.iter().map(|hit| (hit.passage.id.clone(), hit.score)).collect(),
            triples: found.triples.iter().map(words).collect(),
            seconds: found.seconds,
            cached: found.cached,
            error: found.error.clone(),
            withdrawn: found.withdrawn,
        }
    }
}

/// The three parts of a triple.
fn words(triple: &TripleHit) -> [String; 3] {
    [triple.subject.clone(), triple.relation.clone(), triple.object.clone()]
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use waymark::agent::Request;

    use super::*;

    fn origin() -> impl Strategy<Value = Origin> {
        prop_oneof![Just(Origin::Prompt), Just(Origin::Policy), Just(Origin::Environment)]
    }

    fn token() -> impl Strategy<Value = Token> {
        (any::<u32>(), origin(), proptest::option::of(-30f32..0.0), any::<bool>()).prop_map(
            |(id, origin, logprob, forced)| {
                let policy = origin == Origin::Policy;
                Token { id, origin, logprob: logprob.filter(|_| policy), forced: forced && policy }
            },
        )
    }

    fn acted(turn: usize, action: Action) -> Acted {
        Acted { turn, action, executed: true, late: false, summary: None }
    }

    pub(crate) fn trajectory(tokens: Vec<Token>, prompt_tokens: usize, text: &str) -> Trajectory {
        let request = Request { query: "x".into(), mode: Some(Mode::Graph), ..Request::plain("[graph] x") };
        Trajectory {
            id: "e".into(),
            prompt_tokens,
            tokens,
            text: text.to_owned(),
            actions: vec![
                acted(1, Action::Search(request)),
                acted(2, Action::Invalid),
                acted(3, Action::Answer { text: text.to_owned() }),
            ],
            evidence: Vec::new(),
            answer: Some(text.to_owned()),
            finish: Reason::Stop,
            usage: Usage::default(),
            timings: Timings { total: 1.5, first_token: None, generation: 0.5, search: 0.25 },
        }
    }

    pub(crate) fn samples() -> impl Strategy<Value = Sample> {
        (proptest::collection::vec(token(), 0..40), 0usize..40, ".*").prop_map(|(tokens, prompt, text)| {
            let prompt = prompt.min(tokens.len());
            Sample::from_trajectory(trajectory(tokens, prompt, &text), Task::default())
        })
    }

    /// Samples whose numbers are anything.
    pub(crate) fn hostile() -> impl Strategy<Value = Sample> {
        fn number() -> impl Strategy<Value = usize> {
            prop_oneof![3 => 0usize..12, 1 => any::<usize>(), 1 => Just(usize::MAX)]
        }
        let origins = proptest::collection::vec((origin(), number()), 0..4);
        let forced = proptest::collection::vec((number(), number()), 0..3);
        let logprobs = proptest::collection::vec(proptest::option::of(-30f32..0.0), 0..4);
        let tokens = proptest::collection::vec(token(), 0..12);
        (tokens, origins, forced, logprobs, number()).prop_map(|(tokens, origins, forced, logprobs, prompt_tokens)| {
            let origins = origins.into_iter().map(|(origin, run)| Span(origin, run)).collect();
            let sound = Sample::from_trajectory(trajectory(tokens, 0, ""), Task::default());
            Sample { origins, forced, logprobs, prompt_tokens, ..sound }
        })
    }

    proptest! {
        #[test]
        fn whatever_the_numbers_there_is_a_mask_for_every_token(sample in hostile()) {
            prop_assert_eq!(sample.loss_mask().len(), sample.tokens.len());
            prop_assert_eq!(sample.sampled_logprobs().len(), sample.tokens.len());
            let within = |turn| sample.turn_start(turn) <= sample.turn_end(turn) && sample.turn_end(turn) <= sample.tokens.len();
            prop_assert!((0..4).all(within));
            let covered: u128 = sample.origins.iter().map(|span| span.1 as u128).sum();
            prop_assert!(sample.flaw().is_some() || covered == sample.tokens.len() as u128);
        }

        #[test]
        fn the_mask_and_the_log_probabilities_are_those_of_the_tokens(
            tokens in proptest::collection::vec(token(), 0..60), prompt in 0usize..60
        ) {
            let prompt = prompt.min(tokens.len());
            let sample = Sample::from_trajectory(trajectory(tokens.clone(), prompt, ""), Task::default());
            let asked = tokens.iter().position(|token| token.forced).unwrap_or(tokens.len());
            let learnt = |(at, token): (usize, &Token)| (prompt..asked).contains(&at) && token.origin == Origin::Policy;
            let mask: Vec<bool> = tokens.iter().enumerate().map(learnt).collect();
            prop_assert_eq!(sample.loss_mask(), mask);
            let logprobs: Vec<_> = tokens.iter().map(|token| token.logprob).collect();
            prop_assert_eq!(sample.sampled_logprobs(), logprobs);
            prop_assert_eq!(sample.flaw(), None);
        }

        #[test]
        fn a_line_reads_back_as_it_was(sample in samples()) {
            let line = serde_json::to_string(&sample).unwrap();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(serde_json::from_str::<Sample>(&line).unwrap(), sample);
        }
    }

    #[test]
    fn origins_are_pairs_of_a_name_and_a_length() {
        let token = |origin| Token { id: 1, origin, logprob: None, forced: false };
        let tokens = vec![token(Origin::Prompt), token(Origin::Prompt), token(Origin::Policy)];
        let sample = Sample::from_trajectory(trajectory(tokens, 2, ""), Task::default());
        let line = serde_json::to_value(&sample).unwrap();
        assert_eq!(line["origins"], serde_json::json!([["prompt", 2], ["policy", 1]]));
        assert_eq!(line["actions"][0]["type"], "search");
        assert_eq!(line["actions"][2]["turn"], 3);
    }

    #[test]
    fn turns_begin_behind_the_prompt_and_each_observation_and_end_before_the_next() {
        let token = |origin| Token { id: 1, origin, logprob: None, forced: false };
        let runs = [(Origin::Prompt, 3), (Origin::Policy, 2), (Origin::Environment, 4), (Origin::Policy, 1)];
        let tokens = runs.into_iter().flat_map(|(origin, run)| vec![token(origin); run]).collect();
        let sample = Sample::from_trajectory(trajectory(tokens, 3, ""), Task::default());
        assert_eq!([0, 1, 2].map(|turn| sample.turn_start(turn)), [3, 9, 10]);
        assert_eq!([0, 1, 2].map(|turn| sample.turn_end(turn)), [5, 10, 10]);
    }

    #[test]
    fn parts_that_do_not_fit_are_told() {
        let token = Token { id: 1, origin: Origin::Policy, logprob: Some(-1.0), forced: false };
        let sound = Sample::from_trajectory(trajectory(vec![token; 3], 1, ""), Task::default());
        let broken = [
            Sample { origins: vec![Span(Origin::Policy, 2)], ..sound.clone() },
            // Together they are three, once the sum has gone round.
            Sample { origins: vec![Span(Origin::Policy, usize::MAX), Span(Origin::Policy, 4)], ..sound.clone() },
            Sample { prompt_tokens: 4, ..sound.clone() },
            Sample { logprobs: vec![None; 2], ..sound.clone() },
            Sample { forced: vec![(2, 2)], ..sound.clone() },
            Sample { forced: vec![(2, usize::MAX)], ..sound },
        ];
        for (case, sample) in broken.iter().enumerate() {
            assert!(sample.flaw().is_some(), "case {case}");
        }
    }
}
