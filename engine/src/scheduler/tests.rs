//! Tests of the scheduler alone, case by case.

use std::time::{Duration, Instant};

use waymark_models::BLOCK;

use super::PlannedRow;
use super::property::{SchedulerMachine, harness};
use super::step_costs::StepSize;
use crate::config::EngineConfig;
use crate::error::EngineError;
use crate::harness::{Harness, Machine, Operation, submit};
use crate::snapshot::{BlockSnapshot, SessionState};
use crate::token::TurnFinish;

fn blocks(harness: &Harness<SchedulerMachine>) -> BlockSnapshot {
    harness.machine.scheduler.snapshot(Instant::now()).1
}

fn states(harness: &Harness<SchedulerMachine>) -> Vec<SessionState> {
    let (sessions, _) = harness.machine.scheduler.snapshot(Instant::now());
    sessions.iter().map(|session| session.state).collect()
}

/// Plans a step without executing it. Returns session, tokens and sampling of every row.
fn plan(harness: &mut Harness<SchedulerMachine>) -> Vec<(u64, usize, bool)> {
    let mut rows = Vec::new();
    harness.machine.scheduler.plan(Instant::now(), &mut rows);
    rows.iter().map(|row| (row.session, row.tokens, row.samples)).collect()
}

#[test]
fn decode_rows_come_first_and_prefill_shares_the_rest() {
    let mut harness = harness(64, &EngineConfig { step_tokens: 32, ..EngineConfig::default() });
    harness.apply(submit(0, 5, 10));
    harness.apply(Operation::Step { times: 1 });
    harness.apply(submit(1, 20, 10));
    harness.apply(submit(2, 50, 10));
    assert_eq!(plan(&mut harness), [(1, 1, true), (2, 20, true), (3, 11, false)]);
}

#[test]
fn a_batch_of_decode_rows_leaves_a_block_of_prefill() {
    let mut harness = harness(64, &EngineConfig { step_tokens: 4, ..EngineConfig::default() });
    (0..4).for_each(|_| harness.apply(submit(0, 1, 100)));
    harness.apply(Operation::Step { times: 4 });
    harness.apply(submit(1, 40, 10));
    assert_eq!(plan(&mut harness).last(), Some(&(5, 16, false)));
}

#[test]
fn a_canceled_prefill_frees_its_blocks_at_once() {
    let mut harness = harness(8, &EngineConfig { step_tokens: 16, ..EngineConfig::default() });
    harness.apply(submit(0, 59, 10));
    harness.apply(Operation::Step { times: 2 });
    assert_eq!(blocks(&harness).used, 4);
    harness.apply(Operation::Close { session: 0 });
    assert_eq!(blocks(&harness).used, 0);
    harness.check();
}

#[test]
fn an_audit_counts_a_block_that_no_session_accounts_for() {
    let mut harness = harness(8, &EngineConfig::default());
    harness.apply(submit(0, 40, 10));
    harness.apply(Operation::Step { times: 1 });
    harness.machine.scheduler.audit();
    assert_eq!(harness.counters.invariant_violations_total.get(), 0);
    harness.machine.scheduler.lose_block();
    harness.machine.scheduler.audit();
    assert_eq!(harness.counters.invariant_violations_total.get(), 1);
}

#[test]
fn a_failed_turn_leaves_nothing_in_the_cache() {
    let mut harness = harness(8, &EngineConfig::default());
    harness.apply(submit(0, 59, 10));
    harness.apply(Operation::Step { times: 2 });
    harness.machine.scheduler.fail(1, EngineError::Backend("a broken pass".into()));
    let blocks = blocks(&harness);
    assert_eq!((blocks.free, blocks.cached, blocks.used), (8, 0, 0));
    assert_eq!(states(&harness), [SessionState::Parked]);
    assert_eq!(harness.counters.turn_failures_total.get(), 1);
    harness.check();
}

#[test]
fn a_late_mask_costs_one_token_and_no_block() {
    let mut harness = harness(8, &EngineConfig::default());
    harness.apply(submit(0, 40, 10));
    harness.apply(Operation::Step { times: 3 });
    let rows = plan(&mut harness);
    assert_eq!(rows, [(1, 1, true)]);
    let scheduler = &mut harness.machine.scheduler;
    scheduler.account(&PlannedRow { session: 1, tokens: 1, proposed: 0, samples: true });
    scheduler.skip_late(1);
    assert_eq!(states(&harness), [SessionState::Running]);
    assert_eq!(plan(&mut harness), [(1, 1, true)], "the last token is computed again");
    assert_eq!(blocks(&harness).used, 3);
    harness.check();
}

