//! Sampling from a filtered distribution without sorting the vocabulary.
//!
//! When top-k, top-p or min-p truncate the distribution, only tokens near the top are gathered. If the tokens
//! within a few nats of the best one do not reach k tokens or probability p, the window widens. The cutoff among the
//! gathered tokens is found by selection in linear time. The result is exact for every setting, and tokens are always
//! visited by ID, so a seed gives the same tokens whatever the order of selection.

use std::cmp::Ordering;

use super::SampleError;
use super::SamplingParams;
use super::distribution::{BLOCK, block_sums, exp, sum_exp};
use crate::kernel::isa::Isa;

/// Widths of the window below the best token, in nats of the scaled distribution, tried in order until enough
/// tokens are found.
const WINDOWS: [f32; 5] = [5.0, 10.0, 20.0, 40.0, f32::INFINITY];

/// A token with its scaled logit relative to the best token.
type WindowedToken = (u32, f32);

/// Reusable buffers for truncated sampling.
#[derive(Debug, Clone, Default)]
pub(super) struct Shortlist {
    /// Candidates sorted by ID.
    candidates: Vec<WindowedToken>,
    /// Copy of the candidates in the order that selection leaves.
    selection: Vec<WindowedToken>,
    /// Sum of weights of each block of the vocabulary.
    blocks: Vec<f32>,
}

impl Shortlist {
    /// Token that `draw` ∈ [0, 1) falls on. `max` is the highest logit, and `sum` is `Σ exp(logit − max)` if it is
    /// known.
    pub(super) fn draw(
        &mut self,
        params: &SamplingParams,
        logits: &[f32],
        max: f32,
        sum: Option<f64>,
        draw: f64,
    ) -> u32 {
        let scale = 1.0 / params.temperature;
        let ordered = params.top_k > 0 || params.top_p < 1.0;
        if !ordered && params.min_p == 0.0 {
            return self.draw_all(logits, max, scale, draw);
        }
        let wanted = self.gather(params, logits, max, scale, sum);
        self.truncate(params, wanted);
        self.pick(draw)
    }

