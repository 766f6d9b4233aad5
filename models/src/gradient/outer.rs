//! Sums of outer products: the gradient of a matrix, computed from its inputs and the gradients of its outputs.
//!
//! A unit of work is a block of the matrix. Each block is summed over all rows on its own and then added, so the
//! result depends on the shapes alone, not on the number of threads.

use crate::kernel::block::{Extent, Left, Right, Sum, multiply};
use crate::kernel::isa::Isa;
use crate::kernel::lanes::LANES;
use crate::kernel::team::{Base, Team};

/// Number of outputs in a block.
const OUTPUTS: usize = 96;
/// Number of inputs in a block.
const INPUTS: usize = 192;
/// Number of rows summed in registers before the sums return to memory.
const ROWS: usize = 128;

/// Computes `grad += scale · dyᵀ · x`, with dy of shape (rows, out), x of shape (rows, in) and grad of shape (out,
/// in).
///
/// # Panics
/// If a slice does not have its shape.
pub fn add(team: &Team, rows: usize, dy: &[f32], x: &[f32], scale: f32, grad: &mut [f32]) {
    add_with(Isa::best(), team, rows, dy, x, scale, grad);
}

fn add_with(isa: Isa, team: &Team, rows: usize, dy: &[f32], x: &[f32], scale: f32, grad: &mut [f32]) {
    if rows == 0 || grad.is_empty() {
        return;
    }
    let out = dy.len() / rows;
    let inn = x.len() / rows;
    assert!(dy.len() == rows * out, "dy: {} values, not a multiple of {rows} rows", dy.len());
    assert!(x.len() == rows * inn, "x: {} values, not a multiple of {rows} rows", x.len());
    assert!(grad.len() == out * inn, "grad: {} values, its shape is ({out}, {inn})", grad.len());
    // Narrow adapter matrices would otherwise not make enough units for all threads.
    let inputs = if out <= OUTPUTS { INPUTS / 3 } else { INPUTS };
    let across = inn.div_ceil(inputs);
    let grad = Base(grad.as_mut_ptr());
    team.sweep(out.div_ceil(OUTPUTS) * across, &|claims| {
        let mut memory = team.floats(claims.worker(), ROWS * INPUTS + OUTPUTS * INPUTS);
        let mut free = memory.free();
        let mut block = Block { x: free.floats(ROWS * INPUTS), sums: free.floats(OUTPUTS * INPUTS), stride: 0 };
        for unit in claims {
            let output = unit / across * OUTPUTS;
            let input = unit % across * inputs;
            let outputs = OUTPUTS.min(out - output);
            let width = inputs.min(inn - input);
            block.sum(isa, ColumnRange::new(dy, out, output, outputs), ColumnRange::new(x, inn, input, width));
            for (row, sums) in block.sums.chunks_exact(block.stride).take(outputs).enumerate() {
                // SAFETY: inside `grad`, as asserted; units are disjoint blocks of it.
                let to = unsafe { std::slice::from_raw_parts_mut(grad.at((output + row) * inn + input), width) };
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to += scale * sum);
            }
        }
    });
}

/// A range of columns of a matrix.
#[derive(Clone, Copy)]
struct ColumnRange<'a> {
    data: &'a [f32],
    stride: usize,
    first: usize,
    count: usize,
}

impl<'a> ColumnRange<'a> {
    fn new(data: &'a [f32], stride: usize, first: usize, count: usize) -> Self {
        Self { data, stride, first, count }
    }

    /// Copies rows `from..from + rows` into rows of length `width`, with zeros beyond the columns.
    fn copy(&self, from: usize, rows: usize, to: &mut [f32], width: usize) {
        for (to, row) in to.chunks_exact_mut(width).zip(self.data[from * self.stride..].chunks(self.stride)).take(rows)
        {
            to[..self.count].copy_from_slice(&row[self.first..self.first + self.count]);
            to[self.count..].fill(0.0);
        }
    }
}

/// Buffers for one block of the gradient.
struct Block<'a> {
    /// Copy of some rows of x, for rows that are not whole vectors.
    x: &'a mut [f32],
    sums: &'a mut [f32],
    /// Distance between rows of `sums` and `x`, in values.
    stride: usize,
}

impl Block<'_> {
    /// Computes `sums = dyᵀ · x`.
    fn sum(&mut self, isa: Isa, dy: ColumnRange<'_>, x: ColumnRange<'_>) {
        self.stride = x.count.next_multiple_of(LANES);
        let rows = x.data.len() / x.stride;
        for from in (0..rows).step_by(ROWS) {
            let inner = ROWS.min(rows - from);
            let right = if self.stride == x.count {
                Right { from: &x.data[from * x.stride + x.first..], stride: x.stride }
            } else {
                x.copy(from, inner, self.x, self.stride);
                Right { from: self.x, stride: self.stride }
            };
            let left = Left { from: &dy.data[from * dy.stride + dy.first..], row: 1, step: dy.stride };
            let extent = Extent { rows: dy.count, inner, columns: self.stride };
            let sum = if from == 0 { Sum::Set } else { Sum::Add };
            multiply(isa, extent, left, right, (self.sums, self.stride), sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_plain_sums_on_any_number_of_threads() {
        for (rows, out, inn) in [(1, 1, 1), (300, 16, 100), (129, 200, 16), (70, 97, 193), (260, 5, 576)] {
            let value = |at: usize| (at * 7919 % 201) as f32 / 100.0 - 1.0;
            let dy: Vec<f32> = (0..rows * out).map(value).collect();
            let x: Vec<f32> = (0..rows * inn).map(|at| value(at + 5)).collect();
            for isa in Isa::available() {
                let found = |threads: usize| {
                    let mut grad = vec![1.0; out * inn];
                    add_with(isa, &Team::new(threads), rows, &dy, &x, 0.5, &mut grad);
                    grad
                };
                let one = found(1);
                for (at, &found) in one.iter().enumerate() {
                    let o = at / inn;
                    let i = at % inn;
                    let product = |row: usize| f64::from(dy[row * out + o]) * f64::from(x[row * inn + i]);
                    let expected = 1.0 + 0.5 * (0..rows).map(product).sum::<f64>();
                    assert!(
                        (f64::from(found) - expected).abs() < 1e-4,
                        "{isa:?} {rows} {out} {inn}: {found}, {expected}"
                    );
                }
                assert!(found(2) == one && found(3) == one);
            }
        }
    }
}
