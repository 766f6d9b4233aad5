//! Transitions while a turn is written.

use crate::AgentError;
use crate::action::Action;
use crate::budget::BudgetLimit;
use crate::event::{EpisodeEnd, Event};
use crate::guide::Guide;
use crate::protocol::ModePrefix;

use super::core::EpisodeCore;
use super::guide_run::{GuideRun, GuideStep, GuideView};
use super::offer::{OfferState, offer};
use super::state::{GenerationPurpose, State};
use super::step::TurnEnd;
use super::turn::CurrentTurn;

/// Begins a turn, or ends the episode after its last round.
pub(super) fn begin(core: &mut EpisodeCore) -> State {
    let last = core.budget.is_last_turn();
    if core.budget.has_used_rounds() {
        core.emit(Event::Budget { kind: BudgetLimit::Turns });
        if !core.setup.concludes() {
            return core.end(EpisodeEnd::Turns, None);
        }
    }
    let number = core.budget.turn();
    core.emit(Event::TurnStarted { turn: number });
    core.turn = CurrentTurn::new(&core.setup, number, last, core.transcript.len());
    match core.budget.turn_room(core.transcript.visible_len()) {
        Ok(room) => write(core, room),
        // The turn stays empty, and `complete` forces an answer from the reserve if the loop allows that.
        Err(_) => State::Written(TurnEnd::Length),
    }
}

/// Lets the policy write a turn of at most `room` tokens, guided or free.
fn write(core: &mut EpisodeCore, room: usize) -> State {
    if core.setup.settings.guided {
        let CurrentTurn { number: turn, last, .. } = core.turn;
        let exhausted = core.budget.exhausted();
        if let Some(kind) = exhausted.filter(|_| !last) {
            core.emit(Event::Budget { kind });
        }
        let evidence = core.transcript.evidence();
        if let Some(guide) = guide(core, OfferState { turn, room, last, exhausted, evidence }) {
            return State::Guided(GuideRun::new(guide), None);
        }
    }
    let writing = core.turn.reader.writing();
    match core.setup.settings.first_query.filter(|_| core.transcript.evidence().is_empty()) {
        Some(prefix) => {
            let params = core.setup.turn_until(prefix.opening, room, writing);
            core.generate(params, GenerationPurpose::Opening(prefix))
        }
        None => core.generate(core.setup.free_turn(room, writing), GenerationPurpose::Turn),
    }
}

/// Returns the guide of a turn. `None` if the protocol has none.
fn guide(core: &EpisodeCore, state: OfferState<'_>) -> Option<Guide> {
    let setup = &core.setup;
    let guide = setup.guide(&offer(state, setup))?;
    if !core.budget.counts_forced() {
        return Some(guide);
    }
    // The guide's own text takes a part of the room, which its spans must not use.
    let frame = guide.frame(|text| setup.codec.literal(text).map_or(0, |ids| ids.len()));
    setup.guide(&offer(OfferState { room: state.room.saturating_sub(frame), ..state }, setup))
}

/// Names the mode of a query that the policy has opened, and lets it write the rest. A turn that ends otherwise is
/// whole.
pub(super) fn open_query(core: &mut EpisodeCore, prefix: ModePrefix, ended: TurnEnd) -> Result<State, AgentError> {
    match ended {
        TurnEnd::Tag(0) => {}
        // The stop strings of a free turn follow the opening tag.
        TurnEnd::Tag(which) => return Ok(State::Written(TurnEnd::Tag(which - 1))),
        other => return Ok(State::Written(other)),
    }
    let marker = core.setup.codec.literal(prefix.marker)?;
    if !core.force(marker) {
        return Ok(State::Written(TurnEnd::Unforced));
    }
    let writing = core.turn.reader.writing();
    Ok(match core.budget.turn_room(core.transcript.visible_len()) {
        Ok(room) => core.generate(core.setup.free_turn(room, writing), GenerationPurpose::Turn),
        Err(_) => State::Written(TurnEnd::Length),
    })
}

/// Writes the next part of a guided turn, after a generation that has `ended`, if there was one.
pub(super) fn follow(core: &mut EpisodeCore, mut run: GuideRun, ended: Option<TurnEnd>) -> Result<State, AgentError> {
    let view = GuideView {
        codec: &core.setup.codec,
        shape: core.setup.settings.forms.answer.as_ref(),
        call: core.setup.settings.forms.call.as_ref(),
        room: core.budget.turn_room(core.transcript.visible_len()).unwrap_or(0),
        written: core.turn.reader.text(),
        last: core.transcript.tokens().last().map(|token| token.id),
    };
    Ok(match run.next(ended, view)? {
        GuideStep::Force(ids) => {
            if core.force(ids) {
                State::Guided(run, None)
            } else {
                State::Written(TurnEnd::Unforced)
            }
        }
        GuideStep::Sample(params) => core.generate(params, GenerationPurpose::Guided(run)),
        GuideStep::Done(ended) => State::Written(ended),
    })
}

/// Forces an answer if the turn contains none and no other turn can follow.
pub(super) fn complete(core: &mut EpisodeCore, ended: TurnEnd) -> Result<State, AgentError> {
    let action = core.turn.action(&core.setup);
    let over = core.turn.is_over(&action, &core.setup);
    let unforced = (ended == TurnEnd::Unforced).then_some(BudgetLimit::SampledTokens);
    let limit = unforced.or_else(|| limit_after(core, &action, over));
    if action.ends() {
        return Ok(State::TurnOver(ended, limit));
    }
    if let Some(kind) = limit {
        core.emit(Event::Budget { kind });
    }
    // The action is not or cannot be executed, so the turn ends as the last one does.
    let closing = core.turn.last || limit.is_some() || over;
    let opening = if closing && ended != TurnEnd::Time { answer_opening(core) } else { None };
    let Some(opening) = opening else { return Ok(State::TurnOver(ended, limit)) };
    let ids = core.setup.codec.literal(&opening)?;
    let max = core.budget.answer_room(core.transcript.visible_len(), ids.len());
    if max == 0 && !core.budget.counts_forced() {
        return Ok(State::TurnOver(TurnEnd::Length, limit));
    }
    if max == 0 || !core.force(ids) {
        return Ok(State::TurnOver(TurnEnd::Unforced, limit));
    }
    Ok(core.generate(core.setup.forced_answer(max), GenerationPurpose::Answer(limit)))
}

fn answer_opening(core: &EpisodeCore) -> Option<String> {
    core.setup.rules.answer_opening(&*core.setup.protocol, core.turn.reader.writing())
}

/// Returns the limit that leaves no room for another turn after `action`, if any.
fn limit_after(core: &EpisodeCore, action: &Action, over: bool) -> Option<BudgetLimit> {
    let length = core.transcript.visible_len();
    if let Err(limit) = core.budget.turn_room(length) {
        return Some(limit);
    }
    if action.ends() || over || core.turn.last {
        return None;
    }
    // A search that the episode can answer itself needs none of the searches left.
    let searches = action.search().is_some_and(|search| core.recall(search).is_none());
    core.budget.blocks(length, searches)
}