#[test]
fn a_late_mask_costs_no_place_in_a_full_batch() {
    let mut harness = harness(8, &EngineConfig { max_batch_rows: 1, ..EngineConfig::default() });
    // The 16th token, whose KV is computed in the last step, fills a block.
    harness.apply(submit(0, 14, 10));
    harness.apply(Operation::Step { times: 2 });
    harness.apply(Operation::Submit { salt: 1, family: 1, tokens: 10, max_tokens: 10 });
    assert_eq!(plan(&mut harness), [(1, 1, true)]);
    let scheduler = &mut harness.machine.scheduler;
    scheduler.account(&PlannedRow { session: 1, tokens: 1, proposed: 0, samples: true });
    scheduler.skip_late(1);
    harness.check();
    assert_eq!(states(&harness), [SessionState::Running, SessionState::Waiting]);
    assert_eq!(plan(&mut harness), [(1, 1, true)], "the waiting session took the place");
}

#[test]
fn a_session_whose_reader_catches_up_goes_before_those_that_never_ran() {
    let config = EngineConfig { max_batch_rows: 1, max_undelivered: 4, ..EngineConfig::default() };
    let mut harness = harness(16, &config);
    for salt in 0..3 {
        harness.apply(Operation::Submit { salt, family: 0, tokens: 10, max_tokens: 8 });
    }
    harness.apply(Operation::Step { times: 5 });
    assert_eq!(states(&harness), [SessionState::Stalled, SessionState::Running, SessionState::Waiting]);
    harness.apply(Operation::Read { session: 0 });
    harness.apply(Operation::Step { times: 3 });
    assert_eq!(states(&harness), [SessionState::Waiting, SessionState::Stalled, SessionState::Waiting]);
    assert_eq!(plan(&mut harness), [(1, 1, true)], "its tenant has been served more than that of the third session");
}

#[test]
fn blocks_that_a_session_finds_again_are_no_cache_hits() {
    let mut harness = harness(8, &EngineConfig::default());
    harness.apply(submit(0, 40, 5));
    harness.apply(Operation::Step { times: 5 });
    // Needs six of the eight blocks, three of which the parked session holds.
    harness.apply(submit(1, 85, 1));
    harness.apply(Operation::Step { times: 1 });
    assert_eq!(harness.counters.evictions_total.get(), 1);
    harness.apply(Operation::Extend { session: 0, tokens: 3, max_tokens: 1 });
    harness.apply(Operation::Step { times: 1 });
    let counters = &harness.counters;
    // Two of the session's blocks were not overwritten, so it computes only the last 16 of its 48 tokens.
    assert_eq!(counters.prefill_tokens_total.get(), 40 + 85 + 16);
    assert_eq!(counters.prefix_cache_hit_tokens_total.get(), 0);
    harness.settle();
}

#[test]
fn sessions_with_one_prompt_compute_it_once() {
    let mut harness = harness(64, &EngineConfig { step_tokens: 32, ..EngineConfig::default() });
    for _ in 0..4 {
        harness.apply(submit(1, 59, 5));
    }
    harness.settle();
    let counters = &harness.counters;
    // 48 tokens are three full blocks; each other session computes the remaining 11.
    assert_eq!(counters.prefill_tokens_total.get(), 59 + 3 * 11);
    assert_eq!(counters.prefix_cache_hit_tokens_total.get(), 3 * 48);
    assert_eq!(counters.turns_total.get(), 4);
}

#[test]
fn a_tenant_finds_its_own_blocks_and_nobody_elses() {
    let mut harness = harness(64, &EngineConfig::default());
    let mut hits = |salt| {
        let before = harness.counters.prefix_cache_hit_tokens_total.get();
        harness.apply(Operation::Submit { salt, family: 1, tokens: 59, max_tokens: 5 });
        harness.settle();
        harness.counters.prefix_cache_hit_tokens_total.get() - before
    };
    assert_eq!([hits(1), hits(2), hits(0)], [0, 0, 0]);
    assert_eq!([hits(1), hits(2), hits(0)], [48, 48, 48]);
}

#[test]
fn new_weights_find_no_blocks_of_the_old_ones() {
    let mut harness = harness(64, &EngineConfig::default());
    harness.apply(submit(1, 59, 5));
    harness.settle();
    assert!(blocks(&harness).cached > 0);
    harness.machine.scheduler.replace_base(2);
    assert_eq!(blocks(&harness).free, 64);
    harness.apply(submit(1, 59, 5));
    harness.settle();
    assert_eq!(harness.counters.prefix_cache_hit_tokens_total.get(), 0);
}

