//! Rewards of trajectories that were played in the loops of their protocols: what a reward reads is what a protocol writes.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use waymark::agent::{EpisodeOptions, Policy, Runtime, Search, SearchError, SearchQuery};
use waymark::cli::embedding::Embedding;
use waymark::evaluate;
use waymark_index::{Evidence, Hit, Mode, Passage, Path, TripleHit};
use waymark_models::tokenizer::Tokenizer;

use super::evo_rag::EvoRag;
use super::graph_r1::GraphR1;
use super::graphrag_r1::Attenuated;
use super::tearag::{TeaRag, part};
use super::{Beside, Likeness, Reward};
use crate::data::script::{Author, Script};
use crate::dpo::{self, Preference};
use crate::sample::{Reward as Worth, Sample, Task};

/// Says one turn after the other.
struct Turns(VecDeque<String>);

impl Author for Turns {
    fn turn(&mut self, _: Option<&str>) -> String {
        self.0.pop_front().unwrap_or_default()
    }
}

/// Things, each with a passage that a query finds by its name.
#[derive(Debug)]
struct Shelf;

const THINGS: [&str; 3] = ["barn", "house", "moon"];

fn text(thing: &str) -> &'static str {
    match thing {
        "barn" => "Hay is kept there through winter",
        "house" => "Red walls stand beside deep water",
        _ => "Nobody went up since those days",
    }
}

impl Search for Shelf {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        let asked = query.wanted;
        let named = THINGS.into_iter().filter(|thing| asked.text.contains(thing));
        let hit = |thing: &str| {
            let passage = Passage { id: thing.into(), title: thing.into(), text: text(thing).to_owned() };
            Hit { rank: 1, score: 1.0, passage, metadata: None, path: Path::default() }
        };
        let mut evidence = Evidence::of(1, asked.mode, named.map(hit).collect());
        if asked.mode == Mode::Kag {
            let [subject, relation, object] = ["hill", "is", "northern"].map(str::to_owned);
            evidence.triples.push(TripleHit { rank: 2, score: 0.5, subject, relation, object, passages: Vec::new() });
        }
        Box::pin(async move { Ok(evidence) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage, Mode::Kag, Mode::Triples]
    }
}

/// What a policy's loop makes of these turns.
async fn played(protocol: &str, turns: &[&str]) -> Sample {
    played_within(None, protocol, turns).await
}

/// The same within so many rounds.
async fn played_within(rounds: Option<usize>, protocol: &str, turns: &[&str]) -> Sample {
    played_under(EpisodeOptions { turns: rounds, ..EpisodeOptions::default() }, protocol, turns).await
}

/// The same within other bounds.
async fn played_under(bounds: EpisodeOptions, protocol: &str, turns: &[&str]) -> Sample {
    let tokenizer = Arc::new(Tokenizer::bytes());
    let author = Arc::new(Mutex::new(Turns(turns.iter().map(|turn| (*turn).to_owned()).collect())));
    let script = Script::new(Arc::clone(&tokenizer), author, 16_384);
    let runtime = Runtime::new(script, tokenizer, None, vec![257], Some(Arc::new(Shelf)));
    let policy = Policy::builtin(protocol).unwrap();
    let options = EpisodeOptions { guided: Some(false), ..bounds };
    let trajectory = evaluate::play(&runtime, &policy, "What is red?", options).await.unwrap();
    let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (golds, supporting) = (known(&["red house"]), known(&["barn", "house"]));
    Sample::from_trajectory(trajectory, Task { golds, supporting, ..Task::default() })
}

fn scored(reward: &dyn Reward, sample: &Sample) -> Worth {
    let support = ["barn", "house"].map(|thing| format!("{thing} {}", text(thing)));
    let beside = Beside { cost: 0.0, support: &support };
    let likeness = Likeness::of(&Embedding::Mock, reward.texts(sample, &beside)).unwrap();
    reward.score_beside(&[sample], &[beside], &likeness).remove(0)
}

/// Neither of what opens it nor of what the policy writes into it.
#[tokio::test]
async fn of_a_forced_answer_nothing_is_learnt() {
    let asks = ["<search>the barn</search>", "<search>the moon</search>", "<search>the house</search>"];
    let sample = played_within(Some(2), "search-r1", &[&asks[..], &[" red house </answer>"]].concat()).await;
    assert!(sample.text.ends_with("<search>the house</search>\n<answer> red house </answer>"), "{}", sample.text);
    assert_eq!((sample.answer.as_deref(), sample.evidence.len()), (Some("red house"), 2));
    let (learnt, (first, _)) = (sample.loss_mask(), sample.forced[0]);
    assert!(learnt[first..].iter().all(|learnt| !learnt));
    let ids = sample.tokens.iter().zip(&learnt).filter(|(_, learnt)| **learnt).map(|(id, _)| *id);
    assert_eq!(Tokenizer::bytes().decode(&ids.collect::<Vec<u32>>()), asks.concat());
}

