//! Projections of the same input, fused into one matrix multiplication where their storage allows it.

use std::ops::Range;

use super::tensor::{pack, view};
use crate::kernel::arithmetic::Matrix;
use crate::kernel::{Packed, Team};
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Several projections with adjacent outputs.
///
/// Matrices of the same storage kind are stacked into one. Where a checkpoint mixes kinds (Q4_K_M files store values
/// and keys differently), each matrix is multiplied separately and the outputs follow one another. Such matrices also
/// stay separate with [`Arithmetic::Bf16`], which rounds each by itself.
#[derive(Debug)]
pub(crate) struct FusedProjections {
    parts: Vec<Matrix>,
    widths: Vec<usize>,
}

/// Location of one projection's columns inside a fused output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputColumns {
    /// Index of the first value of the first row.
    pub(crate) start: usize,
    /// Distance from one row to the next, in values.
    pub(crate) stride: usize,
    /// Number of values in a row.
    pub(crate) width: usize,
}

impl OutputColumns {
    /// All columns of a matrix with rows of `width` values.
    pub(crate) fn all(width: usize) -> Self {
        Self { start: 0, stride: width, width }
    }

    /// Range of row `index` in the output.
    pub(crate) fn row(self, index: usize) -> Range<usize> {
        let start = self.start + index * self.stride;
        start..start + self.width
    }
}

impl FusedProjections {
    /// Loads the named matrices, each of shape (width, `inn`).
    pub(crate) fn load(
        weights: &Weights,
        arithmetic: Arithmetic,
        named: &[(String, usize)],
        inn: usize,
    ) -> Result<Self, ModelError> {
        let views = named.iter().map(|(name, out)| view(weights, name, &[*out, inn])).collect::<Result<Vec<_>, _>>()?;
        let widths: Vec<_> = named.iter().map(|(_, out)| *out).collect();
        let same = views.windows(2).all(|pair| pair[0].kind == pair[1].kind);
        let parts: Vec<_> = if same {
            let parts: Vec<_> = views.iter().map(|view| &*view.bytes).collect();
            vec![Packed::stacked(views[0].kind, &parts, widths.iter().sum(), inn)?]
        } else {
            views.iter().map(|view| pack(view)).collect::<Result<_, _>>()?
        };
        Ok(Self { parts: parts.into_iter().map(|part| arithmetic.matrix(part)).collect(), widths })
    }

    /// Matrix that holds projection `index`, with the first row of the projection in it.
    pub(crate) fn part(&self, index: usize) -> (&Matrix, usize) {
        match &self.parts[..] {
            [stacked] => (stacked, self.widths[..index].iter().sum()),
            parts => (&parts[index], 0),
        }
    }

    /// Total width of all projections.
    pub(crate) fn width(&self) -> usize {
        self.widths.iter().sum()
    }

    /// Size of the matrices, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(Matrix::bytes).sum()
    }

    /// Multiplies `m` rows; [`columns`](Self::columns) returns the locations of the outputs.
    pub(crate) fn product(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        let mut rest = y;
        for part in &self.parts {
            let (own, after) = rest.split_at_mut(m * part.out());
            part.matmul(team, x, m, own);
            rest = after;
        }
    }

    /// Location of projection `index` in the output of `m` rows.
    pub(crate) fn columns(&self, index: usize, m: usize) -> OutputColumns {
        let before: usize = self.widths[..index].iter().sum();
        let width = self.widths[index];
        match self.parts.len() {
            1 => OutputColumns { start: before, stride: self.width(), width },
            _ => OutputColumns { start: before * m, stride: width, width },
        }
    }
}
