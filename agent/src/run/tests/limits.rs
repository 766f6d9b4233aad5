//! Transitions at the limits of an episode.

use crate::budget::BudgetLimit;
use crate::event::EpisodeEnd;
use crate::loop_variant::LoopVariant;

use super::*;

#[test]
fn after_the_rounds_an_answer_is_forced_when_serving() {
    let mut player = Player::of("routerag", |policy| policy.budget.turns = 1);
    player.say(NONSENSE);
    player.say(NONSENSE);
    assert_eq!(limits(&player.events), [BudgetLimit::Turns]);
    player.say("Paris</answer>");
    assert!(player.text().ends_with("\n<answer>Paris</answer>"), "{}", player.text());
    let forced = player.machine.transcript().tokens().iter().filter(|token| token.forced).count();
    assert_eq!(forced, "\n<answer>".len());
    assert_eq!(finished(&mut player), paris());
}

#[test]
fn after_the_rounds_a_reference_ends_as_it_does() {
    // RouteRAG's loop has one more turn, Graph-R1's has none.
    for (name, line, turns) in [("routerag", NONSENSE, 2), ("path-router", "<query>{\"query\": \"q\"}</query>", 1)] {
        let mut player = Player::of(name, |policy| {
            policy.variant = LoopVariant::Evaluation;
            policy.budget.turns = 1;
        });
        player.say(line);
        if turns == 1 {
            player.find(&["one"]);
        } else {
            player.say(NONSENSE);
        }
        assert_eq!(finished(&mut player), (EpisodeEnd::Turns, None), "{name}");
        assert!(
            player.events.iter().any(|event| matches!(event, Event::Finished { turns: done, .. } if *done == turns))
        );
    }
}

#[test]
fn a_spent_limit_ends_the_episode_before_the_search() {
    let mut player = Player::of("routerag", |policy| policy.budget.searches = Some(0));
    player.say(SEARCH);
    player.say("Paris</answer>");
    assert_eq!(limits(&player.events), [BudgetLimit::Searches]);
    assert!(player.machine.transcript().evidence().is_empty());
    assert_eq!(finished(&mut player), paris());
    let mut player = Player::of("routerag", |policy| {
        policy.variant = LoopVariant::Evaluation;
        policy.budget.environment_tokens = Some(0);
    });
    player.say(SEARCH);
    assert_eq!(finished(&mut player), (EpisodeEnd::Turns, None));
    assert_eq!(limits(&player.events), [BudgetLimit::EnvironmentTokens]);
}

#[test]
fn without_tokens_nothing_is_generated() {
    let mut player = Player::of("routerag", |policy| {
        policy.variant = LoopVariant::Evaluation;
        policy.budget.sampled_tokens = SEARCH.len();
    });
    let spec = player.say(SEARCH);
    assert_eq!(spec.max_tokens, SEARCH.len());
    assert_eq!(finished(&mut player), (EpisodeEnd::Length, None));
    assert_eq!(limits(&player.events), [BudgetLimit::SampledTokens]);
}

#[test]
fn a_long_observation_is_cut_to_its_limit() {
    let mut player = Player::of("routerag", |policy| policy.budget.observation_tokens = 60);
    player.say(SEARCH);
    player.find(&[&"x".repeat(500)]);
    player.next();
    assert_eq!(limits(&player.events), [BudgetLimit::ObservationTokens]);
    let cut = |event: &Event| matches!(event, Event::Observation { tokens: 60, truncated: true, .. });
    assert!(player.events.iter().any(cut), "{:?}", player.events.last());
}

#[test]
fn a_generation_that_runs_out_of_time_ends_the_episode() {
    let mut player = Player::of("routerag", |_| ());
    player.next();
    player.machine.generated(TurnEnd::Time);
    assert_eq!(finished(&mut player), (EpisodeEnd::Time, None));
    assert_eq!(limits(&player.events), [BudgetLimit::Time], "no answer is forced: there is no time for it");
}

#[test]
fn a_search_that_takes_all_the_time_ends_the_episode() {
    let mut player = Player::of("routerag", |policy| policy.budget.seconds = 10.0);
    player.say(SEARCH);
    player.find(&["one"]);
    player.clock = Duration::from_secs(10);
    assert_eq!(finished(&mut player), (EpisodeEnd::Time, None));
    assert!(player.text().contains("one"), "its evidence is recorded");
}

#[test]
fn the_parts_of_a_guided_turn_share_its_limit() {
    let mut player = Player::of("routerag", |policy| {
        policy.guided = true;
        policy.variant = LoopVariant::Evaluation;
        policy.retrieval.least_searches = 0;
        policy.budget.sampled_tokens = 8;
    });
    // Half of the tokens are for the thought, a quarter for the query, and three choices do not fit beside them.
    while let Step::Generate(spec) = player.next() {
        let allowed = |letter: &&str| spec.allow.iter().flatten().any(|&id| id == u32::from(letter.as_bytes()[0]));
        let text = ["s", "g", "["].into_iter().find(allowed).unwrap_or("xxxx");
        let ended = player.write(&spec, text);
        player.machine.generated(ended);
    }
    let sampled = player.machine.transcript().tokens().iter().filter(|token| token.logprob.is_some()).count();
    assert_eq!(sampled, 8, "{}", player.text());
}
