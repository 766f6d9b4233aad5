//! Adapters on engines elsewhere.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;

use waymark_agent::{Generator, SessionSource};
use waymark_engine::{EngineError, Lease, Origin, SessionOptions};
use waymark_runtime::config::FleetConfig;
use waymark_runtime::fleet::Fleet;

use super::stub::{RouteFault, Stub};
use super::{Turn, config, connect, run, spec, undisturbed};
use crate::harness::eventually;

fn adapter(root: &Path, name: &str, weights: &str) -> PathBuf {
    let dir = root.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("adapter_config.json"), "{}").unwrap();
    std::fs::write(dir.join("adapter_model.safetensors"), weights).unwrap();
    dir
}

/// Runs a turn with an adapter.
async fn ask(fleet: &Fleet, lease: &Lease) -> Turn {
    let mut session = fleet.open(SessionOptions { adapter: Some(lease.adapter()), ..SessionOptions::default() });
    session.append(&[1, 2], Origin::Prompt, false);
    run(&mut session, spec(3)).await
}

#[tokio::test]
async fn a_generation_of_weights_has_its_own_name_and_path_until_its_last_lease() {
    let temp = tempfile::tempdir().unwrap();
    let mut stub = Stub::start().await;
    let root = temp.path().join("published");
    let fleet = connect(&FleetConfig { adapters: Some(root.clone()), ..config("vllm", &[&stub.url()]) }).await.unwrap();
    let first = fleet.lease_adapter(adapter(temp.path(), "pol", "one")).await.unwrap();
    let second = fleet.lease_adapter(adapter(temp.path(), "pol", "two")).await.unwrap();
    let loaded = stub.state.adapters.lock().unwrap().clone();
    assert_eq!(loaded.len(), 2, "{loaded:?}");
    assert!(loaded.iter().all(|(name, path)| name.starts_with("pol@") && path.starts_with(root.to_str().unwrap())));
    for lease in [&first, &second] {
        assert_eq!(ask(&fleet, lease).await.ids(), undisturbed(&[1, 2], 3));
    }
    let models: Vec<String> =
        stub.streamed().iter().map(|(_, body)| body["model"].as_str().unwrap().to_owned()).collect();
    assert!(models[0] != models[1] && loaded.contains_key(&models[0]) && loaded.contains_key(&models[1]));
    // A restarted engine has lost the adapter, and gets it again with the next request.
    stub.kill().await;
    stub.serve().await;
    let turn = ask(&fleet, &second).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&[1, 2], 3)), "{turn:?}");
    assert!(!turn.resumed.is_empty());
    drop(second);
    eventually("it is unloaded", || stub.state.adapters.lock().unwrap().is_empty()).await;
    drop(first);
}

#[tokio::test]
async fn an_engine_that_is_away_gets_an_adapter_with_its_next_request() {
    let temp = tempfile::tempdir().unwrap();
    let [mut first, mut second] = [Stub::start().await, Stub::start().await];
    let adapters = Some(temp.path().join("published"));
    let config = FleetConfig { adapters, ..config("vllm", &[&first.url(), &second.url()]) };
    let fleet = connect(&config).await.unwrap();
    second.kill().await;
    let lease = fleet.lease_adapter(adapter(temp.path(), "pol", "one")).await.unwrap();
    assert_eq!(first.state.adapters.lock().unwrap().len(), 1);
    assert!(second.state.adapters.lock().unwrap().is_empty());
    second.serve().await;
    eventually("it is back", || fleet.remote_counters().engines_usable.get() == 2).await;
    first.kill().await;
    let turn = ask(&fleet, &lease).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&[1, 2], 3)), "{turn:?}");
    assert_eq!(second.state.adapters.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn an_adapter_that_one_engine_cannot_load_is_used_at_another() {
    for status in [404, 403, 400] {
        let temp = tempfile::tempdir().unwrap();
        let [mut first, second] = [Stub::start().await, Stub::start().await];
        let adapters = Some(temp.path().join("published"));
        let config = FleetConfig { adapters, ..config("vllm", &[&first.url(), &second.url()]) };
        let fleet = connect(&config).await.unwrap();
        let lease = fleet.lease_adapter(adapter(temp.path(), "pol", "one")).await.unwrap();
        // It comes back without the folder, behind another gateway, or with other options.
        first.kill().await;
        *first.state.loads.lock().unwrap() = Some(RouteFault::Refusal(status));
        first.serve().await;
        let turn = ask(&fleet, &lease).await;
        assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&[1, 2], 3)), "{status}: {turn:?}");
        assert_eq!((fleet.remote_counters().engines_usable.get(), second.streamed().len()), (2, 1), "{status}");
    }
}

#[tokio::test]
async fn loading_an_adapter_holds_up_no_turn_of_another() {
    let temp = tempfile::tempdir().unwrap();
    let stub = Stub::start().await;
    let adapters = Some(temp.path().join("published"));
    let fleet = connect(&FleetConfig { adapters, ..config("vllm", &[&stub.url()]) }).await.unwrap();
    let loaded = fleet.lease_adapter(adapter(temp.path(), "pol", "one")).await.unwrap();
    *stub.state.loads.lock().unwrap() = Some(RouteFault::Silence);
    let loading = fleet.lease_adapter(adapter(temp.path(), "pol", "two"));
    let asking = async {
        eventually("the other one is being loaded", || stub.state.silent.load(SeqCst) == 1).await;
        ask(&fleet, &loaded).await
    };
    let turn = tokio::select! {
        lease = loading => panic!("the loading has ended: {lease:?}"),
        turn = asking => turn,
    };
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&[1, 2], 3)), "{turn:?}");
}

#[tokio::test]
async fn while_an_engine_loads_an_adapter_new_sessions_go_to_another() {
    let temp = tempfile::tempdir().unwrap();
    let [mut first, second] = [Stub::start().await, Stub::start().await];
    let adapters = Some(temp.path().join("published"));
    let config = FleetConfig { adapters, ..config("vllm", &[&first.url(), &second.url()]) };
    let fleet = connect(&config).await.unwrap();
    first.kill().await;
    let lease = fleet.lease_adapter(adapter(temp.path(), "pol", "one")).await.unwrap();
    *first.state.loads.lock().unwrap() = Some(RouteFault::Silence);
    first.serve().await;
    eventually("it is back", || fleet.remote_counters().engines_usable.get() == 2).await;
    let asking = async {
        eventually("the adapter is being loaded", || first.state.silent.load(SeqCst) == 1).await;
        ask(&fleet, &lease).await
    };
    let turn = tokio::select! {
        turn = ask(&fleet, &lease) => panic!("the loading has ended: {turn:?}"),
        turn = asking => turn,
    };
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&[1, 2], 3)), "{turn:?}");
    assert_eq!((first.streamed().len(), second.streamed().len()), (0, 1));
}

#[tokio::test]
async fn what_cannot_be_loaded_is_refused_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let stub = Stub::start().await;
    let without = connect(&config("vllm", &[&stub.url()])).await.unwrap();
    let dir = adapter(temp.path(), "pol", "one");
    let refused = without.lease_adapter(dir.clone()).await.unwrap_err();
    assert!(matches!(&refused, EngineError::Adapter(reason) if reason.contains("--engine-adapters")), "{refused}");
    let with = FleetConfig { adapters: Some(temp.path().join("x")), ..config("vllm", &[&stub.url()]) };
    let with = connect(&with).await.unwrap();
    let refused = with.lease_adapter(temp.path().join("nothing")).await.unwrap_err().to_string();
    assert!(refused.contains("adapter_config.json"), "{refused}");
}
