//! Fingerprints of policies on engines elsewhere.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use waymark_agent::{Generator, LoadedBase, Policy, SessionSource};
use waymark_engine::mock::Random;
use waymark_engine::{EngineError, Health, Origin, SessionOptions};
use waymark_runtime::config::FleetConfig;
use waymark_runtime::fleet::Fleet;

use super::stub::{Stub, StubFault};
use super::{SEED, Turn, VOCAB, config, connect, opened, run, spec, undisturbed};
use crate::harness::eventually;

/// Sequence of the fingerprints, shorter than the probe of the identity check.
const IDS: [u32; 8] = [3, 1, 4, 1, 5, 9, 2, 6];

/// Writes a policy whose fingerprint is that of the stub's weights, shifted by `shift`.
fn policy(root: &Path, name: &str, shift: f64) -> PathBuf {
    let random = Random { seed: SEED, vocab: VOCAB };
    let logprobs: Vec<f64> =
        (1..IDS.len()).map(|at| (f64::from(random.next(None, &IDS[..=at]) % 50) / -10.0 + shift).min(0.0)).collect();
    let dir = root.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let text =
        format!("name = \"{name}\"\nprotocol = \"plain\"\n[fingerprint]\nids = {IDS:?}\nlogprobs = {logprobs:?}\n");
    std::fs::write(dir.join("policy.toml"), text).unwrap();
    dir
}

/// Writes a policy with an adapter.
fn adapted(root: &Path, name: &str, shift: f64) -> PathBuf {
    let dir = policy(root, name, shift);
    std::fs::write(dir.join("adapter_config.json"), "{}").unwrap();
    std::fs::write(dir.join("adapter_model.safetensors"), name).unwrap();
    dir
}

/// Runs a turn of a policy.
async fn ask(fleet: &Fleet, policy: &Policy) -> Turn {
    let mut session = fleet.open(SessionOptions { adapter: policy.adapter(), ..SessionOptions::default() });
    session.append(&[1, 2], Origin::Prompt, false);
    run(&mut session, spec(3)).await
}

#[tokio::test]
async fn other_weights_than_the_policys_are_named_at_its_loading() {
    let temp = tempfile::tempdir().unwrap();
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let base = LoadedBase::default();
    assert!(Policy::load(&policy(temp.path(), "good", 0.0), &fleet, &base).await.is_ok());
    let refused = Policy::load(&policy(temp.path(), "bad", -0.4), &fleet, &base).await.unwrap_err().to_string();
    assert!(refused.contains("not those of the policy bad") && refused.contains("differ by 0.400"), "{refused}");
    assert!(!refused.contains("127.0.0.1"), "{refused}");
    let wide = policy(temp.path(), "wide", -0.4);
    let text = std::fs::read_to_string(wide.join("policy.toml")).unwrap();
    std::fs::write(wide.join("policy.toml"), format!("{text}tolerance = 0.5\n")).unwrap();
    assert!(Policy::load(&wide, &fleet, &base).await.is_ok());
}

#[tokio::test]
async fn an_engine_that_comes_back_with_other_weights_stays_out() {
    let temp = tempfile::tempdir().unwrap();
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let served = Policy::load(&policy(temp.path(), "mine", 0.0), &fleet, &LoadedBase::default()).await.unwrap();
    // The probe of the identity check does not tell these weights apart.
    *stub.state.drift.lock().unwrap() = -1.0;
    stub.fail([StubFault::Cut(0)]);
    let turn = run(&mut opened(&fleet, &[1, 2]), spec(3)).await;
    let Some(EngineError::Unavailable(message)) = turn.error else { panic!("{turn:?}") };
    assert!(message.contains("not those of the policy mine"), "{message}");
    assert!(matches!(fleet.health(), Health::Dead { .. }));
    // Without the policy, its fingerprint is no longer required.
    drop(served);
    eventually("the engine is used again", || fleet.health() == Health::Ready).await;
    assert_eq!(run(&mut opened(&fleet, &[1, 2]), spec(3)).await.ids(), undisturbed(&[1, 2], 3));
}

#[tokio::test]
async fn an_engine_that_is_restarted_between_two_requests_is_compared_before_the_next_one() {
    let temp = tempfile::tempdir().unwrap();
    let mut stub = Stub::start().await;
    let mut config = config("vllm", &[&stub.url()]);
    config.timeouts.closed = Duration::ZERO;
    let fleet = connect(&config).await.unwrap();
    let _served = Policy::load(&policy(temp.path(), "mine", 0.0), &fleet, &LoadedBase::default()).await.unwrap();
    for (drift, fits) in [(0.0, true), (-1.0, false)] {
        *stub.state.drift.lock().unwrap() = drift;
        stub.kill().await;
        stub.serve().await;
        let turn = run(&mut opened(&fleet, &[1, 2]), spec(3)).await;
        assert_eq!(turn.error.is_none(), fits, "{turn:?}");
    }
}