    /// Token that `draw` falls on among the tokens of an allow-list.
    pub(super) fn draw_among(
        &mut self,
        params: &SamplingParams,
        logits: &[f32],
        ids: &[u32],
        draw: f64,
    ) -> Result<u32, SampleError> {
        self.candidates.clear();
        self.candidates.extend(ids.iter().filter_map(|&id| Some((id, *logits.get(id as usize)?))));
        self.candidates.sort_unstable_by_key(|&(id, _)| id);
        self.candidates.dedup_by_key(|&mut (id, _)| id);
        let max = self.candidates.iter().map(|&(_, logit)| logit).fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NoCandidate);
        }
        let scale = 1.0 / params.temperature;
        let floor = floor(params);
        self.candidates.iter_mut().for_each(|(_, logit)| *logit = (*logit - max) * scale);
        self.candidates.retain(|&(_, logit)| logit >= floor && logit > f32::NEG_INFINITY);
        self.truncate(params, None);
        Ok(self.pick(draw))
    }

    /// Samples from the whole distribution: one pass for the sums of blocks, then a walk inside one block.
    fn draw_all(&mut self, logits: &[f32], max: f32, scale: f32, draw: f64) -> u32 {
        block_sums(Isa::best(), logits, max, scale, &mut self.blocks);
        let total: f64 = self.blocks.iter().copied().map(f64::from).sum();
        let mut left = draw * total;
        for (block, &sum) in self.blocks.iter().enumerate() {
            if left >= f64::from(sum) {
                left -= f64::from(sum);
                continue;
            }
            let first = block * BLOCK;
            let mut last = None;
            for (id, &logit) in (first as u32..).zip(&logits[first..logits.len().min(first + BLOCK)]) {
                let weight = f64::from(exp((logit - max) * scale));
                if weight > 0.0 {
                    if left < weight {
                        return id;
                    }
                    last = Some(id);
                    left -= weight;
                }
            }
            // Rounding left a remainder of the draw: the block's last possible token takes it.
            if let Some(id) = last {
                return id;
            }
        }
        // A remainder at the very end of the vocabulary: the best token is always possible.
        logits.iter().position(|&logit| logit == max).unwrap_or_default() as u32
    }

    /// Gathers every token that top-k and top-p can keep, and perhaps more. Returns the weight that top-p must keep.
    /// `None` if top-p keeps a share of the candidates, or everything.
    fn gather(
        &mut self,
        params: &SamplingParams,
        logits: &[f32],
        max: f32,
        scale: f32,
        sum: Option<f64>,
    ) -> Option<f64> {
        let floor = floor(params);
        // Top-p is a share of the tokens left by min-p and top-k. With top-k it can only shorten the k best, so k
        // decides.
        let by_mass = params.top_k == 0 && params.top_p < 1.0;
        let known = sum.filter(|_| scale == 1.0 && floor == f32::NEG_INFINITY);
        let total = || known.unwrap_or_else(|| mass(logits, max, scale, floor));
        let wanted = by_mass.then(|| f64::from(params.top_p) * total());
        for window in WINDOWS {
            let bound = floor.max(-window);
            self.gather_above(logits, max, scale, bound);
            let enough = match wanted {
                Some(wanted) => weight(&self.candidates) >= wanted,
                None => params.top_k > 0 && self.candidates.len() >= params.top_k,
            };
            if enough || bound == floor {
                break;
            }
        }
        wanted
    }

    fn gather_above(&mut self, logits: &[f32], max: f32, scale: f32, bound: f32) {
        const CHUNK: usize = 32;
        self.candidates.clear();
        // Slightly below the bound on the logit scale: rounding must not drop a token here.
        let rough = max + bound / scale * 1.001 - 1e-3 - 1e-6 * max.abs();
        for (chunk, first) in logits.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
            // Most chunks hold no candidate, which one or two instructions per four tokens reveal.
            let mut below = true;
            for &logit in chunk {
                below &= logit < rough;
            }
            if below {
                continue;
            }
            let scaled = (first..).zip(chunk).map(|(id, &logit)| (id, (logit - max) * scale));
            self.candidates.extend(scaled.filter(|&(_, logit)| logit >= bound && logit > f32::NEG_INFINITY));
        }
    }

    /// Truncates the candidates by top-k, then by top-p. `wanted` is the weight for top-p to keep. `None` takes
    /// top-p's share of the candidates.
    fn truncate(&mut self, params: &SamplingParams, wanted: Option<f64>) {
        let by_count = params.top_k > 0 && params.top_k < self.candidates.len();
        if !by_count && params.top_p >= 1.0 {
            return;
        }
        self.selection.clone_from(&self.candidates);
        let mut kept = self.selection.as_mut_slice();
        let mut last = None;
        if by_count {
            last = Some(*kept.select_nth_unstable_by(params.top_k - 1, order).1);
            kept = &mut kept[..params.top_k];
        }
        if params.top_p < 1.0 {
            let wanted = wanted.unwrap_or_else(|| f64::from(params.top_p) * weight(kept));
            last = last_within(kept, wanted);
        }
        if let Some(last) = last {
            self.candidates.retain(|candidate| order(candidate, &last).is_le());
        }
    }

    /// Chooses among the candidates, which are not empty.
    fn pick(&self, draw: f64) -> u32 {
        let mut left = draw * weight(&self.candidates);
        for &(id, logit) in &self.candidates {
            let weight = f64::from(exp(logit));
            if left < weight {
                return id;
            }
            left -= weight;
        }
        // Rounding left a remainder of the draw: the best token takes it.
        self.candidates.iter().min_by(|a, b| order(a, b)).map_or(0, |&(id, _)| id)
    }
}

/// Order by logit, best first; the lowest ID wins ties.
fn order(a: &WindowedToken, b: &WindowedToken) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Logarithm of `min_p`, for the condition p ≥ min_p · p_max.
fn floor(params: &SamplingParams) -> f32 {
    if params.min_p > 0.0 { params.min_p.ln() } else { f32::NEG_INFINITY }
}

/// Last of the best candidates that together reach the weight `wanted`. Repeatedly partitions the list around a
/// pivot until one candidate is left, in expected linear time.
fn last_within(mut list: &mut [WindowedToken], mut wanted: f64) -> Option<WindowedToken> {
    while list.len() > 1 {
        let half = list.len() / 2;
        list.select_nth_unstable_by(half - 1, order);
        let (better, worse) = list.split_at_mut(half);
        let weight = weight(better);
        if weight >= wanted {
            list = better;
        } else {
            wanted -= weight;
            list = worse;
        }
    }
    list.first().copied()
}

/// Total weight of some candidates, relative to the best token.
fn weight(candidates: &[WindowedToken]) -> f64 {
    candidates.iter().map(|&(_, logit)| f64::from(exp(logit))).sum()
}

/// Total weight of all tokens whose scaled logit is at least `floor`, relative to the best token.
fn mass(logits: &[f32], max: f32, scale: f32, floor: f32) -> f64 {
    if floor == f32::NEG_INFINITY {
        return sum_exp(Isa::best(), logits, max, scale);
    }
    let scaled = logits.iter().map(|&logit| (logit - max) * scale);
    scaled.filter(|&logit| logit >= floor).map(|logit| f64::from(exp(logit))).sum()
}
