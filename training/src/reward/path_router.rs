//! PathRouter's routes and rewards (§3.1 to §3.3 of the paper; no program was published). The paper names the rewards
//! and their sizes, but not their exact conditions; the interpretation used here is documented at each field.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use waymark_index::Mode;

use super::exact::{ExactMatch, overlap};
use super::extract::closed_answer;
use super::{Reward, reward_value};
use crate::sample::{RetrievalRecord, RewardValue, Sample};

/// Factors of advantages by the route of a trajectory (§3.1).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteWeights {
    /// Minimum F1 of a correct answer (θ_C). An exact match is always correct.
    pub right: f64,
    /// Minimum P of sufficient evidence (θ_P).
    pub enough: f64,
    /// Factor of a correct answer without sufficient evidence.
    pub lucky: f64,
    /// Factor of a wrong answer with sufficient evidence.
    pub unlucky: f64,
}

impl Default for RouteWeights {
    fn default() -> Self {
        RouteWeights { right: 0.5, enough: 0.1, lucky: 0.5, unlucky: 0.3 }
    }
}

/// Route of a trajectory: correctness of its answer and sufficiency of its evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// If `true`, the answer is correct (C_i).
    pub right: bool,
    /// If `true`, the evidence is sufficient: P_i reaches θ_P.
    pub enough: bool,
}

impl RouteWeights {
    /// Returns the route of a trajectory with the given EM, F1 and evidence (P).
    pub fn route(&self, em: f64, f1: f64, support: f64) -> Route {
        Route { right: em > 0.0 || f1 >= self.right, enough: support >= self.enough }
    }

    /// Returns the factor of a route. With the defaults, a lucky answer without evidence counts half, and an unlucky
    /// one with evidence less.
    pub fn weight(&self, route: Route) -> f64 {
        match (route.right, route.enough) {
            (true, true) | (false, false) => 1.0,
            (true, false) => self.lucky,
            (false, true) => self.unlucky,
        }
    }

    /// Returns the factor of a trajectory. 1 if the supporting passages are not known, a case that the paper does not
    /// cover.
    pub fn of(&self, em: f64, f1: f64, support: Option<f64>) -> f64 {
        support.map_or(1.0, |support| self.weight(self.route(em, f1, support)))
    }

    /// Returns the factor of a sample. As in the reward, an unclosed or forced answer is not correct.
    pub fn sample_weight(&self, sample: &Sample) -> f64 {
        self.of(ExactMatch::of_sample(sample), overlap(sample), sample.support)
    }
}

/// Reward `R = F1 + support · P + shape` (§3.2), where P is the
/// [`EvidenceMeasure`](super::evidence_measure::EvidenceMeasure) of the trajectory, by default SF-F1. The shape is the
/// sum of the last four fields, without those whose conditions do not hold. Graph-R1's constant R0 = −1 is left out,
/// because it is in every reward of a group. An unclosed or forced answer, or one before the last turn, counts as no
/// answer, as in Graph-R1, which reads the last message, does not recognize unclosed answers and never forces one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PathRouterReward {
    /// Weight of P. P is 0 if the supporting passages are not known.
    pub support: f64,
    /// Minimum F1 of a correct answer (θ_C). An exact match is always correct.
    pub right: f64,
    /// Minimum P of sufficient evidence (θ_P).
    pub enough: f64,
    /// r_e, exploration: a correct answer after two or more searches. Here and below, only searches that found a new
    /// passage or fact count: repeating a query is not a second search.
    pub explored: f64,
    /// r_l: at most one search, and insufficient evidence.
    pub stopped: f64,
    /// r_o: the policy wrote and closed no answer by itself, because turns or tokens were used up or the last turn
    /// had no action.
    pub overran: f64,
    /// r_d: a search found a passage or fact that an earlier one had found. Applied once per trajectory.
    pub repeated: f64,
}

