//! Transitions after a turn: its action is executed, and the environment replies.

use std::time::Duration;

use waymark_engine::Origin;
use waymark_index::Evidence;

use crate::AgentError;
use crate::action::{Action, ActionOutcome, PolicySearch};
use crate::budget::BudgetLimit;
use crate::event::{EpisodeEnd, Event};
use crate::observation::{ObservationCut, observe};
use crate::protocol::Injected;
use crate::retrieval::Backtrack;
use crate::search::SearchError;
use crate::trajectory::ActionRecord;

use super::core::EpisodeCore;
use super::search_result::PendingSearch;
use super::state::State;
use super::step::{SearchStep, Step, TurnEnd};
use super::turn::reply_text;

/// Text of a refusal without an explanation.
const DEFAULT_REFUSAL: &str = "The question cannot be answered.";

/// Reads the action of a turn, and executes it or ends the episode. `limit` leaves no room for another turn.
pub(super) fn begin(core: &mut EpisodeCore, ended: TurnEnd, limit: Option<BudgetLimit>) -> State {
    // Text that might have been the beginning of a tag is shown now that the turn is over, unless it was cut off there.
    let events = if ended.is_cut() { core.turn.reader.cut() } else { core.turn.reader.finish() };
    core.emit_all(events);
    let action = core.turn.action(&core.setup);
    let over = core.turn.is_over(&action, &core.setup);
    let last = core.turn.last;
    let goes_on = !last && limit.is_none() && ended != TurnEnd::Time && !action.ends() && !over;
    // An exhausted limit on searches or observations ends the episode like exhausted rounds.
    let spent = matches!(limit, Some(BudgetLimit::Searches | BudgetLimit::EnvironmentTokens));
    let record = ActionRecord {
        turn: core.turn.number,
        action: action.clone(),
        executed: goes_on || action.ends(),
        late: last || spent,
        thought: core.turn.reader.thought().to_owned(),
        summary: core.setup.protocol.summary(core.turn.reader.text()),
        reply: 0..0,
    };
    core.transcript.record_action(record, core.turn.reader.reasoning_tokens());
    let withheld = core.turn.reader.withheld();
    // Text between the tags of a refusal was held back. The turn has another action, so it is plain text.
    if !matches!(action, Action::Refuse { .. }) && !withheld.is_empty() {
        let text = withheld.to_owned();
        core.emit(Event::Text { turn: core.turn.number, text, tokens: Vec::new() });
    }
    if goes_on {
        return execute(core, action);
    }
    emit_final_text(core, &action);
    if ended == TurnEnd::Time {
        core.emit(Event::Budget { kind: BudgetLimit::Time });
    }
    let reason = match ended {
        TurnEnd::Time => EpisodeEnd::Time,
        TurnEnd::Length | TurnEnd::Context | TurnEnd::Unforced => EpisodeEnd::Length,
        TurnEnd::Tag(_) | TurnEnd::Eos | TurnEnd::Stopped => EpisodeEnd::Stop,
    };
    match action {
        Action::Answer { text } => core.end(reason, Some(text)),
        Action::Call { .. } => core.end(EpisodeEnd::Called, None),
        Action::Refuse { .. } if reason == EpisodeEnd::Stop => core.end(EpisodeEnd::Refused, None),
        Action::Refuse { .. } => core.end(reason, None),
        // The references' loops end as if the policy had stopped.
        _ if over || matches!(ended, TurnEnd::Time | TurnEnd::Unforced) => core.end(reason, None),
        // A context or token limit is a matter of length; the limits of the environment count like used rounds.
        _ if limit.is_some() && !spent => core.end(EpisodeEnd::Length, None),
        _ => core.end(EpisodeEnd::Turns, None),
    }
}

/// Emits the text of an action that ends the episode, unless it was shown while it was written.
fn emit_final_text(core: &mut EpisodeCore, action: &Action) {
    match action {
        Action::Answer { text } if core.turn.reader.answer().is_none() && !text.is_empty() => {
            core.emit(Event::Answer { text: text.clone(), tokens: Vec::new() });
        }
        Action::Refuse { text } => {
            let text = if text.is_empty() { DEFAULT_REFUSAL } else { text };
            core.emit(Event::Refusal { text: text.to_owned() });
        }
        Action::Call { name, arguments } => {
            let turn = core.turn.number;
            core.emit(Event::ToolCall { turn, name: name.clone(), arguments: arguments.clone() });
        }
        _ => {}
    }
}

