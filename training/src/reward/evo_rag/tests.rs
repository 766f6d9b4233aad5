#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use waymark_agent::PolicySearch;
use waymark_index::Mode;
use waymark_runtime::embedding::Embedding;

use super::super::tests::searched;
use super::*;
use crate::sample::{RetrievalRecord, TurnAction};

/// Action of a turn, with the passages that its search finds.
type Turn<'a> = (Action, &'a [&'a str]);

fn search(query: &str) -> Action {
    Action::Search(PolicySearch::plain(query))
}

fn sample(turns: &[Turn<'_>], answer: Option<&str>) -> Sample {
    let mut sample = searched("", &[]);
    for ((action, found), turn) in turns.iter().zip(1..) {
        sample.actions.push(TurnAction { turn, action: action.clone(), executed: true, late: false, summary: None });
        if let Action::Search(_) = action {
            let one = searched("", &[(Mode::Passage, 0.1)]).evidence.remove(0);
            let passages = found.iter().map(|id| ((*id).to_owned(), 1.0)).collect();
            sample.evidence.push(RetrievalRecord { turn, passages, ..one });
        }
    }
    sample.answer = answer.map(str::to_owned);
    sample.golds = vec!["red house".to_owned()];
    sample.supporting = vec!["a".to_owned(), "b".to_owned()];
    sample
}

/// Returns the step rewards of an episode with embedded queries.
fn rewards(sample: &Sample) -> Vec<StepRewards> {
    let reward = EvoRagReward::default();
    let embedder: Arc<dyn waymark_index::Embed> = Arc::new(Embedding::Mock);
    let similarity = TextSimilarity::of(embedder.as_ref(), reward.texts(sample, &RewardContext::default())).unwrap();
    reward.rewards(sample, &similarity)
}

#[test]
fn actions_earn_the_rewards_of_the_paper() {
    let answer = Action::Answer { text: "the house".to_owned() };
    let turns: &[Turn<'_>] =
        &[(search("one two"), &["x", "a"]), (search("one two"), &["x"]), (Action::Backtrack, &[]), (answer, &[])];
    let found = rewards(&sample(turns, Some("the house")));
    let step = StepRewards { step: -1.0, ..StepRewards::default() };
    assert_eq!(found[0], StepRewards { retrieval_bonus: 1.0, ..step });
    // Repeating the query gives the largest overlap; it is too early to be penalized as a late search.
    let again = found[1];
    assert!((again.overlap + 1.0).abs() < 1e-6 && again.retrieval_bonus == -1.0 && again.retrieval_action == 0.0);
    assert_eq!(found[2], StepRewards { backtrack: -1.0, ..step });
    // The answer is no exact match; "house" against "red house" has precision 1 and recall ½.
    assert!((found[3].answer - 0.5 * (2.0 / 3.0)).abs() < 1e-12, "{:?}", found[3]);
}

#[test]
fn late_repeated_searches_are_penalized() {
    let mut turns: Vec<Turn<'_>> = vec![(Action::Invalid, &[]); 5];
    turns.push((search("one two"), &[]));
    turns.push((search("one three"), &[]));
    let found = rewards(&sample(&turns, None));
    // Steps are counted from 0, so step 6 of 20 is at the share 0.3.
    assert_eq!((found[5].retrieval_action, found[6].retrieval_action), (0.0, -1.0));
    assert!(found[6].overlap < -0.4 && found[6].overlap > -1.0, "{:?}", found[6]);
    let alone: Vec<Turn<'_>> =
        turns[..5].iter().cloned().chain([(Action::Invalid, &[][..]), turns[6].clone()]).collect();
    assert_eq!(rewards(&sample(&alone, None))[6].retrieval_action, 0.0, "there is no query that it could be like");
}

#[test]
fn failed_searches_cost_only_their_step() {
    let turns: &[Turn<'_>] = &[(search("one two"), &[]), (search("one two"), &["a"]), (search("one two"), &["b"])];
    let mut sample = sample(turns, None);
    assert_eq!(rewards(&sample)[0].retrieval_bonus, -1.0);
    sample.evidence[0].error = Some("it took too long".to_owned());
    let found = rewards(&sample);
    let step = StepRewards { step: -1.0, ..StepRewards::default() };
    assert_eq!(found[..2], [step, StepRewards { retrieval_bonus: 1.0, ..step }], "the retry repeats nothing");
    assert!((found[2].overlap + 1.0).abs() < 1e-6, "{:?}", found[2]);
}

#[test]
fn refusals_are_wrong_once_the_evidence_is_complete() {
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
fn unknown_support_gives_no_search_or_refusal_reward() {
    let refuse = Action::Refuse { text: String::new() };
    let turns: &[Turn<'_>] = &[(search("one"), &["a", "b"]), (search("two"), &["x"]), (refuse, &[])];
    let whole = sample(turns, None);
    let search_rewards = |sample: &Sample| {
        let found = rewards(sample);
        [found[0].retrieval_bonus, found[1].retrieval_bonus, found[2].refusal]
    };
    assert_eq!(search_rewards(&whole), [1.0, -1.0, -1.0]);
    // A supporting passage counts even if others are unknown.
    assert_eq!(search_rewards(&Sample { partly: true, ..whole.clone() }), [1.0, 0.0, 0.0]);
    let missing = Sample { partly: true, supporting: vec!["c".to_owned()], ..whole.clone() };
    assert_eq!(search_rewards(&missing), [0.0; 3]);
    for partly in [false, true] {
        assert_eq!(search_rewards(&Sample { partly, supporting: Vec::new(), ..whole.clone() }), [0.0; 3]);
    }
}

#[test]
fn totals_weight_each_step() {
    let answer = Action::Answer { text: "red house".to_owned() };
    let turns: &[Turn<'_>] = &[(search("one two"), &["a"]), (answer, &[])];
    let sample = [sample(turns, Some("red house"))];
    let total = |stage| EvoRagReward { stage, ..EvoRagReward::default() }.score(&sample)[0].total;
    // Table 1: at time 0 the bonus has weight 2 and a step 0.02; at time 1 of 20, a step has 0.0215 and the answer
    // 0.0525.
    assert!((total(EvoRagStage::First) - (2.0 - 0.02 - 0.0215 + 0.0525)).abs() < 1e-12);
    // Stage 2: 1 and 0.05, then 0.0525 and 0.145.
    assert!((total(EvoRagStage::Second) - (1.0 - 0.05 - 0.0525 + 0.145)).abs() < 1e-12);
    let forced = [Sample { forced: vec![(1, 2)], ..sample[0].clone() }];
    assert_eq!(EvoRagReward::default().score(&forced)[0].parts["answer"], 0.0);
    let parts = &EvoRagReward::default().score(&sample)[0].parts;
    assert_eq!((parts["step"], parts["answer"], parts["retrieval_bonus"]), (-2.0, 1.0, 1.0));
    // The weighted components add up to the total.
    let weighed = |name: &str| parts[&format!("{}{name}", part::WEIGHED)];
    assert!((weighed("step") + 0.02 + 0.0215).abs() < 1e-12 && (weighed("answer") - 0.0525).abs() < 1e-12);
    let sum: f64 = StepRewards::NAMES.into_iter().map(weighed).sum();
    assert!((sum - total(EvoRagStage::First)).abs() < 1e-12 && parts.len() == 14, "{parts:?}");
}

#[test]
fn only_a_closed_answer_earns_a_reward() {
    let answer = Action::Answer { text: "red house".to_owned() };
    let own = sample(&[(search("one two"), &["a"]), (answer, &[])], Some("red house"));
    for (text, worth) in [("<answer> red house </answer>", 1.0), ("<answer> red house", 0.0)] {
        let sample = Sample { protocol: "evo-rag".to_owned(), text: text.to_owned(), ..own.clone() };
        assert_eq!(EvoRagReward::default().score(&[sample])[0].parts["answer"], worth, "{text}");
    }
}

#[test]
fn fixed_schedules_keep_the_initial_weights() {
    let turns: Vec<Turn<'_>> = vec![(Action::Invalid, &[]); 20];
    let sample = [sample(&turns, None)];
    let total = |schedule, stage| EvoRagReward { schedule, stage, ..EvoRagReward::default() }.score(&sample)[0].total;
    // Twenty steps: the step cost is 0.02 in stage 1 and 0.05 in stage 2, and the last step is at time 19 of 20.
    for (stage, from, to) in [(EvoRagStage::First, 0.02, 0.05), (EvoRagStage::Second, 0.05, 0.10)] {
        assert!((total(WeightSchedule::Fixed, stage) + 20.0 * from).abs() < 1e-12, "{stage:?}");
        let mean = from + (to - from) * 9.5 / 20.0;
        assert!((total(WeightSchedule::Dynamic, stage) + 20.0 * mean).abs() < 1e-12, "{stage:?}");
    }
}

#[test]
fn only_fixed_schedules_are_serialized() {
    let short = r#"{"stage":"second","steps":20}"#;
    let usual: EvoRagReward = serde_json::from_str(short).unwrap();
    assert_eq!(usual, EvoRagReward { stage: EvoRagStage::Second, ..EvoRagReward::default() });
    assert_eq!(serde_json::to_string(&usual).unwrap(), r#"{"stage":"second","steps":20,"bonus":"new"}"#);
    let fixed = EvoRagReward { schedule: WeightSchedule::Fixed, ..usual };
    let text = serde_json::to_string(&fixed).unwrap();
    assert!(text.contains(r#""schedule":"fixed""#), "{text}");
    assert_eq!(serde_json::from_str::<EvoRagReward>(&text).unwrap(), fixed);
}

#[test]
fn only_newly_found_passages_earn_the_bonus() {
    let turns: &[Turn<'_>] = &[
        (search("one"), &["a", "x"]),
        (search("two"), &["a", "y"]),
        (Action::Backtrack, &[]),
        (search("three"), &["a", "b"]),
        (search("four"), &["b"]),
    ];
    let mut sample = sample(turns, None);
    // The second search is withdrawn, and the passage that it repeated stays known.
    sample.evidence[1].withdrawn = Some(3);
    let bonuses = |bonus| {
        let reward = EvoRagReward { bonus, ..EvoRagReward::default() };
        let similarity = TextSimilarity::of(&Embedding::Mock, reward.texts(&sample, &RewardContext::default()));
        let rewards = reward.rewards(&sample, &similarity.unwrap());
        rewards.into_iter().map(|step| step.retrieval_bonus).collect::<Vec<f64>>()
    };
    assert_eq!(bonuses(RetrievalBonus::New), [1.0, -1.0, 0.0, 1.0, -1.0]);
    assert_eq!(bonuses(RetrievalBonus::Any), [1.0, 1.0, 0.0, 1.0, 1.0]);
}

#[test]
fn a_schedule_whose_end_is_the_last_step_reaches_both_ends() {
    let table = [(EvoRagStage::First, [2.0, 1.0]), (EvoRagStage::Second, [1.0, 0.5])];
    for (stage, ends) in table {
        let weights = [0, 7].map(|time| StepRewards::weights(stage, time, 7).retrieval_bonus);
        assert_eq!(weights, ends, "{stage:?}");
    }
}

#[test]
fn ablations_keep_the_named_rewards() {
    let answer = Action::Answer { text: "red house".to_owned() };
    let turns: &[Turn<'_>] = &[(search("one two"), &["a"]), (answer, &[])];
    let sample = [sample(turns, Some("red house"))];
    let total = |only: &[StepRewardName]| {
        let reward = EvoRagReward { only: only.to_vec(), ..EvoRagReward::default() };
        reward.score(&sample)[0].total
    };
    assert!((total(&[StepRewardName::RetrievalBonus]) - 2.0).abs() < 1e-12);
    assert!((total(&[StepRewardName::Answer]) - 0.0525).abs() < 1e-12);
    assert!((total(&[StepRewardName::Answer, StepRewardName::Step]) - (0.0525 - 0.02 - 0.0215)).abs() < 1e-12);
    let all: Vec<StepRewardName> = StepRewards::NAMES
        .iter()
        .map(|name| serde_json::from_value(serde_json::Value::String((*name).to_owned())).unwrap())
        .collect();
    assert_eq!((all.len(), total(&all)), (7, total(&[])), "every name of a component is accepted");
}
