//! A guided turn: forces a guide's fixed text, and lets the policy's probabilities choose the rest.
//!
//! Log-probabilities stay honest: a forced token has none and is marked; a chosen token has that of the full
//! distribution, even if only a few tokens were allowed.

use std::sync::Arc;

use waymark_engine::{Constraint, StopSet};

use crate::AgentError;
use crate::answer_format::AnswerFormat;
use crate::guide::{Guide, GuideState};
use crate::scanner::overlap;
use crate::text_codec::TextCodec;

use super::step::{GenerationParams, TurnEnd};

/// A guide and its position.
#[derive(Debug)]
pub(super) struct GuideRun {
    guide: Guide,
    /// Index of the current state.
    at: usize,
    phase: Phase,
    /// End of the last free span.
    ended: TurnEnd,
}

/// Progress within a state.
#[derive(Debug)]
enum Phase {
    /// The state has begun, without any text yet.
    Entered,
    /// The branches that agree with the first `depth` tokens of the choice are left.
    Choosing { live: Vec<Branch>, depth: usize, asked: bool },
    /// The first token of a free span is sampled.
    First,
    /// The rest of a free span, or all of a span under a constraint, is sampled.
    Rest,
}

/// A branch of a choice: its tokens and its next state.
#[derive(Debug)]
struct Branch {
    ids: Vec<u32>,
    next: usize,
}

/// View of a turn that a guide reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct GuideView<'a> {
    pub(super) codec: &'a TextCodec,
    /// Required format of the answer.
    pub(super) shape: Option<&'a AnswerFormat>,
    /// Constraint on a tool call after its opening tag. `None` if there are no tools.
    pub(super) call: Option<&'a Arc<dyn Constraint>>,
    /// Tokens that the budget leaves for the turn.
    pub(super) room: usize,
    /// Text of the turn so far.
    pub(super) written: &'a str,
    /// Last token of the sequence.
    pub(super) last: Option<u32>,
}

/// Next part of a guided turn.
#[derive(Debug)]
pub(super) enum GuideStep {
    /// Write these tokens for the policy; possibly none.
    Force(Vec<u32>),
    /// Let the policy write.
    Sample(GenerationParams),
    /// The turn is over.
    Done(TurnEnd),
}

/// A span that the policy writes.
#[derive(Debug, Clone, Copy)]
struct FreeSpan {
    close: &'static str,
    limit: usize,
    pause: &'static str,
    eos: bool,
    next: usize,
}

impl GuideRun {
    /// Begins a turn.
    pub(super) fn new(guide: Guide) -> GuideRun {
        GuideRun { guide, at: 0, phase: Phase::Entered, ended: TurnEnd::Tag(0) }
    }

    /// Returns the next part of the turn. `ended` is the end of the generation that the last part asked for, if it
    /// asked for one.
    pub(super) fn next(&mut self, ended: Option<TurnEnd>, view: GuideView<'_>) -> Result<GuideStep, AgentError> {
        // Read only after a generation, so any value will do before the first one.
        let ended = ended.unwrap_or(TurnEnd::Length);
        match self.guide.states.get(self.at) {
            None | Some(GuideState::End) => Ok(GuideStep::Done(self.ended)),
            Some(GuideState::Force { text, next }) => {
                let ids = view.codec.literal(text)?;
                self.at = *next;
                Ok(GuideStep::Force(ids))
            }
            Some(GuideState::Choose { branches }) => {
                if matches!(self.phase, Phase::Entered) {
                    self.phase = Phase::Choosing { live: encode(branches, view.codec)?, depth: 0, asked: false };
                }
                Ok(self.choose(ended, view.last))
            }
            Some(GuideState::Call) => Ok(self.call(ended, view)),
            Some(&GuideState::Free { close, limit, pause, eos, next }) => {
                self.free(FreeSpan { close, limit, pause, eos, next }, ended, view)
            }
        }
    }

    /// Lets the policy choose between texts, token by token where they differ.
    fn choose(&mut self, ended: TurnEnd, last: Option<u32>) -> GuideStep {
        // Cannot happen: `next` begins the choice before it comes here.
        let Phase::Choosing { live, depth, asked } = &mut self.phase else { return GuideStep::Done(TurnEnd::Eos) };
        if *asked {
            if ended != TurnEnd::Length {
                return GuideStep::Done(ended);
            }
            *asked = false;
            live.retain(|branch| branch.ids.get(*depth).copied() == last);
            *depth += 1;
        }
        let shared = *depth;
        while live.len() > 1 {
            let mut ids: Vec<u32> = live.iter().filter_map(|branch| branch.ids.get(*depth).copied()).collect();
            ids.sort_unstable();
            ids.dedup();
            if ids.is_empty() {
                // The same text twice: either branch will do.
                break;
            }
            if ids.len() > 1 {
                if shared < *depth {
                    // Forces the common tokens first, and returns here for the choice.
                    return GuideStep::Force(live[0].ids[shared..*depth].to_vec());
                }
                *asked = true;
                // One token is enough: the allowed tokens differ at this depth.
                return GuideStep::Sample(GenerationParams { max: 1, allow: Some(ids), ..GenerationParams::default() });
            }
            *depth += 1;
        }
        let Some(chosen) = live.pop() else { return GuideStep::Done(TurnEnd::Eos) };
        self.at = chosen.next;
        self.phase = Phase::Entered;
        GuideStep::Force(chosen.ids[shared..].to_vec())
    }

