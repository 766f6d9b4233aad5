#![allow(clippy::unwrap_used)]

use super::*;
use crate::architecture::{Architecture, Experts};
use crate::decoder::RopeScaling;

/// Configuration of Qwen2.5-7B.
pub(in crate::cuda) fn seven() -> DecoderConfig {
    DecoderConfig {
        vocab: 152_064,
        hidden: 3584,
        layers: 28,
        heads: 28,
        kv_heads: 4,
        head_dim: 128,
        ffn: 18_944,
        context: 32_768,
        rope_base: 1e6,
        rope_scaling: RopeScaling::None,
        rms_eps: 1e-6,
        tied_embeddings: false,
        architecture: Architecture { qkv_bias: true, ..Architecture::default() },
    }
}

const LIMITS: StepLimits = StepLimits { rows: 256, tokens: 8192, context: 8192 };
const GIB: usize = 1 << 30;

fn memory(gib: usize) -> MemoryBudget {
    MemoryBudget { free: gib * GIB, total: gib * GIB, share: 0.9, blocks: None }
}

#[test]
fn places_follow_each_other_and_are_aligned() {
    let places = WeightLayout::new(&seven(), 8192);
    let range = |first: usize, end: usize| first..end;
    let mut all = vec![range(places.embedding.first(), places.embedding.end())];
    for layer in &places.layers {
        all.push(layer.attention_norm.first()..layer.attention_norm.end());
        all.push(layer.qkv.first()..layer.qkv.end());
        all.extend(layer.bias.map(|bias| bias.first()..bias.end()));
        all.push(layer.o.first()..layer.o.end());
        all.push(layer.ffn_norm.first()..layer.ffn_norm.end());
        all.push(layer.gate_up.first()..layer.gate_up.end());
        all.push(layer.down.first()..layer.down.end());
    }
    all.push(places.norm.first()..places.norm.end());
    all.extend(places.head.map(|head| head.first()..head.end()));
    all.push(places.rotary.first()..places.rotary.end());
    assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(all.iter().all(|place| place.start % 256 == 0 && place.end <= places.bytes));
    // 7.6 billion parameters of two bytes; the rotary table is 4 MiB.
    assert!((15.2e9..15.3e9).contains(&(places.bytes as f64)), "{}", places.bytes);
}

#[test]
fn weights_in_fp8_take_half_of_the_layers_and_room_to_convert_weights_and_activations() {
    let sizes = |format| MemoryPlan::sizes(&seven(), format, &LIMITS, 132);
    let half = sizes(WeightFormat::Bf16);
    let fp8 = sizes(WeightFormat::Fp8);
    // 28 layers of 233 million weights, a byte less each; a scale of four bytes for each of 49,664 rows.
    let saved = half.weights - fp8.weights;
    let layer = 4608 * 3584 + 3584 * 3584 + 3 * 18_944 * 3584;
    let scales = (4608 + 3584 + 2 * 18_944 + 3584) * 4;
    assert!(saved.abs_diff(28 * (layer - scales)) < 28 * 4 * 512, "{saved}");
    assert_eq!(fp8.workspace - half.workspace, (32 << 20) + LIMITS.tokens * (18_944 + 4));
    assert_eq!(fp8.block, half.block);
}

#[test]
fn what_weights_and_workspace_leave_is_cache() {
    let plan = MemoryPlan::new(&seven(), WeightFormat::Bf16, &LIMITS, 132, memory(80)).unwrap();
    assert_eq!(plan.kv_bytes_per_token(), 2 * 28 * 4 * 128 * 2, "keys and values of four heads in 28 layers, in bf16");
    let used = plan.weights + plan.workspace + plan.blocks * plan.block;
    let usable = (80.0 * GIB as f64 * 0.9) as usize;
    assert!(used <= usable && used + plan.block > usable, "{used} of {usable}");
    let few =
        MemoryPlan::new(&seven(), WeightFormat::Bf16, &LIMITS, 132, MemoryBudget { blocks: Some(70), ..memory(80) })
            .unwrap();
    assert_eq!((few.blocks, few.weights), (70, plan.weights));
}

