#![allow(clippy::unwrap_used, clippy::panic)]
use proptest::prelude::*;
use waymark_agent::PolicySearch;

use super::*;

fn origin() -> impl Strategy<Value = Origin> {
    prop_oneof![Just(Origin::Prompt), Just(Origin::Policy), Just(Origin::Environment)]
}

fn token() -> impl Strategy<Value = Token> {
    (any::<u32>(), origin(), proptest::option::of(-30f32..0.0), any::<bool>()).prop_map(
        |(id, origin, logprob, forced)| {
            let policy = origin == Origin::Policy;
            Token { id, origin, logprob: logprob.filter(|_| policy), forced: forced && policy }
        },
    )
}

fn acted(turn: usize, action: Action) -> ActionRecord {
    ActionRecord { turn, action, executed: true, late: false, thought: String::new(), summary: None, reply: 0..0 }
}

pub(crate) fn trajectory(tokens: Vec<Token>, prompt_tokens: usize, text: &str) -> Trajectory {
    let request = PolicySearch { query: "x".into(), mode: Some(Mode::Graph), ..PolicySearch::plain("[graph] x") };
    Trajectory {
        id: "e".into(),
        prompt_tokens,
        tokens,
        text: text.to_owned(),
        actions: vec![
            acted(1, Action::Search(request)),
            acted(2, Action::Invalid),
            acted(3, Action::Answer { text: text.to_owned() }),
        ],
        evidence: Vec::new(),
        answer: Some(text.to_owned()),
        finish: EpisodeEnd::Stop,
        usage: Usage::default(),
        timings: Timings { total: 1.5, first_token: None, generation: 0.5, search: 0.25 },
    }
}

pub(crate) fn samples() -> impl Strategy<Value = Sample> {
    (proptest::collection::vec(token(), 0..40), 0usize..40, ".*").prop_map(|(tokens, prompt, text)| {
        let prompt = prompt.min(tokens.len());
        Sample::from_trajectory(trajectory(tokens, prompt, &text), SampleTask::default())
    })
}

/// Generates samples with arbitrary lengths and indices.
pub(crate) fn hostile() -> impl Strategy<Value = Sample> {
    fn number() -> impl Strategy<Value = usize> {
        prop_oneof![3 => 0usize..12, 1 => any::<usize>(), 1 => Just(usize::MAX)]
    }
    let origins = proptest::collection::vec((origin(), number()), 0..4);
    let forced = proptest::collection::vec((number(), number()), 0..3);
    let logprobs = proptest::collection::vec(proptest::option::of(-30f32..0.0), 0..4);
    let tokens = proptest::collection::vec(token(), 0..12);
    (tokens, origins, forced, logprobs, number()).prop_map(|(tokens, origins, forced, logprobs, prompt_tokens)| {
        let origins = origins.into_iter().map(|(origin, run)| OriginRun(origin, run)).collect();
        let sound = Sample::from_trajectory(trajectory(tokens, 0, ""), SampleTask::default());
        Sample { origins, forced, logprobs, prompt_tokens, ..sound }
    })
}

proptest! {
    #[test]
    fn masks_cover_every_token_for_arbitrary_numbers(sample in hostile()) {
        prop_assert_eq!(sample.loss_mask().len(), sample.tokens.len());
        prop_assert_eq!(sample.sampled_logprobs().len(), sample.tokens.len());
        let hidden = Sample { evidence: withdrawn().evidence, ..sample.clone() };
        let within_tokens = |view: &SampleView| view.positions.iter().all(|&at| at < sample.tokens.len());
        prop_assert!(!hidden.views().is_empty() && hidden.views().iter().all(within_tokens));
        let within = |turn| sample.turn_start(turn) <= sample.turn_end(turn) && sample.turn_end(turn) <= sample.tokens.len();
        prop_assert!((0..4).all(within));
        let covered: u128 = sample.origins.iter().map(|span| span.1 as u128).sum();
        prop_assert!(sample.flaw().is_some() || covered == sample.tokens.len() as u128);
    }

    #[test]
    fn masks_and_log_probabilities_match_the_tokens(
        tokens in proptest::collection::vec(token(), 0..60), prompt in 0usize..60
    ) {
        let prompt = prompt.min(tokens.len());
        let sample = Sample::from_trajectory(trajectory(tokens.clone(), prompt, ""), SampleTask::default());
        let asked = sample.forced_answer().unwrap_or(tokens.len());
        let learned = |(at, token): (usize, &Token)| {
            (prompt..asked).contains(&at) && token.origin == Origin::Policy && !token.forced
        };
        let mask: Vec<bool> = tokens.iter().enumerate().map(learned).collect();
        prop_assert_eq!(sample.loss_mask(), mask);
        let logprobs: Vec<_> = tokens.iter().map(|token| token.logprob).collect();
        prop_assert_eq!(sample.sampled_logprobs(), logprobs);
        prop_assert_eq!(sample.flaw(), None);
    }

    #[test]
    fn samples_round_trip(sample in samples()) {
        let line = serde_json::to_string(&sample).unwrap();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(serde_json::from_str::<Sample>(&line).unwrap(), sample);
    }
}

