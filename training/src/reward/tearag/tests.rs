#![allow(clippy::unwrap_used)]

use serde::Deserialize;
use waymark_index::{Embed, EmbedError};

use super::super::tests::searched;
use super::*;
use crate::outside::cases;
use crate::sample::TurnAction;

/// Mock embedder: a text is a point on the unit circle, and the word after its last `@` is the angle in degrees.
#[derive(Debug)]
struct Circle;

impl Embed for Circle {
    fn id(&self) -> &'static str {
        "circle"
    }

    fn dims(&self) -> usize {
        2
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let point = |text: &&str| {
            let degrees: f32 = text.rsplit('@').next().unwrap_or_default().trim().parse()?;
            Ok(vec![degrees.to_radians().cos(), degrees.to_radians().sin()])
        };
        texts.iter().map(point).collect()
    }
}

fn search(turn: usize, entity: &str, query: &str, summary: Option<&str>) -> TurnAction {
    let request = PolicySearch { entities: vec![entity.to_owned()], ..PolicySearch::plain(query) };
    TurnAction {
        turn,
        action: Action::Search(request),
        executed: true,
        late: false,
        summary: summary.map(str::to_owned),
    }
}

fn answer(turn: usize, text: &str, summary: Option<&str>) -> TurnAction {
    let action = Action::Answer { text: text.to_owned() };
    TurnAction { turn, action, executed: true, late: false, summary: summary.map(str::to_owned) }
}

/// Path of two steps and an answer.
fn path() -> Sample {
    let text = "Step 1:\nImportant entity: Rome\nSubquery: Where is Rome? @0\n<Reference>\nEvidence 1: a @90\n\n\
        Evidence 2: b @60\n</Reference>\nSummary: s @45\nStep 2:\nImportant entity: Italy\nSubquery: Which? @60\n\
        <Reference>\nEvidence 1: c @0\n</Reference>\nSummary: t @90\nFinal answer: red house";
    let actions = vec![
        search(1, "Rome", "Where is Rome? @0", None),
        search(2, "Italy", "Which? @60", Some("s @45")),
        answer(3, "red house", Some("t @90")),
    ];
    let golds = vec!["red house".to_owned()];
    Sample { actions, golds, answer: Some("red house".to_owned()), ..searched(text, &[]) }
}

fn scored(sample: &Sample, support: &[&str]) -> RewardValue {
    let support: Vec<String> = support.iter().map(|text| (*text).to_owned()).collect();
    let reward = TeaRagReward { relevance: Relevance::Cosine {}, process: true };
    let context = RewardContext { cost: 0.0, support: &support };
    let similarity = TextSimilarity::of(&Circle, reward.texts(sample, &context)).unwrap();
    reward.score_in_context(&[sample], &[context], &similarity).remove(0)
}

#[test]
fn paths_earn_answer_format_and_process_rewards() {
    // Gold passages at 0 and 90 degrees. Queries at 0 and 60: 1 and sin 60. Contexts at 90, 60 and 0: 1 and 1.
    // Summaries at 45 and 90: cos 45 and 1. One of the two steps names its key entity.
    let s60 = 3f64.sqrt() / 2.0;
    let c45 = 2f64.sqrt() / 2.0;
    let found = scored(&path(), &["g @0", "h @90"]);
    let expected = [0.5, (1.0 + s60) / 2.0, 1.0, (c45 + 1.0) / 2.0];
    for (name, expected) in ["names", "queries", "contexts", "summaries"].into_iter().zip(expected) {
        assert!((found.parts[name] - expected).abs() < 1e-6, "{name}: {} {expected}", found.parts[name]);
    }
    let process = expected.iter().sum::<f64>() / 4.0;
    assert!((found.parts[part::PROCESS] - process).abs() < 1e-6);
    assert_eq!((found.parts[part::OUTCOME], found.parts[part::FORMAT]), (1.0, 1.0));
    assert!((found.total - 2.0 - process).abs() < 1e-6);
}

#[test]
fn single_hop_outcomes_are_divided_by_steps() {
    for support in [&[][..], &["g @0"]] {
        let found = scored(&path(), support);
        assert_eq!((found.parts[part::OUTCOME], found.parts["f1"], found.total), (0.5, 1.0, 1.5));
        assert!(!found.parts.contains_key(part::PROCESS));
    }
}

#[test]
fn without_process_rewards_steps_do_not_matter() {
    let reward = TeaRagReward { process: false, ..TeaRagReward::default() };
    for support in [&[][..], &["g @0", "h @90"]] {
        let support: Vec<String> = support.iter().map(|text| (*text).to_owned()).collect();
        let context = RewardContext { cost: 0.0, support: &support };
        assert_eq!(reward.texts(&path(), &context), [""; 0], "nothing is compared");
        let found = reward.score_in_context(&[&path()], &[context], &TextSimilarity::default()).remove(0);
        assert_eq!((found.parts[part::OUTCOME], found.parts[part::FORMAT], found.total), (1.0, 1.0, 2.0));
        assert!(!found.parts.contains_key(part::PROCESS));
    }
    let text = serde_json::to_string(&TeaRagReward::default()).unwrap();
    assert!(!text.contains("process"), "older runs can resume: {text}");
}

