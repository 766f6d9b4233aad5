//! From a checked request to running episodes.

use std::sync::Arc;

use tokio::time::Instant;
use uuid::Uuid;

use super::auth::Caller;
use super::error::{ApiError, Code};
use super::follow::{Events, admitted, follow};
use super::state::AppState;
use crate::agent::{Conversation, Episode, EpisodeOptions, Policy};

/// Starts `n` episodes of one conversation for `caller`, each with a seed of its own; the first has the seed of
/// `options`. When one of them is refused, none runs. The request ends when their time is over and what was sent until
/// then could have been taken.
pub(super) async fn start(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    conversation: Conversation,
    options: EpisodeOptions,
    n: usize,
) -> Result<Events, ApiError> {
    let options = EpisodeOptions { salt: caller.salt, ..options };
    let (runtime, owned) = (state.runtime.clone(), policy.clone());
    let build = move || -> Result<Vec<Episode>, ApiError> {
        let seeded = |index: usize| EpisodeOptions { seed: options.seed.wrapping_add(index as u64), ..options.clone() };
        (0..n).map(|index| Ok(Episode::new(&runtime, &owned, conversation.clone(), seeded(index))?)).collect()
    };
    // A prompt may be megabytes of text: it is encoded where that holds nobody up.
    let episodes = tokio::task::spawn_blocking(build)
        .await
        .map_err(|_| ApiError::new(Code::Internal, "this request ran into a bug in the server"))??;
    if let Some(time) = episodes.iter().map(Episode::time).max() {
        caller.lifetime.end_by(Instant::now() + time + state.config.connection.send);
    }
    admitted(follow(episodes, policy, &state.metrics)).await
}

/// A new id that sorts by time, such as `chatcmpl-0193…`.
pub(super) fn id(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::now_v7().simple())
}

/// The seed that was given, or a new one.
pub(super) fn seed(given: Option<i64>) -> u64 {
    given.map_or_else(rand::random, i64::cast_unsigned)
}

/// A short hash of the build, the weights and the adapter.
pub(super) fn fingerprint(state: &AppState, policy: &Policy) -> String {
    let spec = state.runtime.engine.spec();
    let adapter = policy.adapter().map_or(0, |adapter| adapter.generation);
    let parts = format!("{} {} {:016x} {adapter:016x}", env!("CARGO_PKG_VERSION"), spec.name, spec.generation);
    format!("fp_{}", &blake3::hash(parts.as_bytes()).to_hex()[..12])
}
