//! Work between a projection and attention: bias, norm and rotation, forward and backward.

use super::layer::LayerPass;
use super::norm::Vector;
use crate::kernel::add_bias;
use crate::kernel::derivative::{rms_norm_back, rms_weight_back};
use crate::kernel::rope::Rope;

/// Minimum number of tokens per thread that justifies a parallel region.
const GRAIN: usize = 8;

/// Transformation of queries or keys between projection and attention.
pub(super) struct HeadRotation<'a> {
    pub(super) bias: Option<&'a Vector>,
    /// Norm, of the width of a head or of all heads.
    pub(super) norm: Option<&'a Vector>,
    /// Rotary table. `None` if the layer does not rotate.
    pub(super) rope: Option<&'a Rope>,
    /// Total width of all heads.
    pub(super) width: usize,
}

impl HeadRotation<'_> {
    /// Transforms the projection's output to attention's input, in place. `raw` receives the input of the norm.
    pub(super) fn forward(&self, pass: &LayerPass<'_>, x: &mut [f32], raw: &mut [f32]) {
        let dim = pass.config.head_dim;
        bias(pass, self.bias, self.width, x);
        if let Some(norm) = self.norm {
            raw.copy_from_slice(x);
            norm.normalize(pass.rows.team, raw, pass.config.rms_eps, x);
        }
        let Some(rope) = self.rope else { return };
        pass.rows.team.rows(x, self.width, GRAIN, &|first, share| {
            for (token, heads) in share.chunks_exact_mut(self.width).enumerate() {
                let position = pass.positions[first + token];
                heads.chunks_exact_mut(dim).for_each(|head| rope.rotate(head, position));
            }
        });
    }

    /// Transforms the gradient of attention's input to that of the projection's output, in place.
    pub(super) fn backward(
        &self,
        pass: &LayerPass<'_>,
        raw: &[f32],
        dx: &mut [f32],
        draw: &mut [f32],
        gradients: &mut [f32],
    ) {
        let team = pass.rows.team;
        let dim = pass.config.head_dim;
        let eps = pass.config.rms_eps;
        if let Some(rope) = self.rope {
            team.rows(dx, self.width, GRAIN, &|first, share| {
                for (token, heads) in share.chunks_exact_mut(self.width).enumerate() {
                    let position = pass.positions[first + token];
                    heads.chunks_exact_mut(dim).for_each(|head| rope.rotate_back(head, position));
                }
            });
        }
        if let Some(norm) = self.norm {
            let draw = &mut draw[..dx.len()];
            draw.copy_from_slice(dx);
            team.rows(dx, self.width, GRAIN, &|first, share| {
                let rows = first * self.width..first * self.width + share.len();
                share.fill(0.0);
                rms_norm_back(&raw[rows.clone()], &norm.values, eps, &draw[rows], share);
            });
            if let Some(range) = &norm.trained {
                rms_weight_back(raw, eps, draw, &mut gradients[range.clone()]);
            }
        }
        if let Some(bias) = self.bias {
            bias.learn_sum(dx, gradients);
        }
    }
}

/// Adds a bias to every row.
pub(super) fn bias(pass: &LayerPass<'_>, bias: Option<&Vector>, width: usize, x: &mut [f32]) {
    if let Some(bias) = bias {
        pass.rows.team.rows(x, width, GRAIN, &|_, share| add_bias(share, &bias.values));
    }
}
