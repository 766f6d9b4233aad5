//! Sequences that begin with the tokens of another one.

use waymark_agent::{Generator, SessionSource};
use waymark_engine::{Origin, SessionOptions};
use waymark_runtime::fleet::{SourceSession, TokenSource};

use super::stub::{Stub, StubFault};
use super::{config, connect, opened, run, spec, undisturbed};

/// Number of tokens that stay.
const KEPT: usize = 100;

#[tokio::test]
async fn what_stays_of_a_sequence_goes_on_at_its_engine() {
    let [first, second] = [Stub::start().await, Stub::start().await];
    let fleet = connect(&config("vllm", &[&first.url(), &second.url()])).await.unwrap();
    let prompt: Vec<u32> = (0..40).collect();
    let mut trunk = opened(&fleet, &prompt);
    // New sessions begin at the first engine. This one moves to the second.
    first.fail([StubFault::Cut(0)]);
    run(&mut trunk, spec(3)).await;
    trunk.append(&[7; 60], Origin::Environment, false);
    run(&mut trunk, spec(3)).await;
    assert_eq!(trunk.cached_prompt_tokens(), 32);
    let kept: Vec<u32> = trunk.tokens()[..KEPT].iter().map(|token| token.id).collect();
    let recomputed = || fleet.remote_counters().recomputed_tokens_total.get();
    assert_eq!(recomputed(), 0);

    let source = TokenSource::from(fleet.clone());
    let options = SessionOptions::default();
    let trunk = SourceSession::Fleet(trunk);
    let SourceSession::Fleet(mut fork) = source.fork(&trunk, KEPT, options) else { panic!("it left the fleet") };
    let SourceSession::Fleet(mut shorter) = source.shorten(trunk, KEPT, options) else { panic!("it left the fleet") };
    for session in [&mut fork, &mut shorter] {
        assert_eq!(run(session, spec(2)).await.ids(), undisturbed(&kept, 2));
        assert_eq!(session.cached_prompt_tokens(), 32, "of the first prompt, not of all that stayed");
    }
    // Both had the kept tokens computed before, and the stub's cache holds blocks of 32 tokens.
    assert_eq!(recomputed(), 2 * (KEPT as u64 - 96));
    assert_eq!(first.streamed().len(), 1);
    let names: Vec<Option<String>> = second.streamed().into_iter().map(|(name, _)| name).collect();
    let [opened, grown, forked, shortened] = names.as_slice() else { panic!("{names:?}") };
    assert!(opened == grown && grown == shortened, "a router keeps the session at its worker: {names:?}");
    assert!(forked.is_some() && forked != opened, "{names:?}");
}
