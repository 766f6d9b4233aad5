//! Sums and maxima over a whole vocabulary, written so that the compiler vectorises them.

use super::SampleError;

/// Values handled side by side.
const LANES: usize = 16;

/// `ln Σ exp(logit)`, stable. Minus infinity is allowed for single logits: such a token cannot occur.
pub(super) fn log_sum_exp(logits: &[f32]) -> Result<f32, SampleError> {
    let max = finite_max(logits)?;
    let mut sum = 0.0f64;
    for block in logits.chunks(256) {
        sum += f64::from(sum_exp(block, max, 1.0));
    }
    Ok(max + sum.ln() as f32)
}

/// The highest logit, after making sure that none is NaN or positive infinity.
pub(super) fn finite_max(logits: &[f32]) -> Result<f32, SampleError> {
    let mut max = [f32::NEG_INFINITY; LANES];
    // A NaN compares as neither below nor above, so it must be looked for by itself.
    let mut broken = [false; LANES];
    let mut chunks = logits.chunks_exact(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            max[lane] = max[lane].max(chunk[lane]);
            broken[lane] |= is_broken(chunk[lane]);
        }
    }
    let rest = chunks.remainder();
    let max = max.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    if broken.contains(&true) || rest.iter().copied().any(is_broken) {
        return Err(SampleError::NotFinite);
    }
    if max == f32::NEG_INFINITY { Err(SampleError::NoCandidate) } else { Ok(max) }
}

/// NaN or positive infinity.
fn is_broken(logit: f32) -> bool {
    logit.is_nan() | (logit == f32::INFINITY)
}

/// `Σ exp((logit − max) · scale)` of a short block.
pub(super) fn sum_exp(block: &[f32], max: f32, scale: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let mut chunks = block.chunks_exact(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            sums[lane] += exp((chunk[lane] - max) * scale);
        }
    }
    let rest: f32 = chunks.remainder().iter().map(|&logit| exp((logit - max) * scale)).sum();
    sums.iter().sum::<f32>() + rest
}

/// `exp(x)` for x ≤ 0, relative error below 2e-7, zero below −87. Branch-free: a polynomial for the fraction of
/// `x / ln 2` and the exponent bits for its integer part (Cephes `expf`).
pub(super) fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 · 2²³ rounds to an integer without SSE4.1.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.max(-87.0);
    let n = (clamped * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = clamped - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4f32;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // n is in −126..=0, so the exponent field stays in range.
    let power = f32::from_bits(((n as i32 + 127) as u32) << 23);
    if x < -87.0 { 0.0 } else { p * power }
}

/// The id of the highest logit, the lowest id on ties; none when all are minus infinity.
pub(super) fn argmax(logits: &[f32]) -> Option<u32> {
    let max = finite_max(logits).ok()?;
    logits.iter().position(|&logit| logit == max).map(|id| id as u32)
}

/// The `n` highest logits with their ids, best first, lowest id first on ties.
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
    }

    #[test]
    fn log_sum_exp_is_exact_enough_over_a_vocabulary() {
        let logits: Vec<f32> = (0..49_153).map(|i| ((i * 7919) % 1000) as f32 * 0.02 - 7.0).collect();
        let wanted = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
        assert!((f64::from(log_sum_exp(&logits).unwrap_or(0.0)) - wanted).abs() < 1e-5);
    }

    #[test]
    fn broken_logits_are_named() {
        for at in [0, 15, 16, 20] {
            let mut logits = [0.5f32; 21];
            logits[at] = f32::NAN;
            assert_eq!(log_sum_exp(&logits), Err(SampleError::NotFinite));
            logits[at] = f32::INFINITY;
            assert_eq!(log_sum_exp(&logits), Err(SampleError::NotFinite));
            logits[at] = f32::NEG_INFINITY;
            assert!(log_sum_exp(&logits).is_ok());
        }
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 40]), Err(SampleError::NoCandidate));
        assert_eq!(log_sum_exp(&[]), Err(SampleError::NoCandidate));
    }

    #[test]
    fn top_breaks_ties_by_lowest_id() {
        assert_eq!(top(&[1.0, 3.0, 2.0, 3.0, 2.0], 3), [(1, 3.0), (3, 3.0), (2, 2.0)]);
        assert_eq!(top(&[1.0], 5), [(0, 1.0)]);
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), Some(1));
    }
}
