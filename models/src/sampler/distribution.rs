//! Sums and maxima over a whole vocabulary, written so that the compiler vectorizes them.

use super::SampleError;
use crate::kernel::isa::Isa;

/// Number of values processed side by side.
const LANES: usize = 16;

/// Number of tokens whose weights are summed together.
pub(super) const BLOCK: usize = 256;

/// Statistics over all logits of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LogitSummary {
    /// Highest logit.
    pub(super) max: f32,
    /// `Σ exp(logit − max)`.
    pub(super) sum: f64,
    /// `ln Σ exp(logit)`.
    pub(super) log_sum: f32,
}

impl LogitSummary {
    /// Summarizes all logits in a numerically stable way. Single logits may be minus infinity: such tokens cannot
    /// occur.
    pub(super) fn of(logits: &[f32]) -> Result<Self, SampleError> {
        let isa = Isa::best();
        let max = highest(isa, logits);
        if max == f32::INFINITY {
            return Err(SampleError::NotFinite);
        }
        if max == f32::NEG_INFINITY {
            let broken = logits.iter().any(|logit| logit.is_nan());
            return Err(if broken { SampleError::NotFinite } else { SampleError::NoCandidate });
        }
        let sum = sum_exp(isa, logits, max, 1.0);
        // The comparisons above skip a NaN, but the sum does not.
        if sum.is_nan() { Err(SampleError::NotFinite) } else { Ok(Self { max, sum, log_sum: max + sum.ln() as f32 }) }
    }
}

/// Defines functions that run `$body`, an inline function, compiled for a given instruction set. Wider vectors neither
/// fuse nor reorder operations, so the result is the same on each of them, to the last bit.
macro_rules! compiled_versions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)? = $body:ident;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(isa: Isa, $($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($arg: $type),*) $(-> $ret)? {
                $body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($arg: $type),*) $(-> $ret)? {
                $body($($arg),*)
            }
            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `isa` names instructions that the CPU has.
                Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Isa::Avx2 => unsafe { avx2($($arg),*) },
                // NEON belongs to the baseline of AArch64.
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => $body($($arg),*),
                Isa::Portable => $body($($arg),*),
            }
        }
    )*};
}

compiled_versions! {
    /// Highest value. Skips NaN; an empty slice gives minus infinity.
    fn highest(logits: &[f32]) -> f32 = highest_body;

    /// Computes `Σ exp((logit − max) · scale)`: single precision inside blocks, double precision over the sums of
    /// blocks.
    fn sum_exp(logits: &[f32], max: f32, scale: f32) -> f64 = sum_exp_body;

    /// Replaces the content of `sums` by `Σ exp((logit − max) · scale)` of each block.
    fn block_sums(logits: &[f32], max: f32, scale: f32, sums: &mut Vec<f32>) = block_sums_body;

    /// ID of the highest logit; the lowest ID wins ties.
    fn argmax(logits: &[f32], max: f32) -> Option<u32> = argmax_body;
}

// Only plain loops follow: `sum` or `fold` with a closure would be compiled for the target's baseline.

#[inline(always)]
fn highest_body(logits: &[f32]) -> f32 {
    let mut max = [f32::NEG_INFINITY; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (max, &logit) in max.iter_mut().zip(chunk) {
            *max = larger(*max, logit);
        }
    }
    let mut highest = f32::NEG_INFINITY;
    for &logit in &max {
        highest = larger(highest, logit);
    }
    for &logit in rest {
        highest = larger(highest, logit);
    }
    highest
}

/// Larger of two values. Unlike `f32::max`, compiles to a single instruction.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

#[inline(always)]
fn sum_exp_body(logits: &[f32], max: f32, scale: f32) -> f64 {
    let mut total = 0.0;
    for block in logits.chunks(BLOCK) {
        total += f64::from(block_sum(block, max, scale));
    }
    total
}

#[inline(always)]
fn block_sums_body(logits: &[f32], max: f32, scale: f32, sums: &mut Vec<f32>) {
    sums.clear();
    for block in logits.chunks(BLOCK) {
        sums.push(block_sum(block, max, scale));
    }
}

/// Computes `Σ exp((logit − max) · scale)` of a short block.
#[inline(always)]
fn block_sum(block: &[f32], max: f32, scale: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let chunks = block.chunks_exact(LANES);
    let remainder = chunks.remainder();
    for chunk in chunks {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += exp((logit - max) * scale);
        }
    }
    let mut rest = 0.0;
    for &logit in remainder {
        rest += exp((logit - max) * scale);
    }
    let mut total = 0.0;
    for &sum in &sums {
        total += sum;
    }
    total + rest
}