#[test]
fn a_chosen_mode_is_no_target_and_no_forced_answer() {
    let token = |origin, forced| Token { id: 1, origin, logprob: None, forced };
    let own = |forced| token(Origin::Policy, forced);
    let tokens = [
        vec![token(Origin::Prompt, false)],
        vec![own(false), own(true), own(false)],
        vec![token(Origin::Environment, false)],
        vec![own(false), own(false)],
    ];
    let search = Action::Search(PolicySearch::plain("x"));
    let actions = vec![acted(1, search), acted(2, Action::Answer { text: "x".into() })];
    let record = Trajectory { actions, ..trajectory(tokens.concat(), 1, "x") };
    let sample = Sample::from_trajectory(record.clone(), SampleTask::default());
    assert_eq!(sample.loss_mask(), [false, true, false, true, false, true, true]);
    assert!(!sample.is_forced() && sample.own_answer() == Some("x"));
    let mut record = record;
    record.tokens[5].forced = true;
    let sample = Sample::from_trajectory(record, SampleTask::default());
    assert_eq!(sample.loss_mask(), [false, true, false, true, false, false, false]);
    assert!(sample.is_forced());
}

#[test]
fn a_mode_in_the_last_turn_is_no_forced_answer() {
    let token = |origin, forced| Token { id: 1, origin, logprob: None, forced };
    let own = |forced| token(Origin::Policy, forced);
    let tokens = vec![token(Origin::Prompt, false), own(false), own(true), own(false)];
    let task = SampleTask::default;
    // The query broke off, and there was no room for an answer.
    let cut = Trajectory { actions: vec![acted(1, Action::Invalid)], answer: None, ..trajectory(tokens, 1, "x") };
    let sample = Sample::from_trajectory(cut.clone(), task());
    assert_eq!(sample.loss_mask(), [false, true, false, true]);
    assert!(!sample.is_forced());
    // With room, an answer is forced after the query.
    let tokens = [cut.tokens.clone(), vec![own(true), own(false)]].concat();
    let actions = vec![acted(1, Action::Answer { text: "x".into() })];
    let mut sample = Sample::from_trajectory(Trajectory { tokens, actions, ..cut }, task());
    assert_eq!(sample.loss_mask(), [false, true, false, true, false, false]);
    assert!(sample.is_forced());
    sample.adopt_modes();
    assert_eq!((sample.forced.as_slice(), sample.is_forced()), (&[(4, 1)][..], true));
}

#[test]
fn an_own_answer_after_a_written_mode_is_not_forced() {
    let token = |origin, forced| Token { id: 1, origin, logprob: None, forced };
    let own = |forced| token(Origin::Policy, forced);
    let answered = |tokens: Vec<Token>| {
        let actions = vec![acted(1, Action::Answer { text: "x".into() })];
        let record = Trajectory { actions, ..trajectory(tokens, 1, "x") };
        Sample { written_mode: Some((2, 1)), ..Sample::from_trajectory(record, SampleTask::default()) }
    };
    let mut sample = answered(vec![token(Origin::Prompt, false), own(false), own(true), own(false)]);
    assert_eq!((sample.own_answer(), sample.loss_mask()), (Some("x"), vec![false, true, false, true]));
    sample.adopt_modes();
    assert_eq!((sample.own_answer(), sample.loss_mask()), (Some("x"), vec![false, true, true, true]));
    // The opening of an answer is forced right behind the mode.
    let mut sample = answered(vec![token(Origin::Prompt, false), own(false), own(true), own(true), own(false)]);
    assert_eq!((sample.own_answer(), sample.loss_mask()), (None, vec![false, true, false, false, false]));
    sample.adopt_modes();
    assert_eq!((sample.forced.as_slice(), sample.written_mode), (&[(3, 1)][..], None));
    assert_eq!((sample.own_answer(), sample.loss_mask()), (None, vec![false, true, true, false, false]));
}

/// Two searches, of which the second one and then the first one are withdrawn.
fn withdrawn() -> Sample {
    let runs = [
        (Origin::Prompt, 2),
        (Origin::Policy, 2),      // 2..4
        (Origin::Environment, 3), // 4..7, hidden from 14 on
        (Origin::Policy, 1),      // 7
        (Origin::Environment, 2), // 8..10, hidden from 11 on
        (Origin::Policy, 1),      // 10
        (Origin::Environment, 1), // 11
        (Origin::Policy, 2),      // 12..14
        (Origin::Environment, 1), // 14
        (Origin::Policy, 2),      // 15..17
    ];
    let mut tokens: Vec<Token> = Vec::new();
    for (origin, run) in runs {
        let first = tokens.len() as u32;
        let logprob = (origin == Origin::Policy).then_some(-1.0);
        tokens.extend((first..first + run).map(|id| Token { id, origin, logprob, forced: false }));
    }
    let mut sample = Sample::from_trajectory(trajectory(tokens, 2, ""), SampleTask::default());
    let one = crate::reward::tests::searched("", &[(Mode::Passage, 0.1)]).evidence.remove(0);
    let hidden = |first, tokens, from| Some(HiddenEvidence { first, tokens, from });
    sample.evidence = vec![
        RetrievalRecord { hidden: hidden(4, 3, 14), ..one.clone() },
        RetrievalRecord { hidden: hidden(8, 2, 11), ..one },
    ];
    sample
}

