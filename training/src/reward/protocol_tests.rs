//! Tests of rewards on trajectories played in the loops of their protocols, so that each reward reads exactly what
//! its protocol writes.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use waymark_agent::{EpisodeOptions, Policy, Runtime, Search, SearchError, SearchQuery};
use waymark_index::{Evidence, Hit, HitPath, Mode, Passage, TripleHit};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;
use waymark_runtime::embedding::Embedding;
use waymark_runtime::evaluate;

use super::evo_rag::EvoRagReward;
use super::graph_r1::GraphR1;
use super::graphrag_r1::Attenuated;
use super::tearag::{TeaRagReward, part};
use super::{FormatBonus, Reward, RewardContext, TextSimilarity};
use crate::data::scripted::{Author, ScriptedGenerator};
use crate::dpo::{self, Preference};
use crate::sample::{RewardValue, Sample, SampleTask};

/// Author that returns prepared turns in order.
struct Turns(VecDeque<String>);

impl Author for Turns {
    fn turn(&mut self, _: Option<&str>) -> String {
        self.0.pop_front().unwrap_or_default()
    }
}

/// Mock search: every thing has a passage, found by queries that contain its name.
#[derive(Debug)]
struct ThingSearch;

const THINGS: [&str; 3] = ["barn", "house", "moon"];

fn text(thing: &str) -> &'static str {
    match thing {
        "barn" => "Hay is kept there through winter",
        "house" => "Red walls stand context deep water",
        _ => "Nobody went up since those days",
    }
}