#[test]
fn a_whole_card_is_not_filled_to_the_brim() {
    let plan =
        MemoryPlan::new(&seven(), WeightFormat::Bf16, &LIMITS, 132, MemoryBudget { share: 1.0, ..memory(80) }).unwrap();
    assert!(plan.weights + plan.workspace + plan.blocks * plan.block <= 79 * GIB);
}

#[test]
fn what_others_hold_counts_against_the_share() {
    let alone = MemoryPlan::new(&seven(), WeightFormat::Bf16, &LIMITS, 132, memory(80)).unwrap();
    let shared =
        MemoryPlan::new(&seven(), WeightFormat::Bf16, &LIMITS, 132, MemoryBudget { free: 70 * GIB, ..memory(80) })
            .unwrap();
    let fewer = (alone.blocks - shared.blocks) * alone.block;
    assert!(fewer.abs_diff(10 * GIB) <= alone.block, "{fewer}");
    let crowded = MemoryBudget { free: 70 * GIB, share: 0.25, ..memory(80) };
    let said = MemoryPlan::new(&seven(), WeightFormat::Bf16, &LIMITS, 132, crowded).unwrap_err().to_string();
    assert!(said.contains("10.00 of 80.00 GiB may be used (a share of 0.25, less 10.00 GiB in use already)"), "{said}");
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_what_would() {
    let said = |gib| MemoryPlan::new(&seven(), WeightFormat::Bf16, &LIMITS, 132, memory(gib)).unwrap_err().to_string();
    let hopeless = said(12);
    assert!(hopeless.contains("weights 14.19 GiB") && hopeless.ends_with("a larger share of the GPU"), "{hopeless}");
    let close = said(17);
    assert!(close.contains("instead of 8192 tokens"), "{close}");
    let Some(tokens) = close.split("steps of ").nth(1).and_then(|rest| rest.split(' ').next()) else {
        panic!("{close}")
    };
    let limits = StepLimits { tokens: tokens.parse().unwrap(), ..LIMITS };
    assert!(
        MemoryPlan::new(&seven(), WeightFormat::Bf16, &limits, 132, memory(17)).is_ok(),
        "what was advised must fit"
    );
}

#[test]
fn shapes_without_a_kernel_are_refused_by_name() {
    let refused = |change: fn(&mut DecoderConfig)| {
        let mut config = seven();
        change(&mut config);
        check(&config, &LIMITS).unwrap_err().to_string()
    };
    assert!(check(&seven(), &LIMITS).is_ok());
    assert!(refused(|config| config.head_dim = 112).contains("heads of width 112"));
    assert!(refused(|config| (config.heads, config.kv_heads) = (34, 2)).contains("17 query heads"));
    assert!(refused(|config| config.ffn = 1000).contains("feed-forward size 1000"));
    let capped = refused(|config| {
        config.architecture = Architecture { family: "gemma2", score_cap: Some(50.0), ..Architecture::default() };
    });
    assert!(capped.contains("soft limits") && capped.contains("gemma2") && capped.contains("--device cpu"), "{capped}");
    let experts = refused(|config| {
        let experts =
            Experts { count: 8, per_token: 2, width: 64, normalized: true, shared: None, dense_layers: Vec::new() };
        config.architecture = Architecture { family: "mixtral", experts: Some(experts), ..Architecture::default() };
    });
    assert!(experts.contains("experts, of mixtral: use the CPU (--device cpu)"), "{experts}");
    assert!(check(&seven(), &StepLimits { tokens: 100, ..LIMITS }).is_err(), "fewer tokens than rows");
    let long = check(&seven(), &StepLimits { tokens: 65_536, ..LIMITS }).unwrap_err().to_string();
    assert!(long.contains("at most 65535"), "{long}");
}
