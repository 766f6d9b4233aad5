//! The loop against golden vectors produced by the original code of the reference systems.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agent_script;
mod outside;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use waymark_agent::sanitize::{sanitize, without_headers};
use waymark_agent::{
    Action, ActionOutcome, AllowedActions, Budget, Conversation, EpisodeOptions, Format, FoundEvidence, Guide,
    Injected, LoopVariant, PathRouter, Policy, Protocol, ProtocolPrompt, ReadingRule, RouteRag, Runtime, SearchR1,
    SegmentKind, Tags, TrainingProtocol, Trajectory, path_router, tag,
};
use waymark_index::MAX_K;
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;

use agent_script::{Script, Stub, character_tokenizer, own_mask, passage, run};

#[test]
fn every_file_of_vectors_is_read_by_a_test() {
    assert_eq!(outside::unread(), Vec::<PathBuf>::new());
}

#[derive(Deserialize)]
struct Parsing {
    raw: String,
    truncated: String,
    action: Option<String>,
    content: String,
}

#[test]
fn action_parsing() {
    for case in outside::cases::<Parsing>("action_parsing", "cases") {
        for protocol in [&RouteRag as &dyn Protocol, &SearchR1] {
            let cut = protocol.training().unwrap().cut(&case.raw);
            assert_eq!(cut, case.truncated, "{:?}", case.raw);
            let (name, content) = match protocol.parse(cut, ReadingRule::First) {
                Action::Search(request) => (Some("search"), request.written),
                Action::Answer { text } => (Some("answer"), text),
                _ => (None, String::new()),
            };
            assert_eq!((name, content.as_str()), (case.action.as_deref(), case.content.as_str()), "{:?}", case.raw);
        }
    }
}

#[derive(Deserialize)]
struct Written {
    documents: Vec<String>,
    text: String,
    information_block_routerag: String,
    information_block_searchr1: String,
}

#[test]
fn passages2string() {
    for case in outside::cases::<Written>("passages2string", "cases") {
        let passages: Vec<_> = case.documents.iter().map(|document| passage(document)).collect();
        assert_eq!(tag::passages_to_string(&passages, Format::Training), case.text);
        let block = |protocol: &dyn Protocol| -> String {
            let parts = protocol.observation(&ActionOutcome::Evidence(FoundEvidence::of(&passages)), Format::Training);
            parts.iter().map(Injected::text).collect()
        };
        assert_eq!(block(&RouteRag), case.information_block_routerag);
        assert_eq!(block(&SearchR1), case.information_block_searchr1);
    }
}

#[derive(Deserialize)]
struct Call {
    raw: String,
    processed: String,
    continues: bool,
    tool_call: GoldenToolCall,
    observation: String,
}

#[derive(Deserialize)]
struct GoldenToolCall {
    tool: String,
    args: BTreeMap<String, String>,
}

/// Checks tool calls and observations against the environment of Graph-R1.
#[test]
fn graphr1_tool_calls() {
    for case in outside::cases::<Call>("graphr1_tool_calls", "cases") {
        let Call { raw, processed, continues, tool_call: GoldenToolCall { tool, args }, observation } = case;
        let cut = PathRouter.cut(&raw);
        assert_eq!(format!("{cut}<|im_end|>"), processed, "{raw:?}");
        let action = PathRouter.parse(cut, ReadingRule::First);
        let query = match &action {
            Action::Search(request) => Some(&request.query),
            _ => None,
        };
        assert_eq!(query, args.get("query"), "{raw:?}");
        assert_eq!(tool == "search", query.is_some(), "{raw:?}");
        let told = PathRouter.observation(&ActionOutcome::Invalid(&raw), Format::Training);
        assert_eq!(!told.is_empty(), continues, "{raw:?}");
        if tool == "invalid" {
            assert_eq!(observation, path_router::INVALID);
            assert!(!continues || told.contains(&Injected::retrieved(observation)), "{raw:?}");
        }
    }
}

