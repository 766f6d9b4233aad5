#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::cuda::kernel::emulator::Emulator;
use crate::cuda::learner::learner;
use crate::cuda::learner::pass_rows::PassRows;
use crate::cuda::toy::{self, llama, qwen2, qwen3};
use crate::gradient::{Learner, Pack, Score, Slope};
use crate::weights::Weights;

const GIB: usize = 1 << 30;

/// Ranks of all modules' adapters.
const RANKS: [usize; Module::COUNT] = [3; Module::COUNT];

fn tune(targets: &[Module]) -> Tune {
    Tune::Lora(Lora { rank: 3, alpha: 6.0, targets: targets.to_vec(), seed: 5 })
}

/// Requirement without a memory limit.
fn need(config: &DecoderConfig, tune: &Tune, tokens: usize) -> TrainingMemory {
    TrainingMemory::plan(config, tune, PassLimits { tokens, longest: 1 }, None, usize::MAX).unwrap()
}

/// Sequences of these lengths, with all tokens but the first of each as targets.
fn pack(lengths: &[usize]) -> Pack {
    let mut pack = Pack::new();
    for &length in lengths {
        let tokens: Vec<u32> = (0..length as u32).map(|at| at * 7 % 61).collect();
        let segment = pack.push(&tokens, None);
        (1..length).for_each(|index| pack.target(segment, index));
    }
    pack
}

fn learn(learner: &mut Learner, pack: &Pack) -> Result<(), ModelError> {
    learner.learn(pack, &mut |_, _: Score| Slope { logprob: -1.0, entropy: 0.1 })
}