/// Executes an action that does not end the episode.
fn execute(core: &mut EpisodeCore, action: Action) -> State {
    match action {
        Action::Search(search) => begin_search(core, search),
        Action::Backtrack => withdraw(core),
        Action::Answer { .. } | Action::Call { .. } | Action::Refuse { .. } | Action::Invalid => reject(core),
    }
}

fn begin_search(core: &mut EpisodeCore, search: PolicySearch) -> State {
    let mode = core.setup.mode(&search);
    let recalled = core.recall(&search);
    let turn = core.turn.number;
    let pending = PendingSearch { turn, search: search.clone(), mode, recalled: recalled.is_some() };
    core.emit(pending.started(core.setup.settings.retrieval.search.k()));
    core.ask(Step::Search(Box::new(SearchStep { search, mode, recalled })));
    State::Searching(pending)
}

/// Records the result of a search and shows it to the policy.
pub(super) fn end_search(
    core: &mut EpisodeCore,
    pending: PendingSearch,
    result: Result<Evidence, SearchError>,
    took: Duration,
) -> State {
    // A repeated search was not executed, so it does not count against the limit on searches.
    if !pending.recalled {
        core.budget.spend_search();
    }
    // The record counts sanitized tags only as far as the observation may show them.
    let (room, _) = core.budget.observation_room(core.transcript.visible_len());
    let finished = pending.finish(result, took, room, &mut core.evidence_room, &core.setup);
    core.transcript.record_search(finished.record);
    core.emit(finished.event);
    State::Replying(core.setup.join(finished.parts, core.turn.kept()))
}

/// Withdraws the last search that was not withdrawn yet.
fn withdraw(core: &mut EpisodeCore) -> State {
    let turn = core.turn.number;
    let hides = core.setup.settings.retrieval.backtrack == Backtrack::Remove;
    let taken = core.transcript.withdraw(turn, hides).map(|found| (found.turn, found.query.clone(), found.hidden));
    if let Some((search, query, hidden)) = &taken {
        // The reply must follow what is left of the sequence.
        if let Some(hidden) = hidden {
            core.ask(Step::Rebuild { kept: core.transcript.visible_before(hidden.first) });
        }
        let removed = hidden.map_or(0, |hidden| hidden.tokens);
        core.emit(Event::Withdrawn { turn, search: *search, query: query.clone(), removed });
    }
    let outcome = ActionOutcome::Withdrawn(taken.as_ref().map(|(_, query, _)| query.as_str()));
    let mut parts = core.setup.protocol.observation(&outcome, core.setup.settings.retrieval.format);
    // The reply quotes a query, and a policy may write a tag in it.
    core.setup.sanitize(&mut parts);
    State::Replying(core.setup.join(parts, core.turn.kept()))
}

/// Replies to an invalid turn.
fn reject(core: &mut EpisodeCore) -> State {
    let parts = core.turn.rejection(&core.setup);
    core.emit(Event::Invalid { turn: core.turn.number, message: reply_text(&parts) });
    State::Replying(parts)
}

/// Appends an observation to the sequence, as far as the budget allows.
pub(super) fn reply(core: &mut EpisodeCore, parts: Vec<Injected>) -> Result<State, AgentError> {
    let (room, kind) = core.budget.observation_room(core.transcript.visible_len());
    let cut = ObservationCut::of(&*core.setup.protocol, core.setup.settings.retrieval.format);
    let observation = observe(&core.setup.codec, parts, cut, room)?;
    let tokens = observation.ids.len();
    let truncated = observation.truncated;
    core.budget.spend_observation(tokens, truncated.then_some(kind));
    let start = core.transcript.len();
    core.extend(observation.ids, Origin::Environment, false);
    core.transcript.record_observation(core.turn.number, start);
    if truncated {
        core.emit(Event::Budget { kind });
    }
    core.emit(Event::Observation { turn: core.turn.number, text: observation.text, tokens, truncated });
    Ok(State::RoundOver)
}

/// Begins the next round, unless the time is used.
pub(super) fn end_round(core: &mut EpisodeCore, elapsed: Duration) -> State {
    // Counted after the observation, because an episode that ends before it has used no round.
    core.budget.spend_round();
    // A search stops at the deadline but does not end the episode, so the time is checked here.
    if core.budget.is_late(elapsed) {
        core.emit(Event::Budget { kind: BudgetLimit::Time });
        return core.end(EpisodeEnd::Time, None);
    }
    core.ask(Step::Boundary);
    State::TurnBegins
}
