//! Adapters and weights that change while the engine runs.

use std::path::Path;
use std::time::Duration;

use waymark_engine::{EngineConfig, EngineError, Health, Origin, SessionOptions};
use waymark_models::weights::Weights;

use crate::{check_text, greedy, mock, prompt, run, session, start};

#[tokio::test]
async fn an_adapter_that_panics_when_it_is_loaded_concerns_nobody_else() {
    let backend = mock().with_time(Duration::from_millis(1), Duration::ZERO);
    let faults = backend.faults();
    let engine = start(backend, EngineConfig::default());
    let dir = tempfile::tempdir().unwrap();
    faults.panic_on_load(true);
    let mut session = session(&engine, &prompt(1, 40));
    let (end, refused) = tokio::join!(run(&mut session, greedy(30)), engine.load_adapter(dir.path().into()));
    assert_eq!(end.unwrap().0.len(), 30);
    assert!(matches!(refused.unwrap_err(), EngineError::Adapter(reason) if reason.contains("panic")));
    faults.panic_on_load(false);
    assert!(engine.load_adapter(dir.path().into()).await.is_ok());
    assert_eq!(engine.health(), Health::Ready);
}

#[tokio::test]
async fn an_adapter_that_panics_when_it_is_unloaded_concerns_nobody_else() {
    let backend = mock().with_time(Duration::from_millis(1), Duration::ZERO);
    let faults = backend.faults();
    let engine = start(backend, EngineConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let adapter = engine.load_adapter(dir.path().into()).await.unwrap();
    faults.panic_on_unload(true);
    let mut running = session(&engine, &prompt(1, 40));
    let unload = async || engine.unload_adapter(adapter);
    let (end, ()) = tokio::join!(run(&mut running, greedy(30)), unload());
    assert_eq!(end.unwrap().0.len(), 30);
    check_text(&running);
    assert!(engine.snapshot().await.unwrap().adapters.is_empty(), "it is open to no further turn");
    // The last session of a retired adapter unloads it when it closes.
    faults.panic_on_unload(false);
    let other = engine.load_adapter(dir.path().into()).await.unwrap();
    let mut session = engine.session(SessionOptions { adapter: Some(other), ..SessionOptions::default() });
    session.append(&prompt(1, 50), Origin::Prompt, false);
    run(&mut session, greedy(5)).await.unwrap();
    faults.panic_on_unload(true);
    engine.unload_adapter(other);
    drop(session);
    assert!(engine.snapshot().await.unwrap().adapters.is_empty());
    assert!(engine.load_adapter(dir.path().into()).await.is_ok());
    assert_eq!(engine.health(), Health::Ready);
}

#[tokio::test]
async fn an_adapter_that_has_come_when_nobody_waits_any_more_is_unloaded() {
    let engine = start(mock(), EngineConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let mut loading = Box::pin(engine.lease_adapter(dir.path().into()));
    // Commands run in order: once this snapshot is taken, the adapter is loaded and its reply has been sent.
    let begun = futures::poll!(&mut loading);
    assert_eq!(engine.snapshot().await.unwrap().adapters.len(), 1);
    drop((begun, loading));
    assert!(engine.snapshot().await.unwrap().adapters.is_empty());
    assert!(engine.lease_adapter(dir.path().into()).await.is_ok());
}

#[tokio::test]
async fn an_adapter_that_is_replaced_leaves_no_cache_behind() {
    let engine = start(mock(), EngineConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let old = engine.load_adapter(dir.path().into()).await.unwrap();
    let with = |adapter| {
        let mut session = engine.session(SessionOptions { adapter: Some(adapter), ..SessionOptions::default() });
        session.append(&prompt(1, 50), Origin::Prompt, false);
        session
    };
    let mut user = with(old);
    run(&mut user, greedy(5)).await.unwrap();
    engine.unload_adapter(old);
    assert!(matches!(run(&mut with(old), greedy(5)).await.unwrap_err(), EngineError::Adapter(_)));
    // Still used: the slot is not given to the next one.
    let next = engine.load_adapter(dir.path().into()).await.unwrap();
    assert_ne!(old.slot, next.slot);
    drop(user);
    let third = engine.load_adapter(dir.path().into()).await.unwrap();
    assert_eq!(third.slot, old.slot, "given back with its last session");
    let mut user = with(third);
    run(&mut user, greedy(5)).await.unwrap();
    assert_eq!(user.cached_prompt_tokens(), 0, "same slot, other generation");
    let mut again = with(third);
    run(&mut again, greedy(5)).await.unwrap();
    assert_eq!(again.cached_prompt_tokens(), 48);
}

#[tokio::test]
async fn a_backend_that_takes_no_other_weights_says_so_and_goes_on() {
    let fixture = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/tests/fixtures/decoder/qwen3"));
    let weights = Weights::open(fixture).unwrap();
    let engine = start(mock(), EngineConfig::default());
    let mut first = session(&engine, &prompt(1, 50));
    run(&mut first, greedy(5)).await.unwrap();
    drop(first);
    let refused = engine.replace_weights(weights).await.unwrap_err();
    assert!(
        matches!(&refused, EngineError::Weights(reason) if reason.starts_with("mock: this backend cannot replace its weights")),
        "{refused}"
    );
    let mut again = session(&engine, &prompt(1, 50));
    run(&mut again, greedy(5)).await.unwrap();
    assert_eq!(again.cached_prompt_tokens(), 48, "of the same weights still");
    check_text(&again);
}
