//! Multiplication of gradients with packed weights: `dx = dy · W`.
//!
//! Works like [`matmul`](super::matmul()) with the transpose of W, to the last bit, but the transpose exists only as a
//! chunk in the first-level cache.

use super::directed::{DirectedMatrix, UNPACK_LEN};
use super::isa::Isa;
use super::layout::PANEL;
use super::matmul::CHUNK;
use super::matmul_output::{Finish, MatmulOutput};
use super::panel::panel_product_with;
use super::team::{Base, Team, share};

/// Maximum number of rows per unit of work. More than in [`matmul`](super::matmul()), because each unit also transposes
/// its weights.
const ROWS: usize = 192;

/// Multiplies `m` rows of x with the matrix in its direction.
///
/// # Panics
/// If a slice does not have its shape.
pub(super) fn product(
    isa: Isa,
    team: &Team,
    x: &[f32],
    m: usize,
    matrix: DirectedMatrix<'_>,
    y: &mut [f32],
    finish: Finish<'_>,
) {
    let terms = matrix.terms();
    assert_eq!(x.len(), m * terms, "rows of shape ({m}, {terms})");
    assert_eq!(y.len(), m * matrix.results(), "result of shape ({m}, {})", matrix.results());
    let target = MatmulOutput { y: Base(y.as_mut_ptr()), out: matrix.results(), finish };
    let panels = matrix.results().div_ceil(PANEL);
    let groups = m.div_ceil(ROWS);
    team.sweep(groups * panels, &|claims| {
        let mut memory = team.floats(claims.worker(), (CHUNK + ROWS) * PANEL + UNPACK_LEN);
        let mut free = memory.free();
        let [weights, sums, buffer] = [CHUNK * PANEL, ROWS * PANEL, UNPACK_LEN].map(|len| free.floats(len));
        for unit in claims {
            let rows = share(m, unit / panels, groups);
            let panel = unit % panels;
            rows.clone().for_each(|row| target.prefetch(row, panel));
            let sums = &mut sums[..rows.len() * PANEL];
            sums.fill(0.0);
            for start in (0..terms).step_by(CHUNK) {
                let chunk = start..(start + CHUNK).min(terms);
                matrix.floats(isa, panel, chunk.clone(), buffer, weights);
                panel_product_with(isa, &x[rows.start * terms + start..], terms, &weights[..chunk.len() * PANEL], sums);
            }
            // SAFETY: the result has the rows and panels of the multiplication, and each unit its own.
            unsafe { target.take(rows.start, panel, sums) };
        }
    });
}
