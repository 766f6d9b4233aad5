//! Budgets of episodes are never exceeded.

use super::*;

#[tokio::test]
async fn max_tokens_bounds_the_whole_run() {
    for max in [1, 2, 3, 5, 8, 13, 40, 120, 400] {
        let (runtime, _) = saying(&[SEARCH, SEARCH, ANSWER], france());
        let options = EpisodeOptions { max_tokens: Some(max), ..default() };
        let (trajectory, events) = run(&runtime, &policy("routerag"), "?", options).await.unwrap();
        let counted = trajectory.usage.completion_tokens;
        assert!(counted <= max, "{counted} of {max}");
        assert_eq!(streamed_answer(&events), trajectory.answer.clone().unwrap_or_default());
        assert!(max >= 300 || trajectory.finish == EpisodeEnd::Length, "{max}: {:?}", trajectory.finish);
    }
}

/// Checks bounds that hold for every policy and budget, guided or not.
pub(crate) fn check_bounds(policy: &Policy, trajectory: &Trajectory, events: &[Event]) {
    let budget = policy.budget;
    assert!(trajectory.tokens.len() <= budget.context_tokens, "context");
    let sampled = trajectory.tokens.iter().filter(|token| token.logprob.is_some()).count();
    assert!(sampled <= budget.sampled_tokens, "sampled {sampled}");
    assert!(trajectory.rounds() <= budget.turns, "rounds");
    assert!(trajectory.turns() <= budget.turns + 1, "turns");
    for event in events {
        assert!(!matches!(event, Event::Observation { tokens, .. } if *tokens > budget.observation_tokens));
    }
    let executed = trajectory.evidence.iter().filter(|found| !found.cached).count();
    assert!(budget.searches.is_none_or(|most| executed <= most), "searches {executed}");
    assert_eq!(trajectory.usage.searches, executed);
    let observed = |event: &Event| if let Event::Observation { tokens, .. } = event { *tokens } else { 0 };
    let observed: usize = events.iter().map(observed).sum();
    assert!(budget.environment_tokens.is_none_or(|most| observed <= most), "environment {observed}");
    assert_eq!(streamed_answer(events), trajectory.answer.clone().unwrap_or_default());
    assert!(matches!(events.last(), Some(Event::Finished { .. })));
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Finished { .. })).count(), 1);
}

/// Names of the protocols that search.
const SEARCHING: [&str; 6] = ["routerag", "search-r1", "path-router", "graphrag-r1", "tearag", "evo-rag"];

#[tokio::test]
async fn bounds_hold_whatever_is_said() {
    for seed in 0..90u64 {
        let stub = france().with_modes(vec![Mode::Passage, Mode::Graph, Mode::Hybrid, Mode::Triples, Mode::Kag]);
        let (runtime, _) = mock(MockBackend::random(seed, 259).with_confidence(0.0), stub);
        let mut policy = policy(SEARCHING[seed as usize / 2 % SEARCHING.len()]);
        policy.guided = seed % 3 != 0;
        policy.sampling.temperature = Some(1.0);
        policy.variant = if seed % 4 == 3 { LoopVariant::Evaluation } else { LoopVariant::Serving };
        policy.budget.turns = seed as usize % 4;
        policy.budget.sampled_tokens = [7, 30, 90, 250, 1000][seed as usize % 5];
        policy.budget.observation_tokens = [0, 1, 20, 100, 2000][seed as usize / 5 % 5];
        policy.budget.turn_tokens = [5, 50, 300][seed as usize % 3];
        policy.budget.context_tokens = [1750, 1900, 2200, 6000][seed as usize / 3 % 4];
        policy.budget.searches = [None, Some(0), Some(1), Some(2)][seed as usize / 7 % 4];
        policy.budget.environment_tokens = [None, Some(0), Some(30), Some(300)][seed as usize / 11 % 4];
        let options = EpisodeOptions { seed, ..default() };
        let (trajectory, events) = run(&runtime, &policy, "Why?", options).await.unwrap();
        check_bounds(&policy, &trajectory, &events);
    }
}

