//! `/v1/agent` responses sent in one piece.

use futures::StreamExt;
use waymark_agent::{Event, TokenLogprob};
use waymark_index::{AnswerCut, AnswerRoom};

use super::AgentResponse;
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::state::now;

/// Size of the fields around the text and the bytes of a token in JSON.
const TOKEN_FIELDS: usize = 72;

/// Collects the events of an episode until it ends. Log-probabilities that take more than `answer_bytes` bytes are left
/// out: a token of text may have twenty alternatives.
pub(super) async fn collect(mut events: Events, answer_bytes: usize) -> Result<AgentResponse, ApiError> {
    let created = now();
    let mut room = AnswerRoom::new(answer_bytes);
    let mut left_out = 0;
    let mut trace: Vec<Event> = Vec::new();
    while let Some((_, event)) = events.next().await {
        let mut event = event?;
        left_out += cut_tokens(&mut event, &mut room);
        if !trace.last_mut().is_some_and(|last| join(last, &event)) {
            trace.push(event);
        }
    }
    let broken = || ApiError::new(Code::Internal, "the episode ended without a result");
    let Some(Event::Started { id, model, question, .. }) = trace.first().cloned() else { return Err(broken()) };
    let Some(Event::Finished { reason, answer, usage, turns, searches, citations }) = trace.last().cloned() else {
        return Err(broken());
    };
    let refusal = trace.iter().rev().find_map(|event| match event {
        Event::Refusal { text } => Some(text.clone()),
        _ => None,
    });
    Ok(AgentResponse {
        id,
        object: "agent.episode",
        created,
        model,
        question,
        answer,
        refusal,
        citations,
        finish_reason: reason,
        usage,
        turns,
        searches,
        trace,
        cut: AnswerCut::of(left_out, answer_bytes),
    })
}

/// Removes the log-probabilities of an event that find no room, and returns the number of their tokens.
fn cut_tokens(event: &mut Event, room: &mut AnswerRoom) -> usize {
    let (Event::Think { tokens, .. }
    | Event::Query { tokens, .. }
    | Event::Answer { tokens, .. }
    | Event::Text { tokens, .. }) = event
    else {
        return 0;
    };
    let found = tokens.len();
    let kept = tokens.iter().take_while(|token| room.take(token_bytes(token))).count();
    tokens.truncate(kept);
    found - kept
}

/// Returns the approximate size of a token with its alternatives in JSON.
fn token_bytes(token: &TokenLogprob) -> usize {
    let text = |text: &str, bytes: &[u8]| TOKEN_FIELDS + text.len() + 4 * bytes.len();
    text(&token.text, &token.bytes) + token.top.iter().map(|token| text(&token.text, &token.bytes)).sum::<usize>()
}

/// Appends the delta `next` to `last`. Returns `false` if they are not deltas of the same kind and turn.
fn join(last: &mut Event, next: &Event) -> bool {
    let (text, tokens, more, more_tokens) = match (last, next) {
        (Event::Answer { text, tokens }, Event::Answer { text: more, tokens: rest }) => (text, tokens, more, rest),
        (Event::Think { turn, text, tokens }, Event::Think { turn: same, text: more, tokens: rest })
        | (Event::Query { turn, text, tokens }, Event::Query { turn: same, text: more, tokens: rest })
        | (Event::Text { turn, text, tokens }, Event::Text { turn: same, text: more, tokens: rest })
            if turn == same =>
        {
            (text, tokens, more, rest)
        }
        _ => return false,
    };
    text.push_str(more);
    tokens.extend(more_tokens.iter().cloned());
    true
}
