//! The end of a step: draws tokens, delivers them to their readers, and ends finished turns.

use std::sync::Arc;
use std::task::Waker;

use waymark_models::tokenizer::TokenBytes;

use super::counters::Counters;
use super::draw::{self, Draw, DrawSource, Drawn};
use super::error::EngineError;
use super::mailbox::Room;
use super::pass_runner::PassRunner;
use super::scheduler::{PlannedRow, Scheduler};
use super::token::TurnFinish;

/// Next state of a session after its draw.
#[derive(Debug, Clone, Copy)]
enum RowOutcome {
    Continue,
    Stall,
    Late,
    Finish(TurnFinish),
}

/// Delivery of drawn tokens to readers.
#[derive(Debug)]
pub(super) struct Delivery {
    /// Bytes of the vocabulary, in which stop strings are searched.
    bytes: Arc<TokenBytes>,
    /// Maximum length of a sequence, in tokens.
    limit: usize,
    /// Draws of the current step. Empty between two steps; kept to reuse the memory.
    draws: Vec<Draw>,
    /// Sessions with delivered tokens that were not sent to their readers yet.
    unsent: Vec<u64>,
    /// Wakers of readers that have new tokens.
    wakers: Vec<Waker>,
    counters: Arc<Counters>,
}

impl Delivery {
    pub(super) fn new(bytes: Arc<TokenBytes>, limit: usize, counters: Arc<Counters>) -> Self {
        Self { bytes, limit, draws: Vec::new(), unsent: Vec::new(), wakers: Vec::new(), counters }
    }

    /// Processes the results of a pass over `rows`. Returns `true` if any row succeeded.
    pub(super) fn commit(&mut self, rows: &[PlannedRow], scheduler: &mut Scheduler, passes: &mut PassRunner) -> bool {
        for row in rows {
            scheduler.account(row);
        }
        // Taken to satisfy the borrow checker, and put back below to reuse the allocation.
        let mut draws = std::mem::take(&mut self.draws);
        let mut position = 0;
        // The backend returns logits only for positions that it did not draw, so their indexes skip the drawn ones.
        let mut logits = 0..;
        for row in rows.iter().filter(|row| row.samples) {
            let positions = position..=position + row.proposed;
            position = positions.end() + 1;
            let sources = positions.filter_map(|position| match passes.take_drawn(position) {
                Some(chosen) => Some(DrawSource::Backend(chosen)),
                None => logits.next().map(DrawSource::Logits),
            });
            let sources = sources.collect();
            let proposed = scheduler.session(row.session).map(|session| session.proposal(row.proposed).to_vec());
            let turn = scheduler.take_turn(row.session).zip(proposed);
            draws.extend(turn.map(|(turn, proposed)| Draw::new(row.session, turn, proposed, sources)));
        }
        draw::draw_all(&mut draws, passes.logits(), scheduler, passes.team());
        // Prefill chunks sample nothing and have succeeded by now.
        let mut any = draws.len() < rows.len();
        for draw in draws.drain(..) {
            let id = draw.session;
            match self.deliver(draw, scheduler) {
                Ok(outcome) => {
                    any = true;
                    self.apply_outcome(id, outcome, scheduler);
                }
                Err(error) => scheduler.fail(id, error),
            }
        }
        self.draws = draws;
        // With an asynchronous backend, this is done during the next pass, while the thread is idle.
        if !passes.overlaps() {
            self.send(scheduler);
        }
        any
    }

    /// Returns a turn to its session, and appends the drawn tokens to both session and mailbox, up to the end of the
    /// turn.
    fn deliver(&mut self, draw: Draw, scheduler: &mut Scheduler) -> Result<RowOutcome, EngineError> {
        let Draw { session: id, turn, proposed, drawn, .. } = draw;
        scheduler.return_turn(id, turn);
        let missing = || EngineError::Sample("the backend returned no token for this row".into());
        let mut outcome = Err(missing());
        let mut verified = proposed.len();
        let mut accepted = 0;
        for (position, drawn) in drawn.into_iter().enumerate() {
            let sampled = match drawn {
                Drawn::Token(sampled) => sampled,
                // The proposed tokens from here on were not verified.
                Drawn::Late => {
                    outcome = Ok(RowOutcome::Late);
                    verified = accepted;
                    break;
                }
                Drawn::Failed(error) => {
                    outcome = Err(error);
                    verified = accepted;
                    break;
                }
            };
            // Each position after the first was computed with a proposed token, which the draw before it has confirmed.
            if position > 0 {
                scheduler.confirm(id);
                accepted += 1;
            }
            let (sequence, turn) = scheduler.open_turn(id).ok_or_else(missing)?;
            sequence.push(sampled.id);
            self.counters.decode_tokens_total.add(1);
            let bytes = self.bytes.get(sampled.id);
            outcome = Ok(match turn.deliver(sampled, bytes, sequence.len(), self.limit, &mut self.wakers) {
                (Some(finish), _) => RowOutcome::Finish(finish),
                (None, Room::None) => RowOutcome::Stall,
                (None, Room::Some) => RowOutcome::Continue,
            });
            if let Ok(RowOutcome::Finish(_)) = outcome {
                break;
            }
        }
        scheduler.settle(id, verified, accepted);
        self.unsent.push(id);
        outcome
    }

