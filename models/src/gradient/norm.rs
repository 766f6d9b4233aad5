//! RMS norms over rows, forward and backward, with an optionally trained weight.

use std::ops::Range;

use crate::kernel::derivative::{rms_norm_back, rms_weight_back};
use crate::kernel::{Team, rms_norm};

/// Minimum number of rows per thread that justifies a parallel region.
const GRAIN: usize = 8;

/// Weight of a norm, or a bias.
#[derive(Debug)]
pub(super) struct Vector {
    pub(super) values: Vec<f32>,
    /// Range among the trained values. `None` if the vector is frozen.
    pub(super) trained: Option<Range<usize>>,
}

impl Vector {
    /// Updates the weight with changed values.
    pub(super) fn repack(&mut self, values: &[f32]) {
        if let Some(range) = &self.trained {
            self.values.copy_from_slice(&values[range.clone()]);
        }
    }

    /// Adds the sum over the rows of `d` to the gradient, in the order of the rows: the backward pass of a bias.
    pub(super) fn learn_sum(&self, d: &[f32], gradients: &mut [f32]) {
        let Some(range) = &self.trained else { return };
        let gradient = &mut gradients[range.clone()];
        for row in d.chunks_exact(gradient.len()) {
            crate::kernel::add(gradient, row);
        }
    }

    /// Applies the RMS norm to every row of `x`.
    pub(super) fn normalize(&self, team: &Team, x: &[f32], eps: f32, out: &mut [f32]) {
        let width = self.values.len();
        team.rows(out, width, GRAIN, &|first, share| {
            rms_norm(&x[first * width..][..share.len()], &self.values, eps, share);
        });
    }

    /// Adds the gradient of the norm's input to `dx`, and that of the weight to the flat gradients.
    pub(super) fn back(&self, team: &Team, x: &[f32], eps: f32, dy: &[f32], dx: &mut [f32], gradients: &mut [f32]) {
        let width = self.values.len();
        team.rows(dx, width, GRAIN, &|first, share| {
            let rows = first * width..first * width + share.len();
            rms_norm_back(&x[rows.clone()], &self.values, eps, &dy[rows], share);
        });
        if let Some(range) = &self.trained {
            rms_weight_back(x, eps, dy, &mut gradients[range.clone()]);
        }
    }
}
