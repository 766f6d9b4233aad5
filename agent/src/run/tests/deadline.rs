//! The end of a generation at the deadline of its episode.

use std::future::pending;

use tokio::sync::mpsc;

use crate::run::world::World;

use super::*;

/// Number of tokens of a generation.
const COUNT: usize = 5;

/// Generation whose tokens are all ready.
struct ReadySteps {
    left: usize,
}

impl Steps for ReadySteps {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        self.left = self.left.checked_sub(1)?;
        Some(Ok(TokenStep { id: u32::from(b'x'), logprob: -0.5, top: Vec::new() }))
    }

    fn finish(&self) -> Option<TurnFinish> {
        (self.left == 0).then_some(TurnFinish::Length)
    }
}

/// Generation whose last token was delivered, and whose closing never ends.
struct ClosingSteps;

impl Steps for ClosingSteps {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        pending().await
    }

    fn finish(&self) -> Option<TurnFinish> {
        Some(TurnFinish::Eos)
    }
}

/// Plays a generation that begins `elapsed` after the beginning of its episode, which may take a minute. Returns its
/// end and the number of tokens taken.
async fn generate_after(elapsed: Duration, steps: impl Steps) -> (TurnEnd, usize) {
    let mut policy = Policy::builtin("routerag").unwrap();
    policy.budget.seconds = 60.0;
    let mut settings = None;
    let begin = |setup: EpisodeSetup, prompt| {
        settings = Some(Arc::clone(&setup.settings));
        EpisodeMachine::new(setup, prompt)
    };
    let mut player = Player::with(&policy, EpisodeOptions::default(), begin).unwrap();
    let Step::Generate(_) = player.next() else { panic!("no generation") };
    let (events, _received) = mpsc::channel(64);
    let world = World::new(events, None, settings.unwrap()).resumed(elapsed);
    let ended = world.stream(steps, &mut player.machine).await.unwrap();
    let transcript = player.machine.transcript();
    (ended, transcript.len() - transcript.prompt_tokens())
}

#[tokio::test]
async fn tokens_that_are_ready_do_not_outlast_the_deadline() {
    let steps = || ReadySteps { left: COUNT };
    assert_eq!(generate_after(Duration::ZERO, steps()).await, (TurnEnd::Length, COUNT));
    assert_eq!(generate_after(Duration::from_secs(61), steps()).await, (TurnEnd::Time, 0));
}

#[tokio::test]
async fn a_turn_that_is_whole_does_not_end_by_the_deadline() {
    assert_eq!(generate_after(Duration::from_secs(61), ClosingSteps).await, (TurnEnd::Eos, 0));
}
