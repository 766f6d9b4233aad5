//! Completions sent in one piece.

use futures::StreamExt;
use waymark_agent::Event;

use super::completion::{CompletionChoice, TextCompletion};
use super::plan::{CompletionPlan, usage};
use crate::api::chunks::CompletionHead;
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::logprob_room::LogprobRoom;

/// Collects all answers. Log-probabilities that take more than `answer_bytes` bytes over all answers are left out.
pub(super) async fn collect(
    plan: CompletionPlan,
    mut events: Events,
    answer_bytes: usize,
) -> Result<TextCompletion, ApiError> {
    let mut room = LogprobRoom::new(answer_bytes);
    let mut drafts = plan.drafts();
    let mut choices: Vec<_> =
        // An empty piece creates the lists of log-probabilities, to which later pieces append.
        drafts.iter_mut().enumerate().map(|(index, draft)| draft.piece(index, String::new(), &[])).collect();
    let mut spent = vec![None; drafts.len()];
    for (index, draft) in drafts.iter_mut().enumerate() {
        draft.begin(index).into_iter().for_each(|piece| append(&mut choices[index], piece));
    }
    while let Some((index, event)) = events.next().await {
        let mut event = event?;
        room.cut(&mut event);
        match event {
            Event::Answer { text, tokens } => append(&mut choices[index], drafts[index].piece(index, text, &tokens)),
            Event::Finished { reason, usage, .. } => {
                spent[index] = Some(usage);
                choices[index].finish_reason = Some(reason.into());
            }
            _ => {}
        }
    }
    if spent.iter().any(Option::is_none) {
        return Err(ApiError::new(Code::Internal, "an answer ended without a result"));
    }
    let CompletionHead { id, created, model, fingerprint } = plan.head;
    Ok(TextCompletion {
        id,
        object: "text_completion",
        created,
        model,
        choices,
        usage: usage(&spent, plan.n),
        system_fingerprint: fingerprint,
        cut: room.report(),
    })
}

fn append(choice: &mut CompletionChoice, piece: CompletionChoice) {
    choice.text += &piece.text;
    if let (Some(all), Some(more)) = (&mut choice.logprobs, piece.logprobs) {
        all.tokens.extend(more.tokens);
        all.token_logprobs.extend(more.token_logprobs);
        all.text_offset.extend(more.text_offset);
        if let Some(tops) = &mut all.top_logprobs {
            tops.extend(more.top_logprobs.unwrap_or_default());
        }
    }
}
