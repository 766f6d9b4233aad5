//! Sums and maxima over a whole vocabulary, written so that the compiler vectorizes them.

use super::SampleError;

/// Number of values processed side by side.
const LANES: usize = 16;

/// Number of tokens whose weights are summed together.
pub(super) const BLOCK: usize = 256;

/// Statistics over all logits of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LogitSummary {
    /// Highest logit.
    pub(super) max: f32,
    /// `ln Σ exp(logit)`.
    pub(super) log_sum: f32,
}

impl LogitSummary {
    /// Summarizes all logits in a numerically stable way. Single logits may be minus infinity: such tokens cannot
    /// occur.
    pub(super) fn of(logits: &[f32]) -> Result<Self, SampleError> {
        let max = highest(logits);
        if max == f32::INFINITY {
            return Err(SampleError::NotFinite);
        }
        if max == f32::NEG_INFINITY {
            let broken = logits.iter().any(|logit| logit.is_nan());
            return Err(if broken { SampleError::NotFinite } else { SampleError::NoCandidate });
        }
        let sum = sum_exp(logits, max, 1.0);
        // The comparisons above skip a NaN, but the sum does not.
        if sum.is_nan() { Err(SampleError::NotFinite) } else { Ok(Self { max, log_sum: max + sum.ln() as f32 }) }
    }
}

/// Highest value. Skips NaN; an empty slice gives minus infinity.
pub(super) fn highest(logits: &[f32]) -> f32 {
    // Unlike `f32::max`, this compiles to a single instruction.
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut chunks = logits.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (max, &logit) in max.iter_mut().zip(chunk) {
            *max = larger(*max, logit);
        }
    }
    max.iter().chain(chunks.remainder()).copied().fold(f32::NEG_INFINITY, larger)
}

/// Computes `Σ exp((logit − max) · scale)`: single precision inside blocks, double precision over the sums of
/// blocks.
pub(super) fn sum_exp(logits: &[f32], max: f32, scale: f32) -> f64 {
    logits.chunks(BLOCK).map(|block| f64::from(block_sum(block, max, scale))).sum()
}

/// Computes `Σ exp((logit − max) · scale)` of a short block.
pub(super) fn block_sum(block: &[f32], max: f32, scale: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let mut chunks = block.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += exp((logit - max) * scale);
        }
    }
    let rest: f32 = chunks.remainder().iter().map(|&logit| exp((logit - max) * scale)).sum();
    sums.iter().sum::<f32>() + rest
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

/// ID of the highest logit; the lowest ID wins ties.
pub(super) fn argmax(logits: &[f32], max: f32) -> Option<u32> {
    logits.iter().position(|&logit| logit == max).map(|id| id as u32)
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
        assert_eq!(argmax(&[1.0, 3.0, 3.0], 3.0), Some(1));
    }
}
