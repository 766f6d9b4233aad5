//! Search-R1's reward with a bonus for form.

use serde::{Deserialize, Serialize};
use waymark::metric::{exact_match, normalize};

use super::exact::{ExactMatch, overlap};
use super::extract::{between, given};
use super::{Reward, worth};
use crate::sample::{Reward as Worth, Sample};

/// `qa_em_format` of Search-R1 (its v0.3): a right answer in the right form is worth 1, and less by `structure` where the
/// form is wrong. A wrong answer is worth `structure` for its form and `retrieval` where what was found holds a gold
/// answer, or `answer` where the form is wrong and there is one at all.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatBonus {
    /// Worth of the form (`structure_format_score`).
    pub structure: f64,
    /// Worth of an answer without form (`final_format_score`).
    pub answer: f64,
    /// Worth of finding a gold answer (`retrieval_score`).
    pub retrieval: f64,
}

impl FormatBonus {
    /// The reward of a reply from which `answer` was taken.
    pub fn of(&self, reply: &str, answer: Option<&str>, golds: &[String]) -> f64 {
        let formed = Form::of(reply);
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
    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let score = |sample: &Sample| {
            let own = if sample.is_forced() { "" } else { &sample.text };
            let em = ExactMatch::earned(sample);
            let form = f64::from(u8::from(Form::of(own)));
            let total = self.of(own, given(sample), &sample.golds);
            worth(total, [("em", em), ("f1", overlap(sample)), ("form", form)])
        };
        samples.iter().map(score).collect()
    }
}

/// Whether a gold answer is a part of a retrieved block.
fn found(reply: &str, golds: &[String]) -> bool {
    between(reply, "information").iter().any(|block| {
        let block = normalize(block);
        golds.iter().any(|gold| block.contains(&normalize(gold)))
    })
}

/// Where a reply stands between its tags (`is_valid_sequence`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Before anything.
    Start,
    /// Within a tag.
    In(&'static str),
    /// After the end of one.
    After(&'static str),
}

/// The tags of the protocol.
const NAMES: [&str; 4] = ["think", "search", "information", "answer"];

impl Form {
    /// Whether a reply is thought, search and information by turns and at last thought and answer, with nothing but white
    /// space in between and after, and as many closing tags as opening ones of each kind.
    pub fn of(reply: &str) -> bool {
        let balanced =
            |name: &&str| reply.matches(&format!("<{name}>")).count() == reply.matches(&format!("</{name}>")).count();
        NAMES.iter().all(balanced) && Form::walk(reply) == Some(Form::After("answer"))
    }

    fn walk(reply: &str) -> Option<Form> {
        let mut form = Form::Start;
        let mut rest = reply;
        loop {
            let next = next_tag(rest);
            let text = next.map_or(rest, |(at, ..)| &rest[..at]);
            if !matches!(form, Form::In(_)) && !waymark::metric::strip(text).is_empty() {
                return None;
            }
            let Some((at, length, name, opens)) = next else { return Some(form) };
            form = form.step(name, opens)?;
            rest = &rest[at + length..];
        }
    }

    /// What a tag leads to, where it may stand at all.
    fn step(self, name: &'static str, opens: bool) -> Option<Form> {
        if !opens {
            return (self == Form::In(name)).then_some(Form::After(name));
        }
        let fits = match name {
            "think" => matches!(self, Form::Start | Form::After("information")),
            "information" => self == Form::After("search"),
            _ => self == Form::After("think"),
        };
        fits.then_some(Form::In(name))
    }
}

/// The first tag of `text`: where it is, how long, of what name, and whether it opens.
fn next_tag(text: &str) -> Option<(usize, usize, &'static str, bool)> {
    let tags = NAMES.into_iter().flat_map(|name| [(name, true), (name, false)]);
    let places = tags.filter_map(|(name, opens)| {
        let tag = if opens { format!("<{name}>") } else { format!("</{name}>") };
        text.find(&tag).map(|at| (at, tag.len(), name, opens))
    });
    places.min_by_key(|(at, ..)| *at)
}
