//! Batches sent in one piece.

use futures::StreamExt;

use super::play::{self, PlayedRollout, Rollouts};
use super::trajectory::RolloutBatch;
use crate::api::episodes;
use crate::api::error::{ApiError, Code};
use crate::api::state::{AppState, now};

/// Plays all episodes and returns their trajectories in the order of the questions.
///
/// # Errors
/// If the trajectories, with the texts that are kept for their rewards, exceed the size limit of answers, or their
/// rewards cannot be computed.
pub(super) async fn collect(state: &AppState, mut rollouts: Rollouts) -> Result<RolloutBatch, ApiError> {
    let created = now();
    let limit = state.config.answer_bytes;
    let mut bytes = 0;
    let mut ended: Vec<PlayedRollout> = Vec::new();
    let mut failures = Vec::new();
    while let Some(played) = rollouts.played.next().await {
        match played {
            Ok(played) => {
                bytes += played.bytes();
                ended.push(played);
            }
            Err(failure) => failures.push(failure),
        }
        // Checked while episodes run, because returning cancels the rest of them.
        if bytes > limit {
            let message = format!(
                "the trajectories, with the texts that rewards compare, take more than {limit} bytes; send \
                 `stream: true`, a smaller `n`, or fewer questions in a request"
            );
            return Err(ApiError::new(Code::ResponseTooLarge, message).with_param("questions"));
        }
    }
    // Episodes end in any order, and a relative reward must not depend on it.
    ended.sort_by_key(|played| (played.shown.question, played.shown.sample));
    failures.sort_by_key(|failure| (failure.question, failure.sample));
    let generation = episodes::fingerprint(state, &rollouts.policy);
    Ok(RolloutBatch {
        id: rollouts.id,
        object: "rollout.batch",
        created,
        model: rollouts.policy.name.clone(),
        generation,
        trajectories: play::reward(rollouts.scorer.as_ref(), ended).await?,
        failures,
    })
}
