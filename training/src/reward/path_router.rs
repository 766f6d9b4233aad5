//! PathRouter's routes and rewards (§3.1 to §3.3 of the paper; there is no program). It names its rewards and their sizes but
//! not when exactly each is due; how that is read here is said beside each.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::exact::{ExactMatch, overlap};
use super::extract::given;
use super::{Reward, worth};
use crate::sample::{Reward as Worth, Sample};

/// By what advantages are multiplied, along which route a trajectory went (§3.1).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Routes {
    /// An answer is right from this F1 on, or with an exact match (θ_C).
    pub right: f64,
    /// Evidence is enough from this SF-F1 on (θ_P).
    pub enough: f64,
    /// Weight of a right answer without enough evidence.
    pub lucky: f64,
    /// Weight of a wrong answer with enough of it.
    pub unlucky: f64,
}

impl Default for Routes {
    fn default() -> Self {
        Routes { right: 0.5, enough: 0.1, lucky: 0.5, unlucky: 0.3 }
    }
}

/// Where a trajectory went: was its answer right, and was its evidence enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// C_i.
    pub right: bool,
    /// Whether P_i reaches its bound.
    pub enough: bool,
}

impl Routes {
    /// The route of a trajectory whose answer has this EM and F1 and whose evidence this SF-F1.
    pub fn route(&self, em: f64, f1: f64, support: f64) -> Route {
        Route { right: em > 0.0 || f1 >= self.right, enough: support >= self.enough }
    }

    /// What an advantage is multiplied by: luck without evidence counts half, bad luck with evidence less than that.
    pub fn weight(&self, route: Route) -> f64 {
        match (route.right, route.enough) {
            (true, true) | (false, false) => 1.0,
            (true, false) => self.lucky,
            (false, true) => self.unlucky,
        }
    }

    /// The weight of a trajectory; 1 where the support of its question is not known, of which the paper says nothing.
    pub fn of(&self, em: f64, f1: f64, support: Option<f64>) -> f64 {
        support.map_or(1.0, |support| self.weight(self.route(em, f1, support)))
    }

    /// The same by what the reward goes by: an answer that was asked for, or is not closed, is not right.
    pub fn along(&self, sample: &Sample) -> f64 {
        self.of(ExactMatch::earned(sample), overlap(sample), sample.support)
    }
}

/// `R = F1 + support · P + shape` (§3.2), where P is SF-F1 and shape the sum of what is due of the last four. Graph-R1's
/// constant R0 = −1 is left out, as it is in every reward of a group. An answer that was asked for, or is not closed, is none,
/// as in Graph-R1, whose loop ends before the one and which does not find the other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PathRouter {
    /// Weight of P; P is 0 where the support of a question is not known.
    pub support: f64,
    /// An answer is right from this F1 on, or with an exact match (θ_C).
    pub right: f64,
    /// Evidence is enough from this SF-F1 on (θ_P).
    pub enough: f64,
    /// r_e, exploration: a right answer after two searches or more. Here and below those count that found a passage which no
    /// earlier one had: the same query again is no second search.
    pub explored: f64,
    /// r_l: one search at most, and not enough evidence.
    pub stopped: f64,
    /// r_o: the policy gave and closed no answer by itself: its turns or its tokens were used up, or it asked for nothing.
    pub overran: f64,
    /// r_d: a search found a passage that an earlier one had found. Once, however often it happens.
    pub repeated: f64,
}

impl Default for PathRouter {
    fn default() -> Self {
        PathRouter {
            support: 0.5,
            right: 0.5,
            enough: 0.1,
            explored: 0.2,
            stopped: -0.25,
            overran: -0.5,
            repeated: -0.1,
        }
    }
}

