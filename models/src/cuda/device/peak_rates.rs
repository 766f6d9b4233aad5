//! Measured peak rates of a GPU, upper bounds for the speed of any step.

use std::time::Instant;

use half::bf16;

use super::{Blas, DeviceRegion, Gpu, GpuEvent};
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceMatrix, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::DeviceSlice;
use crate::cuda::plan::Placement;
use crate::cuda::source::normals;

/// Bytes per copy, more than any cache holds.
pub(super) const COPIED: usize = 2 << 30;
/// Rows, columns and inner dimension of the multiplied matrices.
const SIDE: usize = 8192;
/// Number of distinct random values that the matrices repeat, and their seed.
const SCATTERED: usize = 1 << 22;
const SEED: u64 = 42;
/// Number of repetitions between two timestamps.
pub(super) const TIMES: usize = 10;

/// Peak rates measured on a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeakRates {
    /// Bytes per second of a device-to-device copy, reads and writes together.
    pub bandwidth: f64,
    /// Operations per second of a `bf16` matrix multiplication, counting a multiply-add as two.
    pub operations: f64,
}

impl Gpu {
    /// Measures copy bandwidth and the rate of a large `bf16` matrix multiplication, each the best of `rounds` rounds.
    ///
    /// # Errors
    /// [`CudaError::Call`], also when less than 4 GiB are free.
    pub fn peak_rates(&self, rounds: usize) -> Result<PeakRates, CudaError> {
        let from = DeviceRegion::allocate(self, COPIED)?;
        let to = DeviceRegion::allocate(self, COPIED)?;
        self.scatter(&from)?;
        to.fill(self, 0)?;
        let bytes = |region: &DeviceRegion| -> DeviceSlice<u8> { region.slice(Placement::new(0, COPIED)) };
        let seconds = self.best(rounds, || self.copy(bytes(&from), bytes(&to)))?;
        let bandwidth = (2 * COPIED * TIMES) as f64 / seconds;
        let blas = Blas::new(self)?;
        let matrix = |region: &DeviceRegion, at: usize| -> DeviceMatrix<bf16> {
            let values = region.slice(Placement::new(at * SIDE * SIDE * size_of::<bf16>(), SIDE * SIDE));
            DeviceMatrix::new(values, SIDE)
        };
        let product = MatMul {
            operands: MatMulOperands::Half(matrix(&from, 0), matrix(&from, 1).transpose()),
            target: MatMulTarget::Half(matrix(&to, 0)),
            rows: SIDE,
            inner: SIDE,
            columns: SIDE,
            scale: 1.0,
        };
        let seconds = self.best(rounds, || blas.multiply(&product))?;
        let operations = 2.0 * (SIDE as f64).powi(3) * TIMES as f64 / seconds;
        Ok(PeakRates { bandwidth, operations })
    }

    /// Fills `region`, of [`COPIED`] bytes, with normally distributed numbers, like weights. With equal numbers hardly a
    /// bit changes from one to the next, so a multiplication draws less power and runs faster than any real one.
    pub(super) fn scatter(&self, region: &DeviceRegion) -> Result<(), CudaError> {
        const ALL: usize = COPIED / size_of::<bf16>();
        let slice =
            |at: usize, len: usize| -> DeviceSlice<bf16> { region.slice(Placement::new(at * size_of::<bf16>(), len)) };
        self.upload(&normals(SEED, 1.0, SCATTERED), slice(0, SCATTERED))?;
        let mut filled = SCATTERED;
        while filled < ALL {
            let len = filled.min(ALL - filled);
            self.copy(slice(0, len), slice(filled, len))?;
            filled += len;
        }
        self.synchronize()
    }

    /// Returns the seconds that `work` takes, repeated [`TIMES`] times: the best of `rounds` rounds after a warm-up
    /// round.
    pub(super) fn best(&self, rounds: usize, work: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let before = GpuEvent::new(self)?;
        let after = GpuEvent::new(self)?;
        let mut best = f64::INFINITY;
        for round in 0..=rounds.max(1) {
            let started = Instant::now();
            before.record(self)?;
            for _ in 0..TIMES {
                work()?;
            }
            after.record(self)?;
            after.wait(self, started, &mut self.adaptive_wait())?;
            let seconds = before.seconds_to(&after)?;
            // The first round only warms up.
            best = if round == 0 { best } else { best.min(seconds) };
        }
        Ok(best)
    }
}
