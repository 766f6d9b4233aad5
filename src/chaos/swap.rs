//! A policy that is replaced, adapter and all, while requests run with it.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::time::Instant;

use crate::pulse::Pulse;
use crate::wire::ask;

/// The random stream of these disturbances.
const STREAM: u64 = (1 << 32) + 1;

/// Replaces the policy until the load is over.
pub(crate) async fn disturb(pulse: Arc<Pulse>) {
    let mut rng = ChaCha8Rng::seed_from_u64(pulse.plan.seed);
    rng.set_stream(STREAM);
    let mut directory = ["one", "two"].into_iter().cycle();
    while pulse.pause(Duration::from_millis(rng.random_range(200..900))).await {
        load(&pulse, directory.next().unwrap_or("one")).await;
    }
}

/// Loads the policy in `directory`, in the place of the one that is served.
pub(crate) async fn load(pulse: &Pulse, directory: &str) {
    let since = Instant::now();
    match ask(pulse.address, "POST", "/v1/policies", &json!({"directory": directory}).to_string()).await {
        Ok((200, _)) => pulse.tally.with(|counts| counts.swaps += 1),
        Ok((503, _)) => {}
        Err(_) if pulse.was_away(since) => {}
        Ok((status, answer)) => pulse.tally.broken(format!("loading {directory}: {status} {answer}")),
        Err(error) => pulse.tally.broken(format!("loading {directory}: {error}")),
    }
}
