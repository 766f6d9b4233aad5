//! Benchmark of the matrix multiplication: GFLOP/s per weight form, shape and number of rows, next to the machine's
//! peak.
//!
//! `cargo bench -p waymark-models --bench kernel -- [threads] [substring of a form]`. A multiplication counts
//! 2·m·in·out operations; the GB/s are those of the packed weights. Numbers are the best of several runs, to limit
//! the influence of other work on the machine.
#![allow(clippy::unwrap_used)]

mod machine;

use std::hint::black_box;

use waymark_models::gradient::attention::AttentionPlan;
use waymark_models::gradient::vocabulary::{self, VocabularyHead};
use waymark_models::gradient::{Pack, Score, Slope, outer};
use waymark_models::kernel::attention::{HeadLayout, ScoreRule};
use waymark_models::kernel::{Bf16Matrix, GgmlKind, Packed, Team, gelu, matmul, rms_norm, silu_mul, softmax};

use machine::{bandwidth, best, float_peak, integer_peak};

fn main() {
    // Cargo itself passes `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let threads = arguments.first().map_or(2, |threads| threads.parse().unwrap());
    let wanted = arguments.get(1).map_or("", String::as_str);
    let team = Team::new(threads);
    println!("peak on {threads} threads: {:.0} GFLOP/s in f32", float_peak(&team) / 1e9);
    if let Some(peak) = integer_peak(&team) {
        println!("peak of 16-bit integers: {:.0} GOP/s", peak / 1e9);
    }
    println!("memory: {:.1} GB/s", bandwidth(&team) / 1e9);
    println!("an empty region: {:.2} µs", best(|| team.run(&|_, _| {})) * 1e6);
    for kind in [GgmlKind::Q4_1, GgmlKind::Q5_0, GgmlKind::Q8_0, GgmlKind::F16, GgmlKind::F32] {
        if format!("{kind:?}").contains(wanted) {
            products(&team, kind);
        }
    }
    if "bf16".contains(wanted) {
        bf16(&team);
    }
    elementwise();
    learning(&team);
}

const SHAPES: [(usize, usize); 5] = [(576, 576), (1536, 576), (576, 1536), (1536, 384), (49_152, 576)];

fn products(team: &Team, kind: GgmlKind) {
    println!("{kind:?}, (out, in): GFLOP/s at m = 1 (GB/s), 2, 4, 8, 16, 32, 128, 512, 2048");
    for (out, inn) in SHAPES {
        let bytes = vec![0x11; out * inn / kind.block_size() * kind.type_size()];
        let w = Packed::from_ggml(kind, &bytes, out, inn).unwrap();
        print!("  ({out:5}, {inn:4})");
        for m in [1, 2, 4, 8, 16, 32, 128, 512, 2048] {
            if out * m > 8_000_000 {
                continue;
            }
            let x = vec![0.5; m * inn];
            let mut y = vec![0.0; m * out];
            let seconds = best(|| matmul(team, &x, m, &w, black_box(&mut y)));
            print!(" {:4.0}", (2 * m * inn * out) as f64 / seconds / 1e9);
            if m == 1 {
                print!(" ({:.1})", w.bytes() as f64 / seconds / 1e9);
            }
        }
        println!("   peak {:.0}", float_peak(team) / 1e9);
    }
}

/// Products in bf16 compared with f32 and the default model's form, at the few rows of decoding and the many
/// rows of prefill and training.
fn bf16(team: &Team) {
    println!("bf16, (out, in): GFLOP/s at m = 1, 8, 32, 96, 512, 2048, in brackets plain floats and Q4_1");
    for (out, inn) in SHAPES {
        let plain = Packed::from_f32(&vec![0.5; out * inn], out, inn);
        let matrix = Bf16Matrix::of(&plain);
        let quantized = Packed::from_ggml(GgmlKind::Q4_1, &vec![0x11; out * inn / 32 * 20], out, inn).unwrap();
        print!("  ({out:5}, {inn:4})");
        for m in [1, 8, 32, 96, 512, 2048] {
            if out * m > 30_000_000 {
                continue;
            }
            let x = vec![0.5; m * inn];
            let mut y = vec![0.0; m * out];
            let [rounded, exact, compact] = [
                best(|| matrix.matmul(team, &x, m, black_box(&mut y))),
                best(|| matmul(team, &x, m, &plain, black_box(&mut y))),
                best(|| matmul(team, &x, m, &quantized, black_box(&mut y))),
            ]
            .map(|seconds| (2 * m * inn * out) as f64 / seconds / 1e9);
            print!(" {rounded:4.0} ({exact:.0}, {compact:.0})");
        }
        println!();
    }
}