/// An episode that has used up its rounds ends in Graph-R1 with its last query; here a turn follows.
#[tokio::test]
async fn graph_r1() {
    let asks = ["<think>a</think>\n<query>the house</query>", "b</think>\n<query>the barn</query>"];
    for (last, forced, total) in [
        // The third query cannot be made any more, and neither can it be paid.
        (&["c</think>\n<query>the moon</query>", "red house</answer>"][..], true, -0.5),
        (&["c</think>\n", "red house</answer>"], true, -0.5),
        (&["c</think>\n<answer>red house</answer>"], false, 1.0),
    ] {
        let sample = played_within(Some(2), "path-router", &[&asks[..], last].concat()).await;
        assert_eq!((sample.answer.as_deref(), sample.evidence.len()), (Some("red house"), 2), "{}", sample.text);
        let acts: Vec<bool> = sample.actions.iter().map(|act| act.late).collect();
        assert_eq!((acts, sample.is_forced()), (vec![false, false, true], forced), "{}", sample.text);
        assert_eq!(scored(&GraphR1, &sample).total, total, "{}", sample.text);
    }
    // As many searches as may be made are as many rounds.
    let bounds = EpisodeOptions { searches: Some(2), ..EpisodeOptions::default() };
    let turns = [&asks[..], &["c</think>\n<query>the moon</query>", "red house</answer>"]].concat();
    let sample = played_under(bounds, "path-router", &turns).await;
    assert_eq!((sample.evidence.len(), scored(&GraphR1, &sample).total), (2, -0.5), "{}", sample.text);
}

#[tokio::test]
async fn tearag() {
    let path = |one: &str, other: &str, end: &str| {
        [
            format!("Step 1:\nImportant entity: {one}\nSubquery: {one} walls or hay\n"),
            format!(" Summary: {}\nStep 2:\nImportant entity: {other}\nSubquery: {other} walls or hay\n", text(one)),
            format!(" Summary: {}\n{end} red house", text(other)),
        ]
    };
    let play = async |turns: [String; 3]| {
        let mut sample = played("tearag", &turns.each_ref().map(String::as_str)).await;
        sample.reward = Some(scored(&TeaRag::default(), &sample));
        sample
    };
    let right = play(path("barn", "house", "Final answer:")).await;
    let parts = right.reward.as_ref().unwrap().parts.clone();
    assert_eq!((parts[part::OUTCOME], parts[part::FORMAT], parts["names"]), (1.0, 1.0, 1.0), "{}", right.text);
    // Two gold passages in two steps: found and said nearly word by word, and asked for by their names.
    assert!(parts["contexts"] > 0.9 && parts["summaries"] > 0.9 && parts["queries"] > 0.3, "{parts:?}");
    assert!(parts[part::PROCESS] > 0.8, "{parts:?}");

    // A subquery that opens the evidence itself is in form too, and its evidence is read all the same.
    let opened = path("barn", "house", "Final answer:").map(|turn| turn.replace(" hay\n", " hay <Reference>"));
    let opened = play(opened).await;
    assert_eq!(opened.reward.as_ref().unwrap().parts, parts, "{}", opened.text);

    let astray = play(path("moon", "moon", "Final answer:")).await;
    let lost = &astray.reward.as_ref().unwrap().parts;
    assert!(lost["queries"] < parts["queries"] && lost[part::PROCESS] < parts[part::PROCESS], "{lost:?}");
    let unformed = play(path("barn", "house", "Answer:")).await;
    assert_eq!(unformed.reward.as_ref().unwrap().parts[part::FORMAT], 0.0, "{}", unformed.text);
    let pairs = dpo::TeaRag::default().pairs(&[&unformed, &right]);
    assert_eq!(pairs, [Preference { chosen: 1, rejected: 0, turn: 0 }]);
}

#[tokio::test]
async fn evo_rag() {
    const ANSWER: &str = "<think>a</think>\n<answer>red house</answer>";
    let turns = ["<search>the barn</search>", "<search>the moon</search>", "<backtrack></backtrack>"];
    let sample = played("evo-rag", &[&turns[..], &["<search>the house</search>", ANSWER]].concat()).await;
    let parts = scored(&EvoRag::default(), &sample).parts;
    let of = |name: &str| parts[name];
    assert_eq!((of("retrieval_bonus"), of("backtrack"), of("step"), of("answer")), (1.0, -1.0, -5.0, 1.0), "{parts:?}");
    assert!(of("overlap") < -0.5 && of("overlap") > -1.5, "{parts:?}");

    // Both were found, until the one is withdrawn.
    let refuse = "<refuse>nobody knows</refuse>";
    for (between, refusal) in [(&["<think>no</think>"][..], -1.0), (&["<backtrack></backtrack>"], 1.0)] {
        let turns = [&["<search>the barn</search>", "<search>the house</search>"], between, &[refuse]].concat();
        let sample = played("evo-rag", &turns).await;
        let parts = scored(&EvoRag::default(), &sample).parts;
        assert_eq!((parts["refusal"], parts["answer"]), (refusal, 0.0), "{between:?} {parts:?}");
    }
}

#[tokio::test]
async fn graphrag_r1() {
    const ANSWER: &str = "c</think>\n<answer>red house</answer>";
    const ASKS: &str = "<|begin_of_query|>the house<|end_of_query|>";
    // One thought that a search interrupts, or one for each turn; then one that does not end, and no search at all.
    for (turns, form) in [
        (vec![format!("a {ASKS}"), ANSWER.to_owned()], 0.5),
        (vec![format!("a</think>\n{ASKS}"), format!("<think>{ANSWER}")], 0.5),
        (vec![format!("a {ASKS}"), format!("<think>{ANSWER}")], 0.0),
        (vec![ANSWER.to_owned()], 0.0),
    ] {
        let sample = played("graphrag-r1", &turns.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let parts = scored(&Attenuated::default(), &sample).parts;
        assert_eq!((parts["form"], parts["f1"]), (form, 1.0), "{}", sample.text);
    }
}
