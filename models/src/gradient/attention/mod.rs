//! Causal attention over the forest of a [`Pack`], forwards and backwards.

use std::ops::Range;

use super::Pack;
use crate::kernel::attention::Heads;
use crate::kernel::team::{Base, Team};
use crate::kernel::{axpy, dot};

/// What sees what in one pack, for one shape of heads.
///
/// With `s = q · k / √dim` over the keys a token sees, `p = softmax(s)` and `out = p · v`. Backwards, with `D = dout · out`:
/// `dv = pᵀ · dout`, `ds = p ∘ (dout · vᵀ - D)`, `dq = ds · k / √dim`, `dk = dsᵀ · q / √dim` (Dao et al. 2022,
/// "FlashAttention", algorithm 4).
#[derive(Debug)]
pub struct Plan {
    heads: Heads,
    tokens: usize,
    /// Per segment its tokens and, in ascending order, those of its ancestors.
    segments: Vec<(Range<usize>, Vec<Range<usize>>)>,
}

impl Plan {
    /// The plan for `pack`; it holds for all layers.
    pub fn new(pack: &Pack, heads: Heads, _threads: usize) -> Self {
        let mut segments: Vec<(Range<usize>, Vec<Range<usize>>)> = Vec::new();
        for segment in pack.segments() {
            let past = segment.parent.map_or(Vec::new(), |parent| {
                let (own, past) = &segments[parent];
                past.iter().chain([own]).cloned().collect()
            });
            segments.push((segment.tokens.clone(), past));
        }
        Self { heads, tokens: pack.tokens().len(), segments }
    }

    /// The tokens that token `token` of a segment sees.
    fn seen(segment: &(Range<usize>, Vec<Range<usize>>), token: usize) -> impl Iterator<Item = usize> {
        segment.1.iter().cloned().chain([segment.0.start..token + 1]).flatten()
    }

    /// Attention of every token: q and `out` have shape (tokens, heads · dim), k and v (tokens, kv heads · dim), rotated
    /// where they must be; `lse` (tokens, heads) gets the logarithm of each softmax's denominator.
    pub fn forward(&self, team: &Team, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32], lse: &mut [f32]) {
        let Heads { query, kv, dim } = self.heads;
        assert!(q.len() == self.tokens * query * dim && out.len() == q.len() && lse.len() == self.tokens * query);
        assert!(k.len() == self.tokens * kv * dim && v.len() == k.len());
        let (out, lse) = (Base(out.as_mut_ptr()), Base(lse.as_mut_ptr()));
        let scale = 1.0 / (dim as f32).sqrt();
        team.each(self.segments.len() * query, &|item| {
            let (segment, head) = (&self.segments[item / query], item % query);
            let key = |token: usize| (token * kv + head / self.heads.group()) * dim;
            for token in segment.0.clone() {
                let at = token * query + head;
                let own = &q[at * dim..][..dim];
                let scores: Vec<f32> =
                    Self::seen(segment, token).map(|other| scale * dot(own, &k[key(other)..][..dim])).collect();
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let total: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
                // SAFETY: inside `out` and `lse` as asserted; items have disjoint tokens and heads.
                let (out, lse) = unsafe { (std::slice::from_raw_parts_mut(out.at(at * dim), dim), &mut *lse.at(at)) };
                *lse = largest + total.ln();
                out.fill(0.0);
                for (score, other) in scores.iter().zip(Self::seen(segment, token)) {
                    axpy(out, (score - *lse).exp(), &v[key(other)..][..dim]);
                }
            }
        });
    }

    /// The gradients of q, k and v, given that of `out`; shapes as in [`forward`](Self::forward), which gave `out` and
    /// `lse`. Overwrites dq, dk and dv.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        team: &Team,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &[f32],
        lse: &[f32],
        dout: &[f32],
        dq: &mut [f32],
        dk: &mut [f32],
        dv: &mut [f32],
    ) {
        let Heads { query, kv, dim } = self.heads;
        assert!(q.len() == self.tokens * query * dim && lse.len() == self.tokens * query);
        assert!(out.len() == q.len() && dout.len() == q.len() && dq.len() == q.len());
        assert!(k.len() == self.tokens * kv * dim && [v.len(), dk.len(), dv.len()] == [k.len(); 3]);
        [&mut *dq, &mut *dk, &mut *dv].into_iter().for_each(|values| values.fill(0.0));
        let (dq, dk, dv) = (Base(dq.as_mut_ptr()), Base(dk.as_mut_ptr()), Base(dv.as_mut_ptr()));
        let scale = 1.0 / (dim as f32).sqrt();
        team.each(kv, &|item| {
            // SAFETY: inside the slices as asserted; items have disjoint heads.
            let part = |base: &Base<f32>, at: usize| unsafe { std::slice::from_raw_parts_mut(base.at(at), dim) };
            for segment in &self.segments {
                for (token, head) in
                    segment.0.clone().flat_map(|token| (0..self.heads.group()).map(move |member| (token, member)))
                {
                    let at = token * query + item * self.heads.group() + head;
                    let (own, dout) = (&q[at * dim..][..dim], &dout[at * dim..][..dim]);
                    let offset = dot(dout, &out[at * dim..][..dim]);
                    for other in Self::seen(segment, token) {
                        let key = (other * kv + item) * dim;
                        let p = (scale * dot(own, &k[key..][..dim]) - lse[at]).exp();
                        let ds = scale * p * (dot(dout, &v[key..][..dim]) - offset);
                        axpy(part(&dv, key), p, dout);
                        axpy(part(&dk, key), ds, own);
                        axpy(part(&dq, at * dim), ds, &k[key..][..dim]);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod test;
