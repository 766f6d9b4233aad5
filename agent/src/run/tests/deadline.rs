//! The end of a generation at the deadline of its episode.

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

/// Plays a generation that begins `elapsed` after the beginning of its episode, which may take a minute. Returns its
/// end and the number of tokens taken.
async fn generate_after(elapsed: Duration) -> (TurnEnd, usize) {
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
    let ended = world.stream(ReadySteps { left: COUNT }, &mut player.machine).await.unwrap();
    let transcript = player.machine.transcript();
    (ended, transcript.len() - transcript.prompt_tokens())
}

#[tokio::test]
async fn tokens_that_are_ready_do_not_outlast_the_deadline() {
    assert_eq!(generate_after(Duration::ZERO).await, (TurnEnd::Length, COUNT));
    assert_eq!(generate_after(Duration::from_secs(61)).await, (TurnEnd::Time, 0));
}
