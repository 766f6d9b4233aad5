//! Repeated replacement of a policy and its adapter while requests use the policy.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::time::Instant;

use crate::http_client::fetch;
use crate::invariant::Invariant;
use crate::run_shared::RunShared;

/// Random stream of these disturbances.
const STREAM: u64 = (1 << 32) + 1;

/// Replaces the policy until the load is over.
pub(crate) async fn disturb(shared: Arc<RunShared>) {
    let mut rng = ChaCha8Rng::seed_from_u64(shared.plan.seed);
    rng.set_stream(STREAM);
    let mut directory = ["one", "two"].into_iter().cycle();
    while shared.pause(Duration::from_millis(rng.random_range(200..900))).await {
        load(&shared, directory.next().unwrap_or("one")).await;
    }
}

/// Loads the policy in `directory` in place of the served one. Returns `true` if the server did.
pub(crate) async fn load(shared: &RunShared, directory: &str) -> bool {
    let since = Instant::now();
    let body = json!({"directory": directory}).to_string();
    let answer = fetch(&shared.operator(), "POST", "/v1/policies", &body).await;
    let loaded = matches!(answer, Ok((200, _)));
    let result = match &answer {
        Ok((200, _)) => {
            shared.tally.count("adapter swaps", 1);
            Ok(())
        }
        Ok((status, body)) if shared.explains_refusal(since, *status, body) => Ok(()),
        Err(_) if shared.was_out_of_reach(since) => Ok(()),
        other => Err(format!("loading {directory}: {other:?}")),
    };
    shared.tally.check(Invariant::Changes, result);
    loaded
}