fn elementwise() {
    let up = vec![0.7; 1536 * 64];
    let mut x = up.clone();
    let mut report = |name: &str, work: &mut dyn FnMut(&mut [f32])| {
        let seconds = best(|| work(black_box(&mut x)));
        println!("{name}: {:.2} G values/s", up.len() as f64 / seconds / 1e9);
    };
    report("silu_mul", &mut |x| silu_mul(x, &up));
    report("gelu", &mut |x| gelu(x));
    report("softmax of 128", &mut |x| x.chunks_exact_mut(128).for_each(softmax));
    report("rms_norm of 576", &mut |x| x.chunks_exact_mut(576).for_each(|x| rms_norm(&up[..576], &up[..576], 1e-5, x)));
}

/// Kernels of the gradient, in the shapes of SmolLM2-135M.
fn learning(team: &Team) {
    attention(team, "1 × 512 tokens", &[(512, None)]);
    attention(team, "1 × 2048 tokens", &[(2048, None)]);
    attention(team, "6 × 700 tokens", &[(700, None); 6]);
    let answer = (250, Some(0));
    attention(team, "8 answers of 250 to a prompt of 500", &[[(500, None)].as_slice(), &[answer; 8]].concat());
    for (rows, out, inn) in [(2048, 16, 576), (2048, 1536, 16), (2048, 576, 16), (2048, 576, 576), (2048, 1536, 576)] {
        let dy = vec![0.5; rows * out];
        let x = vec![0.5; rows * inn];
        let mut grad = vec![0.0; out * inn];
        let seconds = best(|| outer::add(team, rows, &dy, &x, 0.5, black_box(&mut grad)));
        println!("outer product ({out}, {inn}) of {rows} rows: {:.0} GFLOP/s", gflops(rows * out * inn, seconds));
    }
    vocabulary(team);
}

/// GFLOP/s for the given number of multiply-adds.
fn gflops(products: usize, seconds: f64) -> f64 {
    2.0 * products as f64 / seconds / 1e9
}

/// Counts two multiplications per visible pair of tokens forward and five backward.
fn attention(team: &Team, name: &str, segments: &[(usize, Option<usize>)]) {
    let heads = HeadLayout { query: 9, kv: 3, dim: 64 };
    let mut pack = Pack::new();
    let mut pairs = 0;
    for &(len, parent) in segments {
        let before = parent.map_or(0, |parent| segments[parent].0);
        pairs += len * before + len * (len + 1) / 2;
        pack.push(&vec![0; len], parent);
    }
    let plan = AttentionPlan::new(&pack, heads);
    let vectors = |heads: usize| -> Vec<f32> {
        (0..pack.tokens().len() * heads * 64).map(|at| (at * 7919 % 2003) as f32 / 1000.0 - 1.0).collect()
    };
    let q = vectors(9);
    let k = vectors(3);
    let v = vectors(3);
    let dout = vectors(9);
    let mut out = vectors(9);
    let mut lse = vec![0.0; pack.tokens().len() * 9];
    let rule = ScoreRule::plain(heads.dim);
    let forward = best(|| plan.forward(team, rule, &q, &k, &v, black_box(&mut out), &mut lse));
    let mut dq = vectors(9);
    let mut dk = vectors(3);
    let mut dv = vectors(3);
    let backward =
        best(|| plan.backward(team, rule, &q, &k, &v, &out, &lse, &dout, black_box(&mut dq), &mut dk, &mut dv));
    let products = pairs * 9 * 64;
    println!(
        "attention, {name}: forward {:.0} GFLOP/s, backward {:.0} GFLOP/s",
        gflops(2 * products, forward),
        gflops(5 * products, backward)
    );
}

/// Counts one multiplication for scoring, two for gradients of hidden states, and three when the vocabulary
/// projection is trained too.
fn vocabulary(team: &Team) {
    const TARGETS: usize = 384;
    let entries = 49_152;
    let width = 576;
    let weights = Packed::from_ggml(GgmlKind::Q4_1, &vec![0x11; entries * width / 32 * 20], entries, width).unwrap();
    let head = VocabularyHead { weights: &weights, rounded: false, cap: None };
    let hidden = vec![0.5; TARGETS * width];
    let ids = vec![7; TARGETS];
    let products = TARGETS * entries * width;
    let seconds = best(|| drop(black_box(vocabulary::score(team, &weights, None, &hidden, &ids))));
    println!("vocabulary, scores: {:.0} GFLOP/s", gflops(products, seconds));
    let mut dhidden = vec![0.0; hidden.len()];
    let mut objective = |_: usize, _: Score| Slope { logprob: -1.0, entropy: 0.1 };
    let mut learn = |grad: Option<&mut [f32]>| {
        vocabulary::learn(team, head, &hidden, &ids, &mut objective, black_box(&mut dhidden), grad);
    };
    let seconds = best(|| learn(None));
    println!("vocabulary, gradient of the hidden states: {:.0} GFLOP/s", gflops(2 * products, seconds));
    let mut grad = vec![0.0; entries * width];
    let seconds = best(|| learn(Some(&mut grad)));
    println!("vocabulary, gradient of the head too: {:.0} GFLOP/s", gflops(3 * products, seconds));
}