impl Search for ThingSearch {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        let asked = query.wanted;
        let named = THINGS.into_iter().filter(|thing| asked.text.contains(thing));
        let hit = |thing: &str| {
            let passage = Passage { id: thing.into(), title: thing.into(), text: text(thing).to_owned() };
            Hit { rank: 1, score: 1.0, passage, metadata: None, path: HitPath::default() }
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

/// Plays an episode of `protocol` with the given turns.
async fn played(protocol: &str, turns: &[&str]) -> Sample {
    played_within(None, protocol, turns).await
}

/// Plays an episode with a limited number of rounds.
async fn played_within(rounds: Option<usize>, protocol: &str, turns: &[&str]) -> Sample {
    played_under(EpisodeOptions { turns: rounds, ..EpisodeOptions::default() }, protocol, turns).await
}

/// Plays an episode with the given options.
async fn played_under(bounds: EpisodeOptions, protocol: &str, turns: &[&str]) -> Sample {
    played_after(None, bounds, protocol, turns).await
}

/// Plays an episode whose prompt is written by a chat template.
async fn played_after(template: Option<&str>, bounds: EpisodeOptions, protocol: &str, turns: &[&str]) -> Sample {
    let tokenizer = Arc::new(Tokenizer::bytes());
    let template = template.map(|text| Arc::new(ChatTemplate::new(text, "", "<|im_end|>").unwrap()));
    let author = Arc::new(Mutex::new(Turns(turns.iter().map(|turn| (*turn).to_owned()).collect())));
    let policy = Policy::builtin(protocol).unwrap();
    let tags = policy.protocol.tags();
    let script = ScriptedGenerator::new(Arc::clone(&tokenizer), author, 16_384).with_template(template.clone(), tags);
    let runtime =
        Runtime::new(script, Arc::clone(&tokenizer), template.clone(), vec![257], Some(Arc::new(ThingSearch)));
    let options = EpisodeOptions { guided: Some(false), ..bounds };
    let trajectory = evaluate::play(&runtime, &policy, "What is red?", options).await.unwrap();
    let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let golds = known(&["red house"]);
    let supporting = known(&["barn", "house"]);
    let task = SampleTask { golds, supporting, ..SampleTask::default() };
    Sample::from_trajectory(trajectory, task).with_opened_thought(template.as_deref(), &tokenizer, tags)
}

fn scored(reward: &dyn Reward, sample: &Sample) -> RewardValue {
    let support = ["barn", "house"].map(|thing| format!("{thing} {}", text(thing)));
    let context = RewardContext { cost: 0.0, support: &support };
    let similarity = TextSimilarity::of(&Embedding::Mock, reward.texts(sample, &context)).unwrap();
    reward.score_in_context(&[sample], &[context], &similarity).remove(0)
}

/// Excludes the opening tag and the policy's own tokens.
#[tokio::test]
async fn forced_answers_are_not_training_targets() {
    let asks = ["<search>the barn</search>", "<search>the moon</search>", "<search>the house</search>"];
    let sample = played_within(Some(2), "search-r1", &[&asks[..], &[" red house </answer>"]].concat()).await;
    assert!(sample.text.ends_with("<search>the house</search>\n<answer> red house </answer>"), "{}", sample.text);
    assert_eq!((sample.answer.as_deref(), sample.evidence.len()), (Some("red house"), 2));
    let learned = sample.loss_mask();
    let (first, _) = sample.forced[0];
    assert!(learned[first..].iter().all(|learned| !learned));
    let ids = sample.tokens.iter().zip(&learned).filter(|(_, learned)| **learned).map(|(id, _)| *id);
    assert_eq!(Tokenizer::bytes().decode(&ids.collect::<Vec<u32>>()), asks.concat());
}

/// Checks an episode that used up its rounds: Graph-R1 ends it with the last query; here a turn follows.
#[tokio::test]
async fn graph_r1() {
    let asks = ["<think>a</think>\n<query>the house</query>", "b</think>\n<query>the barn</query>"];
    for (last, forced, total) in [
        // The third query is not executed and earns nothing.
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
    // A limit of searches ends the episode like the same limit of rounds.
    let bounds = EpisodeOptions { searches: Some(2), ..EpisodeOptions::default() };
    let turns = [&asks[..], &["c</think>\n<query>the moon</query>", "red house</answer>"]].concat();
    let sample = played_under(bounds, "path-router", &turns).await;
    assert_eq!((sample.evidence.len(), scored(&GraphR1, &sample).total), (2, -0.5), "{}", sample.text);
}

/// Checks prompts of models that always think: their template ends with the tag of the first thought.
#[tokio::test]
async fn formats_are_read_with_the_thought_that_the_prompt_has_opened() {
    const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                            {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    let bonus = FormatBonus { structure: 0.2, answer: 0.1, retrieval: 0.1 };
    let search_r1 = ["<think>a</think>\n<search>the house</search>", "<think>b</think>\n<answer>red house</answer>"];
    let path_router = ["<think>a</think>\n<query>the house</query>", "b</think>\n<answer>red house</answer>"];
    let cases: [(&str, [&str; 2], &dyn Reward); 2] =
        [("search-r1", search_r1, &bonus), ("path-router", path_router, &GraphR1)];
    for (protocol, turns, reward) in cases {
        let plain = played(protocol, &turns).await;
        let sample = played_after(Some(TEMPLATE), EpisodeOptions::default(), protocol, &turns).await;
        assert_eq!((plain.opened.as_deref(), sample.opened.as_deref()), (None, Some("<think>")));
        // The tag is in the prompt, so no turn writes it again.
        assert!(sample.text.starts_with("a</think>\n"), "{}", sample.text);
        let values = [&plain, &sample].map(|sample| scored(reward, sample));
        assert_eq!(values[0], values[1], "{}", sample.text);
        assert_eq!(values[1].total, 1.0, "{}", sample.text);
        // A policy that opens the thought again does not keep the format.
        let again = Sample { text: format!("<think>{}", sample.text), ..sample };
        assert!(scored(reward, &again).parts["form"] < values[1].parts["form"], "{}", again.text);
    }
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
        sample.reward = Some(scored(&TeaRagReward::default(), &sample));
        sample
    };
    let right = play(path("barn", "house", "Final answer:")).await;
    let parts = right.reward.as_ref().unwrap().parts.clone();
    assert_eq!((parts[part::OUTCOME], parts[part::FORMAT], parts["names"]), (1.0, 1.0, 1.0), "{}", right.text);
    // Both gold passages are found and summarized nearly word for word, and the queries name them.
    assert!(parts["contexts"] > 0.9 && parts["summaries"] > 0.9 && parts["queries"] > 0.3, "{parts:?}");
    assert!(parts[part::PROCESS] > 0.8, "{parts:?}");

    // A subquery that opens the evidence tag itself is also well-formed, and its evidence is read.
    let opened = path("barn", "house", "Final answer:").map(|turn| turn.replace(" hay\n", " hay <Reference>"));
    let opened = play(opened).await;
    assert_eq!(opened.reward.as_ref().unwrap().parts, parts, "{}", opened.text);

    let astray = play(path("moon", "moon", "Final answer:")).await;
    let lost = &astray.reward.as_ref().unwrap().parts;
    assert!(lost["queries"] < parts["queries"] && lost[part::PROCESS] < parts[part::PROCESS], "{lost:?}");
    let unformed = play(path("barn", "house", "Answer:")).await;
    assert_eq!(unformed.reward.as_ref().unwrap().parts[part::FORMAT], 0.0, "{}", unformed.text);
    let pairs = dpo::TeaRagRule::default().pairs(&[&unformed, &right]);
    assert_eq!(pairs, [Preference { chosen: 1, rejected: 0, turn: 0 }]);
}

#[tokio::test]
async fn evo_rag() {
    const ANSWER: &str = "<think>a</think>\n<answer>red house</answer>";
    let turns = ["<search>the barn</search>", "<search>the moon</search>", "<backtrack></backtrack>"];
    let sample = played("evo-rag", &[&turns[..], &["<search>the house</search>", ANSWER]].concat()).await;
    let parts = scored(&EvoRagReward::default(), &sample).parts;
    let of = |name: &str| parts[name];
    assert_eq!((of("retrieval_bonus"), of("backtrack"), of("step"), of("answer")), (1.0, -1.0, -5.0, 1.0), "{parts:?}");
    assert!(of("overlap") < -0.5 && of("overlap") > -1.5, "{parts:?}");

    // Both passages are found, until one of them is withdrawn.
    let refuse = "<refuse>nobody knows</refuse>";
    for (between, refusal) in [(&["<think>no</think>"][..], -1.0), (&["<backtrack></backtrack>"], 1.0)] {
        let turns = [&["<search>the barn</search>", "<search>the house</search>"], between, &[refuse]].concat();
        let sample = played("evo-rag", &turns).await;
        let parts = scored(&EvoRagReward::default(), &sample).parts;
        assert_eq!((parts["refusal"], parts["answer"]), (refusal, 0.0), "{between:?} {parts:?}");
    }
}

#[tokio::test]
async fn graphrag_r1() {
    const ANSWER: &str = "c</think>\n<answer>red house</answer>";
    const ASKS: &str = "<|begin_of_query|>the house<|end_of_query|>";
    // One thought interrupted by a search, one thought per turn, a thought that does not end, and no search at all.
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
