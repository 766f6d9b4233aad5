#![allow(clippy::unwrap_used)]

use std::path::Path;

use proptest::prelude::*;
use waymark_models::weights::Weights;

use super::*;
use crate::recipe::Optimizer;
use crate::run::MetricsFile;
use crate::schedule::ScheduleShape;
use crate::tiny;

const VOCAB: usize = 48;

fn settings() -> Sft {
    Sft {
        learning_rate: 2e-2,
        schedule: ScheduleShape::Linear,
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

/// A learnable task: after the question `a b` the policy answers `b a`, and the environment adds tokens.
fn dataset() -> SftDataset {
    let masked = |at: u32| {
        let a = at % 6;
        let b = at / 6;
        let tokens: Vec<u32> = (0..20).chain([a + 30, b + 40, 1, b + 40, a + 30, at % 7, 9, 2]).collect();
        let learned = (0..tokens.len()).map(|at| (23..25).contains(&at) || at == 27).collect();
        MaskedSequence { tokens, learned }
    };
    SftDataset { train: (0..30).map(masked).collect(), held_out: (30..36).map(masked).collect(), dropped: 0 }
}

/// Trains in `dir` and stops after each row for which `stop` returns `true`.
fn run(weights: &Weights, dir: &Path, mut stop: impl FnMut(&MetricsRow) -> bool + Send) -> Vec<f32> {
    let settings = settings();
    let dataset = dataset();
    let mut learner = tiny::learner(weights);
    let mut ledger = RunLedger::open(dir, "test = 1\n", Optimizer::default(), settings.keep_last).unwrap();
    let mut observer = |row: &MetricsRow| if stop(row) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    SftTraining::new(&settings, 7, &dataset).train(&mut learner, &mut ledger, &mut observer).unwrap();
    learner.values().to_vec()
}

#[test]
fn training_and_validation_loss_fall() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), VOCAB);
    let dir = temp.path().join("run");
    run(&weights, &dir, |_| false);
    let rows = MetricsFile::read(&dir.join("metrics.jsonl")).unwrap();
    let of = |phase: &str, name: &str| -> Vec<f64> {
        rows.iter().filter(|row| row.phase == phase).map(|row| row.values[name]).collect()
    };
    let loss = of(PHASE, "loss");
    let validation = of(VALIDATION, "validation_loss");
    assert_eq!(loss.len(), 24);
    assert!(loss[23] < 0.5 * loss[0], "{loss:?}");
    assert!(validation.last() < validation.first(), "{validation:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    /// A run that is killed anywhere, any number of times, and resumed ends in the same weights to the last bit, with
    /// the same metrics.
    #[test]
    fn interrupted_training_ends_in_the_same_weights(stops in prop::collection::vec(1u64..24, 1..3)) {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), VOCAB);
        let whole = temp.path().join("whole");
        let parts = temp.path().join("parts");
        let wanted = run(&weights, &whole, |_| false);
        for stop in stops {
            run(&weights, &parts, |row| row.step == stop);
        }
        prop_assert_eq!(run(&weights, &parts, |_| false), wanted);
        let numbers = |dir: &Path| -> Vec<_> {
            let rows = MetricsFile::read(&dir.join("metrics.jsonl")).unwrap();
            let timeless = |row: MetricsRow| row.values.into_iter().filter(|(name, _)| name != "tokens_per_second" && name != "step_seconds").collect();
            rows.into_iter().map(|row| (row.step, row.phase.clone(), timeless(row))).collect::<Vec<(_, _, Vec<_>)>>()
        };
        prop_assert_eq!(numbers(&parts), numbers(&whole));
    }
}

#[test]
fn the_error_for_no_samples_names_the_cause() {
    let told = |settings: &Sft| SftDataset::new(&[], settings, 1).unwrap_err().to_string();
    assert!(told(&settings()).contains("check the file"), "{}", told(&settings()));
}

#[test]
fn a_run_with_other_facts_is_not_resumed() {
    let temp = tempfile::tempdir().unwrap();
    let open = |facts: &str| RunLedger::open(&temp.path().join("run"), facts, Optimizer::default(), 1);
    drop(open("name = \"a\"\nseed = 1\n").unwrap());
    drop(open("name = \"a\"\nseed = 1\n").unwrap());
    let error = open("name = \"a\"\nseed = 2\n").unwrap_err().to_string();
    assert!(error.contains("`seed = 1`, but now it is `seed = 2`"), "{error}");
}
