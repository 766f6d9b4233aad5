#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use waymark::agent::Request;
use waymark::cli::embedding::Embedding;
use waymark_index::Mode;

use super::super::tests::searched;
use super::*;
use crate::sample::{Act, Retrieved};

/// What a turn asks for, and what a search of it finds.
type Turn<'a> = (Action, &'a [&'a str]);

fn search(query: &str) -> Action {
    Action::Search(Request::plain(query))
}

fn sample(turns: &[Turn<'_>], answer: Option<&str>) -> Sample {
    let mut sample = searched("", &[]);
    for ((action, found), turn) in turns.iter().zip(1..) {
        sample.actions.push(Act { turn, action: action.clone(), executed: true, late: false, summary: None });
        if let Action::Search(_) = action {
            let one = searched("", &[(Mode::Passage, 0.1)]).evidence.remove(0);
            let passages = found.iter().map(|id| ((*id).to_owned(), 1.0)).collect();
            sample.evidence.push(Retrieved { turn, passages, ..one });
        }
    }
    sample.answer = answer.map(str::to_owned);
    sample.golds = vec!["red house".to_owned()];
    sample.supporting = vec!["a".to_owned(), "b".to_owned()];
    sample
}

/// The rewards of each step of an episode whose queries were embedded.
fn rewards(sample: &Sample) -> Vec<Steps> {
    let reward = EvoRag::default();
    let embedder: Arc<dyn waymark_index::Embed> = Arc::new(Embedding::Mock);
    let likeness = Likeness::of(embedder.as_ref(), reward.texts(sample, &Beside::default())).unwrap();
    reward.rewards(sample, &likeness)
}

#[test]
fn each_action_is_paid_as_the_paper_says() {
    let answer = Action::Answer { text: "the house".to_owned() };
    let turns: &[Turn<'_>] =
        &[(search("one two"), &["x", "a"]), (search("one two"), &["x"]), (Action::Backtrack, &[]), (answer, &[])];
    let found = rewards(&sample(turns, Some("the house")));
    let step = Steps { step: -1.0, ..Steps::default() };
    assert_eq!(found[0], Steps { retrieval_bonus: 1.0, ..step });
    // The same query again is as like the first as can be; it is early enough to cost no action.
    let again = found[1];
    assert!((again.overlap + 1.0).abs() < 1e-6 && again.retrieval_bonus == -1.0 && again.retrieval_action == 0.0);
    assert_eq!(found[2], Steps { backtrack: -1.0, ..step });
    // No exact match; of "house" and "red house" precision is 1 and recall ½.
    assert!((found[3].answer - 0.5 * (2.0 / 3.0)).abs() < 1e-12, "{:?}", found[3]);
}

#[test]
fn late_searches_cost_their_action_where_another_was_like_them() {
    let mut turns: Vec<Turn<'_>> = vec![(Action::Invalid, &[]); 5];
    turns.push((search("one two"), &[]));
    turns.push((search("one three"), &[]));
    let found = rewards(&sample(&turns, None));
    // Steps are counted from 0, and 6 of 20 is a share of 0.3.
    assert_eq!((found[5].retrieval_action, found[6].retrieval_action), (0.0, -1.0));
    assert!(found[6].overlap < -0.4 && found[6].overlap > -1.0, "{:?}", found[6]);
    let alone: Vec<Turn<'_>> =
        turns[..5].iter().cloned().chain([(Action::Invalid, &[][..]), turns[6].clone()]).collect();
    assert_eq!(rewards(&sample(&alone, None))[6].retrieval_action, 0.0, "there is no query that it could be like");
}

#[test]
fn a_search_that_could_not_be_made_costs_its_step() {
    let turns: &[Turn<'_>] = &[(search("one two"), &[]), (search("one two"), &["a"]), (search("one two"), &["b"])];
    let mut sample = sample(turns, None);
    assert_eq!(rewards(&sample)[0].retrieval_bonus, -1.0);
    sample.evidence[0].error = Some("it took too long".to_owned());
    let found = rewards(&sample);
    let step = Steps { step: -1.0, ..Steps::default() };
    assert_eq!(found[..2], [step, Steps { retrieval_bonus: 1.0, ..step }], "the retry repeats nothing");
    assert!((found[2].overlap + 1.0).abs() < 1e-6, "{:?}", found[2]);
}

#[test]
fn refusing_is_right_until_all_that_it_takes_was_found_and_stands() {
    let refuse = Action::Refuse { text: String::new() };
    let both: &[Turn<'_>] = &[(search("one"), &["a"]), (search("two"), &["b"]), (refuse.clone(), &[])];
    let last = |sample: &Sample| rewards(sample).last().unwrap().refusal;
    let whole = sample(both, None);
    assert_eq!(last(&whole), -1.0);
    assert_eq!(last(&sample(&both[1..], None)), 1.0);
    let mut withdrawn = whole;
    withdrawn.evidence[1].withdrawn = Some(3);
    assert_eq!(last(&withdrawn), 1.0);
    withdrawn.evidence[1].withdrawn = Some(4);
    assert_eq!(last(&withdrawn), -1.0);
}

#[test]
fn nothing_is_right_or_wrong_where_support_is_not_known() {
    let refuse = Action::Refuse { text: String::new() };
    let turns: &[Turn<'_>] = &[(search("one"), &["a", "b"]), (search("two"), &["x"]), (refuse, &[])];
    let whole = sample(turns, None);
    let paid = |sample: &Sample| {
        let found = rewards(sample);
        [found[0].retrieval_bonus, found[1].retrieval_bonus, found[2].refusal]
    };
    assert_eq!(paid(&whole), [1.0, -1.0, -1.0]);
    // What was found is found, whatever else there may be.
    assert_eq!(paid(&Sample { partly: true, ..whole.clone() }), [1.0, 0.0, 0.0]);
    let missing = Sample { partly: true, supporting: vec!["c".to_owned()], ..whole.clone() };
    assert_eq!(paid(&missing), [0.0; 3]);
    for partly in [false, true] {
        assert_eq!(paid(&Sample { partly, supporting: Vec::new(), ..whole.clone() }), [0.0; 3]);
    }
}

#[test]
fn the_total_is_weighed_step_by_step() {
    let answer = Action::Answer { text: "red house".to_owned() };
    let turns: &[Turn<'_>] = &[(search("one two"), &["a"]), (answer, &[])];
    let sample = [sample(turns, Some("red house"))];
    let total = |stage| EvoRag { stage, ..EvoRag::default() }.score(&sample)[0].total;
    // Table 1: at time 0 the bonus weighs 2 and a step 0.02; at time 1 of 20 a step 0.0215 and the answer 0.0525.
    assert!((total(Stage::First) - (2.0 - 0.02 - 0.0215 + 0.0525)).abs() < 1e-12);
    // Stage 2: 1 and 0.05, then 0.0525 and 0.145.
    assert!((total(Stage::Second) - (1.0 - 0.05 - 0.0525 + 0.145)).abs() < 1e-12);
    let forced = [Sample { forced: vec![(1, 2)], ..sample[0].clone() }];
    assert_eq!(EvoRag::default().score(&forced)[0].parts["answer"], 0.0);
    let parts = &EvoRag::default().score(&sample)[0].parts;
    assert_eq!((parts["step"], parts["answer"], parts["retrieval_bonus"]), (-2.0, 1.0, 1.0));
    // The same, each for itself: they add up to the whole.
    let weighed = |name: &str| parts[&format!("{}{name}", part::WEIGHED)];
    assert!((weighed("step") + 0.02 + 0.0215).abs() < 1e-12 && (weighed("answer") - 0.0525).abs() < 1e-12);
    let sum: f64 = Steps::NAMES.into_iter().map(weighed).sum();
    assert!((sum - total(Stage::First)).abs() < 1e-12 && parts.len() == 14, "{parts:?}");
}

#[test]
fn fixed_weights_are_those_of_a_stages_beginning() {
    let turns: Vec<Turn<'_>> = vec![(Action::Invalid, &[]); 20];
    let sample = [sample(&turns, None)];
    let paid = |schedule, stage| EvoRag { schedule, stage, ..EvoRag::default() }.score(&sample)[0].total;
    // Twenty steps, of 0.02 each in stage 1 and of 0.05 in stage 2; the last at 19 of 20 of the way to the end.
    for (stage, from, to) in [(Stage::First, 0.02, 0.05), (Stage::Second, 0.05, 0.10)] {
        assert!((paid(Schedule::Fixed, stage) + 20.0 * from).abs() < 1e-12, "{stage:?}");
        let mean = from + (to - from) * 9.5 / 20.0;
        assert!((paid(Schedule::Dynamic, stage) + 20.0 * mean).abs() < 1e-12, "{stage:?}");
    }
}

#[test]
fn a_schedule_is_written_where_it_is_not_the_usual_one() {
    let old = r#"{"stage":"second","steps":20}"#;
    let usual: EvoRag = serde_json::from_str(old).unwrap();
    assert_eq!(usual, EvoRag { stage: Stage::Second, ..EvoRag::default() });
    assert_eq!(serde_json::to_string(&usual).unwrap(), old);
    let fixed = EvoRag { schedule: Schedule::Fixed, ..usual };
    let text = serde_json::to_string(&fixed).unwrap();
    assert!(text.contains(r#""schedule":"fixed""#), "{text}");
    assert_eq!(serde_json::from_str::<EvoRag>(&text).unwrap(), fixed);
}