#[test]
fn forced_answers_earn_nothing() {
    let forced = Sample { forced: vec![(1, 2)], ..path() };
    let found = scored(&forced, &["g @0", "h @90"]);
    assert_eq!((found.parts[part::OUTCOME], found.parts[part::FORMAT]), (0.0, 0.0));
    assert!(found.total > 0.5, "its reasoning does");
}

#[test]
fn incomplete_paths_have_no_format_reward() {
    let form = |sample: &Sample| scored(sample, &[]).parts[part::FORMAT];
    let whole = path();
    assert_eq!(form(&whole), 1.0);
    let act = |at: usize, act: TurnAction| {
        let mut sample = whole.clone();
        sample.actions[at] = act;
        sample
    };
    let written = |from: &str, to: &str| {
        assert!(whole.text.contains(from), "{from}");
        Sample { text: whole.text.replace(from, to), ..whole.clone() }
    };
    // A search with a query but without a key entity.
    let nameless = TurnAction { action: Action::Search(PolicySearch::plain("Which?")), ..whole.actions[1].clone() };
    let broken = [
        act(1, search(2, "Italy", "Which? @60", None)),
        act(1, search(2, "Italy", "Which? @60", Some(""))),
        act(1, nameless),
        act(1, TurnAction { action: Action::Invalid, ..whole.actions[1].clone() }),
        act(1, TurnAction { executed: false, ..whole.actions[1].clone() }),
        act(2, answer(3, "red house", None)),
        act(2, search(3, "Rome", "Rome? @0", Some("t @90"))),
        Sample { actions: whole.actions[2..].to_vec(), ..whole.clone() },
        Sample { actions: Vec::new(), ..whole.clone() },
        Sample { forced: vec![(1, 2)], ..whole.clone() },
        Sample { text: whole.text.replace("Final answer: ", "Answer: "), ..whole.clone() },
        Sample { text: whole.text.replace("Final answer: ", "Final answer:"), ..whole.clone() },
        Sample { text: whole.text.replace("Step 2:", "Step 3:"), ..whole.clone() },
        Sample { text: whole.text.replace("Step 1:\n", ""), ..whole.clone() },
        act(1, search(2, " - ", "Which? @60", Some("s @45"))),
        // Two steps in one turn, a summary after the heading, and lines that belong to no step.
        written("Italy\n", "Italy\nStep 3:\nImportant entity: Rome\n"),
        written(
            "Summary: s @45\nStep 2:\nImportant entity: Italy\n",
            "Step 2:\nImportant entity: Italy\nSummary: s @45\n",
        ),
        written("Step 1:\n", "Let me think.\nStep 1:\n"),
        written("Step 1:\nImportant entity: Rome\n", "Important entity: Rome\nStep 1:\n"),
        written("Step 2:\n", "Step 2: the land\n"),
        written("Subquery: Which?", "I ask myself\nSubquery: Which?"),
        written("red house", "red house\nStep 3:\n"),
        written("red house", "red house <Reference>"),
    ];
    for (at, sample) in broken.iter().enumerate() {
        assert_eq!(form(sample), 0.0, "case {at}");
    }
}

#[test]
fn a_summary_and_an_answer_may_have_several_lines() {
    let path = path();
    let text = path.text.replace("s @45\n", "s @45\n\nStep by step: so.\n").replace("red house", "red house\nor barn");
    let path = Sample { text, ..path };
    assert_eq!(scored(&path, &[]).parts[part::FORMAT], 1.0, "{}", path.text);
}

#[test]
fn names_match_whole_words() {
    for (entities, query, covered) in [
        (&["Rome"][..], "Who was Rome's first king?", true),
        (&["The Beatles"], "Who founded the Beatles?", true),
        (&["U.S.", "Rome"], "What has Rome in the U.S.?", true),
        (&["True"], "Who wrote the song True?", true),
        (&["Rome", "Italy"], "Where is Rome?", false),
        (&["Iran"], "What is the population of Tirana?", false),
        (&["-"], "Where is Rome?", false),
        (&["Rome", "-"], "Where is Rome?", false),
        (&[], "Where is Rome?", false),
    ] {
        let entities: Vec<String> = entities.iter().map(|&name| name.to_owned()).collect();
        let step = PathStep { entities: &entities, query, context: Vec::new(), summary: None };
        assert_eq!(names(&step), covered, "{entities:?} {query}");
    }
}

#[derive(Deserialize)]
struct Process {
    memory_vector: Vec<f64>,
    steps: usize,
    reward: f64,
}

#[test]
fn memory_is_divided_by_steps() {
    let reward = TeaRagReward { relevance: Relevance::Cosine {}, process: true };
    for Process { memory_vector, steps, reward: expected } in cases("derived_formulas", "tearag_process") {
        // One text, and one angle per gold passage whose cosine is the expected coverage.
        let support: Vec<String> =
            memory_vector.iter().zip(0..).map(|(m, at)| format!("{at} @{}", m.acos().to_degrees())).collect();
        let similarity = TextSimilarity::of(&Circle, support.iter().cloned().chain(["q @0".to_owned()])).unwrap();
        let found = reward.memory(&similarity, &support, &["q @0"], steps);
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}
