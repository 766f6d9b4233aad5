//! Drawing from a filtered distribution without sorting a vocabulary.
//!
//! Only the tokens near the top are ever looked at one by one. When top-k or top-p want an order, tokens within a few
//! nats of the best are gathered and sorted; if they do not reach k tokens or probability p, the window widens. The
//! result is exact for every setting.

use super::SampleError;
use super::SamplingParams;
use super::distribution::{exp, finite_max, sum_exp};

/// Tokens whose weights are summed together, so that a draw can skip most of the vocabulary.
const BLOCK: usize = 256;

/// How far below the best token to look at first, in nats of the scaled distribution, and further if that is not enough.
const WINDOWS: [f32; 5] = [5.0, 10.0, 20.0, 40.0, f32::INFINITY];

/// Reusable buffers.
#[derive(Debug, Clone, Default)]
pub(super) struct Shortlist {
    /// (id, scaled logit relative to the best), then sorted.
    candidates: Vec<(u32, f32)>,
    /// Logits of an allow-list.
    allowed: Vec<(u32, f32)>,
    /// Sums of weights of each block of the vocabulary.
    blocks: Vec<f32>,
}

impl Shortlist {
    /// The token that `draw` ∈ [0, 1) falls on.
    pub(super) fn draw(
        &mut self,
        params: &SamplingParams,
        logits: &[f32],
        allow: Option<&[u32]>,
        draw: f64,
    ) -> Result<u32, SampleError> {
        let scale = 1.0 / params.temperature;
        // p ≥ min_p · p_max, in logarithms.
        let floor = if params.min_p > 0.0 { params.min_p.ln() } else { f32::NEG_INFINITY };
        if let Some(ids) = allow {
            self.gather_allowed(logits, ids, scale, floor)?;
            self.truncate(params, None);
            return Ok(self.pick(draw));
        }
        let max = finite_max(logits)?;
        let ordered = params.top_k > 0 || params.top_p < 1.0;
        if !ordered && params.min_p == 0.0 {
            return Ok(self.draw_all(logits, max, scale, draw));
        }
        let wanted = self.gather(params, logits, max, scale, floor);
        if ordered {
            self.truncate(params, wanted);
        }
        Ok(self.pick(draw))
    }

    /// Draws from the whole distribution: one pass for the sums of blocks, then a walk inside one block.
    fn draw_all(&mut self, logits: &[f32], max: f32, scale: f32, draw: f64) -> u32 {
        self.blocks.clear();
        self.blocks.extend(logits.chunks(BLOCK).map(|block| sum_exp(block, max, scale)));
        let total: f64 = self.blocks.iter().copied().map(f64::from).sum();
        let mut left = draw * total;
        let mut last = 0;
        for (block, &sum) in self.blocks.iter().enumerate() {
            if left >= f64::from(sum) {
                left -= f64::from(sum);
                continue;
            }
            let first = block * BLOCK;
            let end = logits.len().min(first + BLOCK);
            for (id, &logit) in logits.iter().enumerate().take(end).skip(first) {
                let weight = f64::from(exp((logit - max) * scale));
                if weight > 0.0 {
                    last = id;
                    if left < weight {
                        return id as u32;
                    }
                    left -= weight;
                }
            }
            // Rounding left a crumb: the block's last possible token takes it.
            return last as u32;
        }
        // Rounding again, at the very end of the vocabulary: the best token is always possible.
        logits.iter().position(|&logit| logit == max).unwrap_or(last) as u32
    }

    fn gather_allowed(&mut self, logits: &[f32], ids: &[u32], scale: f32, floor: f32) -> Result<(), SampleError> {
        self.allowed.clear();
        self.allowed.extend(ids.iter().filter_map(|&id| Some((id, *logits.get(id as usize)?))));
        self.allowed.sort_unstable_by_key(|&(id, _)| id);
        self.allowed.dedup_by_key(|&mut (id, _)| id);
        let max = self.allowed.iter().map(|&(_, logit)| logit).fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NoCandidate);
        }
        self.candidates.clear();
        let scaled = self.allowed.iter().map(|&(id, logit)| (id, (logit - max) * scale));
        self.candidates.extend(scaled.filter(|&(_, logit)| logit >= floor && logit > f32::NEG_INFINITY));
        Ok(())
    }

    /// Gathers every token that top-k and top-p can keep, and perhaps some more. Returns the weight that top-p keeps
    /// where it is a share of more than the candidates.
    fn gather(&mut self, params: &SamplingParams, logits: &[f32], max: f32, scale: f32, floor: f32) -> Option<f64> {
        // Top-p is a share of what min-p and top-k leave. With top-k it can only shorten the k best, so k decides.
        let by_mass = params.top_k == 0 && params.top_p < 1.0;
        let wanted = by_mass.then(|| f64::from(params.top_p) * mass(logits, max, scale, floor));
        for window in WINDOWS {
            let bound = floor.max(-window);
            self.candidates.clear();
            let near = logits.iter().zip(0..).map(|(&logit, id)| (id, (logit - max) * scale));
            self.candidates.extend(near.filter(|&(_, logit)| logit >= bound && logit > f32::NEG_INFINITY));
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

    /// Sorts the candidates, best first and lowest id first on ties, and cuts them off by top-k, then top-p. `wanted` is
    /// the weight for top-p to keep; without it, top-p's share of the candidates.
    fn truncate(&mut self, params: &SamplingParams, wanted: Option<f64>) {
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if params.top_k > 0 && params.top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(params.top_k - 1, order);
            self.candidates.truncate(params.top_k);
        }
        self.candidates.sort_unstable_by(order);
        if params.top_p >= 1.0 {
            return;
        }
        let wanted = wanted.unwrap_or_else(|| f64::from(params.top_p) * weight(&self.candidates));
        let mut sum = 0.0;
        let last = self.candidates.iter().position(|&(_, logit)| {
            sum += f64::from(exp(logit));
            sum >= wanted
        });
        self.candidates.truncate(last.map_or(self.candidates.len(), |last| last + 1));
    }

    /// Draws from the candidates, which are not empty.
    fn pick(&self, draw: f64) -> u32 {
        let mut left = draw * weight(&self.candidates);
        for &(id, logit) in &self.candidates {
            let weight = f64::from(exp(logit));
            if left < weight {
                return id;
            }
            left -= weight;
        }
        // Rounding left a crumb: it goes to the first, which always has weight.
        self.candidates.first().map_or(0, |&(id, _)| id)
    }
}

/// The weight of some candidates, relative to the best token.
fn weight(candidates: &[(u32, f32)]) -> f64 {
    candidates.iter().map(|&(_, logit)| f64::from(exp(logit))).sum()
}

/// The weight of all tokens whose scaled logit is at least `floor`, relative to the best token.
fn mass(logits: &[f32], max: f32, scale: f32, floor: f32) -> f64 {
    if floor == f32::NEG_INFINITY {
        return logits.chunks(BLOCK).map(|block| f64::from(sum_exp(block, max, scale))).sum();
    }
    let scaled = logits.iter().map(|&logit| (logit - max) * scale);
    scaled.filter(|&logit| logit >= floor).map(|logit| f64::from(exp(logit))).sum()
}
