//! Search-R1's exact-match reward with a bonus for the format.

use serde::{Deserialize, Serialize};
use waymark_agent::metric::{exact_match, normalize};

use super::exact::{ExactMatch, overlap};
use super::extract::{between, closed_answer};
use super::{Reward, reward_value};
use crate::sample::{RewardValue, Sample};

/// Reward `qa_em_format` of Search-R1 (its v0.3). A correct answer earns 1, reduced by `structure` if the format is
/// wrong. A wrong answer in the right format earns `structure`, plus `retrieval` if a retrieved block contains an
/// accepted answer. A wrong answer in the wrong format earns `answer`.
///
/// The program searches the prompt for blocks as well. Its own prompt contains one, ` and `, so it pays `retrieval` for
/// golds such as `N` without any search. Here, only blocks after the prompt count.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatBonus {
    /// Reward of the format (`structure_format_score`).
    pub structure: f64,
    /// Reward of an answer in the wrong format (`final_format_score`).
    pub answer: f64,
    /// Reward of retrieving an accepted answer (`retrieval_score`).
    pub retrieval: f64,
}

impl FormatBonus {
    /// Scores a reply from which `answer` was extracted.
    pub fn of(&self, reply: &str, answer: Option<&str>, golds: &[String]) -> f64 {
        let formed = FormatState::of(reply);
        if let Some(answer) = answer
            && exact_match(answer, golds)
        {
            return if formed { 1.0 } else { 1.0 - self.structure };
        }
        match (formed, answer) {
            (true, _) if found(reply, golds) => self.structure + self.retrieval,
            (true, _) => self.structure,
            (false, Some(_)) => self.answer,
            (false, None) => 0.0,
        }
    }
}

impl Reward for FormatBonus {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let score = |sample: &Sample| {
            // A forced answer was written by the server, which would earn the format bonus for the policy.
            let reply = sample.opened_text();
            let own = if sample.is_forced() { "" } else { &*reply };
            let em = ExactMatch::of_sample(sample);
            let form = f64::from(u8::from(FormatState::of(own)));
            let total = self.of(own, closed_answer(sample), &sample.golds);
            reward_value(total, [("em", em), ("f1", overlap(sample)), ("form", form)])
        };
        samples.iter().map(score).collect()
    }
}

/// Returns `true` if a retrieved block contains an accepted answer.
fn found(reply: &str, golds: &[String]) -> bool {
    between(reply, "information").iter().any(|block| {
        let block = normalize(block);
        golds.iter().any(|gold| block.contains(&normalize(gold)))
    })
}

/// State of the format check, a state machine over tags (`is_valid_sequence`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatState {
    /// Before the first tag.
    Start,
    /// Inside a tag.
    In(&'static str),
    /// After a closing tag.
    After(&'static str),
}

/// Tags of the protocol.
const NAMES: [&str; 4] = ["think", "search", "information", "answer"];

impl FormatState {
    /// Returns `true` if a reply alternates thought, search and information and ends with thought and answer, with
    /// only white space in between and after, and with as many closing as opening tags of each kind.
    pub fn of(reply: &str) -> bool {
        let balanced =
            |name: &&str| reply.matches(&format!("<{name}>")).count() == reply.matches(&format!("</{name}>")).count();
        NAMES.iter().all(balanced) && FormatState::walk(reply) == Some(FormatState::After("answer"))
    }

    fn walk(reply: &str) -> Option<FormatState> {
        let mut form = FormatState::Start;
        let mut rest = reply;
        loop {
            let next = next_tag(rest);
            let text = next.map_or(rest, |(at, ..)| &rest[..at]);
            // Outside of tags, only white space is allowed.
            if !matches!(form, FormatState::In(_)) && !waymark_agent::metric::strip(text).is_empty() {
                return None;
            }
            let Some((at, length, name, opens)) = next else { return Some(form) };
            form = form.step(name, opens)?;
            rest = &rest[at + length..];
        }
    }

    /// Returns the state after a tag. `None` if the tag is not allowed here.
    fn step(self, name: &'static str, opens: bool) -> Option<FormatState> {
        if !opens {
            return (self == FormatState::In(name)).then_some(FormatState::After(name));
        }
        let fits = match name {
            "think" => matches!(self, FormatState::Start | FormatState::After("information")),
            "information" => self == FormatState::After("search"),
            _ => self == FormatState::After("think"),
        };
        fits.then_some(FormatState::In(name))
    }
}

/// Returns the first tag of `text`: its offset, its length, its name, and `true` if it is an opening tag.
fn next_tag(text: &str) -> Option<(usize, usize, &'static str, bool)> {
    let tags = NAMES.into_iter().flat_map(|name| [(name, true), (name, false)]);
    let places = tags.filter_map(|(name, opens)| {
        let tag = if opens { format!("<{name}>") } else { format!("</{name}>") };
        text.find(&tag).map(|at| (at, tag.len(), name, opens))
    });
    places.min_by_key(|(at, ..)| *at)
}
