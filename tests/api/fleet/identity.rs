//! Checks of an engine before it gets a request.

use super::stub::Stub;
use super::{config, connect, refusal};
use crate::harness::{TestServer, says};
use waymark_runtime::config::FleetConfig;

#[tokio::test]
async fn what_differs_is_named() {
    let [first, second] = [Stub::start().await, Stub::start().await];
    let wanted = FleetConfig { model: Some("other".into()), ..config("vllm", &[&first.url()]) };
    let refused = refusal(&wanted).await;
    assert!(refused.contains("does not serve the model other, but tiny"), "{refused}");
    *second.state.seed.lock().unwrap() = 99;
    let refused = refusal(&config("vllm", &[&first.url(), &second.url()])).await;
    assert!(refused.contains(&second.url()) && refused.contains("its weights differ"), "{refused}");
    let refused = refusal(&config("vllm", &["http://127.0.0.1:9"])).await;
    assert!(refused.contains("no engine can be reached"), "{refused}");
}

#[tokio::test]
async fn the_context_is_the_shortest_and_one_reachable_engine_is_enough() {
    let stub = Stub::start().await;
    let fleet = connect(&config("vllm", &["http://127.0.0.1:9", &stub.url()])).await.unwrap();
    assert_eq!((fleet.spec().name.as_str(), fleet.spec().context), ("tiny", 2048));
    let counters = fleet.remote_counters();
    assert_eq!((counters.engines.get(), counters.engines_usable.get()), (2, 1));
}

#[tokio::test]
async fn another_waymark_is_known_by_its_base_model() {
    let server = TestServer::new(says("hi")).await;
    let fleet = connect(&config("waymark", &[&server.url("")])).await.unwrap();
    assert_eq!((fleet.spec().name.as_str(), fleet.spec().context), ("mock", 32_768));
}
