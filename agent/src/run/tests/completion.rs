//! The client's limit on completion tokens, which forced tokens count against.

use crate::trajectory::Trajectory;

use super::*;

/// Longest of the limits that are tried, in tokens: all of an episode's parts are cut by one of them.
const LIMITS: usize = 300;

fn bounded(name: &str, guided: bool, options: EpisodeOptions) -> Player {
    let policy = Policy { guided, ..Policy::builtin(name).unwrap() };
    Player::new(&policy, options).unwrap()
}

fn limit(most: usize) -> EpisodeOptions {
    EpisodeOptions { max_tokens: Some(most), ..EpisodeOptions::default() }
}

/// Plays an episode of these turns to its end. Later turns are empty.
fn play(player: &mut Player, turns: &[&str]) -> Trajectory {
    let mut turns = turns.iter().copied();
    loop {
        match player.next() {
            Step::Generate(spec) => {
                let ended = player.write(&spec, turns.next().unwrap_or_default());
                player.machine.generated(ended);
            }
            Step::Search(request) => {
                let found = request.recalled.unwrap_or_else(|| evidence(request.mode, &["one"]));
                player.machine.found(Ok(found), Duration::ZERO);
            }
            Step::Close => player.machine.closed(0, player.clock),
            Step::Cite { .. } => player.machine.cited(Vec::new()),
            Step::End => return player.machine.take_trajectory(),
            Step::Emit(_) | Step::Extend { .. } | Step::Rebuild { .. } | Step::Boundary => {
                unreachable!("`next` takes them")
            }
        }
    }
}

#[test]
fn no_limit_is_exceeded_by_what_is_forced() {
    for guided in [false, true] {
        let mut forced = 0;
        for most in 1..=LIMITS {
            let mut player = bounded("routerag", guided, limit(most));
            let trajectory = play(&mut player, &[SEARCH, ANSWER]);
            let counted = trajectory.usage.completion_tokens;
            assert!(counted <= most, "{counted} of {most} tokens, guided: {guided}");
            let written = trajectory.tokens.iter().filter(|token| token.forced || token.logprob.is_some());
            assert_eq!(written.count(), counted);
            forced += usize::from(trajectory.tokens.iter().any(|token| token.forced));
            // An episode that has no answer because of the limit says so.
            assert!(trajectory.answer.is_some() || trajectory.finish == EpisodeEnd::Length, "{most}");
        }
        assert!(forced > 0, "some limit leaves room for a forced text");
    }
}

#[test]
fn a_limit_that_holds_the_whole_episode_changes_nothing() {
    let free = play(&mut bounded("routerag", false, EpisodeOptions::default()), &[SEARCH, ANSWER]);
    let spent = free.usage.completion_tokens;
    let cut = play(&mut bounded("routerag", false, limit(LIMITS)), &[SEARCH, ANSWER]);
    assert_eq!((spent, free.answer.as_deref()), (SEARCH.len() + ANSWER.len(), Some("Paris")));
    assert_eq!((cut.tokens, cut.finish), (free.tokens, EpisodeEnd::Stop));
}

#[test]
fn a_guided_turn_that_does_not_fit_ends_the_episode() {
    // The guide begins a turn with the question, and the opening of an answer takes more than 8 tokens.
    let mut player = bounded("routerag", true, limit(8));
    let trajectory = play(&mut player, &[]);
    assert_eq!((trajectory.usage.completion_tokens, trajectory.finish), (0, EpisodeEnd::Length));
    assert_eq!((trajectory.answer, limits(&player.events)), (None, vec![BudgetLimit::SampledTokens]));
}

#[test]
fn a_mode_that_does_not_fit_ends_the_episode() {
    const OPENED: &str = "<think>a</think>\n<search>";
    let options = EpisodeOptions { first_mode: Some(Mode::Hybrid), ..limit(OPENED.len() + 5) };
    let mut player = bounded("routerag", false, options);
    player.say(OPENED);
    assert_eq!(finished(&mut player), (EpisodeEnd::Length, None));
    assert!(player.text().ends_with(OPENED), "no part of ` [graph][passage]` is written");
    assert!(!player.events.iter().any(|event| matches!(event, Event::SearchStarted { .. })));
}

#[test]
fn a_forced_answer_has_room_beside_its_opening() {
    let mut player = bounded("routerag", false, limit(50));
    // Half of a small limit is for the turns.
    assert_eq!(player.say(&format!("<think>{}", "on and ".repeat(9))).max_tokens, 25);
    let spec = player.say("Paris</answer>");
    assert_eq!(spec.max_tokens, 25 - "</think>\n<answer>".len());
    assert_eq!(finished(&mut player), (EpisodeEnd::Length, Some("Paris".to_owned())), "its tag is cut, and not shown");
}

#[test]
fn a_plain_answer_shows_no_thought_wherever_it_is_cut() {
    const THOUGHT: &str = "\n<think>half a thought</think>";
    let said = format!("{THOUGHT}\nParis");
    for most in 1..=said.len() {
        let mut player = bounded("plain", false, limit(most));
        let spec = player.say(&said);
        assert_eq!(spec.max_tokens, most);
        let expected = format!("\n{}", said[..most].get(THOUGHT.len()..).unwrap_or_default());
        assert_eq!(finished(&mut player), (EpisodeEnd::Length, Some(expected.clone())), "{most}");
        let shown: String = player.events.iter().filter_map(answer_text).collect();
        assert_eq!(shown, expected, "{most}");
    }
}

fn answer_text(event: &Event) -> Option<&str> {
    match event {
        Event::Answer { text, .. } => Some(text),
        _ => None,
    }
}

#[test]
fn a_turn_that_the_policy_ends_shows_all_that_it_wrote() {
    let mut player = bounded("plain", false, EpisodeOptions::default());
    player.say("<thi");
    assert_eq!(finished(&mut player), (EpisodeEnd::Stop, Some("<thi".to_owned())));
    for finish in [TurnFinish::Length, TurnFinish::Context] {
        assert!(TurnEnd::from(finish).is_cut());
    }
    assert!(!TurnEnd::from(TurnFinish::Eos).is_cut() && TurnEnd::Time.is_cut());
}
