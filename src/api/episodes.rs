//! From a checked request to running episodes.

use std::sync::Arc;

use tokio::time::Instant;
use uuid::Uuid;

use super::auth::Caller;
use super::error::{ApiError, Code};
use super::follow::{Events, admitted, follow};
use super::state::AppState;
use super::traces::{self, Asked, Recorder};
use crate::agent::{Conversation, Episode, EpisodeOptions, Policy};

/// Starts `n` episodes of one conversation for `caller`, each with a seed and an id of its own; the first has those of
/// `options`, the ids of the others end in `-1`, `-2` and so on. When one of them is refused, none runs. The request ends
/// when their time is over and what was sent until then could have been taken. Their traces are kept, unless `options`
/// say otherwise.
pub(super) async fn start(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    conversation: Conversation,
    options: EpisodeOptions,
    n: usize,
) -> Result<Events, ApiError> {
    let record = traces::wanted(state, options.store)?;
    let options = EpisodeOptions { salt: caller.salt, ..options };
    let (owned, policy_owned, owner) = (state.clone(), policy.clone(), caller.key.clone());
    let build = move || -> Result<Vec<(Episode, Option<Recorder>)>, ApiError> {
        let each = (0..n).map(|index| {
            let options = numbered(&options, index);
            let mut episode = Episode::new(&owned.runtime, &policy_owned, conversation.clone(), options.clone())?;
            let recorder = record.then(|| {
                let asked = Asked::new(&owned, owner.clone(), &policy_owned, conversation.clone(), options);
                Recorder::new(&owned, asked, &mut episode)
            });
            Ok((episode, recorder))
        });
        each.collect()
    };
    let episodes = beside(build).await?;
    if let Some(time) = episodes.iter().map(|(episode, _)| episode.time()).max() {
        caller.lifetime.end_by(Instant::now() + time + state.config.connection.send);
    }
    admitted(follow(episodes, policy, &state.metrics)).await
}

/// Builds episodes. A prompt may be megabytes of text: it is encoded where that holds nobody up.
pub(super) async fn beside<T: Send + 'static>(
    build: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let bug = |_| ApiError::new(Code::Internal, "this request ran into a bug in the server");
    tokio::task::spawn_blocking(build).await.map_err(bug)?
}

/// The options of one of several episodes.
fn numbered(options: &EpisodeOptions, index: usize) -> EpisodeOptions {
    let id = options.id.as_ref().map(|id| if index == 0 { id.clone() } else { format!("{id}-{index}") });
    EpisodeOptions { id, seed: options.seed.wrapping_add(index as u64), ..options.clone() }
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
