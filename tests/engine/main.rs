//! The engine under many concurrent clients with a small block pool, including failures and cancellation.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod faults;
mod fork;
mod sampling;
mod weights;

use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{sleep, timeout};
use waymark_engine::mock::Random;
use waymark_engine::{
    Engine, EngineConfig, EngineError, Generate, Health, MockBackend, Origin, Session, SessionOptions, SessionState,
    TokenStep, TurnFinish,
};
use waymark_models::sampler::SamplingParams;
use waymark_models::tokenizer::Tokenizer;

const VOCAB: usize = 259;
const PATIENCE: Duration = Duration::from_secs(60);

fn mock() -> MockBackend {
    MockBackend::random(7, VOCAB)
}

fn start(backend: MockBackend, config: EngineConfig) -> Engine {
    Engine::start(Box::new(backend), config, Tokenizer::bytes().table()).unwrap()
}

fn session(engine: &Engine, prompt: &[u32]) -> Session {
    let mut session = engine.session(SessionOptions::default());
    session.append(prompt, Origin::Prompt, false);
    session
}

fn prompt(first: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|position| (first * 31 + position * 7) % 256).collect()
}

fn greedy(max_tokens: usize) -> Generate {
    Generate { sampling: SamplingParams::greedy(), max_tokens, ..Generate::default() }
}

/// Runs a turn to its end.
async fn run(session: &mut Session, generate: Generate) -> Result<(Vec<TokenStep>, TurnFinish), EngineError> {
    let mut turn = session.generate(generate).await?;
    let mut steps = Vec::new();
    while let Some(step) = timeout(PATIENCE, turn.next()).await.expect("the engine hangs") {
        steps.push(step?);
    }
    Ok((steps, turn.finish().expect("a turn without error has an end")))
}

fn ids(session: &Session) -> Vec<u32> {
    session.tokens().iter().map(|token| token.id).collect()
}

/// Checks that every sampled token follows from the whole context before it.
fn check_text(session: &Session) {
    let random = Random { seed: 7, vocab: VOCAB };
    let ids = ids(session);
    for (position, token) in session.tokens().iter().enumerate() {
        if token.logprob.is_some() {
            assert_eq!(token.id, random.next(None, &ids[..position]), "at {position}");
        }
    }
}

/// Waits until all blocks are free.
async fn wait_free(engine: &Engine) {
    let counters = engine.counters();
    eventually("all blocks are given back", || {
        counters.blocks_used.get() == 0 && counters.sessions_parked.get() + counters.sessions_stalled.get() == 0
    })
    .await;
    let total = counters.blocks_free.get() + counters.blocks_cached.get();
    assert_eq!(total, engine.spec().blocks as u64);
    assert_eq!(counters.invariant_violations_total.get(), 0);
}