impl PathRouter {
    /// What of its shape a trajectory is paid for, its answer being right or not.
    fn shape(&self, sample: &Sample, right: bool) -> f64 {
        let (searches, repeats) = finds(sample);
        let little = sample.support.is_some_and(|support| support < self.enough);
        [
            (right && searches >= 2, self.explored),
            (searches <= 1 && little, self.stopped),
            (given(sample).is_none(), self.overran),
            (repeats, self.repeated),
        ]
        .into_iter()
        .map(|(due, worth)| if due { worth } else { 0.0 })
        .sum()
    }
}

/// How many searches found a passage that no earlier one had found, and whether one found a passage again.
fn finds(sample: &Sample) -> (usize, bool) {
    let mut seen = HashSet::new();
    let (mut fresh, mut again) = (0, false);
    for found in &sample.evidence {
        let known = found.passages.iter().filter(|(id, _)| seen.contains(id)).count();
        fresh += usize::from(known < found.passages.len());
        again |= known > 0;
        seen.extend(found.passages.iter().map(|(id, _)| id));
    }
    (fresh, again)
}

impl Reward for PathRouter {
    fn needs_support(&self) -> bool {
        true
    }

    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let score = |sample: &Sample| {
            let f1 = overlap(sample);
            let right = f1 >= self.right || ExactMatch::earned(sample) > 0.0;
            let support = sample.support.unwrap_or(0.0);
            let shape = self.shape(sample, right);
            worth(f1 + self.support * support + shape, [("f1", f1), ("support", support), ("shape", shape)])
        };
        samples.iter().map(score).collect()
    }
}

