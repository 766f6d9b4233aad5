//! Softmax statistics and derivatives of a row of logits.

use crate::gradient::attention::on_lanes;
use crate::kernel::isa::Isa;
use crate::kernel::lanes::{LANES, Lanes};

/// Number of logits summed in `f32` before the sums continue in `f64`.
const SPAN: usize = 1024;

/// Logarithm of the softmax denominator, `ln Σ exp x`, and entropy `ln Z - Σ exp(x - max) · (x - max) / Z` with `Z
/// = Σ exp(x - max)`, in nats. Logits must be finite.
pub(super) fn normalize(isa: Isa, logits: &[f32]) -> (f64, f64) {
    let mut sums = Sums::default();
    // SAFETY: `isa` names instructions that the CPU has.
    unsafe { on_lanes!(isa, sum(logits: &[f32] = logits, sums: &mut Sums = &mut sums)) };
    let Sums { largest, total, weighted } = sums;
    (f64::from(largest) + total.ln(), total.ln() - weighted / total)
}

#[derive(Default)]
struct Sums {
    largest: f32,
    total: f64,
    weighted: f64,
}

/// Adds the logits' terms to the sums.
///
/// # Safety
/// The CPU must support the instruction set of `L`.
#[inline(always)]
unsafe fn sum<L: Lanes>(logits: &[f32], sums: &mut Sums) {
    let whole = logits.len() / LANES * LANES;
    let (vectors, rest) = logits.split_at(whole);
    // SAFETY: whole vectors, and the instruction set of `L` is available.
    unsafe {
        let mut largest = [L::splat(f32::NEG_INFINITY); 4];
        for span in vectors.chunks(4 * LANES) {
            for (vector, largest) in span.chunks_exact(LANES).zip(&mut largest) {
                *largest = largest.max(L::load(vector.as_ptr()));
            }
        }
        let largest = largest[0].max(largest[1]).max(largest[2].max(largest[3])).largest();
        sums.largest = rest.iter().copied().fold(largest, f32::max);
        let shift = L::splat(-sums.largest);
        for span in vectors.chunks(SPAN) {
            let mut totals = [L::splat(0.0); 2];
            for vector in span.chunks_exact(LANES) {
                let x = L::load(vector.as_ptr()).add(shift);
                let weight = x.exp();
                totals = [totals[0].add(weight), weight.fma(x, totals[1])];
            }
            sums.total += f64::from(totals[0].total());
            sums.weighted += f64::from(totals[1].total());
        }
    }
    for logit in rest {
        let x = f64::from(logit - sums.largest);
        sums.total += x.exp();
        sums.weighted += x.exp() * x;
    }
}

/// Coefficients of one row: the slope of a logit is `p · (a + b · ln p)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slopes {
    pub(super) normalizer: f32,
    pub(super) a: f32,
    pub(super) b: f32,
}

/// Writes the slopes of some logits, a whole number of vectors, to `to`.
pub(super) fn differentiate(isa: Isa, logits: &[f32], slopes: Slopes, to: &mut [f32]) {
    // SAFETY: `isa` names instructions that the CPU has.
    unsafe { on_lanes!(isa, slope(logits: &[f32] = logits, slopes: Slopes = slopes, to: &mut [f32] = to)) };
}

/// Writes the slopes of some logits.
///
/// # Safety
/// The CPU must support the instruction set of `L`.
#[inline(always)]
unsafe fn slope<L: Lanes>(logits: &[f32], slopes: Slopes, to: &mut [f32]) {
    for (logits, to) in logits.chunks_exact(LANES).zip(to.chunks_exact_mut(LANES)) {
        // SAFETY: whole vectors, and the instruction set of `L` is available.
        unsafe {
            let log = L::load(logits.as_ptr()).add(L::splat(-slopes.normalizer));
            let factor = log.fma(L::splat(slopes.b), L::splat(slopes.a));
            log.exp().mul(factor).store(to.as_mut_ptr());
        }
    }
}
