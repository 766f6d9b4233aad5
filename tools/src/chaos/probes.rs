//! Probes of the server while everything else happens.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::http_client::fetch;
use crate::invariant::Invariant;
use crate::run_shared::{Disturbance, RunShared};

/// Interval between two probes.
const INTERVAL: Duration = Duration::from_millis(250);

/// Timeout of a probe. The timeout of Kubernetes' probes is often set to some seconds.
const ANSWERED: Duration = Duration::from_secs(5);

/// Probes the server until the load is over.
pub(crate) async fn watch(shared: Arc<RunShared>) {
    let target = shared.operator();
    while shared.pause(INTERVAL).await {
        let since = Instant::now();
        let probe = timeout(ANSWERED, fetch(&target, "GET", "/health", "")).await;
        if shared.was(Disturbance::Down, since) {
            continue;
        }
        let answered = matches!(probe, Ok(Ok((200, _))));
        let failed = || format!("/health: {probe:?} after {:?}", since.elapsed());
        shared.tally.check(Invariant::Probes, answered.then_some(()).ok_or_else(failed));
    }
}
