//! Chat completions sent in one piece.

use futures::StreamExt;
use waymark_agent::Event;

use super::completion::{AssistantMessage, ChatChoice, ChatCompletion, FinishReason, LogProb, LogProbs};
use super::piece::{ChatPiece, Translator};
use super::plan::ChatPlan;
use super::tool::ChatToolCall;
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::logprob_room::LogprobRoom;
use crate::api::rag::RagNotes;
use crate::api::usage::ChatUsage;

/// Waits for all choices. If one fails, the whole request fails. Log-probabilities that take more than `answer_bytes`
/// bytes over all choices are left out.
pub(super) async fn collect(
    plan: &ChatPlan,
    mut events: Events,
    answer_bytes: usize,
) -> Result<ChatCompletion, ApiError> {
    let mut room = LogprobRoom::new(answer_bytes);
    let mut choices: Vec<ChoiceBuilder> = (0..plan.n).map(|_| ChoiceBuilder::new(plan)).collect();
    let mut usage = ChatUsage::default();
    while let Some((index, event)) = events.next().await {
        let mut event = event?;
        room.cut(&mut event);
        choices[index].take(event, &mut usage);
    }
    let choices =
        choices.into_iter().enumerate().map(|(index, draft)| draft.finish(index, plan)).collect::<Result<_, _>>()?;
    let head = plan.head.clone();
    Ok(ChatCompletion {
        id: head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        choices,
        usage,
        system_fingerprint: head.fingerprint,
        service_tier: plan.service_tier,
        cut: room.report(),
    })
}

/// Choice under construction.
struct ChoiceBuilder {
    translator: Translator,
    content: String,
    tokens: Vec<LogProb>,
    refusal: Option<String>,
    calls: Vec<ChatToolCall>,
    reasoning: String,
    rag: RagNotes,
    cites: bool,
    end: Option<FinishReason>,
}

impl ChoiceBuilder {
    fn new(plan: &ChatPlan) -> Self {
        Self {
            translator: Translator::new(plan.trace, &plan.tools),
            content: String::new(),
            tokens: Vec::new(),
            refusal: None,
            calls: Vec::new(),
            reasoning: String::new(),
            rag: RagNotes { trace: plan.trace.then(Vec::new), citations: None },
            cites: plan.cites,
            end: None,
        }
    }

    fn take(&mut self, event: Event, usage: &mut ChatUsage) {
        for piece in self.translator.translate(event) {
            match piece {
                ChatPiece::Reasoning(text) => self.reasoning += &text,
                ChatPiece::Content(text, tokens) => {
                    self.content += &text;
                    self.tokens.extend(tokens);
                }
                ChatPiece::Refusal(text) => self.refusal = Some(text),
                ChatPiece::Call(_, call) => self.calls.push(call),
                ChatPiece::Step(step) => self.rag.trace.get_or_insert_default().push(step),
                ChatPiece::Finish(reason, spent, citations) => {
                    usage.add(&spent);
                    self.rag.citations = self.cites.then_some(citations);
                    self.end = Some(reason);
                }
            }
        }
    }

    fn finish(self, index: usize, plan: &ChatPlan) -> Result<ChatChoice, ApiError> {
        let finish_reason =
            self.end.ok_or_else(|| ApiError::new(Code::Internal, "an episode ended without a result"))?;
        let reasoning_content = (!self.reasoning.is_empty()).then_some(self.reasoning);
        // As in OpenAI's interface, empty content with a refusal or tool calls is null.
        let speaks = self.refusal.is_none() && self.calls.is_empty();
        let message = AssistantMessage {
            content: Some(self.content).filter(|content| speaks || !content.is_empty()),
            refusal: self.refusal,
            tool_calls: self.calls,
            reasoning: reasoning_content.clone().filter(|_| plan.mirror),
            reasoning_content,
            rag: Some(self.rag).filter(|rag| *rag != RagNotes::default()),
            ..AssistantMessage::default()
        };
        let logprobs = plan.logprobs.then_some(LogProbs { content: Some(self.tokens), refusal: None });
        Ok(ChatChoice { index, message, logprobs, finish_reason })
    }
}
