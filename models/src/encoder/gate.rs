//! Gated activations of feed-forward networks (Shazeer 2020, "GLU Variants Improve Transformer").

use super::ROW_GRAIN;
use crate::kernel::{Team, gelu, silu_mul};

/// Gated activation of rows that hold two halves: one half is activated, and the other one multiplied with it.
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
    /// Computes the products of the halves, `width` numbers per row of `2 · width`, and returns them; they replace the
    /// beginning of `rows`.
    pub(super) fn apply<'a>(self, team: &Team, rows: &'a mut [f32], width: usize) -> &'a mut [f32] {
        team.rows(rows, 2 * width, ROW_GRAIN, &|_, share| {
            for row in share.chunks_exact_mut(2 * width) {
                let (first, second) = row.split_at_mut(width);
                match self.half {
                    ActivatedHalf::First => self.activation.multiply(first, second),
                    ActivatedHalf::Second => self.activation.multiply(second, first),
                }
            }
        });
        let at = if self.half == ActivatedHalf::First { 0 } else { width };
        let count = rows.len() / (2 * width);
        for row in 0..count {
            let from = 2 * row * width + at;
            rows.copy_within(from..from + width, row * width);
        }
        &mut rows[..count * width]
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
    fn either_half_is_activated_and_rows_are_packed() {
        let team = Team::new(1);
        let rows = [3.0, 2.0, 0.0, 1.0, -1.0, 5.0, 1.0, 0.0];
        let silu = |x: f32| x / (1.0 + (-x).exp());
        let gated = |half: ActivatedHalf| {
            let mut rows = rows;
            Gate { activation: GateActivation::Silu, half }.apply(&team, &mut rows, 2).to_vec()
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
