//! `/v1/agent` responses sent in one piece.

use futures::StreamExt;
use waymark_agent::Event;

use super::AgentResponse;
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::logprob_room::LogprobRoom;
use crate::api::state::now;

/// Collects the events of an episode until it ends. Log-probabilities that take more than `answer_bytes` bytes are left
/// out.
pub(super) async fn collect(mut events: Events, answer_bytes: usize) -> Result<AgentResponse, ApiError> {
    let created = now();
    let mut room = LogprobRoom::new(answer_bytes);
    let mut trace: Vec<Event> = Vec::new();
    while let Some((_, event)) = events.next().await {
        let mut event = event?;
        room.cut(&mut event);
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
        cut: room.report(),
    })
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
