//! The engine over an asynchronous backend that samples tokens itself, as a GPU does.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use tokio::time::timeout;
use waymark_engine::mock::Random;
use waymark_engine::{
    Engine, EngineConfig, EngineError, Generate, Health, MockBackend, Origin, RecordedSteps, Session, SessionOptions,
};
use waymark_models::sampler::SamplingParams;
use waymark_models::tokenizer::Tokenizer;

const VOCAB: usize = 259;
const PATIENCE: Duration = Duration::from_secs(60);

fn device() -> MockBackend {
    MockBackend::random(7, VOCAB).with_overlap().with_time(Duration::from_micros(200), Duration::ZERO)
}

fn start(backend: MockBackend, config: EngineConfig) -> Engine {
    Engine::start(Box::new(backend), config, Tokenizer::bytes().table()).unwrap()
}

async fn run(session: &mut Session, generate: Generate) -> Result<usize, EngineError> {
    let mut turn = session.generate(generate).await?;
    let mut steps = 0;
    while let Some(step) = timeout(PATIENCE, turn.next()).await.expect("the engine hangs") {
        assert!(step?.logprob <= 0.0);
        steps += 1;
    }
    Ok(steps)
}

fn check_text(session: &Session) {
    let random = Random { seed: 7, vocab: VOCAB };
    let ids: Vec<u32> = session.tokens().iter().map(|token| token.id).collect();
    for (position, token) in session.tokens().iter().enumerate().filter(|(_, token)| token.origin == Origin::Policy) {
        assert_eq!(token.id, random.next(None, &ids[..position]), "at {position}");
    }
}

/// Sampling parameters of every kind: those that the device samples itself, and those that it leaves to the engine.
fn sampling(number: usize) -> SamplingParams {
    match number % 4 {
        0 => SamplingParams::greedy(),
        1 => SamplingParams { seed: number as u64, top_p: 0.9, ..SamplingParams::default() },
        2 => SamplingParams { top_logprobs: 2, ..SamplingParams::greedy() },
        _ => SamplingParams { presence_penalty: 0.1, ..SamplingParams::default() },
    }
}

#[tokio::test]
async fn sessions_come_and_go_while_a_device_works() {
    let engine = start(device().with_blocks(64), EngineConfig { max_batch_rows: 8, ..EngineConfig::default() });
    let running: Vec<_> = (0..32usize)
        .map(|number| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let mut session = engine.session(SessionOptions::default());
                let prompt: Vec<u32> = (0..20 + number as u32).map(|at| (number as u32 % 5 * 31 + at) % 256).collect();
                session.append(&prompt, Origin::Prompt, false);
                for turn in 0..3 {
                    let generate = Generate {
                        sampling: sampling(number),
                        max_tokens: 12,
                        ignore_eos: true,
                        ..Generate::default()
                    };
                    if number % 7 == 3 && turn == 1 {
                        // The reader leaves after one token, and the session continues from what was delivered.
                        let mut turn = session.generate(generate).await.unwrap();
                        timeout(PATIENCE, turn.next()).await.expect("the engine hangs").unwrap().unwrap();
                    } else {
                        assert_eq!(run(&mut session, generate).await.unwrap(), 12);
                    }
                    session.append(&[65, 66, 67], Origin::Environment, false);
                }
                check_text(&session);
            })
        })
        .collect();
    for one in running {
        one.await.unwrap();
    }
    assert_eq!(engine.counters().invariant_violations_total.get(), 0);
    assert_eq!(engine.counters().step_failures_total.get(), 0);
    engine.shutdown().await;
}

#[tokio::test]
async fn a_device_that_is_lost_turns_the_engine_red_at_once() {
    let backend = device();
    backend.faults().lost_from(5);
    let engine = start(backend, EngineConfig::default());
    let mut sessions: Vec<Session> = (0..3)
        .map(|number| {
            let mut session = engine.session(SessionOptions::default());
            session.append(&[number, 1, 2], Origin::Prompt, false);
            session
        })
        .collect();
    for session in &mut sessions {
        let generate = Generate { sampling: SamplingParams::greedy(), max_tokens: 50, ..Generate::default() };
        assert!(matches!(run(session, generate).await.unwrap_err(), EngineError::Dead(_)));
    }
    assert!(matches!(engine.health(), Health::Dead { reason } if reason.contains("fell off its bus")));
    assert_eq!(engine.counters().step_failures_total.get(), 1, "nobody tries again on a device that is gone");
}

#[tokio::test]
async fn a_device_that_hangs_is_given_up_and_never_waited_for_again() {
    let limit = Duration::from_millis(100);
    let backend = device().with_limit(limit);
    backend.faults().hang_from(5);
    let engine = start(backend, EngineConfig::default());
    let generate = || Generate { sampling: SamplingParams::greedy(), max_tokens: 50, ..Generate::default() };
    let mut sessions: Vec<Session> = (0..3).map(|_| engine.session(SessionOptions::default())).collect();
    let waiting = sessions.iter_mut().zip(0..).map(|(session, number)| {
        session.append(&[number, 1, 2], Origin::Prompt, false);
        run(session, generate())
    });
    for ended in futures::future::join_all(waiting).await {
        assert!(matches!(ended, Err(EngineError::Dead(reason)) if reason.contains("did not finish within 100ms")));
    }
    assert!(matches!(engine.health(), Health::Dead { reason } if reason.contains("did not finish")));
    assert_eq!(engine.counters().step_failures_total.get(), 1, "nobody tries again on a device that hangs");
    // Turns are refused at once, and the thread ends without freeing the device's memory, which would take forever.
    assert!(matches!(run(&mut sessions[0], generate()).await, Err(EngineError::Dead(_))));
    timeout(PATIENCE, engine.shutdown()).await.expect("shutting down waits for the device");
}

#[tokio::test]
async fn what_a_device_could_not_record_is_counted() {
    let backend = device().with_recorded_steps(RecordedSteps { recorded: 11, refused: 2 });
    let engine = start(backend, EngineConfig::default());
    let mut session = engine.session(SessionOptions::default());
    session.append(&[1, 2, 3], Origin::Prompt, false);
    run(&mut session, Generate { max_tokens: 3, ignore_eos: true, ..Generate::default() }).await.unwrap();
    let counters = engine.counters();
    assert_eq!((counters.graph_recordings_total.get(), counters.graph_refusals_total.get()), (11, 2), "once each");
}

#[tokio::test]
async fn one_bad_request_fails_alone_beside_a_device() {
    let backend = device();
    backend.faults().panic_on(257);
    backend.faults().nan_on(258);
    let engine = start(backend, EngineConfig::default());
    let mut good = engine.session(SessionOptions::default());
    good.append(&[1, 2, 3], Origin::Prompt, false);
    let greedy = |max_tokens| Generate {
        sampling: SamplingParams::greedy(),
        max_tokens,
        ignore_eos: true,
        ..Generate::default()
    };
    let healthy = tokio::spawn(async move { (run(&mut good, greedy(200)).await, good) });
    for poison in [257, 258, 257] {
        let mut bad = engine.session(SessionOptions::default());
        bad.append(&[65, poison], Origin::Prompt, false);
        assert!(run(&mut bad, greedy(5)).await.is_err());
    }
    let (result, good) = healthy.await.unwrap();
    assert_eq!(result.unwrap(), 200);
    check_text(&good);
    assert_eq!(engine.health(), Health::Ready);
}
