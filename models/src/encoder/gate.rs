//! Gated activations of feed-forward networks (Shazeer 2020, "GLU Variants Improve Transformer").

use super::ROW_GRAIN;
use crate::kernel::{Team, gelu, silu_mul};

/// Gated activation of rows with two halves: one half is activated and multiplied by the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gate {
    pub(super) activation: GateActivation,
    /// Half of a row that is activated.
    pub(super) half: ActivatedHalf,
}

/// Half of a row that is activated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ActivatedHalf {
    First,
    Second,
}

/// Activation of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GateActivation {
    /// Exact GELU.
    Gelu,
    /// `x · sigmoid(x)`.
    Silu,
}

impl Gate {
    /// Computes the gated activation of each row of `2 · width` numbers, and writes the `width` results to `out`.
    pub(super) fn apply(self, team: &Team, rows: &[f32], width: usize, out: &mut [f32]) {
        team.rows(out, width, ROW_GRAIN, &|first, share| {
            for (row, out) in rows[2 * width * first..].chunks_exact(2 * width).zip(share.chunks_exact_mut(width)) {
                let (first, second) = row.split_at(width);
                let (active, other) = match self.half {
                    ActivatedHalf::First => (first, second),
                    ActivatedHalf::Second => (second, first),
                };
                out.copy_from_slice(active);
                self.activation.multiply(out, other);
            }
        });
    }
}

impl GateActivation {
    /// Computes `active = activation(active) · other`.
    fn multiply(self, active: &mut [f32], other: &[f32]) {
        match self {
            GateActivation::Gelu => {
                gelu(active);
                active.iter_mut().zip(other).for_each(|(value, other)| *value *= *other);
            }
            GateActivation::Silu => silu_mul(active, other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_half_is_activated() {
        let team = Team::new(1);
        let rows = [3.0, 2.0, 0.0, 1.0, -1.0, 5.0, 1.0, 0.0];
        let silu = |x: f32| x / (1.0 + (-x).exp());
        let gated = |half: ActivatedHalf| {
            let mut out = [f32::NAN; 4];
            Gate { activation: GateActivation::Silu, half }.apply(&team, &rows, 2, &mut out);
            out
        };
        for (half, expected) in [
            (ActivatedHalf::First, [0.0, silu(2.0), silu(-1.0), 0.0]),
            (ActivatedHalf::Second, [0.0, 2.0 * silu(1.0), -silu(1.0), 0.0]),
        ] {
            let found = gated(half);
            assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-5), "{half:?}: {found:?}");
        }
    }
}
