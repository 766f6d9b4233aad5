//! Work between the projections and attention: bias, norms, rotation and the write to the cache.

use std::ops::Range;

use super::cache::TokenSlot;
use super::fused::OutputColumns;
use super::layer::DecoderLayer;
use crate::batch::BLOCK;
use crate::kernel::attention::HeadLayout;
use crate::kernel::attention::stored::{Stored, store_token};
use crate::kernel::hadamard::rotate_heads;
use crate::kernel::rope::Rope;
use crate::kernel::team::{Base, share};
use crate::kernel::{Team, add};

/// Minimum number of tokens per thread that justifies a parallel region.
const GRAIN: usize = 4;

/// Parameters of the work between projection and attention: bias, norm and rotation, after which keys and
/// values enter the cache.
pub(super) struct Rotation<'a> {
    pub(super) layer: &'a DecoderLayer,
    /// Rotary table. `None` if the layer does not rotate.
    pub(super) rope: Option<&'a Rope>,
    /// Locations of queries, keys and values in the projection output.
    pub(super) columns: [OutputColumns; 3],
    pub(super) heads: HeadLayout,
    pub(super) eps: f32,
}

impl Rotation<'_> {
    /// Prepares all tokens. Afterwards the queries are in `qkv`, and the keys and values in `cache`.
    pub(super) fn run<S: Stored>(&self, team: &Team, places: &[TokenSlot], qkv: &mut [f32], cache: &mut [S]) {
        let shares = (places.len() / GRAIN).clamp(1, team.threads());
        let len = (qkv.len(), cache.len());
        let qkv = Base(qkv.as_mut_ptr());
        let cache = Base(cache.as_mut_ptr());
        let body = |range: Range<usize>| {
            for token in range {
                let [q, k, v] = self.columns.map(|columns| {
                    let row = columns.row(token);
                    assert!(row.end <= len.0, "projection outputs of every token");
                    // SAFETY: in bounds by the assertion; tokens and the three column ranges are disjoint.
                    unsafe { std::slice::from_raw_parts_mut(qkv.at(row.start), row.len()) }
                });
                let place = places[token];
                self.prepare(q, k, v, place.position);
                if S::SCALES > 0 {
                    // A single large number in a key would make the quantization step coarse for all others. This
                    // rotation spreads it.
                    rotate_heads(q, self.heads.dim);
                    rotate_heads(k, self.heads.dim);
                }
                let start = place.block * self.heads.block_len::<S>();
                assert!(start + self.heads.block_len::<S>() <= len.1, "blocks inside the cache");
                // SAFETY: in bounds by the assertion; no two tokens share a slot, because the check before the step
                // rejects two table entries that name the same block for writing.
                unsafe { store_token(place.position % BLOCK, k, v, self.heads.dim, cache.at(start)) };
            }
        };
        match shares {
            1 => body(0..places.len()),
            _ => team.run(&|worker, _| body(share(places.len(), worker, shares))),
        }
    }

    /// Applies bias, norm and rotation to one token.
    fn prepare(&self, q: &mut [f32], k: &mut [f32], v: &mut [f32], position: usize) {
        if let Some(bias) = &self.layer.bias {
            add(q, &bias[..q.len()]);
            add(k, &bias[q.len()..][..k.len()]);
            add(v, &bias[q.len() + k.len()..]);
        }
        for (side, heads) in [q, k].into_iter().enumerate() {
            if let Some(norms) = &self.layer.qk_norms {
                let norm = &norms[side];
                heads.chunks_exact_mut(norm.len()).for_each(|part| normalize(part, norm, self.eps));
            }
            if let Some(rope) = self.rope {
                heads.chunks_exact_mut(self.heads.dim).for_each(|head| rope.rotate(head, position));
            }
        }
    }
}

/// Applies the RMS norm to one head, or to all heads together, in place.
fn normalize(part: &mut [f32], weight: &[f32], eps: f32) {
    let squares: f32 = part.iter().map(|x| x * x).sum();
    let scale = 1.0 / (squares / part.len() as f32 + eps).sqrt();
    part.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
}
