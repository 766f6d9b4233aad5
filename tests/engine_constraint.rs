//! Constrained decoding: constrained turns follow their rule, and concurrent unconstrained turns are unaffected.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use waymark_engine::mock::Random;
use waymark_engine::{
    Constraint, ConstraintState, Engine, EngineConfig, EngineError, Generate, MockBackend, Origin, Session,
    SessionOptions,
};
use waymark_models::sampler::{SamplingParams, TokenMask};
use waymark_models::tokenizer::Tokenizer;

const VOCAB: usize = 259;

/// Constraint that allows every third token ID; the tokens before decide which third.
#[derive(Debug, Clone)]
struct Thirds {
    rest: u32,
    takes: Duration,
    /// Index of the token at which the constraint panics, from 0.
    panics_at: usize,
    taken: usize,
}

fn thirds() -> Thirds {
    Thirds { rest: 0, takes: Duration::ZERO, panics_at: usize::MAX, taken: 0 }
}

impl Constraint for Thirds {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl ConstraintState for Thirds {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        assert!(self.taken != self.panics_at, "the rule breaks");
        sleep(self.takes);
        let mut mask = TokenMask::all(VOCAB);
        (0..VOCAB as u32).filter(|id| id % 3 != self.rest).for_each(|id| mask.forbid(id));
        Ok(Some(mask))
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        (self.rest, self.taken) = ((self.rest + 1) % 3, self.taken + 1);
        if id % 3 == (self.rest + 2) % 3 { Ok(()) } else { Err(format!("{id} was not allowed")) }
    }
}

fn start() -> Engine {
    start_on(MockBackend::random(7, VOCAB))
}

fn start_on(backend: MockBackend) -> Engine {
    Engine::start(Box::new(backend), EngineConfig::default(), Tokenizer::bytes().table()).unwrap()
}

fn session(engine: &Engine, prompt: std::ops::Range<u32>) -> Session {
    let mut session = engine.session(SessionOptions::default());
    session.append(&prompt.collect::<Vec<_>>(), Origin::Prompt, false);
    session
}

fn generate(max_tokens: usize, rule: Option<Thirds>) -> Generate {
    let constraint = rule.map(|rule| Arc::new(rule) as Arc<dyn Constraint>);
    Generate { sampling: SamplingParams::greedy(), max_tokens, constraint, ..Generate::default() }
}

async fn run(session: &mut Session, generate: Generate) -> Result<Vec<u32>, EngineError> {
    let mut turn = session.generate(generate).await?;
    let mut ids = Vec::new();
    while let Some(step) = turn.next().await {
        ids.push(step?.id);
    }
    Ok(ids)
}

/// Returns the tokens that the mock samples after `prompt` without a constraint.
fn free(prompt: std::ops::Range<u32>, tokens: usize) -> Vec<u32> {
    let random = Random { seed: 7, vocab: VOCAB };
    let mut context = prompt.collect::<Vec<_>>();
    let given = context.len();
    for _ in 0..tokens {
        context.push(random.next(None, &context));
    }
    context.split_off(given)
}

#[tokio::test]
async fn every_token_is_one_that_was_allowed_then() {
    let engine = start();
    let ids = run(&mut session(&engine, 0..40), generate(50, Some(thirds()))).await.unwrap();
    assert_eq!(ids.len(), 50);
    assert!((0..).zip(&ids).all(|(at, id)| id % 3 == at % 3), "{ids:?}");
    let both = Generate { allow: Some(vec![1]), ..generate(5, Some(thirds())) };
    assert!(matches!(run(&mut session(&engine, 0..3), both).await, Err(EngineError::Request(_))));
}

#[tokio::test]
async fn a_slow_rule_holds_up_its_own_turn_alone() {
    let engine = start();
    // Much longer than a step of the mock: all of its turn takes four seconds.
    let slow = Thirds { takes: Duration::from_millis(500), ..thirds() };
    let mut held = session(&engine, 0..40);
    let mut other = session(&engine, 50..90);
    let held = tokio::spawn(async move { run(&mut held, generate(8, Some(slow))).await });
    let ids = run(&mut other, generate(200, None)).await.unwrap();
    assert!(!held.is_finished(), "the free turn was not faster");
    assert_eq!(ids, free(50..90, 200));
    let ids = held.await.unwrap().unwrap();
    assert!(ids.len() == 8 && (0..).zip(&ids).all(|(at, id)| id % 3 == at % 3), "{ids:?}");
    // Proves that the slow rule was late, so the free turn had something to wait for.
    assert!(engine.counters().late_masks_total.get() > 0);
    assert_eq!(engine.counters().invariant_violations_total.get(), 0);
}

#[tokio::test]
async fn a_mask_that_misses_the_submission_changes_no_token_of_a_device() {
    let engine = start();
    let expected = run(&mut session(&engine, 0..40), generate(8, Some(thirds()))).await.unwrap();
    // Masks that miss the step as well, and masks that are ready before the logits.
    for (step, takes) in [(1, 150), (40, 15)] {
        let device =
            MockBackend::random(7, VOCAB).with_overlap().with_time(Duration::from_millis(step), Duration::ZERO);
        let engine = start_on(device);
        let slow = Thirds { takes: Duration::from_millis(takes), ..thirds() };
        let mut held = session(&engine, 0..40);
        let mut other = session(&engine, 50..90);
        let (held, ids) = tokio::join!(run(&mut held, generate(8, Some(slow))), run(&mut other, generate(12, None)));
        assert_eq!(held.unwrap(), expected, "steps of {step} ms, masks of {takes} ms");
        assert_eq!(ids.unwrap(), free(50..90, 12), "steps of {step} ms, masks of {takes} ms");
        let counters = engine.counters();
        assert!(step > takes || counters.late_masks_total.get() > 0, "no mask missed its step");
        assert_eq!(counters.invariant_violations_total.get(), 0);
    }
}

#[tokio::test]
async fn a_rule_that_panics_ends_its_own_turn_alone() {
    let engine = start();
    let mut broken = session(&engine, 0..40);
    let mut other = session(&engine, 50..90);
    let rule = Thirds { panics_at: 3, ..thirds() };
    let (failed, ids) = tokio::join!(run(&mut broken, generate(20, Some(rule))), run(&mut other, generate(60, None)));
    assert!(matches!(&failed, Err(EngineError::Sample(reason)) if reason.contains("the rule breaks")), "{failed:?}");
    assert_eq!(ids.unwrap(), free(50..90, 60));
    let again = run(&mut session(&engine, 0..40), generate(5, Some(thirds()))).await;
    assert_eq!(again.unwrap().len(), 5, "the threads live on");
    assert_eq!(engine.counters().invariant_violations_total.get(), 0);
}

#[tokio::test]
async fn a_turn_dropped_while_its_mask_is_found_leaves_nothing() {
    let engine = start();
    let slow = Thirds { takes: Duration::from_millis(30), ..thirds() };
    let mut dropped = session(&engine, 0..40);
    let mut turn = dropped.generate(generate(20, Some(slow))).await.unwrap();
    turn.next().await.unwrap().unwrap();
    drop(turn);
    drop(dropped);
    let ids = run(&mut session(&engine, 50..90), generate(30, None)).await.unwrap();
    assert_eq!(ids, free(50..90, 30));
    let counters = engine.counters();
    // The engine thread frees the blocks some time after the drop.
    let freed = async {
        while counters.blocks_used.get() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), freed).await.expect("blocks are still held");
    assert_eq!(counters.invariant_violations_total.get(), 0);
}