fn shortage(error: CudaError) -> Box<LearningShortage> {
    match error {
        CudaError::Learning(shortage) => shortage,
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_planned_is_what_is_taken_and_passes_take_no_more() {
    let some = [Module::QProj, Module::VProj, Module::DownProj];
    let all = &Module::ALL[..];
    for (config, targets, tokens) in [(llama(), all, 96), (qwen2(), &some[..], 112), (qwen3(), all, 50)] {
        let Some(emulator) = Emulator::new(config.head_dim, 1) else { return };
        let store = emulator.memory();
        let tune = tune(targets);
        let planned = need(&config, &tune, tokens);
        let mut learner = learner(emulator, &toy::open(&config), &tune, Some(tokens)).unwrap();
        assert_eq!((store.held(), learner.values().len()), (planned.learner(), planned.values));
        assert_eq!(learner.bytes(tokens), planned.learner());
        // A single sequence, the maximum number of sequences, and a long one among short ones.
        let blocks = tokens / BLOCK;
        let long: Vec<usize> = [vec![blocks / 2 * BLOCK], vec![2; blocks - blocks / 2]].concat();
        for lengths in [vec![blocks * BLOCK], vec![2; blocks], vec![BLOCK - 1; blocks], long] {
            learn(&mut learner, &pack(&lengths)).unwrap();
            assert_eq!(store.held(), planned.learner(), "{lengths:?}");
        }
        drop(learner);
        assert_eq!(store.held(), 0);
    }
}

#[test]
fn a_pass_that_was_not_planned_takes_what_is_said_of_it() {
    let Some(emulator) = Emulator::new(64, 2) else { return };
    let store = emulator.memory();
    let mut learner = learner(emulator, &toy::open(&llama()), &tune(&Module::ALL), None).unwrap();
    let resting = need(&llama(), &tune(&Module::ALL), 1);
    assert_eq!(store.held(), resting.weights + resting.adapter);
    for lengths in [&[5][..], &[9, 9], &[40], &[17, 2, 30, 31]] {
        let pack = pack(lengths);
        learn(&mut learner, &pack).unwrap();
        assert_eq!(store.held(), learner.bytes_of(&pack), "{lengths:?}");
    }
}

#[test]
fn the_largest_pass_that_fits_is_found_and_is_the_largest() {
    let config = llama();
    let tune = tune(&Module::ALL);
    let weights: Weights = toy::open(&config);
    let passes = PassLimits { tokens: 240, longest: 20 };
    let [least, most] = [passes.longest, passes.tokens].map(|tokens| need(&config, &tune, tokens).bytes());
    for usable in [least, (2 * least + most) / 3, (least + most) / 2, most - 1] {
        let shortage = shortage(TrainingMemory::plan(&config, &tune, passes, None, usable).unwrap_err());
        let found = shortage.tokens.unwrap();
        assert!((passes.longest..passes.tokens).contains(&found), "{found}");
        assert!(shortage.to_string().contains(&format!("passes of {found} tokens would fit")), "{shortage}");
        let smaller = PassLimits { tokens: found, ..passes };
        assert_eq!(TrainingMemory::plan(&config, &tune, smaller, None, usable).unwrap(), need(&config, &tune, found));
        let larger = PassLimits { tokens: found + 1, ..passes };
        assert_eq!(shortage_of(&config, &tune, larger, usable).tokens, Some(found));

        // The same on an emulated GPU with exactly this much memory.
        let emulator = || Some(Emulator::new(config.head_dim, 3)?.with_memory(usable - BLAS_BYTES));
        let (Some(fits), Some(does_not)) = (emulator(), emulator()) else { return };
        let mut fits = learner(fits, &weights, &tune, Some(found)).unwrap();
        learn(&mut fits, &pack(&[found / BLOCK * BLOCK])).unwrap();
        let error = learner(does_not, &weights, &tune, Some(found + 1)).unwrap_err().to_string();
        assert!(error.contains("are free; make packs smaller"), "{error}");
    }
    assert!(TrainingMemory::plan(&config, &tune, passes, None, most).is_ok());
    let hopeless = shortage_of(&config, &tune, passes, least - 1);
    assert_eq!(hopeless.tokens, None);
    let shorter = hopeless.longest.unwrap();
    assert!(shorter < passes.longest);
    let passes = PassLimits { tokens: shorter, longest: shorter };
    assert!(TrainingMemory::plan(&config, &tune, passes, None, least - 1).is_ok());
    let nothing = shortage_of(&config, &tune, passes, 1000).to_string();
    assert!(nothing.ends_with("use a smaller model or a GPU with more memory"), "{nothing}");
}

fn shortage_of(config: &DecoderConfig, tune: &Tune, passes: PassLimits, usable: usize) -> Box<LearningShortage> {
    shortage(TrainingMemory::plan(config, tune, passes, None, usable).unwrap_err())
}

/// Configuration of Qwen2.5-7B, an adapter of rank 64, packs of four trajectories, and 64 concurrent rollouts.
fn seven() -> (DecoderConfig, Tune, PassLimits, RolloutLoad) {
    let tune = Tune::Lora(Lora { rank: 64, alpha: 128.0, targets: Module::ALL.to_vec(), seed: 1 });
    let limits = StepLimits { rows: 64, tokens: 512, context: 32_768 };
    let rollouts = RolloutLoad { limits, multiprocessors: 132, longest: 4096, kv: None };
    (plan::tests::seven(), tune, PassLimits { tokens: 16_384, longest: 4096 }, rollouts)
}

#[test]
fn an_engine_on_the_same_card_has_weights_and_kv_of_its_own() {
    let (config, tune, passes, rollouts) = seven();
    let plan = |rollouts: Option<&RolloutLoad>, usable| TrainingMemory::plan(&config, &tune, passes, rollouts, usable);
    let alone = plan(None, usize::MAX).unwrap();
    let both = plan(Some(&rollouts), usize::MAX).unwrap();
    let engine = both.engine.unwrap();
    assert_eq!((alone.learner(), both.weights), (both.learner(), engine.plan.weights));
    assert_eq!(both.bytes(), alone.bytes() + engine.bytes());
    // 64 sequences of 4,096 tokens, keys and values of four heads in 28 layers, in bf16.
    assert_eq!(engine.kv(), 64 * 4096 * 2 * 28 * 4 * 128 * 2);
    let given = RolloutLoad { kv: Some(2 * GIB), ..rollouts };
    let given = plan(Some(&given), usize::MAX).unwrap().engine.unwrap();
    assert!(given.kv() <= 2 * GIB && given.kv() + given.plan.block > 2 * GIB);

    // The advised sizes must fit, and larger ones must not.
    let usable = both.bytes() - GIB;
    let short = shortage(plan(Some(&rollouts), usable).unwrap_err());
    let said = short.to_string();
    let parts = [
        "frozen weights 14.",
        "passes of 16384 tokens",
        "a second copy of the weights 14.",
        "KV cache of 262144 tokens",
    ];
    for part in parts.into_iter().chain(["without the rollouts on this GPU"]) {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    let smaller = PassLimits { tokens: short.tokens.unwrap(), ..passes };
    assert!(TrainingMemory::plan(&config, &tune, smaller, Some(&rollouts), usable).is_ok());
    let with = |blocks: usize| RolloutLoad { kv: Some(blocks * engine.plan.block), ..rollouts };
    let blocks = short.blocks.unwrap();
    assert!(plan(Some(&with(blocks)), usable).is_ok() && plan(Some(&with(blocks + 1)), usable).is_err());

    // Neither change alone suffices.
    let least = PassLimits { tokens: 4096, ..passes };
    let least = TrainingMemory::plan(&config, &tune, least, Some(&with(4096 / BLOCK)), usize::MAX).unwrap();
    let short = shortage(plan(Some(&rollouts), least.bytes()).unwrap_err());
    assert_eq!((short.tokens, short.blocks, short.both), (None, None, Some((4096, 4096 / BLOCK))));
    let short = shortage(plan(Some(&rollouts), least.bytes() - 1).unwrap_err());
    assert!(short.both.is_none() && short.longest.is_some_and(|tokens| tokens < 4096), "{short}");
}

#[test]
fn what_a_card_does_not_learn_or_serve_is_refused_by_name() {
    let (config, tune, passes, rollouts) = seven();
    let refused = |tune: &Tune, passes, rollouts| {
        TrainingMemory::plan(&config, tune, passes, rollouts, usize::MAX).unwrap_err().to_string()
    };
    assert!(refused(&Tune::Full, passes, None).contains("full fine-tuning is not supported"));
    let long = PassLimits { tokens: 65_536, ..passes };
    assert!(refused(&tune, long, None).contains("at most 65535 on a GPU; make packs smaller"));
    let long = PassLimits { longest: 65_536, ..passes };
    assert!(refused(&tune, long, None).contains("at most 65535 on a GPU; make sequences shorter"));
    let wide = Tune::Lora(Lora { rank: 129, alpha: 1.0, targets: Module::ALL.to_vec(), seed: 1 });
    assert!(refused(&wide, passes, Some(&rollouts)).contains("at most 128 for rollouts"));
    assert_eq!((usable(3 * GIB, false), usable(3 * GIB, true), usable(GIB, true)), (2 * GIB, GIB, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No pass needs more memory than one planned for as many tokens, each sequence counted in whole blocks, however
    /// the tokens are split into sequences and whatever prefixes they share.
    #[test]
    fn no_pass_takes_more_than_was_planned(
        lengths in prop::collection::vec(1usize..120, 1..60),
        shared in 0usize..40,
    ) {
        let mut pack = Pack::new();
        let stem = (shared > 0).then(|| pack.push(&vec![1; shared], None));
        for &length in &lengths {
            let segment = pack.push(&vec![2; length], stem);
            (usize::from(stem.is_none())..length).for_each(|index| pack.target(segment, index));
        }
        let tokens: usize = lengths.iter().map(|length| (shared + length).next_multiple_of(BLOCK)).sum();
        for config in [llama(), qwen2(), qwen3()] {
            let size = PassSize::new(&PassRows::new(&pack, &config), RANKS, true);
            let most = PassSize::upper_bound(&config, tokens, RANKS);
            prop_assert!(PassLayout::new(&config, &size).bytes <= PassLayout::new(&config, &most).bytes, "{size:?}, {most:?}");
        }
    }
}
