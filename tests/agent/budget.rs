//! Budgets of the environment: executed searches, and tokens of all observations.

use proptest::prelude::*;

use super::bounds::check_bounds;
use super::*;

fn reached(events: &[Event], kind: BudgetLimit) -> usize {
    events.iter().filter(|event| **event == Event::Budget { kind }).count()
}

fn searches(most: usize) -> EpisodeOptions {
    EpisodeOptions { searches: Some(most), ..default() }
}

fn observations(most: usize) -> EpisodeOptions {
    EpisodeOptions { environment_tokens: Some(most), ..default() }
}

#[tokio::test]
async fn in_the_place_of_one_search_too_many_an_answer_is_forced() {
    let lines = ["I wonder.", "<search>a</search>", "<search>b</search>", " forty-two </answer>"];
    let (runtime, script, stub) = scripted(&lines, france());
    let (trajectory, events) = run(&runtime, &policy("search-r1"), "?", searches(1)).await.unwrap();
    // A turn without an action is a round, but no search.
    assert_eq!((stub.written(), trajectory.rounds(), script.generations()), (vec!["a".to_owned()], 2, 4));
    assert_eq!((trajectory.answer.as_deref(), trajectory.finish), (Some("forty-two"), EpisodeEnd::Stop));
    assert!(trajectory.text.ends_with("<search>b</search>\n<answer> forty-two </answer>"), "{}", trajectory.text);
    assert_eq!((reached(&events, BudgetLimit::Searches), reached(&events, BudgetLimit::Turns)), (1, 0));
    assert_eq!(trajectory.usage.searches, 1);
}

#[tokio::test]
async fn where_no_answer_is_forced_one_search_too_many_ends_the_episode() {
    for variant in [LoopVariant::Evaluation, LoopVariant::Training] {
        // These loops make every search, even a repeated one.
        let (runtime, script, stub) = scripted(&["<search>a</search>", "<search>a</search>", ANSWER], france());
        let policy = Policy { variant, ..policy("search-r1") };
        let (trajectory, events) = run(&runtime, &policy, "?", searches(1)).await.unwrap();
        assert_eq!((stub.written().len(), script.generations()), (1, 2), "{variant:?}");
        assert_eq!((trajectory.answer, trajectory.finish), (None, EpisodeEnd::Turns), "{variant:?}");
        assert_eq!(reached(&events, BudgetLimit::Searches), 1, "{variant:?}");
    }
}

#[tokio::test]
async fn a_search_that_the_episode_answers_costs_none() {
    let lines = ["<search>a</search>", "<search>a</search>", "<search>b</search>", " x </answer>"];
    let (runtime, _, stub) = scripted(&lines, france());
    let (trajectory, events) = run(&runtime, &policy("search-r1"), "?", searches(1)).await.unwrap();
    let cached: Vec<bool> = trajectory.evidence.iter().map(|found| found.cached).collect();
    assert_eq!((cached, stub.written().len()), (vec![false, true], 1));
    assert_eq!((trajectory.usage.searches, trajectory.answer.as_deref()), (1, Some("x")));
    assert!(matches!(events.last(), Some(Event::Finished { searches: 2, .. })));
    assert_eq!(reached(&events, BudgetLimit::Searches), 1);
}

#[tokio::test]
async fn a_search_that_fails_costs_one_and_its_time_is_told() {
    let stub = Stub::new(|_| Err(SearchError::Failed("disk".into()))).with_delay(Duration::from_millis(5));
    let (runtime, _, stub) = scripted(&["<search>a</search>", "<search>a</search>", " x </answer>"], stub);
    let (trajectory, _) = run(&runtime, &policy("search-r1"), "?", searches(1)).await.unwrap();
    assert_eq!((stub.written().len(), trajectory.usage.searches), (1, 1));
    assert!(trajectory.usage.search_ms >= 5.0, "{:?}", trajectory.usage);
    assert_eq!(trajectory.usage.search_ms, trajectory.timings.search * 1e3);
}

#[tokio::test]
async fn the_observation_that_would_be_too_long_is_cut_and_is_the_last_one() {
    for (variant, answer, finish) in
        [(LoopVariant::Serving, Some("x"), EpisodeEnd::Stop), (LoopVariant::Evaluation, None, EpisodeEnd::Turns)]
    {
        let lines = ["<search>a</search>", "<search>b</search>", "<search>c</search>", " x </answer>"];
        let policy = Policy { variant, ..policy("search-r1") };
        let (runtime, _, _) = scripted(&[lines[0], ANSWER], france());
        let (one, _) = run(&runtime, &policy, "?", default()).await.unwrap();
        // Slightly less than two observations of this length.
        let single = one.usage.environment_tokens;
        let most = 2 * one.usage.environment_tokens - 5;
        let (runtime, _, stub) = scripted(&lines, france());
        let (trajectory, events) = run(&runtime, &policy, "?", observations(most)).await.unwrap();
        assert_eq!(stub.written(), ["a", "b"], "{variant:?}");
        assert_eq!((trajectory.answer.as_deref(), trajectory.finish), (answer, finish), "{variant:?}");
        let spent = environment(&trajectory).len();
        assert!(spent > single && spent <= most, "{variant:?}: {spent} of {most}");
        assert_eq!(trajectory.usage.environment_tokens, spent);
        let cut: Vec<bool> = events
            .iter()
            .filter_map(|event| match event {
                Event::Observation { truncated, .. } => Some(*truncated),
                _ => None,
            })
            .collect();
        // The event is sent when the observation is cut, and again when no further observation fits.
        assert_eq!((cut, reached(&events, BudgetLimit::EnvironmentTokens)), (vec![false, true], 2), "{variant:?}");
    }
}

