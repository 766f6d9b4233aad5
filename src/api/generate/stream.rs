//! Streamed generations.

use axum::response::Response;
use futures::StreamExt;

use super::plan::GenerateHead;
use super::response::{GenerateChoice, GenerateChunk, GenerateStreamItem, GenerateUsage};
use super::turn::{Generated, GeneratedPart};
use crate::api::error::{ApiError, Code};
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;

/// Streams the chunks of `parts`, followed by `[DONE]` or an error. Tokens that are ready together share a chunk.
pub(super) fn respond(state: &AppState, head: GenerateHead, parts: Generated) -> Response {
    let frames = async_stream::stream! {
        let mut frame = Frame::default();
        let mut batches = parts.ready_chunks(sse::READY);
        let mut sampled = 0;
        let mut last = None;
        let end = 'end: loop {
            let Some(batch) = batches.next().await else {
                break Err(ApiError::new(Code::Internal, "the generation ended without a result"));
            };
            let mut choice = GenerateChoice::default();
            for part in batch {
                match part {
                    Ok(GeneratedPart::Prompt(_)) => {}
                    Ok(GeneratedPart::Token(step)) => {
                        sampled += 1;
                        last = Some(step.id);
                        choice.push(&step, head.logprobs);
                    }
                    Ok(GeneratedPart::End { finish, cached }) => {
                        head.close(&mut choice, finish, last, sampled);
                        chunk(&mut frame, &head, None, &[choice]);
                        break 'end Ok(cached);
                    }
                    Err(error) => {
                        // Tokens before the error were sampled, and the client may go on after them.
                        chunk(&mut frame, &head, None, &[choice]);
                        break 'end Err(error);
                    }
                }
            }
            chunk(&mut frame, &head, None, &[choice]);
            if !frame.is_empty() {
                yield frame.take();
            }
        };
        match end {
            Ok(cached) => {
                if head.include_usage {
                    chunk(&mut frame, &head, Some(&head.usage(sampled, cached)), &[]);
                }
                frame.done();
            }
            Err(error) => frame.error(&error),
        }
        yield frame.take();
    };
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::error)
}

fn chunk(frame: &mut Frame, head: &GenerateHead, usage: Option<&GenerateUsage>, choices: &[GenerateChoice]) {
    let empty = |choice: &GenerateChoice| choice.token_ids.is_empty() && choice.finish_reason.is_none();
    if usage.is_some() || !choices.iter().all(empty) {
        let chunk = GenerateChunk { request_id: &head.id, usage, output_mode: "tokens", choices };
        frame.data(&GenerateStreamItem::Chunk(chunk));
    }
}
