//! Proposed tokens of a step: rows that sample are extended by the tokens that their turns force, and by looked up ones
//! where that is expected to save time.

use super::step_costs::StepSize;
use super::{CLAIM, PlannedRow, Scheduler};

/// Maximum number of sampling rows in a step with looked up tokens. Steps of more rows are bound by arithmetic, and
/// each row costs a search in its ids on the engine thread.
const MOST_ROWS: usize = 16;

/// Expected result of the sampling rows of a step.
#[derive(Debug, Clone, Copy)]
struct StepYield {
    /// Number of sampled tokens.
    tokens: f64,
    seconds: f64,
}

impl StepYield {
    /// Adds up to `most` tokens after a row, while each yields more tokens per second than the step so far. The first
    /// is accepted with probability `chance`, the second with its square and so on; each takes `cost` seconds. Returns
    /// the number of added tokens.
    fn extend(&mut self, chance: f64, cost: f64, most: usize) -> usize {
        let mut probability = chance;
        let mut count = 0;
        while count < most && probability * self.seconds > cost * self.tokens {
            self.tokens += probability;
            self.seconds += cost;
            probability *= chance;
            count += 1;
        }
        count
    }
}

impl Scheduler {
    /// Extends rows that sample after a single token by the tokens that their turns force, or else by tokens looked up
    /// in their own sequences.
    pub(super) fn plan_proposals(&mut self, rows: &mut [PlannedRow]) {
        let sampling = rows.iter().filter(|row| row.samples).count();
        let computed: usize = rows.iter().map(|row| row.tokens).sum();
        let mut room = self.step_tokens.saturating_sub(computed).min(self.logit_rows.saturating_sub(sampling));
        self.plan_forced(rows, &mut room);
        if self.lookup_tokens == 0 || sampling == 0 || sampling > MOST_ROWS {
            return;
        }
        let mut step_yield = self.yield_of(rows);
        let Self { sessions, pool, costs, planned, .. } = self;
        for row in rows.iter_mut().filter(|row| decodes(row) && row.proposed == 0) {
            let Some(session) = sessions.get_mut(&row.session).filter(|session| session.proposes()) else { continue };
            let len = session.sequence.len();
            let ahead = session.turn.as_ref().map_or(0, |turn| turn.lookahead(len));
            // The token that is sampled after the last proposed one must fit as well.
            let most = self.lookup_tokens.min(room).min(ahead).min(self.limit.saturating_sub(len + 1));
            let cost = costs.per_token(session.sequence.computed());
            let chance = session.lookup.chance();
            // Extends a copy: fewer tokens may be proposed than wanted, and later rows are weighed against the
            // proposed ones only.
            let wanted = match costs.known() {
                true => step_yield.clone().extend(chance, cost, most),
                false => most,
            };
            if wanted == 0 || !session.lookup.propose(session.sequence.ids(), wanted) {
                session.lookup.skip();
                continue;
            }
            // This may overwrite the oldest cached block. If only free blocks were taken, a server whose pool has
            // filled once would end every proposal at a block's end, and the session takes the block a few tokens
            // later anyway.
            row.proposed = session.sequence.reserve(wanted, pool);
            step_yield.extend(chance, cost, row.proposed);
            room -= row.proposed;
            *planned += StepSize::of_row(row.proposed, len);
        }
    }

    /// Extends rows by the next tokens that their turns force, and takes them from `room`, the number of tokens that the
    /// step can still take.
    fn plan_forced(&mut self, rows: &mut [PlannedRow], room: &mut usize) {
        // Beside other rows, forced tokens and prompts together take no more time than a prompt alone.
        let beside = self.costs.known() && rows.iter().any(|row| self.forced(row) == 0);
        let mut seconds = if beside {
            let streams = self.yield_of(rows).seconds;
            (1.0 + CLAIM) * streams - self.costs.seconds(self.planned)
        } else {
            f64::INFINITY
        };
        // Those with the fewest tokens first: they are done with what a longer one would not notice.
        let mut forcing: Vec<(usize, usize)> =
            rows.iter().map(|row| self.forced(row)).zip(0..).filter(|(forced, _)| *forced > 0).collect();
        forcing.sort_unstable();
        let Self { sessions, pool, costs, planned, limit, .. } = self;
        for (left, (_, place)) in (1..=forcing.len()).rev().zip(forcing) {
            let row = &mut rows[place];
            let Some(session) = sessions.get_mut(&row.session) else { continue };
            let Some(turn) = &session.turn else { continue };
            let len = session.sequence.len();
            let forced = turn.forced(len);
            // The token that is sampled after the last proposed one must fit as well.
            let most = forced.len().min(*room / left).min(turn.lookahead(len)).min(limit.saturating_sub(len + 1));
            let cost = costs.per_token(session.sequence.computed());
            // At least one: after steps of single tokens alone, the estimated cost of a token is that of a whole step.
            let affordable = ((seconds.max(0.0) / cost) as usize).max(1);
            let wanted = most.min(affordable);
            session.lookup.propose_forced(&forced[..wanted]);
            row.proposed = session.sequence.reserve(wanted, pool);
            seconds -= cost * row.proposed as f64;
            *room -= row.proposed;
            *planned += StepSize::of_row(row.proposed, len);
        }
    }

    /// Returns the number of tokens that the turn of a row forces next, if the row samples after a single token and
    /// tokens may be proposed.
    fn forced(&self, row: &PlannedRow) -> usize {
        let session = self.sessions.get(&row.session).filter(|session| decodes(row) && session.proposes());
        let Some(session) = session else { return 0 };
        session.turn.as_ref().map_or(0, |turn| turn.forced(session.sequence.len()).len())
    }

