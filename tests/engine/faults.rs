//! Faults of the backend: each concerns one session, and only lasting ones end the engine.

use std::time::Duration;

use waymark_engine::{EngineConfig, EngineError, Health, Session};

use crate::{check_text, eventually, greedy, mock, prompt, run, session, start, wait_free};

#[tokio::test]
async fn logits_that_are_no_numbers_fail_one_session() {
    let backend = mock().with_time(Duration::from_millis(1), Duration::ZERO);
    // The mock never samples this token, so only the bad prompt holds it.
    backend.faults().nan_on(257);
    let engine = start(backend, EngineConfig::default());
    let mut good = session(&engine, &prompt(1, 40));
    let mut bad = session(&engine, &[prompt(1, 40), vec![257, 5]].concat());
    let (good_end, bad_end) = tokio::join!(run(&mut good, greedy(30)), run(&mut bad, greedy(30)));
    assert_eq!(good_end.unwrap().0.len(), 30);
    assert!(matches!(bad_end.unwrap_err(), EngineError::Sample(_)));
    check_text(&good);
    assert_eq!(engine.health(), Health::Ready);
    drop((good, bad));
    wait_free(&engine).await;
}

#[tokio::test]
async fn what_a_failed_session_computed_is_not_shared() {
    let backend = mock();
    backend.faults().nan_on(257);
    let engine = start(backend, EngineConfig::default());
    let mut bad = session(&engine, &[prompt(1, 64), vec![257]].concat());
    assert!(run(&mut bad, greedy(5)).await.is_err());
    let mut other = session(&engine, &prompt(1, 64));
    run(&mut other, greedy(5)).await.unwrap();
    assert_eq!(other.cached_prompt_tokens(), 0);
}

#[tokio::test]
async fn a_panic_in_a_step_fails_only_the_row_that_causes_it() {
    // Slow enough for all to arrive before the first of them has ended.
    let backend = mock().with_time(Duration::from_millis(20), Duration::ZERO);
    let faults = backend.faults();
    faults.panic_on(257);
    faults.panic_at(15);
    let engine = start(backend, EngineConfig::default());
    let mut good: Vec<Session> = (0..3).map(|first| session(&engine, &prompt(first, 40))).collect();
    let mut bad = session(&engine, &[65, 66, 257]);
    let all = futures::future::join_all(good.iter_mut().map(|session| run(session, greedy(20))));
    let (good_ends, bad_end) = tokio::join!(all, run(&mut bad, greedy(20)));
    assert!(good_ends.into_iter().all(|end| end.unwrap().0.len() == 20));
    assert!(matches!(bad_end.unwrap_err(), EngineError::Backend(_)));
    good.iter().for_each(check_text);
    assert_eq!(engine.counters().step_failures_total.get(), 3, "one batch, its bad row alone, and the fifteenth pass");
    assert_eq!(engine.counters().turn_failures_total.get(), 1);
    // The failed session still exists and can continue. No token has this ID, so no later pass panics.
    faults.panic_on(u32::MAX);
    run(&mut bad, greedy(5)).await.unwrap();
    check_text(&bad);
}

#[tokio::test]
async fn a_request_that_always_fails_does_not_kill_the_engine() {
    let backend = mock();
    backend.faults().panic_on(257);
    backend.faults().nan_on(258);
    let engine = start(backend, EngineConfig::default());
    // Far more than the three failed steps after which an engine is dead.
    for poison in [257, 258].into_iter().cycle().take(20) {
        assert!(run(&mut session(&engine, &[65, poison]), greedy(5)).await.is_err());
    }
    let mut good = session(&engine, &prompt(1, 20));
    assert_eq!(run(&mut good, greedy(5)).await.unwrap().0.len(), 5);
    assert_eq!(engine.health(), Health::Ready);
}

#[tokio::test]
async fn an_engine_that_only_fails_is_dead_and_says_so() {
    let backend = mock();
    backend.faults().broken_from(5);
    let engine = start(backend, EngineConfig::default());
    let mut first = session(&engine, &prompt(0, 20));
    let mut parked = session(&engine, &prompt(1, 20));
    run(&mut parked, greedy(1)).await.unwrap();
    assert!(matches!(run(&mut first, greedy(100)).await.unwrap_err(), EngineError::Backend(_)));
    // With the turn above, these are three failures in a row.
    for _ in 0..2 {
        assert!(run(&mut first, greedy(100)).await.is_err());
    }
    eventually("the engine is dead", || engine.health() != Health::Ready).await;
    assert!(matches!(engine.health(), Health::Dead { reason } if reason.contains("3 consecutive steps")));
    assert!(matches!(run(&mut parked, greedy(1)).await.unwrap_err(), EngineError::Dead(_)));
    assert!(matches!(engine.load_adapter("here".into()).await.unwrap_err(), EngineError::Dead(_)));
}