impl Default for PathRouterReward {
    fn default() -> Self {
        PathRouterReward {
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

impl PathRouterReward {
    /// Returns the shape reward of a trajectory whose answer is correct or not.
    fn shape(&self, sample: &Sample, right: bool) -> f64 {
        let (searches, repeats) = finds(sample);
        let little = sample.support.is_some_and(|support| support < self.enough);
        [
            (right && searches >= 2, self.explored),
            (searches <= 1 && little, self.stopped),
            (closed_answer(sample).is_none(), self.overran),
            (repeats, self.repeated),
        ]
        .into_iter()
        .map(|(due, worth)| if due { worth } else { 0.0 })
        .sum()
    }
}

/// Counts the searches that found something new. The second value is `true` if any search found something again.
fn finds(sample: &Sample) -> (usize, bool) {
    let mut seen: HashSet<[&str; 3]> = HashSet::new();
    let mut fresh = 0;
    let mut again = false;
    for found in &sample.evidence {
        let shown = shown(found);
        let known = shown.iter().filter(|item| seen.contains(*item)).count();
        fresh += usize::from(known < shown.len());
        again |= known > 0;
        // Extended after the comparison, so that a search is not compared with itself.
        seen.extend(shown);
    }
    (fresh, again)
}

/// Evidence that a search has shown to the policy: facts of the hypergraph, or IDs of passages.
fn shown(found: &RetrievalRecord) -> Vec<[&str; 3]> {
    if found.mode == Mode::Hypergraph {
        return found.triples.iter().map(|fact| fact.each_ref().map(String::as_str)).collect();
    }
    found.passages.iter().map(|(id, _)| [id.as_str(), "", ""]).collect()
}

impl Reward for PathRouterReward {
    fn needs_support(&self) -> bool {
        true
    }

    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let score = |sample: &Sample| {
            let f1 = overlap(sample);
            // θ_C, or an exact match.
            let right = f1 >= self.right || ExactMatch::of_sample(sample) > 0.0;
            let support = sample.support.unwrap_or(0.0);
            let shape = self.shape(sample, right);
            reward_value(f1 + self.support * support + shape, [("f1", f1), ("support", support), ("shape", shape)])
        };
        samples.iter().map(score).collect()
    }
}

/// Returns the weight of the divergence from the teacher at a step: rises linearly to `most` over `warmup` steps,
/// then stays (§3.3).
pub fn teacher_weight(step: usize, most: f64, warmup: usize) -> f64 {
    most * (step as f64 / warmup.max(1) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::graph_r1::GraphR1;
    use super::super::tests::searched;
    use super::*;
    use crate::sample::TurnAction;
    use waymark_agent::{Action, EpisodeEnd};

    const TWICE: &[(Mode, f64)] = &[(Mode::Graph, 0.1), (Mode::Graph, 0.1)];

    /// Sample in which each search finds a passage of its own.
    fn sample(answer: &str, support: Option<f64>, searches: &[(Mode, f64)]) -> Sample {
        let golds = vec!["Paris".to_owned()];
        let mut sample = Sample { golds, answer: Some(answer.to_owned()), support, ..searched("", searches) };
        sample.evidence.iter_mut().for_each(|found| found.passages = vec![(format!("p{}", found.turn), 1.0)]);
        sample
    }

    /// Correct answer that the protocol forced.
    fn asked() -> Sample {
        Sample { forced: vec![(3, 2)], ..sample("Paris", Some(0.5), TWICE) }
    }

    /// Correct answer that is not closed; the server shows it.
    fn open() -> Sample {
        Sample { text: "<think>a</think>\n<answer>Paris".to_owned(), ..sample("Paris", Some(0.5), TWICE) }
    }

    #[test]
    fn every_shape_term_applies_once() {
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
            (silent(EpisodeEnd::Turns), 0.25 - 0.5),
            (silent(EpisodeEnd::Length), 0.25 - 0.5),
            (silent(EpisodeEnd::Time), 0.25 - 0.5),
            // The same query twice, with sufficient and with insufficient evidence.
            (found(0.5, [&["p1"], &["p1"]]), 1.0 + 0.25 - 0.1),
            (found(0.05, [&["p1"], &["p1"]]), 1.0 + 0.025 - 0.25 - 0.1),
            (found(0.5, [&["p1"], &["p1", "p2"]]), 1.0 + 0.25 + 0.2 - 0.1),
            (found(0.05, [&["p1"], &[]]), 1.0 + 0.025 - 0.25),
        ];
        for (at, (sample, expected)) in samples.iter().enumerate() {
            let found = PathRouterReward::default().score(std::slice::from_ref(sample))[0].total;
            assert!((found - expected).abs() < 1e-9, "{at}: {found} {expected}");
        }
    }

    #[test]
    fn an_answer_before_the_last_turn_earns_nothing() {
        let block = "user\n<knowledge>\nDoc 1(Title: T) x\n</knowledge>\nassistant\n<think>\n";
        let text = format!("<answer>Paris</answer><query>b</query>{block}I do not know.");
        let own = Sample { protocol: "path-router".to_owned(), text, answer: None, ..sample("", Some(0.5), TWICE) };
        let found = &PathRouterReward::default().score(&[own])[0];
        assert_eq!((found.parts["f1"], found.parts["shape"]), (0.0, -0.5));
    }

    #[test]
    fn facts_of_the_hypergraph_are_compared_as_facts() {
        let mut sample = sample("Paris", Some(0.5), &[(Mode::Hypergraph, 0.1), (Mode::Hypergraph, 0.1)]);
        let fact = |object: &str| ["Seine", "flows through", object].map(str::to_owned);
        for (search, object) in sample.evidence.iter_mut().zip(["Paris", "Rouen"]) {
            // The same passage states both.
            search.passages = vec![("p".to_owned(), 1.0)];
            search.triples = vec![fact(object)];
        }
        assert_eq!(finds(&sample), (2, false));
        sample.evidence[1].triples.push(fact("Paris"));
        assert_eq!(finds(&sample), (2, true));
    }

    #[test]
    fn route_factors_need_known_support() {
        let routes = RouteWeights::default();
        let weights = [(1.0, 1.0, Some(0.1)), (1.0, 1.0, Some(0.0)), (0.0, 0.4, Some(0.5)), (0.0, 0.4, None)];
        assert_eq!(weights.map(|(em, f1, support)| routes.of(em, f1, support)), [1.0, 0.5, 0.3, 1.0]);
    }

    #[test]
    fn forced_answers_take_the_route_of_wrong_ones() {
        let samples = [sample("Paris", Some(0.5), TWICE), asked(), open(), sample("Rome", Some(0.5), TWICE)];
        assert_eq!(samples.map(|sample| RouteWeights::default().sample_weight(&sample)), [1.0, 0.3, 0.3, 0.3]);
    }

    /// Samples have no control tokens, so the format is judged by messages.
    #[test]
    fn graph_r1_reads_the_messages_of_a_rollout() {
        let block = "user\n<knowledge>\nDoc 1(Title: T) x\n</knowledge>\nassistant\n<think>\n";
        let text = format!("<think>a</think>\n<query>b</query>{block}c</think>\n<answer>Paris</answer>");
        let marked = text.replace("<think>a", "<think>a <knowledge>\n");
        let direct = "<think>a</think>\n<answer>Paris</answer>".to_owned();
        for (text, expected) in [(text, 1.0), (marked, 1.0), (direct, -0.5), ("Paris".to_owned(), -1.0)] {
            let sample = Sample { text: text.clone(), ..sample("Paris", None, &[]) };
            assert_eq!(GraphR1.score(&[sample])[0].total, expected, "{text}");
        }
    }

    /// A forced answer earns nothing, like the end without an answer in Graph-R1: neither in a turn without an
    /// action, nor after the query of the last round.
    #[test]
    fn graph_r1_ignores_forced_answers() {
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
            let last = TurnAction { turn: 3, action, executed: true, late: true, summary: None };
            let exhausted = Sample { actions: vec![last.clone()], ..asked.clone() };
            // An unforced answer in the last turn earns the usual reward.
            let ended = Sample { actions: vec![last], ..answered.clone() };
            let totals = [answered, ended, asked, exhausted].map(|sample| GraphR1.score(&[sample])[0].total);
            assert_eq!(totals, [own, own, forced, late], "{before}");
        }
    }
}