    /// Lets the policy write a call, which may take all that the budget leaves: an incomplete one would be useless.
    fn call(&mut self, ended: TurnEnd, view: GuideView<'_>) -> GuideStep {
        if matches!(self.phase, Phase::Rest) {
            return GuideStep::Done(ended);
        }
        self.phase = Phase::Rest;
        let constraint = view.call.map(Arc::clone);
        GuideStep::Sample(GenerationParams { max: view.room.max(1), constraint, ..GenerationParams::default() })
    }

    /// Lets the policy write at least one token, until `close`, `pause` or, with `eos`, the end of the sequence; then
    /// closes the span if the policy has not.
    fn free(&mut self, span: FreeSpan, ended: TurnEnd, view: GuideView<'_>) -> Result<GuideStep, AgentError> {
        let shape = view.shape.filter(|shape| shape.ends(span.close)).map(|shape| Arc::clone(&shape.answer));
        let constrained = shape.is_some();
        match self.phase {
            Phase::First if ended == TurnEnd::Length && span.limit > 1 => {
                self.phase = Phase::Rest;
                return Ok(GuideStep::Sample(span.rest(view.codec)));
            }
            Phase::First | Phase::Rest => {}
            Phase::Entered | Phase::Choosing { .. } => {
                self.phase = if constrained { Phase::Rest } else { Phase::First };
                let params = shape.map_or_else(|| span.first(view.codec), |rule| span.shaped(rule, view.room));
                return Ok(GuideStep::Sample(params));
            }
        }
        self.phase = Phase::Entered;
        self.ended = ended;
        // The turn cannot go on, so nothing is written for the policy any more.
        if matches!(ended, TurnEnd::Context | TurnEnd::Stopped | TurnEnd::Time) {
            return Ok(GuideStep::Done(ended));
        }
        self.at = span.next;
        // In the stop strings of `rest`, 0 is the closing text and 1 the pause.
        let paused = matches!(ended, TurnEnd::Tag(1..)) && !constrained;
        let open = paused || matches!(ended, TurnEnd::Length | TurnEnd::Eos);
        // The policy may have written a part of the closing tag.
        let missing = if open { &span.close[overlap(view.written, span.close)..] } else { "" };
        Ok(GuideStep::Force(view.codec.literal(missing)?))
    }
}

impl FreeSpan {
    /// Returns the parameters of the first token, which has its own bans, so that the span is not empty.
    fn first(self, codec: &TextCodec) -> GenerationParams {
        GenerationParams { max: 1, bans: Some(codec.bans().first.clone()), ..GenerationParams::default() }
    }

    fn rest(self, codec: &TextCodec) -> GenerationParams {
        let bans = if self.eos { codec.bans().last.clone() } else { codec.bans().inside.clone() };
        let stops = Arc::new(StopSet::new([self.close, self.pause]));
        // `first` has sampled one token of the limit, and `free` comes here only for limits above 1.
        GenerationParams { max: self.limit - 1, stops, bans: Some(bans), ..GenerationParams::default() }
    }

    /// Returns the parameters of an answer under a constraint, which also closes it. An incomplete answer would be
    /// useless, so it may take all that the budget leaves.
    fn shaped(self, constraint: Arc<dyn Constraint>, room: usize) -> GenerationParams {
        let stops = Arc::new(StopSet::new([self.close]));
        GenerationParams {
            max: room.max(self.limit),
            stops,
            constraint: Some(constraint),
            ..GenerationParams::default()
        }
    }
}

/// Encodes the branches of a choice. A branch that is a prefix of another one gets a space at its end, so that they
/// differ.
fn encode(branches: &[(String, usize)], codec: &TextCodec) -> Result<Vec<Branch>, AgentError> {
    let mut all = Vec::with_capacity(branches.len());
    for (text, next) in branches {
        all.push(Branch { ids: codec.literal(text)?, next: *next });
    }
    let space = codec.literal(" ")?;
    for i in 0..all.len() {
        let begins = |other: &Branch| other.ids.len() > all[i].ids.len() && other.ids.starts_with(&all[i].ids);
        if all.iter().any(begins) {
            all[i].ids.extend(&space);
        }
    }
    Ok(all)
}