/// Checks whole episodes token by token in the chat template of the reference (`observation_template`).
#[tokio::test]
async fn graphr1_messages() {
    for case in outside::cases::<Call>("graphr1_tool_calls", "cases") {
        check_messages(case).await;
    }
}

/// A message is searched for a complete query before it is cut, and the action is read from what is left of it.
#[tokio::test]
async fn a_query_behind_a_stray_closing_tag_gets_a_second_try() {
    let kept = "<think>I close with </query>";
    check_messages(Call {
        raw: format!("{kept}.</think>\n<query>{{\"query\": \"x\"}}</query>"),
        processed: format!("{kept}<|im_end|>"),
        continues: true,
        tool_call: GoldenToolCall { tool: "invalid".to_owned(), args: BTreeMap::new() },
        observation: path_router::INVALID.to_owned(),
    })
    .await;
}

async fn check_messages(case: Call) {
    let chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let tokenizer = Arc::new(Tokenizer::bytes());
    let eos = vec![tokenizer.id("<|im_end|>").unwrap()];
    let template = Arc::new(ChatTemplate::new(chatml, "", "<|im_end|>").unwrap());
    let answer = "so</think>\n<answer>a</answer>";
    let script = Script::new(tokenizer.clone(), [case.raw.clone(), answer.to_owned()]);
    let stub = Arc::new(Stub::new(|query| Ok(vec![passage(&format!("T\n{}", query.wanted.text))])));
    let runtime = Runtime::new(script.clone(), tokenizer.clone(), Some(template), eos.clone(), Some(stub));
    let mut policy = Policy::builtin("path-router").unwrap();
    policy.variant = LoopVariant::Training;
    let (trajectory, _) = run(&runtime, &policy, "?", EpisodeOptions::default()).await.unwrap();
    assert_eq!(script.generations(), 1 + usize::from(case.continues), "{:?}", case.raw);
    let named = |id: u32| match tokenizer.name(id).filter(|_| tokenizer.is_control(id)) {
        Some(name) => name.into_bytes(),
        None => tokenizer.bytes_of(id).to_vec(),
    };
    let written: Vec<u8> = trajectory.response().iter().flat_map(|token| named(token.id)).collect();
    let response = if case.tool_call.tool == "invalid" {
        case.observation
    } else {
        format!("Doc 1(Title: T) {}", case.tool_call.args["query"])
    };
    let block =
        format!("<|im_start|>user\n<knowledge>\n{response}\n</knowledge><|im_end|>\n<|im_start|>assistant\n<think>\n");
    let whole = match case.continues {
        true => format!("{}{block}{answer}", case.processed),
        // The last message has no end of its own here: nothing follows it.
        false => case.processed.trim_end_matches("<|im_end|>").to_owned(),
    };
    assert_eq!(String::from_utf8(written).unwrap(), whole);
    let learned: Vec<u32> = (trajectory.tokens.iter().zip(own_mask(&trajectory)))
        .filter_map(|(token, learned)| learned.then_some(token.id))
        .collect();
    let own = if case.continues { format!("{}{answer}", PathRouter.cut(&case.raw)) } else { case.raw };
    assert_eq!(tokenizer.decode(&learned), own);
}

#[derive(Deserialize)]
struct Scenario {
    config: GoldenConfig,
    docs: BTreeMap<String, Vec<String>>,
    queries_posted_per_round: Vec<Vec<String>>,
    trajectories: Vec<GoldenTrajectory>,
}

#[derive(Deserialize)]
struct GoldenConfig {
    max_turns: usize,
    max_obs_length: usize,
    max_prompt_length: usize,
}

#[derive(Deserialize)]
struct GoldenTrajectory {
    question: String,
    model_outputs_in_order: Vec<String>,
    prompt: String,
    final_response: String,
    segments_text_trainmask: Vec<(String, u8)>,
    turns_stats: usize,
    still_active: bool,
    valid_action: usize,
    valid_search: usize,
    search_time: Option<f64>,
    generations_made: usize,
}