    fn apply_outcome(&mut self, id: u64, outcome: RowOutcome, scheduler: &mut Scheduler) {
        match outcome {
            RowOutcome::Continue => {}
            RowOutcome::Finish(finish) => scheduler.finish(id, finish, &mut self.wakers),
            RowOutcome::Late => scheduler.skip_late(id),
            RowOutcome::Stall => scheduler.stall(id),
        }
    }

    /// Sends delivered tokens to their readers and wakes them.
    pub(super) fn send(&mut self, scheduler: &mut Scheduler) {
        for id in self.unsent.drain(..) {
            // A turn that has ended meanwhile has sent its tokens.
            if let Some((_, turn)) = scheduler.open_turn(id) {
                turn.send(&mut self.wakers);
            }
        }
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;
    use std::time::{Duration, Instant};

    use smallvec::SmallVec;
    use waymark_models::Logits;
    use waymark_models::kernel::Team;
    use waymark_models::sampler::{Sampled, SamplingParams};
    use waymark_models::tokenizer::Tokenizer;

    use super::super::backend::BackendSpec;
    use super::super::command::Submission;
    use super::super::config::EngineConfig;
    use super::super::draw::Draw;
    use super::super::mailbox::{Inbox, mailbox};
    use super::super::request::{Generate, SessionOptions};
    use super::super::stage::TurnStage;
    use super::*;

    fn scheduler(config: &EngineConfig, counters: &Arc<Counters>) -> Scheduler {
        let spec = BackendSpec { name: "memory".into(), vocab: 259, blocks: 8, context: 128, generation: 1 };
        Scheduler::new(&spec, config, counters.clone())
    }

    fn submission(session: u64) -> (Submission, Inbox) {
        let (outbox, inbox) = mailbox(64);
        let submission = Submission {
            session,
            options: SessionOptions::default(),
            keep: 0,
            append: vec![7, 8, 7, 8, 7],
            generate: Generate { sampling: SamplingParams::greedy(), max_tokens: 60, ..Generate::default() },
            outbox,
            submitted: Instant::now(),
            stage: TurnStage::queue(),
            permit: None,
        };
        (submission, inbox)
    }

    #[test]
    fn tokens_that_the_backend_chose_wait_for_no_thread() {
        const LIMIT: Duration = Duration::from_secs(60);
        let mut scheduler = scheduler(&EngineConfig::default(), &Arc::default());
        let mut draws = Vec::new();
        for id in [1, 2] {
            scheduler.submit(submission(id).0, None);
            let chosen = DrawSource::Backend(Ok(Sampled { id: 7, logprob: 0.0, top: Vec::new() }));
            draws.push(Draw::new(id, scheduler.take_turn(id).unwrap(), Vec::new(), SmallVec::from_buf([chosen])));
        }
        let team = Team::new(2);
        let busy = Barrier::new(2);
        let done = AtomicBool::new(false);
        let started = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                team.run(&|worker, _| {
                    if worker == 0 {
                        busy.wait();
                        while !done.load(Relaxed) && started.elapsed() < LIMIT {
                            thread::yield_now();
                        }
                    }
                });
            });
            busy.wait();
            draw::draw_all(&mut draws, &Logits::new(), &scheduler, Some(&team));
            done.store(true, Relaxed);
        });
        assert!(started.elapsed() < LIMIT, "the draws waited for the team");
        assert!(draws.iter().all(|draw| matches!(&draw.drawn[..], [Drawn::Token(sampled)] if sampled.id == 7)));
    }

    #[test]
    fn a_row_that_fails_behind_accepted_tokens_is_settled() {
        let counters = Arc::new(Counters::default());
        let config = EngineConfig { lookup_tokens: 20, ..EngineConfig::default() };
        let mut scheduler = scheduler(&config, &counters);
        let (submission, _inbox) = submission(1);
        scheduler.submit(submission, None);
        let mut delivery = Delivery::new(Tokenizer::bytes().table(), 128, counters.clone());
        let token = |id| Drawn::Token(Sampled { id, logprob: 0.0, top: Vec::new() });
        let mut step = |drawn: Vec<Drawn>| {
            let mut rows = Vec::new();
            scheduler.plan(Instant::now(), &mut rows);
            let row = rows[0];
            scheduler.account(&row);
            let proposed = scheduler.session(1).unwrap().proposal(row.proposed).to_vec();
            let turn = scheduler.take_turn(1).unwrap();
            let mut draw = Draw::new(1, turn, proposed, SmallVec::new());
            draw.drawn = drawn.into();
            let outcome = delivery.deliver(draw, &mut scheduler);
            (row.proposed, outcome.is_ok(), scheduler.session(1).unwrap().sequence().blocks())
        };
        assert_eq!(step(vec![token(8)]), (0, true, 1));
        let failed = Drawn::Failed(EngineError::Sample("no token".into()));
        // Two blocks were reserved for the proposed tokens.
        assert_eq!(step(vec![token(7), token(8), failed]), (20, false, 1));
        assert_eq!(counters.lookup_accepted_tokens_total.get(), 1);
        assert_eq!(counters.lookup_proposed_tokens_total.get(), 1, "the others were not verified");
    }
}
