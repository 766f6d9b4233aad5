//! Times of the matrix multiplications of decode steps: few rows by a weight matrix.

use std::cell::Cell;

use half::bf16;

use super::peak_rates::{COPIED, TIMES};
use super::{Blas, CapturedGraph, DeviceRegion, Gpu};
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceMatrix, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::DeviceSlice;
use crate::cuda::plan::Placement;

/// Alignment of weight matrices within their memory, in values.
const ALIGNMENT: usize = 128;

/// Destination of a timed multiplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GemmTarget {
    /// Overwritten, in `bf16`.
    Bf16,
    /// Added to, in `f32` (cuBLAS beta of 1).
    F32Sum,
}

/// A weight matrix and the number of rows it is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmShape {
    /// Number of rows of the left operand.
    pub rows: usize,
    /// Number of summed terms.
    pub inner: usize,
    /// Number of columns of the result.
    pub columns: usize,
}

/// Buffers of the timed multiplications.
struct GemmBuffers {
    blas: Blas,
    weights: DeviceRegion,
    inputs: DeviceRegion,
    outputs: DeviceRegion,
}

impl Gpu {
    /// Measures the seconds of one multiplication of each shape into each target, the best of `rounds` rounds, in this
    /// order, by the default algorithms of cuBLAS. The multiplications of a round are captured in a graph, as in a
    /// decode step, and use different copies of the weights as far as 2 GiB hold several. `each` gets every result at
    /// once.
    ///
    /// # Errors
    /// [`CudaError::Call`], also when a shape is too large or less than 3 GiB are free.
    pub fn gemm_times(
        &self,
        shapes: &[GemmShape],
        rounds: usize,
        mut each: impl FnMut(GemmShape, GemmTarget, f64),
    ) -> Result<(), CudaError> {
        let most = |size: fn(&GemmShape) -> usize| shapes.iter().map(size).max().unwrap_or(0);
        let inputs = most(|shape| shape.rows * shape.inner) * size_of::<bf16>();
        let largest = most(|shape| shape.columns * shape.inner) * size_of::<bf16>();
        if inputs.max(largest) > COPIED {
            let reason = format!("a matrix has {} bytes: expected at most {COPIED}", inputs.max(largest));
            return Err(CudaError::Call { action: "cannot time matrix multiplications", reason });
        }
        let buffers = GemmBuffers {
            blas: Blas::new(self)?,
            weights: DeviceRegion::allocate(self, COPIED)?,
            inputs: DeviceRegion::allocate(self, inputs)?,
            outputs: DeviceRegion::allocate(self, most(|shape| shape.rows * shape.columns) * size_of::<f32>())?,
        };
        self.scatter(&buffers.weights)?;
        let bytes = |region: &DeviceRegion| -> DeviceSlice<u8> { region.slice(Placement::new(0, inputs)) };
        self.copy(bytes(&buffers.weights), bytes(&buffers.inputs))?;
        buffers.outputs.fill(self, 0)?;
        self.synchronize()?;
        for &shape in shapes {
            for target in [GemmTarget::Bf16, GemmTarget::F32Sum] {
                each(shape, target, self.gemm_time(&buffers, shape, target, rounds)?);
            }
        }
        Ok(())
    }

    /// Measures the seconds of one multiplication.
    fn gemm_time(
        &self,
        buffers: &GemmBuffers,
        shape: GemmShape,
        target: GemmTarget,
        rounds: usize,
    ) -> Result<f64, CudaError> {
        let GemmShape { rows, inner, columns } = shape;
        let size = (inner * columns).next_multiple_of(ALIGNMENT);
        let copies = (COPIED / size_of::<bf16>() / size).max(1);
        let turn = Cell::new(0);
        let multiply = || {
            let first = turn.get() % copies * size * size_of::<bf16>();
            turn.set(turn.get() + 1);
            let weights = DeviceMatrix::new(buffers.weights.slice(Placement::new(first, inner * columns)), inner);
            let inputs = DeviceMatrix::new(buffers.inputs.slice(Placement::new(0, rows * inner)), inner);
            let target = match target {
                GemmTarget::Bf16 => MatMulTarget::Half(output(&buffers.outputs, shape)),
                GemmTarget::F32Sum => MatMulTarget::Sum(output(&buffers.outputs, shape)),
            };
            let operands = MatMulOperands::Half(inputs, weights.transpose());
            buffers.blas.multiply(&MatMul { operands, target, rows, inner, columns, scale: 1.0 })
        };
        // The driver loads kernels at their first use, which it refuses during a capture.
        multiply()?;
        self.synchronize()?;
        let graph = CapturedGraph::capture(self, || (0..TIMES).try_for_each(|_| multiply()))?;
        let seconds = self.best(rounds, || graph.launch(self))?;
        Ok(seconds / (TIMES * TIMES) as f64)
    }
}

fn output<T>(region: &DeviceRegion, shape: GemmShape) -> DeviceMatrix<T> {
    DeviceMatrix::new(region.slice(Placement::new(0, shape.rows * shape.columns)), shape.columns)
}