/// A protocol with the prompt given in a golden vector.
#[derive(Debug)]
struct Prompted(Arc<dyn Protocol>, String);

impl Protocol for Prompted {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn prompt(&self, _: &Conversation, _: bool) -> ProtocolPrompt {
        ProtocolPrompt::Raw(self.1.clone())
    }
    fn tags(&self) -> &'static Tags {
        self.0.tags()
    }
    fn stops(&self) -> &'static [&'static str] {
        self.0.stops()
    }
    fn parse(&self, turn: &str, reading: ReadingRule) -> Action {
        self.0.parse(turn, reading)
    }
    fn training(&self) -> Option<&dyn TrainingProtocol> {
        self.0.training()
    }
    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected> {
        self.0.observation(outcome, format)
    }
    fn budget(&self) -> Budget {
        self.0.budget()
    }
    fn force_answer(&self, writing: SegmentKind) -> Option<String> {
        self.0.force_answer(writing)
    }
    fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        self.0.guide(offer)
    }
}

/// Policy with the limits of a golden scenario.
fn policy(protocol: &str, prompt: &str, config: &GoldenConfig) -> Policy {
    let mut policy = Policy::builtin(protocol).unwrap();
    policy.protocol = Arc::new(Prompted(policy.protocol, prompt.to_owned()));
    policy.variant = LoopVariant::Training;
    policy.retrieval.format = Format::Training;
    // As many as the stub has.
    policy.retrieval.search.k = Some(MAX_K);
    policy.budget = Budget {
        turns: config.max_turns,
        observation_tokens: config.max_obs_length,
        context_tokens: config.max_prompt_length,
        sampled_tokens: usize::MAX,
        ..policy.budget
    };
    policy
}

fn segments(trajectory: &Trajectory, runtime: &Runtime<Script>) -> Vec<(String, u8)> {
    // This loop forces no token, so training (`Sample::loss_mask`) learns exactly the tokens that the policy wrote.
    let mask = own_mask(trajectory).skip(trajectory.prompt_tokens);
    let mut runs: Vec<(Vec<u32>, u8)> = Vec::new();
    for (token, trained) in trajectory.response().iter().zip(mask) {
        match runs.last_mut() {
            Some((ids, same)) if *same == u8::from(trained) => ids.push(token.id),
            _ => runs.push((vec![token.id], u8::from(trained))),
        }
    }
    runs.into_iter().map(|(ids, trained)| (runtime.tokenizer.decode(&ids), trained)).collect()
}

#[tokio::test]
async fn agent_loop() {
    for vectors in outside::vectors::<BTreeMap<String, serde_json::Value>>("agent_loop_searchr1_routerag") {
        let tokenizer = Arc::new(character_tokenizer(&serde_json::to_string(&vectors).unwrap(), &[]));
        let mut checked = 0;
        for (name, value) in vectors.into_iter().filter(|(_, value)| value.is_object()) {
            let protocol = match name.split('_').next() {
                Some("searchr1") => "search-r1",
                Some("routerag") => "routerag",
                _ => {
                    outside::require(false, format_args!("{name}: no protocol has this loop"));
                    continue;
                }
            };
            let scenario: Scenario = serde_json::from_value(value).unwrap();
            let mut posted = vec![Vec::new(); scenario.queries_posted_per_round.len()];
            for golden in &scenario.trajectories {
                check(&name, protocol, &scenario, golden, tokenizer.clone(), &mut posted).await;
                checked += 1;
            }
            assert_eq!(posted, scenario.queries_posted_per_round, "{name}: queries");
        }
        outside::require(checked > 0, format_args!("agent_loop_searchr1_routerag has no trajectories"));
        println!("{checked} trajectories agree");
    }
}

