//! [`Driver`] of the emulator: memory and clock are the host's, and matrix multiplication is a plain loop.

use std::time::{Duration, Instant};

use bytemuck::Pod;
use half::bf16;

use super::Emulator;
use super::memory::EmulatorRegion;
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceClock, DeviceMatrix, Driver, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::DeviceSlice;
use crate::cuda::kernel::check::CheckDevice;
use crate::cuda::plan::Placement;

impl Emulator {
    /// Returns the values of a slice.
    #[allow(clippy::mut_from_ref, reason = "device memory is shared, and a single thread accesses it")]
    fn values<T>(&self, slice: DeviceSlice<T>) -> &mut [T] {
        if slice.is_empty() {
            return &mut [];
        }
        let at = std::ptr::with_exposed_provenance_mut(slice.address() as usize);
        // SAFETY: slices in tests lie within uploaded buffers, whose provenance was exposed; nothing else accesses them
        // while the returned slice lives.
        unsafe { std::slice::from_raw_parts_mut(at, slice.len()) }
    }

    /// Returns the values of a matrix in row-major order, after transposition.
    fn rows<T: Pod + Into<f32>>(&self, matrix: DeviceMatrix<T>, rows: usize, columns: usize) -> Vec<f32> {
        let DeviceMatrix { values, stride, transposed } = matrix;
        let values = self.values(values);
        let at = |row: usize, column: usize| match transposed {
            true => values[column * stride + row],
            false => values[row * stride + column],
        };
        (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(r, c)| at(r, c).into()).collect()
    }
}

impl Driver for Emulator {
    type Region = EmulatorRegion;

    fn bind(&self) -> Result<(), CudaError> {
        Ok(())
    }

    fn free_memory(&self) -> Result<usize, CudaError> {
        Ok(self.store.free())
    }

    /// Allocates memory filled with NaN.
    fn allocate(&self, bytes: usize) -> Result<Self::Region, CudaError> {
        self.store.afford(bytes)?;
        // NaN, so that a kernel that reads uninitialized memory spoils its result.
        Ok(self.store.take(CheckDevice::upload(self, &vec![0xff; bytes]).unwrap(), bytes))
    }

    fn slice<T>(&self, region: &Self::Region, place: Placement<T>) -> DeviceSlice<T> {
        assert!(place.end() <= region.bytes, "placement ends at byte {}, the region has {}", place.end(), region.bytes);
        // SAFETY: inside the region, which lives as long as the emulator.
        unsafe { DeviceSlice::new(region.address + place.first() as u64, place.len()) }
    }

    fn clear(&self, to: DeviceSlice<f32>) -> Result<(), CudaError> {
        self.values(to).fill(0.0);
        Ok(())
    }

    fn upload_all<T: Pod>(&self, pieces: &[(&[T], DeviceSlice<T>)]) -> Result<(), CudaError> {
        for &(from, to) in pieces {
            self.values(to)[..from.len()].copy_from_slice(from);
        }
        Ok(())
    }

    fn download<T: Pod>(&self, from: DeviceSlice<T>, to: &mut [T]) -> Result<(), CudaError> {
        assert!(self.intact(), "a kernel wrote outside its memory");
        to.copy_from_slice(&self.values(from)[..to.len()]);
        Ok(())
    }

    fn copy<T: Pod>(&self, from: DeviceSlice<T>, to: DeviceSlice<T>) -> Result<(), CudaError> {
        assert!(
            from.len() <= to.len(),
            "the destination of a copy is too small: {} values for {}",
            to.len(),
            from.len()
        );
        self.values(to)[..from.len()].copy_from_slice(self.values(from));
        Ok(())
    }

    fn multiply(&self, product: &MatMul) -> Result<(), CudaError> {
        assert!(product.fits(), "{product:?}");
        let MatMul { operands, target, rows, inner, columns, scale } = *product;
        let (left, right) = match operands {
            MatMulOperands::Half(left, right) => (self.rows(left, rows, inner), self.rows(right, inner, columns)),
            MatMulOperands::Single(left, right) => (self.rows(left, rows, inner), self.rows(right, inner, columns)),
        };
        for row in 0..rows {
            let mut sums = vec![0.0f32; columns];
            for (x, right) in left[row * inner..][..inner].iter().zip(right.chunks_exact(columns)) {
                sums.iter_mut().zip(right).for_each(|(sum, y)| *sum += x * y);
            }
            sums.iter_mut().for_each(|sum| *sum *= scale);
            match target {
                MatMulTarget::Half(to) => {
                    let to = &mut self.values(to.values)[row * to.stride..][..columns];
                    to.iter_mut().zip(sums).for_each(|(to, sum)| *to = bf16::from_f32(sum));
                }
                MatMulTarget::Single(to) => self.values(to.values)[row * to.stride..][..columns].copy_from_slice(&sums),
                MatMulTarget::Sum(to) => {
                    let to = &mut self.values(to.values)[row * to.stride..][..columns];
                    to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
                }
            }
        }
        Ok(())
    }
}

impl DeviceClock for Emulator {
    type Mark = Instant;

    fn mark(&self) -> Result<Instant, CudaError> {
        Ok(Instant::now())
    }

    fn pause(&self, _: Duration) -> Result<(), CudaError> {
        Ok(())
    }

    fn reached(&self, _: &Instant) -> Result<bool, CudaError> {
        Ok(true)
    }

    fn settle(&self) -> Result<(), CudaError> {
        Ok(())
    }

    fn seconds(&self, from: &Instant, to: &Instant) -> Result<f64, CudaError> {
        Ok(to.duration_since(*from).as_secs_f64())
    }
}