#[inline(always)]
fn argmax_body(logits: &[f32], max: f32) -> Option<u32> {
    for (block, first) in logits.chunks(BLOCK).zip((0_u32..).step_by(BLOCK)) {
        // A loop that stops at the first match is not vectorized.
        let mut found = false;
        for &logit in block {
            found |= logit == max;
        }
        if found {
            return block.iter().position(|&logit| logit == max).map(|place| first + place as u32);
        }
    }
    None
}

/// Computes `exp(x)` for x ≤ 0 with a relative error below 3e-7; zero below −87, and NaN stays NaN. Branch-free: a
/// polynomial for the fraction of `x / ln 2`, and the exponent bits for its integer part (Cephes `expf`).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ leaves the nearest integer in the low bits; subtracting it again yields that integer as a
    // float.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < -87.0 { -87.0 } else { x };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = clamped - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4f32;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // The integer is in −126..=0, so the exponent field stays in range.
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let value = p * f32::from_bits(exponent);
    if x < -87.0 { 0.0 } else { value }
}

/// The `n` highest logits with their IDs, best first; the lowest ID wins ties.
pub(super) fn top(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let n = n.min(logits.len());
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
    let mut least = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        if best.len() == n && logit <= least {
            continue;
        }
        let at = best.partition_point(|&(_, other)| other >= logit);
        best.insert(at, (id as u32, logit));
        best.truncate(n);
        least = best.last().map_or(f32::NEG_INFINITY, |&(_, logit)| logit);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_real_one() {
        for step in 0..870_000 {
            let x = -(step as f32) * 1e-4;
            let wanted = f64::from(x).exp();
            assert!((f64::from(exp(x)) - wanted).abs() <= 3e-7 * wanted, "exp({x})");
        }
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn the_sum_is_exact_enough_over_a_vocabulary() {
        let logits: Vec<f32> = (0..49_153).map(|i| ((i * 7919) % 1000) as f32 * 0.02 - 7.0).collect();
        let wanted = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
        assert!((f64::from(LogitSummary::of(&logits).map_or(0.0, |summary| summary.log_sum)) - wanted).abs() < 1e-5);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for len in [2, 15, 16, 17, 255, 256, 257, 1000, 49_153] {
            let mut logits: Vec<f32> = (0..len).map(|i| ((i * 7919) % 1000) as f32 * 0.02 - 7.0).collect();
            logits[1] = f32::NEG_INFINITY;
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let best = logits.iter().position(|&logit| logit == max).map(|id| id as u32);
            for isa in Isa::available() {
                assert_eq!(highest(isa, &logits).to_bits(), max.to_bits(), "{isa:?} of {len}");
                assert_eq!(argmax(isa, &logits, max), best, "{isa:?} of {len}");
                assert_eq!(argmax(isa, &logits, 1e9), None, "{isa:?} of {len}");
                for scale in [1.0, 0.7] {
                    let sum = sum_exp(isa, &logits, max, scale);
                    let wanted = sum_exp(Isa::Portable, &logits, max, scale);
                    assert_eq!(sum.to_bits(), wanted.to_bits(), "{isa:?} of {len}");
                    let mut sums = vec![-1.0];
                    block_sums(isa, &logits, max, scale, &mut sums);
                    let wanted: Vec<f32> = logits.chunks(BLOCK).map(|block| block_sum(block, max, scale)).collect();
                    assert_eq!(sums, wanted, "{isa:?} of {len}");
                    assert_eq!(sums.iter().copied().map(f64::from).sum::<f64>(), sum, "{isa:?} of {len}");
                }
            }
        }
    }

    #[test]
    fn broken_logits_are_named() {
        for at in [0, 15, 16, 20] {
            let mut logits = [0.5f32; 21];
            logits[at] = f32::NAN;
            assert_eq!(LogitSummary::of(&logits), Err(SampleError::NotFinite));
            logits[at] = f32::INFINITY;
            assert_eq!(LogitSummary::of(&logits), Err(SampleError::NotFinite));
            logits[at] = f32::NEG_INFINITY;
            assert!(LogitSummary::of(&logits).is_ok());
        }
        assert_eq!(LogitSummary::of(&[f32::NEG_INFINITY; 40]), Err(SampleError::NoCandidate));
        assert_eq!(LogitSummary::of(&[]), Err(SampleError::NoCandidate));
    }

    #[test]
    fn top_breaks_ties_by_lowest_id() {
        assert_eq!(top(&[1.0, 3.0, 2.0, 3.0, 2.0], 3), [(1, 3.0), (3, 3.0), (2, 2.0)]);
        assert_eq!(top(&[1.0], 5), [(0, 1.0)]);
        assert_eq!(argmax(Isa::best(), &[1.0, 3.0, 3.0], 3.0), Some(1));
    }
}
