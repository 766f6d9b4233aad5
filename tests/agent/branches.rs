//! Branches of an episode: other episodes that go on from the beginning of one of its turns.

use futures::future::join;
use waymark_agent::{Backtrack, EpisodeBranch, EpisodeState, SessionSource};
use waymark_engine::Token;

use super::*;

/// Untrained policy that samples at random, in one of the two loops that use one session for all turns.
fn random(seed: u64) -> (Runtime, Policy) {
    let (runtime, _) = mock(MockBackend::random(seed, 259).with_confidence(2.0), france());
    let mut policy = Policy { guided: true, ..policy("evo-rag") };
    policy.sampling.temperature = Some(1.0);
    policy.budget.turns = 5;
    policy.variant = if seed.is_multiple_of(2) { LoopVariant::Serving } else { LoopVariant::Evaluation };
    (runtime, policy)
}

/// Receives the events of an episode until it is over.
async fn heard(mut events: mpsc::Receiver<Event>) -> Vec<Event> {
    let mut heard = Vec::new();
    while let Some(event) = events.recv().await {
        heard.push(event);
    }
    heard
}

async fn trunk<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    options: EpisodeOptions,
) -> (Trajectory, Vec<EpisodeState<S>>) {
    let episode = Episode::new(runtime, policy, Conversation::new("Why?"), options).unwrap();
    let (sender, receiver) = mpsc::channel(4);
    join(episode.run_with_states(sender), heard(receiver)).await.0.unwrap()
}

async fn follow<S: SessionSource>(branch: EpisodeBranch<S>) -> (Trajectory, Vec<Event>) {
    let (sender, receiver) = mpsc::channel(4);
    let (trajectory, events) = join(branch.run(sender), heard(receiver)).await;
    (trajectory.unwrap(), events)
}

#[tokio::test]
async fn every_turn_can_be_continued_from_the_same_tokens() {
    let mut differ = 0;
    for seed in 0..12 {
        let (runtime, policy) = random(seed);
        let options = EpisodeOptions { seed, ..default() };
        let alone = run(&runtime, &policy, "Why?", options.clone()).await.unwrap().0;
        let (own, states) = trunk(&runtime, &policy, options).await;
        assert_eq!(own.tokens, alone.tokens, "keeping states changes nothing");
        let turns: Vec<usize> = states.iter().map(EpisodeState::turn).collect();
        assert_eq!(turns, (1..=own.turns()).collect::<Vec<_>>());
        for state in &states {
            let shared = state.tokens();
            for other in 0..3 {
                let name = format!("{}-{other}", state.turn());
                let (branch, events) = follow(state.branch(Some(name.clone()), 100 + other)).await;
                assert_eq!(branch.id, name);
                assert_eq!(branch.tokens[..shared], own.tokens[..shared], "with origins and log-probabilities");
                let before = state.turn() - 1;
                assert_eq!(branch.actions[..before], own.actions[..before]);
                assert!(branch.turns() > before && branch.turns() <= policy.budget.turns + 1);
                assert!(matches!(events.last(), Some(Event::Finished { .. })));
                differ += usize::from(branch.tokens[shared..] != own.tokens[shared..]);
                let (again, _) = follow(state.branch(Some(name), 100 + other)).await;
                assert_eq!(again.tokens, branch.tokens, "the seed determines a branch");
            }
        }
        let counters = runtime.engine.counters();
        assert_eq!(counters.prefill_tokens_recomputed_total.get(), 6 * states.len() as u64, "one token per branch");
        drop(states);
        assert_eq!(runtime.engine.snapshot().await.unwrap().blocks.used, 0);
        assert_eq!(counters.invariant_violations_total.get(), 0);
    }
    assert!(differ > 20, "{differ}");
}

#[tokio::test]
async fn a_source_without_forks_gives_new_sequences_with_the_same_ids() {
    const GO: &str = "<think>a</think>\n<search> Lyon </search>";
    const END: &str = "<think>b</think>\n<answer> Paris </answer>";
    for variant in [LoopVariant::Serving, LoopVariant::Evaluation, LoopVariant::Training] {
        let (runtime, script, _) = scripted(&[GO, GO, END, END, GO, END], france());
        let policy = Policy { variant, ..policy("evo-rag") };
        let (own, states) = trunk(&runtime, &policy, default()).await;
        assert_eq!((own.turns(), states.len()), (3, 3));
        let (second, _) = follow(states[1].branch(None, 1)).await;
        let (third, _) = follow(states[2].branch(None, 1)).await;
        assert_eq!((second.turns(), third.turns()), (2, 4));
        let seen = script.seen.lock().unwrap();
        // Contexts of the trunk's three turns, of the second one again, and of the third one again.
        assert_eq!((&seen[3], &seen[4]), (&seen[1], &seen[2]), "{variant:?}");
    }
}

/// Replays an episode with hidden evidence: every sampled token must get its log-probability again, because the policy
/// sees the same tokens before it.
#[tokio::test]
async fn an_episode_without_its_withdrawn_evidence_is_replayed_as_it_was() {
    let mut hidden = 0;
    for seed in 0..30 {
        let empty =
            Stub::new(|query| Ok(if query.wanted.text.len() % 3 == 0 { vec![passage("A\nb")] } else { vec![] }));
        let (runtime, _) = mock(MockBackend::random(seed, 259).with_confidence(2.0), empty);
        let (_, mut policy) = random(seed);
        policy.retrieval.backtrack = Backtrack::Remove;
        let options = EpisodeOptions { seed, ..default() };
        let (trajectory, states) = trunk(&runtime, &policy, options.clone()).await;
        hidden += trajectory.evidence.iter().filter(|found| found.hidden.is_some()).count();
        let episode = Episode::new(&runtime, &policy, Conversation::new("Why?"), options).unwrap();
        let replayed = episode.force(&trajectory.tokens, &trajectory.evidence).await.unwrap();
        let near = |(one, other): (&Token, &Token)| {
            let close = match (one.logprob, other.logprob) {
                (Some(one), Some(other)) => (one - other).abs() < 1e-4,
                (one, other) => one == other,
            };
            (one.id, one.origin, one.forced) == (other.id, other.origin, other.forced) && close
        };
        assert_eq!(replayed.tokens.len(), trajectory.tokens.len());
        assert!(replayed.tokens.iter().zip(&trajectory.tokens).all(near), "seed {seed}");
        for state in &states {
            let (branch, _) = follow(state.branch(None, 7)).await;
            assert_eq!(branch.tokens[..state.tokens()], trajectory.tokens[..state.tokens()]);
        }
    }
    assert!(hidden > 5, "{hidden}");
}