/// Weight of the divergence from the teacher at a step: rises to `most` over `warmup` steps, and stays (§3.3).
pub fn teacher_weight(step: usize, most: f64, warmup: usize) -> f64 {
    most * (step as f64 / warmup.max(1) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use waymark::agent::{Action, Reason};
    use waymark_index::Mode;

    use super::super::graph_r1::GraphR1;
    use super::super::tests::searched;
    use super::*;
    use crate::sample::Act;

    const TWICE: &[(Mode, f64)] = &[(Mode::Graph, 0.1), (Mode::Graph, 0.1)];

    /// Each of its searches finds a passage of its own.
    fn sample(answer: &str, support: Option<f64>, searches: &[(Mode, f64)]) -> Sample {
        let golds = vec!["Paris".to_owned()];
        let mut sample = Sample { golds, answer: Some(answer.to_owned()), support, ..searched("", searches) };
        sample.evidence.iter_mut().for_each(|found| found.passages = vec![(format!("p{}", found.turn), 1.0)]);
        sample
    }

    /// The right answer, where it was asked for.
    fn asked() -> Sample {
        Sample { forced: vec![(3, 2)], ..sample("Paris", Some(0.5), TWICE) }
    }

    /// The right answer, begun and not closed: the server shows it.
    fn open() -> Sample {
        Sample { text: "<think>a</think>\n<answer>Paris".to_owned(), ..sample("Paris", Some(0.5), TWICE) }
    }

    #[test]
    fn every_part_is_paid_once() {
        let found = |support, ids: [&[&str]; 2]| {
            let mut sample = sample("Paris", Some(support), TWICE);
            for (search, ids) in sample.evidence.iter_mut().zip(ids) {
                search.passages = ids.iter().map(|&id| (id.to_owned(), 1.0)).collect();
            }
            sample
        };
        let silent = |finish| Sample { answer: None, finish, ..sample("", Some(0.5), TWICE) };
        let samples = [
            (sample("Paris", Some(0.5), TWICE), 1.0 + 0.25 + 0.2),
            (sample("Paris", Some(0.05), &TWICE[..1]), 1.0 + 0.025 - 0.25),
            (sample("Paris", None, &[]), 1.0),
            (sample("Rome", Some(0.5), TWICE), 0.25),
            (Sample { forced: vec![(3, 2)], ..sample("Rome", Some(0.5), TWICE) }, 0.25 - 0.5),
            (asked(), 0.25 - 0.5),
            (open(), 0.25 - 0.5),
            (silent(Reason::Turns), 0.25 - 0.5),
            (silent(Reason::Length), 0.25 - 0.5),
            (silent(Reason::Time), 0.25 - 0.5),
            // The same query twice, once with enough evidence and once without.
            (found(0.5, [&["p1"], &["p1"]]), 1.0 + 0.25 - 0.1),
            (found(0.05, [&["p1"], &["p1"]]), 1.0 + 0.025 - 0.25 - 0.1),
            (found(0.5, [&["p1"], &["p1", "p2"]]), 1.0 + 0.25 + 0.2 - 0.1),
            (found(0.05, [&["p1"], &[]]), 1.0 + 0.025 - 0.25),
        ];
        for (at, (sample, expected)) in samples.iter().enumerate() {
            let found = PathRouter::default().score(std::slice::from_ref(sample))[0].total;
            assert!((found - expected).abs() < 1e-9, "{at}: {found} {expected}");
        }
    }

    #[test]
    fn a_route_is_weighed_where_support_is_known() {
        let routes = Routes::default();
        let weights = [(1.0, 1.0, Some(0.1)), (1.0, 1.0, Some(0.0)), (0.0, 0.4, Some(0.5)), (0.0, 0.4, None)];
        assert_eq!(weights.map(|(em, f1, support)| routes.of(em, f1, support)), [1.0, 0.5, 0.3, 1.0]);
    }

    #[test]
    fn a_right_answer_that_is_not_paid_goes_the_way_of_a_wrong_one() {
        let samples = [sample("Paris", Some(0.5), TWICE), asked(), open(), sample("Rome", Some(0.5), TWICE)];
        assert_eq!(samples.map(|sample| Routes::default().along(&sample)), [1.0, 0.3, 0.3, 0.3]);
    }

    /// What a rollout keeps has no control tokens: the form is that of the messages all the same.
    #[test]
    fn graph_r1_reads_the_messages_of_a_rollout() {
        let block = "user\n<knowledge>\nDoc 1(Title: T) x\n</knowledge>\nassistant\n<think>\n";
        let text = format!("<think>a</think>\n<query>b</query>{block}c</think>\n<answer>Paris</answer>");
        let direct = "<think>a</think>\n<answer>Paris</answer>".to_owned();
        for (text, expected) in [(text, 1.0), (direct, -0.5), ("Paris".to_owned(), -1.0)] {
            let sample = Sample { text: text.clone(), ..sample("Paris", None, &[]) };
            assert_eq!(GraphR1.score(&[sample])[0].total, expected, "{text}");
        }
    }

    /// Whatever was asked for before, as where Graph-R1 ends without an answer: in a turn that asks for nothing, or with the
    /// query of the last round.
    #[test]
    fn graph_r1_pays_no_forced_answer() {
        let block = "user\n<knowledge>\nDoc 1(Title: T) x\n</knowledge>\nassistant\n<think>\n";
        let first = format!("<think>a</think>\n<query>b</query>{block}");
        let second = format!("{first}c</think>\n<query>d</query>{block}");
        for (before, own, forced, late) in
            [(String::new(), -0.5, -1.0, -1.0), (first, 1.0, -0.5, -1.0), (second, 1.0, 0.0, -0.5)]
        {
            let open = if before.is_empty() { "<think>" } else { "" };
            let text = format!("{before}{open}e</think>\n<answer>Paris</answer>");
            let answered = Sample { text, ..sample("Paris", None, &[]) };
            let asked = Sample { forced: vec![(3, 2)], ..answered.clone() };
            let action = Action::Answer { text: "Paris".to_owned() };
            let last = Act { turn: 3, action, executed: true, late: true, summary: None };
            let exhausted = Sample { actions: vec![last.clone()], ..asked.clone() };
            // Who answers there by itself is paid as for any answer.
            let ended = Sample { actions: vec![last], ..answered.clone() };
            let totals = [answered, ended, asked, exhausted].map(|sample| GraphR1.score(&[sample])[0].total);
            assert_eq!(totals, [own, own, forced, late], "{before}");
        }
    }
}