#[tokio::test]
async fn an_adapter_is_compared_whenever_it_is_loaded() {
    let temp = tempfile::tempdir().unwrap();
    let mut stub = Stub::start().await;
    let root = temp.path().join("published");
    let fleet = connect(&FleetConfig { adapters: Some(root), ..config("vllm", &[&stub.url()]) }).await.unwrap();
    let adapted = |name: &str, shift: f64| adapted(temp.path(), name, shift);
    let base = LoadedBase::default();
    let refused = Policy::load(&adapted("bad", -0.4), &fleet, &base).await.unwrap_err().to_string();
    assert!(refused.contains("not those of the policy bad"), "{refused}");
    eventually("it is unloaded", || stub.state.adapters.lock().unwrap().is_empty()).await;
    let served = Policy::load(&adapted("good", 0.0), &fleet, &base).await.unwrap();
    let ask = async || ask(&fleet, &served).await;
    assert_eq!(ask().await.ids(), undisturbed(&[1, 2], 3));
    // A restarted engine gets the adapter again, and computes something else with it.
    *stub.state.drift.lock().unwrap() = -1.0;
    stub.kill().await;
    stub.serve().await;
    let turn = ask().await;
    let Some(EngineError::Unavailable(message)) = &turn.error else { panic!("{turn:?}") };
    assert!(message.contains("not those of the policy good"), "{message}");
    // The engine continues with all other requests, without this adapter.
    assert_eq!(fleet.health(), Health::Ready);
    assert_eq!(run(&mut opened(&fleet, &[1, 2]), spec(3)).await.ids(), undisturbed(&[1, 2], 3));
    assert!(stub.state.adapters.lock().unwrap().is_empty());
    *stub.state.drift.lock().unwrap() = 0.0;
    assert_eq!(ask().await.ids(), undisturbed(&[1, 2], 3));
}

#[tokio::test]
async fn an_adapter_that_differs_at_one_engine_is_used_at_another() {
    let temp = tempfile::tempdir().unwrap();
    let mut stubs = [Stub::start().await, Stub::start().await];
    let urls = stubs.each_ref().map(Stub::url);
    let config = config("vllm", &urls.each_ref().map(String::as_str));
    let fleet = connect(&FleetConfig { adapters: Some(temp.path().join("published")), ..config }).await.unwrap();
    let served = Policy::load(&adapted(temp.path(), "mine", 0.0), &fleet, &LoadedBase::default()).await.unwrap();
    *stubs[0].state.drift.lock().unwrap() = -1.0;
    stubs[0].kill().await;
    stubs[0].serve().await;
    let turn = ask(&fleet, &served).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&[1, 2], 3)), "{turn:?}");
    assert_eq!(fleet.remote_counters().engines_usable.get(), 2);
    assert!(stubs[0].state.adapters.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_engine_that_was_busy_is_compared_before_its_next_request() {
    let temp = tempfile::tempdir().unwrap();
    let stub = Stub::start().await;
    let root = temp.path().join("published");
    let fleet = connect(&FleetConfig { adapters: Some(root), ..config("vllm", &[&stub.url()]) }).await.unwrap();
    let base = LoadedBase::default();
    let load = async |dir: PathBuf| {
        stub.state.busy.store(1, SeqCst);
        let loaded = Policy::load(&dir, &fleet, &base).await.unwrap();
        assert_eq!(stub.state.busy.load(SeqCst), 0);
        loaded
    };
    let differs = |turn: Turn, name: &str| {
        let Some(EngineError::Unavailable(message)) = &turn.error else { panic!("{turn:?}") };
        assert!(message.contains(&format!("not those of the policy {name}")), "{message}");
    };
    let good = load(adapted(temp.path(), "good", 0.0)).await;
    let bad = load(adapted(temp.path(), "bad", -0.4)).await;
    assert_eq!(ask(&fleet, &good).await.ids(), undisturbed(&[1, 2], 3));
    differs(ask(&fleet, &bad).await, "bad");
    assert_eq!(stub.state.adapters.lock().unwrap().len(), 1);
    // An adapter that was never compared is unloaded, too.
    let unused = load(adapted(temp.path(), "unused", 0.0)).await;
    assert_eq!(stub.state.adapters.lock().unwrap().len(), 2);
    drop(unused);
    eventually("it is unloaded", || stub.state.adapters.lock().unwrap().len() == 1).await;
    let _base = load(policy(temp.path(), "base", -0.4)).await;
    differs(run(&mut opened(&fleet, &[1, 2]), spec(3)).await, "base");
}

#[tokio::test]
async fn requests_that_arrive_together_share_one_check() {
    let temp = tempfile::tempdir().unwrap();
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    stub.state.busy.store(1, SeqCst);
    let _served = Policy::load(&policy(temp.path(), "mine", 0.0), &fleet, &LoadedBase::default()).await.unwrap();
    let before = stub.state.tokenized.load(SeqCst);
    let turns = futures::future::join_all((0..8).map(async |_| run(&mut opened(&fleet, &[1, 2]), spec(3)).await)).await;
    assert!(turns.iter().all(|turn| turn.ids() == undisturbed(&[1, 2], 3)), "{turns:?}");
    assert_eq!(stub.state.tokenized.load(SeqCst) - before, 1);
}