#[test]
fn the_oldest_session_is_served_when_blocks_are_short() {
    let mut harness = harness(4, &EngineConfig::default());
    (0..6).for_each(|family| harness.apply(submit(family, 40, 20)));
    for _ in 0..1000 {
        harness.machine.step();
        harness.check();
        (0..harness.clients.len()).for_each(|index| harness.read(index));
        let first_open = harness.clients.iter().position(|client| client.finish.is_none());
        let last_done = harness.clients.iter().rposition(|client| client.finish.is_some());
        assert!(first_open.is_none() || last_done.is_none() || first_open > last_done, "served out of order");
    }
    assert!(harness.clients.iter().all(|client| client.finish == Some(TurnFinish::Length)));
}

#[test]
fn a_dropped_turn_leaves_a_session_that_goes_on_from_what_was_delivered() {
    let mut harness = harness(16, &EngineConfig::default());
    harness.apply(submit(0, 20, 100));
    harness.apply(Operation::Step { times: 30 });
    harness.apply(Operation::Read { session: 0 });
    harness.apply(Operation::Step { times: 7 });
    harness.apply(Operation::Stop { session: 0 });
    assert_eq!(harness.clients[0].tokens.len(), 50);
    harness.apply(Operation::Extend { session: 0, tokens: 3, max_tokens: 20 });
    harness.settle();
}

/// Regression found by the random operations: the kept tokens had all been computed.
#[test]
fn a_turn_that_adds_nothing_after_a_dropped_one_has_something_to_compute() {
    let mut harness = harness(16, &EngineConfig::default());
    harness.apply(submit(0, 16, 100));
    harness.apply(Operation::Step { times: 20 });
    harness.apply(Operation::Stop { session: 0 });
    harness.apply(Operation::Extend { session: 0, tokens: 0, max_tokens: 5 });
    harness.check();
    harness.settle();
}

#[test]
fn a_large_request_is_not_overtaken_by_small_ones() {
    let mut harness = harness(4, &EngineConfig::default());
    harness.apply(submit(0, 20, 10));
    harness.apply(Operation::Step { times: 1 });
    harness.apply(submit(1, 50, 1));
    harness.apply(submit(2, 5, 1));
    harness.apply(Operation::Step { times: 2 });
    harness.clients.iter_mut().for_each(|client| assert!(!client.read()));
    assert!(harness.clients[2].finish.is_none(), "one block would have been free for it");
    harness.settle();
}

#[test]
fn parked_sessions_give_way_before_running_ones() {
    let mut harness = harness(6, &EngineConfig::default());
    harness.apply(submit(0, 30, 1));
    harness.apply(Operation::Step { times: 1 });
    harness.apply(submit(1, 30, 30));
    harness.apply(submit(2, 30, 30));
    harness.apply(Operation::Step { times: 10 });
    assert_eq!(harness.counters.evictions_total.get(), 1);
    assert_eq!(harness.counters.preemptions_total.get(), 0);
    harness.settle();
}

#[test]
fn a_row_without_a_proposal_takes_nothing_from_later_ones() {
    let proposals = |prompts: [usize; 2]| {
        let mut harness = harness(16, &EngineConfig { lookup_tokens: 8, ..EngineConfig::default() });
        prompts.into_iter().for_each(|tokens| harness.apply(submit(0, tokens, 40)));
        let scheduler = &mut harness.machine.scheduler;
        // 7.5 ms per step and 1 ms per token, with any context.
        for (tokens, computed) in [(1, 0), (2, 900), (4, 100), (8, 2000), (16, 0), (32, 500)] {
            let time = Duration::from_micros(7500 + 1000 * tokens as u64);
            scheduler.costs.record(StepSize::of_row(tokens, computed), time);
        }
        let row = |session| PlannedRow { session, tokens: 1, proposed: 0, samples: true };
        let mut rows = [row(1), row(2)];
        scheduler.plan_proposals(&mut rows);
        rows.map(|row| row.proposed)
    };
    // The second token of a row is expected to save time, until two tokens of another row are proposed.
    assert_eq!(proposals([10, 10]), [2, 1]);
    assert_eq!(proposals([5, 10]), [0, 2], "five different tokens have no earlier occurrence");
}

#[test]
fn a_prompt_is_not_computed_token_by_token_after_steps_of_one_token() {
    let mut harness = harness(128, &EngineConfig::default());
    for computed in 0..32 {
        harness.machine.scheduler.costs.record(StepSize::of_row(1, computed), Duration::from_millis(20));
    }
    harness.apply(submit(0, 1500, 1));
    let computed = plan(&mut harness)[0].1;
    assert!(computed >= BLOCK, "{computed}");
    // The first block shows that a step takes its time whatever its size.
    let costs = &mut harness.machine.scheduler.costs;
    costs.record(StepSize::of_row(computed, 0), Duration::from_millis(20));
    assert!(costs.fixed() > 0.01, "{}", costs.fixed());
}