async fn check(
    name: &str,
    protocol: &str,
    scenario: &Scenario,
    golden: &GoldenTrajectory,
    tokenizer: Arc<Tokenizer>,
    posted: &mut [Vec<String>],
) {
    let what = format!("{name}/{}", golden.question);
    let script = Script::new(tokenizer.clone(), golden.model_outputs_in_order.clone());
    let docs = scenario.docs.clone();
    let stub = Arc::new(Stub::new(move |query| {
        let found = docs.get(&query.written).or_else(|| docs.get("*")).cloned().unwrap_or_default();
        Ok(found.iter().map(|document| passage(document)).collect())
    }));
    let eos = vec![tokenizer.id("<|im_end|>").unwrap()];
    let runtime = Runtime::new(script.clone(), tokenizer, None, eos, Some(stub.clone()));
    let policy = policy(protocol, &golden.prompt, &scenario.config);
    let (trajectory, _) = run(&runtime, &policy, &golden.question, EpisodeOptions::default()).await.unwrap();

    assert_eq!(trajectory.text, golden.final_response, "{what}");
    assert_eq!(segments(&trajectory, &runtime), golden.segments_text_trainmask, "{what}");
    assert_eq!(trajectory.rounds() + 1, golden.turns_stats, "{what}: turns");
    assert_eq!(!trajectory.actions.last().unwrap().action.ends(), golden.still_active, "{what}: active");
    // An answer that is cut off with the end of the response does not count.
    if !golden.final_response.contains("</answer>") {
        assert_eq!(trajectory.answer, None, "{what}: answer");
    }
    assert_eq!(trajectory.valid_actions(), golden.valid_action, "{what}: actions");
    let searches = trajectory.actions.iter().filter(|acted| matches!(acted.action, Action::Search(_)));
    assert_eq!(searches.count(), golden.valid_search, "{what}: searches");
    assert_eq!(script.generations(), golden.generations_made, "{what}: generations");
    assert_eq!(trajectory.turns(), golden.generations_made, "{what}: turns recorded");
    // The stub of the reference counted a tenth of a second per character of a query.
    let seconds: f64 = stub.written().iter().map(|query| query.chars().count() as f64 * 0.1).sum();
    if let Some(expected) = golden.search_time {
        assert!((seconds - expected).abs() < 1e-6, "{what}: {seconds} {expected}");
    }
    // Each generation saw the end of prompt and response so far, and no more than the limit.
    let full = format!("{}{}", golden.prompt, golden.final_response);
    for ids in script.seen.lock().unwrap().iter() {
        assert!(ids.len() <= scenario.config.max_prompt_length, "{what}");
        let seen = runtime.tokenizer.decode(ids);
        // All of it, until the limit makes it the end only.
        assert!(ids.len() == scenario.config.max_prompt_length || full.starts_with(&seen), "{what}: {seen:?}");
    }
    let searched = trajectory.actions.iter().filter(|acted| acted.executed);
    for (acted, written) in searched.filter(|acted| matches!(acted.action, Action::Search(_))).zip(stub.written()) {
        posted[acted.turn - 1].push(written);
    }
}

/// A passage of a corpus.
#[derive(Deserialize)]
struct Ordinary {
    title: String,
    text: String,
}

#[test]
fn ordinary_passages_are_shown_as_they_are() {
    const CORPORA: [&str; 4] =
        ["2wiki/corpus.jsonl", "hotpotqa/corpus.jsonl", "musique_dev/corpus.jsonl", "popqa/corpus.jsonl"];
    let Some(folder) = outside::data(&CORPORA) else { return };
    let mut seen = 0;
    for corpus in CORPORA {
        for line in std::fs::read_to_string(folder.join(corpus)).unwrap().lines() {
            let Ordinary { title, text } = serde_json::from_str(line).unwrap();
            for name in ["routerag", "tearag", "graphrag-r1"] {
                let tags = Policy::builtin(name).unwrap().protocol.tags();
                let unchanged = ([title.clone(), text.clone()], 0);
                assert_eq!(without_headers([title.as_str(), text.as_str()], tags), unchanged, "{name}");
                assert_eq!(sanitize(&text, tags), (text.clone(), 0), "{name}");
            }
            seen += 1;
        }
    }
    assert!(seen > 35_000, "{seen} passages");
}