#[tokio::test]
async fn what_a_turn_without_an_action_is_told_counts_as_well() {
    let (runtime, _, stub) = scripted(&["Let me see.", "<search>a</search>", " x </answer>"], france());
    let (trajectory, events) =
        run(&runtime, &policy("search-r1"), "?", observations(tag::INVALID.len())).await.unwrap();
    assert_eq!(runtime.tokenizer.decode(&environment(&trajectory)), tag::INVALID);
    assert_eq!((stub.written().len(), trajectory.answer.as_deref()), (0, Some("x")));
    assert_eq!(reached(&events, BudgetLimit::EnvironmentTokens), 1);
}

#[tokio::test]
async fn too_few_tokens_for_another_speaker_are_none() {
    for (variant, answer, finish) in
        [(LoopVariant::Serving, Some("Paris"), EpisodeEnd::Stop), (LoopVariant::Evaluation, None, EpisodeEnd::Turns)]
    {
        let query = "<think>a</think>\n<query>{\"query\": \"a\"}</query>";
        let (runtime, _, stub) = scripted(&[query, "Paris</answer>"], france());
        let policy = Policy { variant, ..policy("path-router") };
        let (trajectory, events) = run(&runtime, &policy, "?", observations(20)).await.unwrap();
        assert_eq!((trajectory.answer.as_deref(), trajectory.finish), (answer, finish), "{variant:?}");
        assert_eq!((stub.written().len(), environment(&trajectory).len()), (0, 0), "{variant:?}");
        assert_eq!(reached(&events, BudgetLimit::EnvironmentTokens), 1, "{variant:?}");
    }
}

#[tokio::test]
async fn a_guided_policy_is_offered_no_search_that_would_not_be_made() {
    for (name, seed) in (0..8).flat_map(|seed| [("routerag", seed), ("search-r1", seed)]) {
        let (runtime, stub) = mock(MockBackend::random(seed, 259).with_confidence(0.0), france());
        let mut policy = policy(name);
        (policy.guided, policy.budget.searches) = (true, Some(1));
        policy.sampling.temperature = Some(1.0);
        let options = EpisodeOptions { seed, ..default() };
        let (trajectory, events) = run(&runtime, &policy, "Why?", options).await.unwrap();
        check_bounds(&policy, &trajectory, &events);
        assert_eq!((stub.written().len(), trajectory.turns()), (1, 2), "{name} {seed}: {}", trajectory.text);
        assert!(trajectory.answer.is_some() && trajectory.actions.iter().all(|acted| acted.executed));
        assert_eq!(reached(&events, BudgetLimit::Searches), 1, "{name} {seed}");
    }
}

/// Generates a turn of a policy. Only a few different queries exist, so some repeat.
fn line() -> impl Strategy<Value = String> {
    let search = prop::sample::select(vec!["a", "b", "c", "d"]).prop_flat_map(|query| {
        prop::sample::select(vec![
            format!("<think>t</think>\n<search>{query}</search>"),
            format!("<think>t</think>\n<query>{{\"query\": \"{query}\"}}</query>"),
        ])
    });
    let other = prop::sample::select(vec!["no action", "<think>t</think>\n<backtrack></backtrack>", ANSWER]);
    prop_oneof![4 => search, 1 => other.prop_map(str::to_owned)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_bound_is_exceeded_whatever_is_said(
        lines in prop::collection::vec(line(), 0..10),
        name in prop::sample::select(vec!["routerag", "search-r1", "path-router", "evo-rag"]),
        variant in prop::sample::select(vec![LoopVariant::Serving, LoopVariant::Evaluation, LoopVariant::Training]),
        most in prop::option::of(0..4usize),
        tokens in prop::option::of(0..600usize),
        observation in prop::sample::select(vec![0usize, 30, 100, 2000]),
    ) {
        let said: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (runtime, _, stub) = scripted(&said, france());
        let mut policy = Policy { variant, ..policy(name) };
        policy.budget.observation_tokens = observation;
        (policy.budget.searches, policy.budget.environment_tokens) = (most, tokens);
        let one = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (trajectory, events) = one.block_on(run(&runtime, &policy, "Why?", default())).unwrap();
        check_bounds(&policy, &trajectory, &events);
        prop_assert_eq!(stub.written().len(), trajectory.usage.searches);
    }
}
