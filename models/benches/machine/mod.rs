//! Limits of this machine: memory bandwidth, and multiply-adds in registers.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use waymark_models::kernel::Team;

/// More than latency times width of any CPU, and few enough for its registers.
const CHAINS: usize = 12;

/// Minimum seconds of one call, over about 150 ms and at least ten calls.
pub(crate) fn best(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut least = f64::INFINITY;
    let mut calls = 0;
    while calls < 10 || start.elapsed() < Duration::from_millis(150) {
        let begin = Instant::now();
        work();
        least = least.min(begin.elapsed().as_secs_f64());
        calls += 1;
    }
    least
}

/// Bytes per second that the team reads from memory.
pub(crate) fn bandwidth(team: &Team) -> f64 {
    // Larger than any cache of the last level.
    let words = vec![1u64; 64 << 20];
    let sum = AtomicU64::new(0);
    let seconds = best(|| {
        team.run(&|worker, workers| {
            let each = words.len().div_ceil(workers);
            let own = &words[(worker * each).min(words.len())..((worker + 1) * each).min(words.len())];
            sum.fetch_add(own.iter().fold(0, |sum, word| sum ^ word), Ordering::Relaxed);
        });
    });
    black_box(sum.into_inner());
    size_of_val(words.as_slice()) as f64 / seconds
}

/// Operations per second of multiply-adds in `f32`; a multiply-add counts two.
pub(crate) fn float_peak(team: &Team) -> f64 {
    peak(team, float_chains)
}

/// Operations per second of products of 16-bit integers, added to 32-bit sums; a multiply-add counts two. `None` where
/// this bench knows no instruction for it.
pub(crate) fn integer_peak(team: &Team) -> Option<f64> {
    (integer_chains(1) > 0).then(|| peak(team, integer_chains))
}

fn peak(team: &Team, chains: fn(usize) -> usize) -> f64 {
    const ROUNDS: usize = 20_000;
    let lanes = AtomicUsize::new(0);
    let seconds = best(|| {
        team.run(&|_, _| lanes.store(chains(black_box(ROUNDS)), Ordering::Relaxed));
    });
    (team.threads() * ROUNDS * CHAINS * lanes.into_inner() * 2) as f64 / seconds
}

/// Runs chains of multiply-adds, and returns the number of them per instruction.
fn float_chains(rounds: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f")]
        fn wide(rounds: usize) -> usize {
            let a = _mm512_set1_ps(black_box(0.999));
            let b = _mm512_set1_ps(black_box(0.001));
            let mut sums = [_mm512_set1_ps(1.0); CHAINS];
            for _ in 0..rounds {
                sums.iter_mut().for_each(|sum| *sum = _mm512_fmadd_ps(*sum, a, b));
            }
            black_box(sums);
            16
        }
        #[target_feature(enable = "avx2,fma")]
        fn narrow(rounds: usize) -> usize {
            let a = _mm256_set1_ps(black_box(0.999));
            let b = _mm256_set1_ps(black_box(0.001));
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
    let a = black_box(0.999);
    let b = black_box(0.001);
    for _ in 0..rounds {
        sums.iter_mut().flatten().for_each(|sum| *sum = *sum * a + b);
    }
    black_box(sums);
    4
}

/// Runs chains of products of 16-bit integers, and returns the number of multiply-adds per instruction: zero where no
/// instruction is known.
fn integer_chains(rounds: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn wide(rounds: usize) -> usize {
            let a = _mm512_set1_epi16(black_box(3));
            let b = _mm512_set1_epi16(black_box(-5));
            let mut sums = [_mm512_set1_epi32(1); CHAINS];
            for _ in 0..rounds {
                sums.iter_mut().for_each(|sum| *sum = _mm512_dpwssd_epi32(*sum, a, b));
            }
            black_box(sums);
            32
        }
        #[target_feature(enable = "avx2")]
        fn narrow(rounds: usize) -> usize {
            let b = _mm256_set1_epi16(black_box(-5));
            let mut sums = [_mm256_set1_epi32(1); CHAINS];
            for _ in 0..rounds {
                sums.iter_mut().for_each(|sum| *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*sum, b)));
            }
            black_box(sums);
            16
        }
        if std::arch::is_x86_feature_detected!("avx512vnni") {
            // SAFETY: just detected.
            return unsafe { wide(rounds) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: just detected.
            return unsafe { narrow(rounds) };
        }
    }
    black_box(rounds);
    0
}
