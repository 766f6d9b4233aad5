//! Products of activations with weights. The number of rows, the shape, and for weights in `e4m3` the algorithms found at
//! load decide how a product is computed, so its bits do not depend on other products.

use half::bf16;

use super::runner::StepRunner;
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceMatrix, Driver, Fp8Matrix, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::{
    DequantizeFp8, DeviceSlice, QuantizeFp8, SKINNY_FP8_ROWS, SKINNY_ROWS, SkinnyMatMul, SkinnyTarget, SkinnyWeights,
};
use crate::cuda::plan::{MatrixLayout, Placement};

/// A matrix in `e4m3`: its values and the scales of its rows.
type Fp8Layout = (Placement<u8>, Placement<f32>);

impl<D: Driver> StepRunner<D> {
    /// Computes `target = x · Wᵀ`, or `+=`, for x of shape (rows, inn) and W of shape (out, inn). Few rows are multiplied
    /// by a kernel whose result for a row does not depend on their number. For more rows and weights in `e4m3`, the
    /// activations are rounded to `e4m3` as well, or else the weights are dequantized.
    pub(super) fn matmul(
        &self,
        x: DeviceSlice<bf16>,
        rows: usize,
        weights: (MatrixLayout, usize, usize),
        target: MatMulTarget,
    ) -> Result<(), CudaError> {
        if self.is_skinny(rows, weights, target) {
            return self.skinny(x, rows, weights, whole(target));
        }
        let (matrix, out, inn) = weights;
        match matrix {
            MatrixLayout::Half(weights) => self.multiply(x, rows, (self.weight(weights), out, inn), target),
            MatrixLayout::Fp8 { values, scales } => {
                let in_fp8 = ((values, scales), out, inn);
                if self.multiply_quantized(x, rows, in_fp8, target)? {
                    return Ok(());
                }
                // The algorithm of the next larger number of rows may not suit this one.
                if rows <= SKINNY_FP8_ROWS {
                    return self.skinny(x, rows, weights, whole(target));
                }
                self.multiply_dequantized(x, rows, in_fp8, target)
            }
        }
    }

    /// Returns `true` if a product is computed by [`SkinnyMatMul`].
    pub(super) fn is_skinny(
        &self,
        rows: usize,
        (matrix, out, inn): (MatrixLayout, usize, usize),
        target: MatMulTarget,
    ) -> bool {
        match matrix {
            MatrixLayout::Half(_) => rows <= SKINNY_ROWS,
            MatrixLayout::Fp8 { values, scales } => {
                let product = || self.product_in_fp8(rows, ((values, scales), out, inn), target);
                rows <= SKINNY_ROWS || rows <= SKINNY_FP8_ROWS && !self.driver.takes_fp8(&product())
            }
        }
    }

    /// Computes a product of few rows; `columns` is the width of the target.
    pub(super) fn skinny(
        &self,
        x: DeviceSlice<bf16>,
        rows: usize,
        (matrix, columns, inner): (MatrixLayout, usize, usize),
        target: SkinnyTarget,
    ) -> Result<(), CudaError> {
        let weights = match matrix {
            MatrixLayout::Half(weights) => SkinnyWeights::Half(self.weight(weights)),
            MatrixLayout::Fp8 { values, scales } => SkinnyWeights::Fp8(self.weight(values), self.weight(scales)),
        };
        self.driver.multiply_few(&SkinnyMatMul { x, weights, target, rows, inner, columns })
    }

    /// Returns the product of activations, rounded to `e4m3` before, with weights.
    pub(super) fn product_in_fp8(
        &self,
        rows: usize,
        ((values, scales), columns, inner): (Fp8Layout, usize, usize),
        target: MatMulTarget,
    ) -> MatMul {
        let x = self.quantized(rows, inner);
        let weights = Fp8Matrix {
            values: DeviceMatrix::new(self.weight(values), inner).transpose(),
            scales: self.weight(scales),
        };
        MatMul { operands: MatMulOperands::Fp8(x, weights), target, rows, inner, columns, scale: 1.0 }
    }

    /// Returns the memory of activations that are rounded to `e4m3`.
    fn quantized(&self, rows: usize, inner: usize) -> Fp8Matrix {
        let values = self.work(self.buffers.quantized.part(0, rows * inner));
        let scales = self.work(self.buffers.row_scales.part(0, rows));
        Fp8Matrix { values: DeviceMatrix::new(values, inner), scales }
    }

    /// Computes a product of many rows in `e4m3`. Returns `false` if the driver cannot.
    fn multiply_quantized(
        &self,
        x: DeviceSlice<bf16>,
        rows: usize,
        weights: (Fp8Layout, usize, usize),
        target: MatMulTarget,
    ) -> Result<bool, CudaError> {
        let product = self.product_in_fp8(rows, weights, target);
        if !self.driver.takes_fp8(&product) {
            return Ok(false);
        }
        let (_, _, inner) = weights;
        let Fp8Matrix { values: DeviceMatrix { values, .. }, scales } = self.quantized(rows, inner);
        QuantizeFp8 { x, values, scales, rows, inner }.launch(&self.driver)?;
        self.driver.multiply_fp8(&product)
    }

    /// Computes a product of many rows with dequantized weights, in parts that fit the workspace. The shapes of parts are
    /// not measured: they take the default, or the algorithm that was chosen for a matrix of the same shape.
    fn multiply_dequantized(
        &self,
        x: DeviceSlice<bf16>,
        rows: usize,
        ((values, scales), out, inn): (Fp8Layout, usize, usize),
        target: MatMulTarget,
    ) -> Result<(), CudaError> {
        // Columns begin at multiples of 16.
        let step = self.buffers.dequantized.len() / inn / 16 * 16;
        for first in (0..out).step_by(step) {
            let columns = step.min(out - first);
            let to = self.work(self.buffers.dequantized.part(0, columns * inn));
            let values = self.weight(values.part(first * inn, columns * inn));
            let scales = self.weight(scales.part(first, columns));
            DequantizeFp8 { values, scales, to, rows: columns, inner: inn }.launch(&self.driver)?;
            self.multiply(x, rows, (to, columns, inn), columns_from(target, first))?;
        }
        Ok(())
    }

    /// Computes a product of many rows with weights in `bf16`.
    fn multiply(
        &self,
        x: DeviceSlice<bf16>,
        rows: usize,
        (weights, columns, inner): (DeviceSlice<bf16>, usize, usize),
        target: MatMulTarget,
    ) -> Result<(), CudaError> {
        let weights = DeviceMatrix::new(weights, inner).transpose();
        let operands = MatMulOperands::Half(DeviceMatrix::new(x, inner), weights);
        self.driver.multiply(&MatMul { operands, target, rows, inner, columns, scale: 1.0 })
    }
}

/// Returns a target of contiguous rows as that of a product of few rows.
fn whole(target: MatMulTarget) -> SkinnyTarget {
    match target {
        MatMulTarget::Half(to) => SkinnyTarget::Half(to.values),
        MatMulTarget::Single(to) => SkinnyTarget::Single(to.values),
        MatMulTarget::Sum(to) => SkinnyTarget::Sum(to.values),
    }
}

/// Returns the target's columns from `first` on.
fn columns_from(target: MatMulTarget, first: usize) -> MatMulTarget {
    match target {
        MatMulTarget::Half(to) => MatMulTarget::Half(to.from(first)),
        MatMulTarget::Single(to) => MatMulTarget::Single(to.from(first)),
        MatMulTarget::Sum(to) => MatMulTarget::Sum(to.from(first)),
    }
}
