//! Gated activation of feed-forward blocks, forward and backward.

use crate::architecture::Activation;
use crate::kernel::derivative::{gelu_tanh_mul_back, silu_mul_back};
use crate::kernel::team::{Base, Team};
use crate::kernel::{gelu_tanh_mul, silu_mul};

/// Minimum number of rows per thread that justifies a parallel region.
const GRAIN: usize = 8;

/// Gated activation of rows of `width` values.
#[derive(Debug, Clone, Copy)]
pub(super) struct GatedActivation<'a> {
    pub(super) team: &'a Team,
    pub(super) activation: Activation,
    pub(super) width: usize,
}

impl GatedActivation<'_> {
    /// Computes the activated gate times `up`.
    pub(super) fn forward(self, gate: &[f32], up: &[f32], activated: &mut [f32]) {
        let combine = match self.activation {
            Activation::Silu => silu_mul,
            Activation::GeluTanh => gelu_tanh_mul,
        };
        self.team.rows(activated, self.width, GRAIN, &|first, share| {
            let range = first * self.width..first * self.width + share.len();
            share.copy_from_slice(&gate[range.clone()]);
            combine(share, &up[range]);
        });
    }

    /// Replaces gate and `up` by their gradients.
    pub(super) fn backward(self, gate: &mut [f32], up: &mut [f32], dactivated: &[f32]) {
        assert_eq!(up.len(), dactivated.len(), "a gradient for each value");
        assert_eq!(gate.len(), up.len(), "a gate for each value");
        let back = match self.activation {
            Activation::Silu => silu_mul_back,
            Activation::GeluTanh => gelu_tanh_mul_back,
        };
        let up = Base(up.as_mut_ptr());
        self.team.rows(gate, self.width, GRAIN, &|first, gate| {
            let first = first * self.width;
            // SAFETY: `up` has the length of the gate, as asserted; the shares of that length are disjoint and inside
            // it.
            let up = unsafe { std::slice::from_raw_parts_mut(up.at(first), gate.len()) };
            back(gate, up, &dactivated[first..][..gate.len()]);
        });
    }
}
