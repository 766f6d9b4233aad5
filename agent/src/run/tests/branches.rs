//! Episodes that go on from the beginning of a turn of another one.

use crate::run::turn_boundary::TurnBoundary;

use super::*;

fn policy() -> Policy {
    let mut policy = Policy::builtin("evo-rag").unwrap();
    policy.budget.turns = 3;
    policy
}

fn options(seed: u64) -> EpisodeOptions {
    EpisodeOptions { id: Some(format!("episode-{seed}")), seed, ..EpisodeOptions::default() }
}

/// Takes steps up to the beginning of a turn.
fn boundary(player: &mut Player) -> TurnBoundary {
    loop {
        match player.step() {
            Step::Boundary => return player.machine.boundary().unwrap(),
            Step::Emit(_) | Step::Extend { .. } | Step::Rebuild { .. } => {}
            step => panic!("no turn begins before {step:?}"),
        }
    }
}

/// A player that goes on from there, in a session with the same tokens.
fn branch(seed: u64, begun: TurnBoundary) -> Player {
    let ids = begun.transcript.visible().iter().map(|token| token.id).collect();
    let resume = |setup, _| EpisodeMachine::resume(setup, begun);
    Player { sequence: ids, ..Player::with(&policy(), options(seed), resume).unwrap() }
}

#[test]
fn branches_share_what_was_before_their_turn_and_nothing_after() {
    let mut trunk = Player::new(&policy(), options(0)).unwrap();
    boundary(&mut trunk);
    trunk.say("<search>q</search>");
    trunk.find(&["one"]);
    let begun = boundary(&mut trunk);
    let shared = trunk.sequence.clone();
    let [mut first, mut second] = [branch(1, begun.clone()), branch(2, begun)];
    let own = trunk.say(ANSWER);
    assert_eq!(finished(&mut trunk), paris());
    let specs = [first.say("<search>r</search>"), second.say("<backtrack></backtrack>")];
    assert!(specs[0].sampling.seed != specs[1].sampling.seed && specs[0].sampling.seed != own.sampling.seed);
    first.find(&["two"]);
    first.say(ANSWER);
    second.say("<refuse></refuse>");
    let [first, second] = [first, second].map(|mut player| {
        player.close();
        assert!(matches!(player.next(), Step::End));
        (player.machine.take_trajectory(), player.events)
    });
    assert_eq!((first.0.finish, second.0.finish), (EpisodeEnd::Stop, EpisodeEnd::Refused));
    assert_eq!((first.0.turns(), first.0.usage.searches, first.0.evidence.len()), (3, 2, 2));
    assert_eq!((second.0.turns(), second.0.usage.searches, second.0.evidence[0].withdrawn), (3, 1, Some(2)));
    for ((trajectory, events), name) in [first, second].into_iter().zip(["episode-1", "episode-2"]) {
        let ids: Vec<u32> = trajectory.tokens.iter().map(|token| token.id).collect();
        assert_eq!((&ids[..shared.len()], trajectory.id.as_str()), (shared.as_slice(), name));
        assert!(matches!(&events[0], Event::Started { id, .. } if id == name), "{:?}", events[0]);
        assert!(matches!(events[1], Event::TurnStarted { turn: 2 }), "{:?}", events[1]);
    }
}

#[test]
fn a_branch_has_the_limits_that_its_trunk_has_left() {
    let mut trunk = Player::new(&policy(), options(0)).unwrap();
    boundary(&mut trunk);
    for word in ["a", "b", "c"] {
        trunk.say(&format!("<search>{word}</search>"));
        trunk.find(&["one"]);
        boundary(&mut trunk);
    }
    let begun = trunk.machine.boundary().unwrap();
    let mut last = branch(1, begun);
    // The round limit is reached: another search is not executed.
    last.say("<search>d</search>");
    last.say(" Paris </answer>");
    assert_eq!(finished(&mut last), paris());
    assert_eq!(limits(&last.events), [BudgetLimit::Turns]);
}

#[test]
fn a_running_turn_has_no_beginning_to_keep() {
    let mut player = Player::new(&policy(), options(0)).unwrap();
    boundary(&mut player);
    let Step::Generate(_) = player.next() else { panic!("no generation") };
    assert!(player.machine.boundary().is_none());
}
