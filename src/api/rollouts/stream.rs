//! Streamed batches: each trajectory is sent when it ends.

use axum::response::Response;
use futures::StreamExt;

use super::play::{self, Rollouts};
use super::trajectory::{RolloutEnd, RolloutEvent};
use crate::api::episodes;
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;

/// Streams the trajectories of a batch in the order in which they end.
pub(super) fn respond(state: &AppState, rollouts: Rollouts) -> Response {
    let generation = episodes::fingerprint(state, &rollouts.policy);
    let Rollouts { id, policy, mut played, scorer } = rollouts;
    let frames = async_stream::stream! {
        let mut frame = Frame::default();
        let mut trajectories = 0;
        let mut failures = 0;
        while let Some(ended) = played.next().await {
            match ended {
                // Rewarded on its own: the plan refuses rewards that compare trajectories of a stream.
                Ok(one) => match play::reward(scorer.as_ref(), vec![one]).await {
                    Ok(shown) => {
                        for trajectory in shown {
                            trajectories += 1;
                            frame.event("trajectory", &RolloutEvent::Trajectory(Box::new(trajectory)));
                        }
                    }
                    Err(error) => {
                        frame.named_error(&error);
                        yield frame.take();
                        return;
                    }
                },
                Err(failure) => {
                    failures += 1;
                    frame.event("failure", &RolloutEvent::Failure(failure));
                }
            }
            yield frame.take();
        }
        let end = RolloutEnd { id, model: policy.name.clone(), generation, trajectories, failures };
        frame.event("finished", &RolloutEvent::Finished(end));
        yield frame.take();
    };
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::named_error)
}
