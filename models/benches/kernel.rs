//! GFLOP/s of the matrix product per weight form, shape and number of rows, beside the machine's peak.
//!
//! `cargo bench -p waymark-models --bench kernel -- [threads] [substring of a form]`. A product counts 2·m·in·out
//! operations and the GB/s are those of the packed weights. Numbers are the best of several runs, so that other work on
//! the machine disturbs them little.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use waymark_models::kernel::{GgmlKind, Packed, Team, gelu, matmul, rms_norm, silu_mul, softmax};

fn main() {
    // Cargo itself passes `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let threads = arguments.first().map_or(2, |threads| threads.parse().unwrap());
    let wanted = arguments.get(1).map_or("", String::as_str);
    let team = Team::new(threads);
    println!("peak on {threads} threads: {:.0} GFLOP/s", peak(&team));
    println!("an empty region: {:.2} µs", best(|| team.run(&|_, _| {})) * 1e6);
    for kind in [GgmlKind::Q4_1, GgmlKind::Q5_0, GgmlKind::Q8_0, GgmlKind::F16, GgmlKind::F32] {
        if format!("{kind:?}").contains(wanted) {
            products(&team, kind);
        }
    }
    elementwise();
}

const SHAPES: [(usize, usize); 5] = [(576, 576), (1536, 576), (576, 1536), (1536, 384), (49_152, 576)];

fn products(team: &Team, kind: GgmlKind) {
    println!("{kind:?}, (out, in): GFLOP/s at m = 1 (GB/s), 2, 4, 8, 16, 32, 128, 512");
    for (out, inn) in SHAPES {
        let bytes = vec![0x11; out * inn / kind.block_size() * kind.type_size()];
        let w = Packed::from_ggml(kind, &bytes, out, inn).unwrap();
        print!("  ({out:5}, {inn:4})");
        for m in [1, 2, 4, 8, 16, 32, 128, 512] {
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
        println!("   peak {:.0}", peak(team));
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

/// The least seconds of one call, over about 150 ms and at least ten calls.
fn best(mut work: impl FnMut()) -> f64 {
    let (start, mut least, mut calls) = (Instant::now(), f64::INFINITY, 0);
    while calls < 10 || start.elapsed() < Duration::from_millis(150) {
        let begin = Instant::now();
        work();
        least = least.min(begin.elapsed().as_secs_f64());
        calls += 1;
    }
    least
}

/// What chains of multiply-adds in registers reach.
fn peak(team: &Team) -> f64 {
    const ROUNDS: usize = 20_000;
    let lanes = std::sync::atomic::AtomicUsize::new(0);
    let seconds = best(|| {
        team.run(&|_, _| {
            lanes.store(chains(black_box(ROUNDS)), std::sync::atomic::Ordering::Relaxed);
        });
    });
    (team.threads() * ROUNDS * CHAINS * lanes.into_inner() * 2) as f64 / seconds / 1e9
}

/// More than latency times width of any processor, few enough for its registers.
const CHAINS: usize = 12;

/// Runs the chains and returns the values per vector.
fn chains(rounds: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f")]
        fn wide(rounds: usize) -> usize {
            let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
            let mut sums = [_mm512_set1_ps(1.0); CHAINS];
            for _ in 0..rounds {
                sums.iter_mut().for_each(|sum| *sum = _mm512_fmadd_ps(*sum, a, b));
            }
            black_box(sums);
            16
        }
        #[target_feature(enable = "avx2,fma")]
        fn narrow(rounds: usize) -> usize {
            let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
            let mut sums = [_mm256_set1_ps(1.0); CHAINS];
            for _ in 0..rounds {
                sums.iter_mut().for_each(|sum| *sum = _mm256_fmadd_ps(*sum, a, b));
            }
            black_box(sums);
            8
        }
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: just detected.
            return unsafe { wide(rounds) };
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: just detected.
            return unsafe { narrow(rounds) };
        }
    }
    let mut sums = [[1.0f32; 4]; CHAINS];
    let (a, b) = (black_box(0.999), black_box(0.001));
    for _ in 0..rounds {
        sums.iter_mut().flatten().for_each(|sum| *sum = *sum * a + b);
    }
    black_box(sums);
    4
}