#[tokio::test]
async fn bounds_hold_when_they_are_tight() {
    for seed in 0..48u64 {
        let (runtime, _) = mock(MockBackend::random(seed, 259).with_confidence(0.0), france());
        let mut policy = policy("routerag");
        policy.guided = seed % 2 == 0;
        policy.sampling.temperature = Some(1.0);
        policy.variant = if seed % 3 == 0 { LoopVariant::Evaluation } else { LoopVariant::Serving };
        policy.retrieval.least_searches = 0;
        let tight = (seed / 2) as usize;
        if seed % 5 == 0 {
            // Choices among modes cost tokens too: here they do not fit together with thought and query.
            (policy.guided, policy.variant) = (true, LoopVariant::Evaluation);
            policy.budget.sampled_tokens = 8;
        } else if seed % 4 < 2 {
            policy.budget.sampled_tokens = 1 + tight;
        } else {
            // The shortest context that is accepted, and a little more.
            let mut shortest = policy.clone();
            shortest.budget.context_tokens = 1000;
            while Episode::new(&runtime, &shortest, Conversation::new("Why?"), default()).is_err() {
                shortest.budget.context_tokens += 1;
            }
            policy.budget.context_tokens = shortest.budget.context_tokens + tight;
        }
        let (trajectory, events) = run(&runtime, &policy, "Why?", EpisodeOptions { seed, ..default() }).await.unwrap();
        check_bounds(&policy, &trajectory, &events);
    }
}

#[tokio::test]
async fn the_training_loop_keeps_as_much_as_its_reference() {
    for (name, prompt, response) in [("search-r1", 2048, 5000), ("path-router", 4096, 4096)] {
        let (runtime, _, _) = scripted(&[&"x".repeat(6000), ANSWER], france());
        let mut policy = Policy { variant: LoopVariant::Training, ..policy(name) };
        (policy.budget.turn_tokens, policy.budget.context_tokens) = (6000, 5000);
        let (trajectory, _) = run(&runtime, &policy, &"why ".repeat(1500), default()).await.unwrap();
        assert_eq!((trajectory.prompt_tokens, trajectory.response().len()), (prompt, response), "{name}");
    }
}

#[tokio::test]
async fn an_answer_that_the_training_loop_does_not_keep_is_none() {
    for (spare, answer) in [(0, Some("Paris")), (1, None)] {
        let (runtime, _, _) = scripted(&[SEARCH, ANSWER], france());
        let mut policy = Policy { variant: LoopVariant::Training, ..policy("routerag") };
        let (whole, _) = run(&runtime, &policy, "?", default()).await.unwrap();
        let (runtime, _, _) = scripted(&[SEARCH, ANSWER], france());
        // The training loop also keeps fewer prompt tokens than this.
        policy.budget.context_tokens = whole.response().len() - spare;
        let (trajectory, events) = run(&runtime, &policy, "?", default()).await.unwrap();
        assert_eq!(trajectory.response().len(), whole.response().len() - spare);
        assert_eq!((trajectory.answer.as_deref(), trajectory.finish), (answer, EpisodeEnd::Stop), "{spare}");
        let told = |event: &Event| matches!(event, Event::Finished { answer: told, .. } if told.as_deref() == answer);
        assert!(events.last().is_some_and(told), "{spare}");
    }
}

#[tokio::test]
async fn a_training_turn_that_would_see_nothing_is_refused() {
    let (runtime, script, _) = scripted(&[SEARCH, ANSWER], france());
    let policy = Policy { variant: LoopVariant::Training, ..policy("routerag") };
    assert_eq!(policy.budget.turn_tokens, 500);
    let asked = |limit, turns| {
        let Runtime { tokenizer, template, eos, searcher, .. } = runtime.clone();
        let runtime = Runtime::new(script.clone().with_limit(limit), tokenizer, template, eos, searcher);
        Episode::new(&runtime, &policy, Conversation::new("?"), EpisodeOptions { turns, ..default() })
    };
    let message = asked(500, None).err().unwrap().to_string();
    assert!(message.contains("turn_tokens (500)") && message.contains("--kv-bytes"), "{message}");
    assert!(asked(501, None).is_ok() && asked(500, Some(0)).is_ok(), "one turn sees its whole prompt");
}

#[tokio::test]
async fn of_a_large_passage_only_what_an_observation_is_cut_from_is_made_harmless() {
    let (runtime, _) =
        saying(&[SEARCH, ANSWER], Stub::of(vec![passage(&format!("T\n{}", "<answer>".repeat(100_000)))]));
    let policy = policy("routerag");
    let (trajectory, _) = run(&runtime, &policy, "?", default()).await.unwrap();
    let shown = environment(&trajectory);
    let count = trajectory.evidence[0].neutralised;
    // A character of three tokens may not have fitted.
    let most = policy.budget.observation_tokens;
    assert!((most - 2..=most).contains(&shown.len()), "{}", shown.len());
    assert!(!runtime.tokenizer.decode(&shown).contains("<answer"));
    // No token of a usual vocabulary is longer than 256 bytes.
    let bound = (most + 1) * 256 / "<answer>".len();
    assert!(count > shown.len() / "<answer>".len() && count <= bound, "{count} {bound}");
}
