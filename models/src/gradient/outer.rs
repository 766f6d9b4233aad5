//! Sums of outer products: the gradient of a matrix from those of its outputs and its inputs.

use crate::kernel::axpy;
use crate::kernel::team::Team;

/// `grad += scale · dyᵀ · x`, with dy of shape (rows, out), x of shape (rows, in) and grad of shape (out, in).
///
/// # Panics
/// If a slice does not have its shape.
pub fn add(team: &Team, rows: usize, dy: &[f32], x: &[f32], scale: f32, grad: &mut [f32]) {
    if rows == 0 {
        return;
    }
    let (out, inn) = (dy.len() / rows, x.len() / rows);
    assert!(dy.len() == rows * out && x.len() == rows * inn && grad.len() == out * inn, "shapes of an outer product");
    team.rows(grad, inn.max(1), 1, &|first, grad| {
        for (index, grad) in grad.chunks_exact_mut(inn).enumerate() {
            let mut sum = vec![0.0; inn];
            for row in 0..rows {
                axpy(&mut sum, dy[row * out + first + index], &x[row * inn..][..inn]);
            }
            axpy(grad, scale, &sum);
        }
    });
}