    /// Returns the expected result of the rows that sample after a single token, with forced tokens but without prefill
    /// and lookup.
    fn yield_of(&self, rows: &[PlannedRow]) -> StepYield {
        let mut size = StepSize::default();
        let mut tokens = 0.0;
        for row in rows.iter().filter(|row| decodes(row)) {
            size += StepSize::of_row(row.tokens + row.proposed, self.computed(row.session));
            tokens += 1.0 + row.proposed as f64;
        }
        StepYield { tokens, seconds: self.costs.seconds(size) }
    }

    /// Records that a proposed token was sampled: its KV, written in the same pass, counts as computed.
    pub(crate) fn confirm(&mut self, id: u64) {
        self.record_computed(id, 1);
    }

    /// Records that a pass failed with the proposed tokens of a session, but not without them.
    pub(crate) fn blame_proposals(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.failed_proposals += 1;
        }
    }

    /// Ends the verification of a row: the first `accepted` of its `proposed` tokens were sampled.
    pub(crate) fn settle(&mut self, id: u64, proposed: usize, accepted: usize) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.sequence.trim(&mut self.pool);
        if proposed > 0 && session.lookup.is_looked_up() {
            session.lookup.record(accepted, proposed);
            self.counters.lookup_proposed_tokens_total.add(proposed);
            self.counters.lookup_accepted_tokens_total.add(accepted);
        }
    }
}

/// Returns `true` if the row samples after a single token, as each step of a turn does after the first one.
fn decodes(row: &PlannedRow) -> bool {
    row.samples && row.tokens == 1
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::backend::BackendSpec;
    use crate::command::Submission;
    use crate::config::EngineConfig;
    use crate::mailbox::mailbox;
    use crate::request::{Generate, SessionOptions};
    use crate::stage::TurnStage;

    /// Returns the numbers of proposed tokens of a step of sessions, each with a prompt of one token and a turn that
    /// forces this many tokens.
    fn proposed(forced: &[u32], capacity: usize, timed: bool) -> Vec<usize> {
        let spec = BackendSpec { name: "memory".into(), vocab: 259, blocks: 64, context: 1024, generation: 1 };
        let mut scheduler = Scheduler::new(&spec, &EngineConfig::default(), Arc::default());
        if timed {
            // 7.5 ms per step and 1 ms per token, with any context.
            for (tokens, computed) in [(1, 0), (2, 900), (4, 100), (8, 2000), (16, 0), (32, 500)] {
                let time = Duration::from_micros(7500 + 1000 * tokens as u64);
                scheduler.costs.record(StepSize::of_row(tokens, computed), time);
            }
        }
        for (session, &forced) in (1..).zip(forced) {
            let submission = Submission {
                session,
                options: SessionOptions::default(),
                keep: 0,
                append: vec![session as u32],
                generate: Generate { max_tokens: 100, force: (0..forced).collect(), ..Generate::default() },
                outbox: mailbox(capacity).0,
                submitted: Instant::now(),
                stage: TurnStage::queue(),
                permit: None,
            };
            scheduler.submit(submission, None);
        }
        let mut rows = Vec::new();
        scheduler.plan(Instant::now(), &mut rows);
        rows.sort_by_key(|row| row.session);
        rows.iter().map(|row| row.proposed).collect()
    }

    #[test]
    fn forced_tokens_take_what_a_step_and_the_reader_can() {
        assert_eq!(proposed(&[30], 256, false), [30], "the token after the forced ones is sampled");
        assert_eq!(proposed(&[200], 256, false), [63], "64 rows of logits");
        assert_eq!(proposed(&[200], 256, true), [63], "no other row waits");
        assert_eq!(proposed(&[200], 8, false), [7], "the mailbox holds eight tokens");
        assert_eq!(proposed(&[40, 40], 256, false), [31, 31]);
        assert_eq!(proposed(&[200, 20], 256, false), [42, 20], "a short score does not wait for a long one");
        assert_eq!(proposed(&[0, 40], 256, false), [0, 40]);
    }

    #[test]
    fn forced_tokens_beside_other_rows_take_time_as_a_prompt_does() {
        // 0.8 · (7.5 + 2) ms, at 1 ms per token.
        assert_eq!(proposed(&[0, 40], 256, true), [0, 7]);
    }

    #[test]
    fn tokens_are_added_while_they_pay() {
        let step = || StepYield { tokens: 1.0, seconds: 10.0 };
        // 0.5 · 10 > 1 · 1 and 0.25 · 11 > 1 · 1.5, but 0.125 · 12 < 1 · 1.75.
        assert_eq!(step().extend(0.5, 1.0, 8), 2);
        assert_eq!(step().extend(0.5, 1.0, 1), 1);
        assert_eq!(step().extend(0.5, 0.0, 8), 8, "they cost nothing");
        assert_eq!(step().extend(0.05, 1.0, 8), 0, "they are hardly ever accepted");
        let mut crowded = StepYield { tokens: 16.0, seconds: 16.1 };
        assert_eq!(crowded.extend(0.9, 1.0, 8), 0, "a token takes as long as one of another row");
    }

    #[test]
    fn rows_share_what_a_step_can_take() {
        let mut step = StepYield { tokens: 2.0, seconds: 10.0 };
        assert_eq!(step.extend(0.9, 4.0, 8), 1, "0.9 · 10 > 4 · 2, but 0.81 · 14 < 4 · 2.9");
        assert!((step.tokens - 2.9).abs() < 1e-9 && (step.seconds - 14.0).abs() < 1e-9, "{step:?}");
        assert_eq!(step.extend(0.8, 4.0, 8), 0, "0.8 · 14 < 4 · 2.9");
        assert_eq!(step.extend(0.9, 4.0, 8), 1, "0.9 · 14 > 4 · 2.9, but 0.81 · 18 < 4 · 3.8");
    }
}