/// Waits for a condition, for up to [`PATIENCE`].
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let come = async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, come).await.unwrap_or_else(|_| panic!("it never came about that {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_share_a_pool_of_two_requests() {
    let config = EngineConfig { step_tokens: 64, max_batch_rows: 8, ..EngineConfig::default() };
    // Requests end with 75 to 124 tokens, which take 5 to 8 of these blocks.
    let engine = start(mock().with_blocks(14), config);
    let clients = (0..50).map(|client| {
        let engine = engine.clone();
        tokio::spawn(async move {
            let mut session = session(&engine, &prompt(client % 7, 30 + client));
            run(&mut session, greedy(20)).await.unwrap();
            session.append(&prompt(client, 10), Origin::Environment, false);
            let (steps, finish) = run(&mut session, greedy(15)).await.unwrap();
            assert_eq!((steps.len(), finish), (15, TurnFinish::Length));
            check_text(&session);
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    wait_free(&engine).await;
    // Otherwise the pool was never short, and nothing was tested.
    assert!(engine.counters().evictions_total.get() + engine.counters().preemptions_total.get() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_at_random_moments_give_all_blocks_back() {
    let time = Duration::from_micros(200);
    let backend = mock().with_blocks(40).with_time(time, Duration::ZERO);
    let config = EngineConfig { step_tokens: 32, max_batch_rows: 8, max_waiting: 1000, ..EngineConfig::default() };
    let engine = start(backend, config);
    let mut clients = Vec::new();
    for client in 0..300u32 {
        let engine = engine.clone();
        clients.push(tokio::spawn(async move {
            let mut rng = ChaCha8Rng::seed_from_u64(u64::from(client));
            let mut session = session(&engine, &prompt(client % 5, rng.random_range(1..200)));
            // Dropped while it waits, in prefill, while decoding, parked or in its second turn.
            let life = Duration::from_micros(rng.next_u64() % 60_000);
            let _ = timeout(life, async {
                run(&mut session, greedy(20)).await.unwrap();
                sleep(Duration::from_millis(rng.next_u64() % 5)).await;
                session.append(&[65; 20], Origin::Environment, false);
                run(&mut session, greedy(20)).await.unwrap();
            })
            .await;
            check_text(&session);
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    wait_free(&engine).await;
    assert!(engine.counters().cancellations_total.get() > 0);
    let mut session = session(&engine, &prompt(1, 50));
    run(&mut session, greedy(10)).await.unwrap();
    check_text(&session);
}

#[tokio::test]
async fn a_dropped_session_is_gone_within_two_steps() {
    let time = Duration::from_millis(20);
    let engine = start(mock().with_time(time, Duration::ZERO), EngineConfig { step_tokens: 32, ..Default::default() });
    // 2,000 tokens take 63 steps of prefill, and 20 take one.
    for tokens in [2000, 20] {
        // In the middle of a prefill, then of a decode.
        let mut session = session(&engine, &prompt(3, tokens));
        let before = engine.counters().steps_total.get();
        let turn = session.generate(greedy(1000)).await.unwrap();
        eventually("it makes steps", || engine.counters().steps_total.get() > before + 4).await;
        assert!(engine.counters().blocks_used.get() > 0);
        drop(turn);
        drop(session);
        let at = engine.counters().steps_total.get();
        wait_free(&engine).await;
        assert!(engine.counters().steps_total.get() - at <= 2);
    }
    assert_eq!(engine.counters().cancellations_total.get(), 2);
}

#[tokio::test]
async fn a_parked_session_computes_nothing_twice() {
    let engine = start(mock(), EngineConfig::default());
    let mut session = session(&engine, &prompt(1, 100));
    let mut before = Vec::new();
    for turn in 0..4 {
        let (steps, finish) = run(&mut session, greedy(10)).await.unwrap();
        assert_eq!((steps.len(), finish), (10, TurnFinish::Length));
        let now = ids(&session);
        assert!(now.starts_with(&before), "turn {turn} changed what was there");
        session.append(&prompt(turn, 30), Origin::Environment, false);
        before = ids(&session);
    }
    check_text(&session);
    let counters = engine.counters();
    assert_eq!(counters.prefill_tokens_recomputed_total.get(), 0);
    // Each later turn computes what was appended and the last token sampled before.
    assert_eq!(counters.prefill_tokens_total.get(), 100 + 3 * 31);
    assert_eq!(counters.decode_tokens_total.get(), 40);
    assert_eq!(counters.prefix_cache_hit_tokens_total.get(), 0);
}

#[tokio::test]
async fn a_prompt_seen_before_comes_from_the_cache() {
    let engine = start(mock(), EngineConfig::default());
    let mut first = session(&engine, &prompt(1, 100));
    run(&mut first, greedy(30)).await.unwrap();
    assert_eq!(first.cached_prompt_tokens(), 0);
    drop(first);
    let mut again = session(&engine, &prompt(1, 100));
    run(&mut again, greedy(30)).await.unwrap();
    // Only whole blocks of 16 tokens are shared.
    assert_eq!(again.cached_prompt_tokens(), 96);
    // Sampled tokens are shared as well. The last block of a prompt that is fully cached is computed again.
    let mut longer = session(&engine, &ids(&again)[..128]);
    run(&mut longer, greedy(1)).await.unwrap();
    assert_eq!(longer.cached_prompt_tokens(), 112);
    assert_eq!(engine.counters().prefix_cache_hit_tokens_total.get(), 96 + 112);
    let mut stranger = engine.session(SessionOptions { salt: 5, ..SessionOptions::default() });
    stranger.append(&prompt(1, 100), Origin::Prompt, false);
    run(&mut stranger, greedy(5)).await.unwrap();
    assert_eq!(stranger.cached_prompt_tokens(), 0, "another tenant's cache is not to be found");
    [again, longer, stranger].iter().for_each(check_text);
}

#[tokio::test]
async fn choices_of_one_prompt_compute_it_once() {
    let backend = mock().with_time(Duration::from_millis(1), Duration::ZERO);
    let engine = start(backend, EngineConfig::default());
    let mut sessions: Vec<Session> = (0..4).map(|_| session(&engine, &prompt(1, 200))).collect();
    futures::future::join_all(sessions.iter_mut().map(|session| run(session, greedy(5)))).await;
    // The first computes all of it; each other one computes only the 8 tokens after the last whole block.
    assert_eq!(engine.counters().prefill_tokens_total.get(), 200 + 3 * 8);
    assert_eq!(sessions.iter().map(Session::cached_prompt_tokens).sum::<usize>(), 3 * 192);
}

/// Checks that a batch takes as many steps as a single sequence.
#[tokio::test]
async fn thirty_two_clients_take_the_steps_of_one() {
    const TOKENS: usize = 40;
    // All must arrive before one alone would have ended.
    let time = Duration::from_millis(30);
    let config = EngineConfig { max_batch_rows: 32, step_tokens: 1024, ..EngineConfig::default() };
    let engine = start(mock().with_time(time, Duration::ZERO), config);
    let mut alone = session(&engine, &prompt(0, 20));
    run(&mut alone, greedy(TOKENS)).await.unwrap();
    let one = engine.counters().steps_total.get();
    let mut crowd: Vec<Session> = (0..32).map(|first| session(&engine, &prompt(first, 20))).collect();
    let ends = futures::future::join_all(crowd.iter_mut().map(|session| run(session, greedy(TOKENS)))).await;
    assert!(ends.into_iter().all(|end| end.unwrap().0.len() == TOKENS));
    let many = engine.counters().steps_total.get() - one;
    // Twice as many, because not all arrive in the same step.
    assert!(many <= 2 * one, "{many} steps for 32 of them, {one} for one");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_between_passes_is_told_apart_from_their_own_and_from_rest() {
    let time = Duration::from_millis(80);
    for backend in [mock(), mock().with_overlap()] {
        let engine = start(backend.with_time(time, Duration::ZERO), EngineConfig::default());
        let mut session = session(&engine, &prompt(1, 20));
        for _ in 0..2 {
            run(&mut session, greedy(6)).await.unwrap();
            session.append(&prompt(2, 3), Origin::Environment, false);
            sleep(4 * time).await;
        }
        let counters = engine.counters();
        let gaps = counters.gap_seconds.snapshot();
        let steps = counters.steps_total.get();
        // The first pass of a turn comes after a rest.
        assert_eq!(gaps.count(), steps - 2);
        assert!(gaps.sum < time.as_secs_f64() * (steps - 2) as f64, "{gaps:?}");
        assert!(counters.step_seconds.snapshot().sum >= time.as_secs_f64() * steps as f64);
    }
}

#[tokio::test]
async fn a_snapshot_tells_who_holds_what() {
    let backend = mock().with_time(Duration::from_millis(20), Duration::ZERO);
    // One row, so the second session has to wait.
    let engine = start(backend, EngineConfig { max_batch_rows: 1, ..EngineConfig::default() });
    let mut first = session(&engine, &prompt(1, 40));
    let mut second = session(&engine, &prompt(2, 40));
    let mut turn = first.generate(greedy(500)).await.unwrap();
    turn.next().await.unwrap().unwrap();
    let waiting = second.generate(greedy(5)).await.unwrap();
    let snapshot = engine.snapshot().await.unwrap();
    let states: Vec<_> = snapshot.sessions.iter().map(|session| (session.id, session.state)).collect();
    assert_eq!(states, [(0, SessionState::Running), (1, SessionState::Waiting)]);
    let running = &snapshot.sessions[0];
    assert!(running.sampled > 0 && running.tokens == 40 + running.sampled && running.blocks >= 3);
    assert_eq!(snapshot.blocks.free + snapshot.blocks.cached + snapshot.blocks.used, snapshot.blocks.total);
    drop((turn, waiting));
    drop((first, second));
    wait_free(&engine).await;
    assert!(engine.snapshot().await.unwrap().sessions.is_empty());
    engine.shutdown().await;
    assert!(matches!(engine.snapshot().await.unwrap_err(), EngineError::Dead(_)));
}

#[tokio::test]
async fn a_full_queue_refuses_new_sessions_only() {
    let backend = mock().with_time(Duration::from_millis(20), Duration::ZERO);
    let config = EngineConfig { max_batch_rows: 1, max_waiting: 2, ..EngineConfig::default() };
    let engine = start(backend, config);
    let mut sessions: Vec<Session> = (0..4).map(|first| session(&engine, &prompt(first, 20))).collect();
    let [a, b, c, d] = &mut sessions[..] else { unreachable!() };
    let mut running = a.generate(greedy(100)).await.unwrap();
    running.next().await.unwrap().unwrap();
    let waiting = (b.generate(greedy(1)).await.unwrap(), c.generate(greedy(1)).await.unwrap());
    assert_eq!(d.generate(greedy(1)).await.unwrap_err(), EngineError::QueueFull { limit: 2 });
    drop(waiting);
    while running.next().await.is_some() {}
    drop(running);
    // A later turn of an admitted session is never refused.
    let _full = (b.generate(greedy(50)).await.unwrap(), c.generate(greedy(50)).await.unwrap());
    a.append(&[65], Origin::Environment, false);
    run(a, greedy(1)).await.unwrap();
}

#[tokio::test]
async fn requests_without_meaning_are_refused_and_change_nothing() {
    // Four blocks of 16 tokens are all of the context.
    let engine = start(mock().with_blocks(4), EngineConfig::default());
    let refusal = async |session: &mut Session, generate: Generate| session.generate(generate).await.unwrap_err();
    let mut empty = engine.session(SessionOptions::default());
    assert!(matches!(refusal(&mut empty, greedy(5)).await, EngineError::Request(_)));
    let mut long = session(&engine, &prompt(0, 64));
    assert_eq!(refusal(&mut long, greedy(5)).await, EngineError::TooLong { tokens: 64, limit: 64 });
    let mut session = session(&engine, &prompt(0, 60));
    assert!(refusal(&mut session, greedy(0)).await.to_string().contains("max_tokens"));
    let nothing = Generate { allow: Some(vec![9999]), ..greedy(5) };
    assert!(refusal(&mut session, nothing).await.to_string().contains("allow-list"));
    let senseless = Generate { sampling: SamplingParams { top_p: -1.0, ..Default::default() }, ..greedy(5) };
    assert!(refusal(&mut session, senseless).await.to_string().contains("top_p"));
    let (steps, finish) = run(&mut session, greedy(50)).await.unwrap();
    assert_eq!((steps.len(), finish), (4, TurnFinish::Context), "the pool holds 64 tokens");
    session.append(&[9999], Origin::Environment, false);
    assert!(matches!(refusal(&mut session, greedy(1)).await, EngineError::Request(_)));
}

#[tokio::test]
async fn a_slow_reader_pauses_its_own_session_and_no_other() {
    let config = EngineConfig { max_undelivered: 8, max_batch_rows: 2, ..EngineConfig::default() };
    let engine = start(mock(), config);
    let mut slow: Vec<Session> = (0..3).map(|first| session(&engine, &prompt(first, 20))).collect();
    let mut turns = Vec::new();
    for session in &mut slow {
        turns.push(session.generate(greedy(500)).await.unwrap());
    }
    eventually("all sessions stall", || engine.counters().sessions_stalled.get() == 3).await;
    // Each stopped at its maximum of undelivered tokens.
    assert_eq!(engine.counters().decode_tokens_total.get(), 3 * 8);
    let mut quick = session(&engine, &prompt(9, 20));
    assert_eq!(run(&mut quick, greedy(100)).await.unwrap().0.len(), 100);
    for turn in &mut turns {
        let mut steps = 0;
        while let Some(step) = turn.next().await {
            step.unwrap();
            steps += 1;
        }
        assert_eq!((steps, turn.finish()), (500, Some(TurnFinish::Length)));
    }
    drop(turns);
    slow.iter().for_each(check_text);
}

#[tokio::test]
async fn shutdown_ends_open_turns_with_an_error() {
    let backend = mock().with_time(Duration::from_millis(2), Duration::ZERO);
    let engine = start(backend, EngineConfig::default());
    let mut session = session(&engine, &prompt(1, 50));
    let mut turn = session.generate(greedy(10_000)).await.unwrap();
    turn.next().await.unwrap().unwrap();
    engine.shutdown().await;
    assert!(matches!(engine.health(), Health::Dead { .. }));
    let mut last = None;
    while let Some(step) = turn.next().await {
        last = Some(step);
    }
    assert!(matches!(last, Some(Err(EngineError::Dead(_)))));
    engine.shutdown().await;
}
