//! Generations sent in one piece.

use futures::StreamExt;
use waymark_engine::TurnFinish;

use super::plan::GenerateHead;
use super::response::{GenerateChoice, GenerateResponse, GenerateUsage, StopReason, WeightVersion, prompt_logprobs};
use super::turn::{Generated, GeneratedPart};
use crate::api::error::{ApiError, Code};
use crate::api::usage::PromptTokensDetails;

/// Waits for all tokens.
pub(super) async fn collect(head: GenerateHead, mut parts: Generated) -> Result<GenerateResponse, ApiError> {
    let mut choice = GenerateChoice::default();
    let mut scores = None;
    let mut end = None;
    while let Some(part) = parts.next().await {
        match part? {
            GeneratedPart::Prompt(steps) => scores = Some(prompt_logprobs(&steps)),
            GeneratedPart::Token(step) => choice.push(&step, head.logprobs),
            GeneratedPart::End { finish, cached } => end = Some((finish, cached)),
        }
    }
    let Some((finish, cached)) = end else {
        return Err(ApiError::new(Code::Internal, "the generation ended without a result"));
    };
    let sampled = choice.token_ids.len();
    let last = choice.token_ids.last().copied();
    head.close(&mut choice, finish, last, sampled);
    let usage = head.usage(sampled, cached);
    Ok(GenerateResponse {
        request_id: head.id,
        model: head.model,
        created: head.created,
        usage,
        prompt_logprobs: scores,
        output_mode: "tokens",
        choices: vec![choice],
    })
}

impl GenerateHead {
    /// Writes the end of a generation into its last choice. `sampled` is the number of sampled tokens, and `last` the
    /// last one.
    pub(super) fn close(&self, choice: &mut GenerateChoice, finish: TurnFinish, last: Option<u32>, sampled: usize) {
        choice.finish_reason = Some(match finish {
            TurnFinish::Stop(_) | TurnFinish::Eos => "stop",
            TurnFinish::Length | TurnFinish::Context => "length",
        });
        choice.stop_reason = match finish {
            TurnFinish::Stop(index) => {
                let line = index.checked_sub(self.stops.len()).and_then(|index| self.lines.get(index));
                self.stops.get(index).or(line).cloned().map(StopReason::Text)
            }
            TurnFinish::Eos => last.filter(|id| self.stop_tokens.contains(id)).map(StopReason::Token),
            TurnFinish::Length | TurnFinish::Context => None,
        };
        let version = WeightVersion { version: self.version.clone(), start: 0, end: sampled };
        choice.weight_versions = Some(vec![version]);
    }

    /// Returns the token counts of a generation.
    pub(super) fn usage(&self, sampled: usize, cached: usize) -> GenerateUsage {
        GenerateUsage {
            prompt_tokens: self.prompt_tokens,
            total_tokens: self.prompt_tokens + sampled,
            completion_tokens: sampled,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: cached.min(self.prompt_tokens) },
        }
    }
}