#[test]
fn each_token_is_learned_once_in_sight_of_what_was_seen() {
    let sample = withdrawn();
    assert_eq!(sample.flaw(), None);
    let views = sample.views();
    let learned = |view: &SampleView| -> Vec<usize> {
        view.positions.iter().zip(&view.learned).filter(|(_, learned)| **learned).map(|(at, _)| *at).collect()
    };
    assert_eq!(views.iter().map(learned).collect::<Vec<_>>(), [vec![2, 3, 7, 10], vec![12, 13], vec![15, 16]]);
    let seen = [(0..11).collect(), (0..8).chain(10..14).collect(), (0..4).chain([7]).chain(10..17).collect()];
    let seen: [Vec<usize>; 3] = seen;
    for (view, seen) in views.iter().zip(seen) {
        assert_eq!(view.positions, seen);
        assert_eq!(view.tokens, seen.iter().map(|&at| at as u32).collect::<Vec<_>>());
    }
    // In one pass over all tokens, only those before the first withdrawal have the context that they were written in.
    let alone: Vec<usize> = (0..17).filter(|&at| sample.loss_mask()[at]).collect();
    assert_eq!(alone, [2, 3, 7, 10]);
    assert_eq!(sample.seen_before(sample.turn_end(3)), (0..8).chain(10..14).collect::<Vec<_>>());
}

#[test]
fn without_hidden_evidence_there_is_one_view() {
    let token = |origin| Token { id: 1, origin, logprob: None, forced: false };
    let tokens = vec![token(Origin::Prompt), token(Origin::Policy), token(Origin::Environment), token(Origin::Policy)];
    for tokens in [tokens, Vec::new()] {
        let sample = Sample::from_trajectory(trajectory(tokens, 0, ""), SampleTask::default());
        let [view] = &sample.views()[..] else { panic!("several views") };
        assert_eq!((&view.tokens, &view.learned), (&sample.tokens, &sample.loss_mask()));
    }
}

#[test]
fn origins_are_pairs_of_a_name_and_a_length() {
    let token = |origin| Token { id: 1, origin, logprob: None, forced: false };
    let tokens = vec![token(Origin::Prompt), token(Origin::Prompt), token(Origin::Policy)];
    let sample = Sample::from_trajectory(trajectory(tokens, 2, ""), SampleTask::default());
    let line = serde_json::to_value(&sample).unwrap();
    assert_eq!(line["origins"], serde_json::json!([["prompt", 2], ["policy", 1]]));
    assert_eq!(line["actions"][0]["type"], "search");
    assert_eq!(line["actions"][2]["turn"], 3);
}

#[test]
fn turns_lie_between_prompt_and_observations() {
    let token = |origin| Token { id: 1, origin, logprob: None, forced: false };
    let runs = [(Origin::Prompt, 3), (Origin::Policy, 2), (Origin::Environment, 4), (Origin::Policy, 1)];
    let tokens = runs.into_iter().flat_map(|(origin, run)| vec![token(origin); run]).collect();
    let mut sample = Sample::from_trajectory(trajectory(tokens, 3, ""), SampleTask::default());
    assert_eq!([0, 1, 2].map(|turn| sample.turn_start(turn)), [3, 9, 10]);
    assert_eq!([0, 1, 2].map(|turn| sample.turn_end(turn)), [5, 10, 10]);
    assert!(!sample.has_every_turn(), "three actions, but two turns with tokens");
    sample.actions.pop();
    assert!(sample.has_every_turn());
}

#[test]
fn inconsistent_fields_are_reported() {
    let token = Token { id: 1, origin: Origin::Policy, logprob: Some(-1.0), forced: false };
    let sound = Sample::from_trajectory(trajectory(vec![token; 3], 1, ""), SampleTask::default());
    let broken = [
        Sample { origins: vec![OriginRun(Origin::Policy, 2)], ..sound.clone() },
        // In wrapping arithmetic, the two lengths would add up to three.
        Sample { origins: vec![OriginRun(Origin::Policy, usize::MAX), OriginRun(Origin::Policy, 4)], ..sound.clone() },
        Sample { prompt_tokens: 4, ..sound.clone() },
        Sample { logprobs: vec![None; 2], ..sound.clone() },
        Sample { forced: vec![(2, 2)], ..sound.clone() },
        Sample { evidence: withdrawn().evidence, ..sound.clone() },
        Sample { written_mode: Some((2, 2)), ..sound.clone() },
        Sample { forced: vec![(2, usize::MAX)], ..sound },
    ];
    for (case, sample) in broken.iter().enumerate() {
        assert!(sample.flaw().is_some(), "case {case}");
    }
}
