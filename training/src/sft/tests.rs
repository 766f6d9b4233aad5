#![allow(clippy::unwrap_used)]

use std::path::Path;

use proptest::prelude::*;
use waymark_models::weights::Weights;

use super::*;
use crate::recipe::Optimizer;
use crate::run::Metrics;
use crate::schedule::Shape;
use crate::tiny;

const VOCAB: usize = 48;

fn settings() -> Sft {
    Sft {
        learning_rate: 2e-2,
        schedule: Shape::Linear,
        warmup: 0.1,
        epochs: 4,
        batch: 5,
        pack_tokens: 100,
        limit: None,
        longest: 80,
        held_out: 0.2,
        validate_every: 5,
        save_every: 3,
        keep_last: 2,
    }
}

/// A task that can be learnt: after the question `a b` the policy says `b a` and the environment something.
fn lessons() -> Lessons {
    let lesson = |at: u32| {
        let (a, b) = (at % 6, at / 6);
        let tokens: Vec<u32> = (0..20).chain([a + 30, b + 40, 1, b + 40, a + 30, at % 7, 9, 2]).collect();
        let learnt = (0..tokens.len()).map(|at| (23..25).contains(&at) || at == 27).collect();
        Lesson { tokens, learnt }
    };
    Lessons { train: (0..30).map(lesson).collect(), held_out: (30..36).map(lesson).collect(), dropped: 0 }
}

/// Trains in `dir`; breaks off after each row that `stop` says.
fn run(weights: &Weights, dir: &Path, mut stop: impl FnMut(&Row) -> bool + Send) -> Vec<f32> {
    let (settings, lessons) = (settings(), lessons());
    let mut learner = tiny::learner(weights);
    let mut ledger = Ledger::open(dir, "test = 1\n", Optimizer::default(), settings.keep_last).unwrap();
    let mut watch = |row: &Row| if stop(row) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    Course::new(&settings, 7, &lessons).train(&mut learner, &mut ledger, &mut watch).unwrap();
    learner.values().to_vec()
}

#[test]
fn the_loss_falls_and_what_was_held_out_is_learnt_too() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), VOCAB);
    let dir = temp.path().join("run");
    run(&weights, &dir, |_| false);
    let rows = Metrics::read(&dir.join("metrics.jsonl")).unwrap();
    let of = |phase: &str, name: &str| -> Vec<f64> {
        rows.iter().filter(|row| row.phase == phase).map(|row| row.values[name]).collect()
    };
    let (loss, validation) = (of(PHASE, "loss"), of(VALIDATION, "validation_loss"));
    assert_eq!(loss.len(), 24);
    assert!(loss[23] < 0.5 * loss[0], "{loss:?}");
    assert!(validation.last() < validation.first(), "{validation:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    /// Killed anywhere, any number of times, and taken up again: the same weights to the last bit, and the same numbers.
    #[test]
    fn interrupted_training_ends_in_the_same_weights(stops in prop::collection::vec(1u64..24, 1..3)) {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), VOCAB);
        let (whole, parts) = (temp.path().join("whole"), temp.path().join("parts"));
        let wanted = run(&weights, &whole, |_| false);
        for stop in stops {
            run(&weights, &parts, |row| row.step == stop);
        }
        prop_assert_eq!(run(&weights, &parts, |_| false), wanted);
        let numbers = |dir: &Path| -> Vec<_> {
            let rows = Metrics::read(&dir.join("metrics.jsonl")).unwrap();
            let timeless = |row: Row| row.values.into_iter().filter(|(name, _)| name != "tokens_per_second" && name != "step_seconds").collect();
            rows.into_iter().map(|row| (row.step, row.phase.clone(), timeless(row))).collect::<Vec<(_, _, Vec<_>)>>()
        };
        prop_assert_eq!(numbers(&parts), numbers(&whole));
    }
}

#[test]
fn nothing_to_learn_from_is_told_by_its_cause() {
    let told = |settings: &Sft| Lessons::new(&[], settings, 1).unwrap_err().to_string();
    assert!(told(&settings()).contains("look at the file"), "{}", told(&settings()));
}

#[test]
fn a_run_does_not_go_on_under_other_facts() {
    let temp = tempfile::tempdir().unwrap();
    let open = |facts: &str| Ledger::open(&temp.path().join("run"), facts, Optimizer::default(), 1);
    drop(open("name = \"a\"\nseed = 1\n").unwrap());
    drop(open("name = \"a\"\nseed = 1\n").unwrap());
    let error = open("name = \"a\"\nseed = 2\n").unwrap_err().to_string();
    assert!(error.contains("`seed = 1`, now it is `seed = 2`"), "{error}");
}
