//! Limits of the context of an episode: the room for its prompt, and the reserve for its end.

use waymark_index::Mode;

use super::AgentError;
use super::budget::Budget;
use super::generator::SessionSource;
use super::guide::AllowedActions;
use super::policy::Policy;
use super::runtime::Runtime;
use super::sanitize::STAND_IN;
use super::segment::SegmentKind;

/// Returns the number of context tokens reserved for the end of an episode: a forced answer with the text that opens
/// it, and in guided generation the text between the free spans.
pub(super) fn reserved_tokens<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    guided: bool,
    question: &str,
    budget: &Budget,
    context: usize,
) -> usize {
    // An encoding that fails is reported where its text is written; here it only makes the reserve smaller.
    let length = |text: &str| runtime.literal(text).map_or(0, |ids| ids.len());
    let opening = policy.variant.rules().answer_opening(&*policy.protocol, SegmentKind::Think);
    let forced = opening.map_or(0, |opening| budget.reserve(context) + length(&opening) + 1);
    let frame = |(informed, turn)| {
        let question = line(question);
        // `[graph][passage]` is the longest marker that a guide may write.
        let modes = vec![Mode::Hybrid];
        let offer =
            AllowedActions { question, informed, turn, search: true, answer: true, modes, ..AllowedActions::default() };
        policy.protocol.guide(&offer).map_or(0, |guide| guide.frame(length))
    };
    // A guide forces different texts in the first turn, in a later one, and once there is evidence. A continued episode
    // has evidence in its first turn.
    let turns = [(false, 1), (false, 2), (true, 1), (true, 2)];
    forced + if guided { turns.into_iter().map(frame).max().unwrap_or(0) } else { 0 }
}

/// Truncates a prompt to its last tokens, as the reference does instead of refusing long prompts.
pub(super) fn truncate_prompt(policy: &Policy, prompt: &mut Vec<u32>, context: usize) -> Result<(), AgentError> {
    let Some(training) = policy.protocol.training() else {
        return Err(AgentError::Option { field: "variant", reason: "the protocol of the policy has no training loop" });
    };
    // One token of the context is left for the response.
    let most = training.prompt_tokens().min(context.saturating_sub(1));
    prompt.drain(..prompt.len().saturating_sub(most));
    Ok(())
}

/// Checks that a turn of the training variant can see a part of the sequence: the session of a turn needs room for a
/// whole turn after the visible tokens.
pub(super) fn check_turns<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    budget: &Budget,
) -> Result<(), AgentError> {
    if budget.turns == 0 || budget.turn_tokens < runtime.engine.limit() {
        return Ok(());
    }
    Err(AgentError::NoVisibleContext {
        policy: policy.name.clone(),
        turn: budget.turn_tokens,
        limit: runtime.engine.limit(),
    })
}

/// Returns a question as one short line without tags.
pub(super) fn line(question: &str) -> String {
    const LONGEST: usize = 200;
    let words = question.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(LONGEST).map(|c| if c == '<' { STAND_IN } else { c }).collect()
}
