//! Adapters on engines elsewhere.

use std::path::{Path, PathBuf};

use waymark_agent::{Generator, SessionSource};
use waymark_engine::{EngineError, Origin, SessionOptions};
use waymark_runtime::config::FleetConfig;

use super::stub::Stub;
use super::{config, connect, run, spec, undisturbed};
use crate::harness::eventually;

fn adapter(root: &Path, name: &str, weights: &str) -> PathBuf {
    let dir = root.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("adapter_config.json"), "{}").unwrap();
    std::fs::write(dir.join("adapter_model.safetensors"), weights).unwrap();
    dir
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
    let ask = async |lease: &waymark_engine::Lease| {
        let mut session = fleet.open(SessionOptions { adapter: Some(lease.adapter()), ..SessionOptions::default() });
        session.append(&[1, 2], Origin::Prompt, false);
        run(&mut session, spec(3)).await
    };
    for lease in [&first, &second] {
        assert_eq!(ask(lease).await.ids(), undisturbed(&[1, 2], 3));
    }
    let models: Vec<String> =
        stub.streamed().iter().map(|(_, body)| body["model"].as_str().unwrap().to_owned()).collect();
    assert!(models[0] != models[1] && loaded.contains_key(&models[0]) && loaded.contains_key(&models[1]));
    // A restarted engine has lost the adapter, and gets it again with the next request.
    stub.kill().await;
    stub.serve().await;
    let turn = ask(&second).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&[1, 2], 3)), "{turn:?}");
    assert!(!turn.resumed.is_empty());
    drop(second);
    eventually("it is unloaded", || stub.state.adapters.lock().unwrap().is_empty()).await;
    drop(first);
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
