//! [`Driver`] of the emulator: memory and clock are the host's, and matrix multiplication is a plain loop.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use half::bf16;

use super::Emulator;
use super::memory::EmulatorRegion;
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceClock, DeviceMatrix, Driver, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::check::CheckDevice;
use crate::cuda::kernel::{DeviceSlice, fp8};
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
    fn rows<T: Copy>(
        &self,
        matrix: DeviceMatrix<T>,
        (rows, columns): (usize, usize),
        widen: impl Fn(T) -> f32,
    ) -> Vec<f32> {
        let DeviceMatrix { values, stride, transposed } = matrix;
        let values = self.values(values);
        let at = |row: usize, column: usize| match transposed {
            true => values[column * stride + row],
            false => values[row * stride + column],
        };
        (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(r, c)| widen(at(r, c))).collect()
    }

    /// Returns both operands in row-major order.
    fn operands(&self, product: &MatMul) -> [Vec<f32>; 2] {
        let MatMul { operands, rows, inner, columns, .. } = *product;
        let left = (rows, inner);
        let right = (inner, columns);
        match operands {
            MatMulOperands::Half(a, b) => [self.rows(a, left, bf16::to_f32), self.rows(b, right, bf16::to_f32)],
            MatMulOperands::Single(a, b) => [self.rows(a, left, |x| x), self.rows(b, right, |x| x)],
            MatMulOperands::Fp8(a, b) => {
                let [mut x, mut y] = [self.rows(a.values, left, fp8::decode), self.rows(b.values, right, fp8::decode)];
                for (row, scale) in x.chunks_exact_mut(inner).zip(self.values(a.scales)) {
                    row.iter_mut().for_each(|x| *x *= *scale);
                }
                for row in y.chunks_exact_mut(columns) {
                    row.iter_mut().zip(self.values(b.scales)).for_each(|(y, scale)| *y *= *scale);
                }
                [x, y]
            }
        }
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
        // NaN, so a kernel that reads uninitialized memory spoils its result.
        Ok(self.store.take(CheckDevice::upload(self, &vec![0xff; bytes]).unwrap(), bytes))
    }

    fn slice<T>(&self, region: &Self::Region, place: Placement<T>) -> DeviceSlice<T> {
        assert!(place.end() <= region.bytes, "placement ends at byte {}, the region has {}", place.end(), region.bytes);
        // SAFETY: inside the region, which lives as long as the emulator.
        unsafe { DeviceSlice::new(region.address + place.first() as u64, place.len()) }
    }

    fn clear(&self, to: DeviceSlice<f32>) -> Result<(), CudaError> {
        self.order.borrow_mut().settle();
        self.values(to).fill(0.0);
        Ok(())
    }

    fn upload_all<T: Pod>(&self, pieces: &[(&[T], DeviceSlice<T>)]) -> Result<(), CudaError> {
        self.store.count_upload()?;
        self.order.borrow_mut().settle();
        for &(from, to) in pieces {
            self.values(to)[..from.len()].copy_from_slice(from);
        }
        Ok(())
    }

    fn download<T: Pod>(&self, from: DeviceSlice<T>, to: &mut [T]) -> Result<(), CudaError> {
        assert!(self.intact(), "a kernel wrote outside its memory");
        self.order.borrow_mut().settle();
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
        self.order.borrow_mut().settle();
        self.values(to)[..from.len()].copy_from_slice(self.values(from));
        Ok(())
    }

    fn multiply(&self, product: &MatMul) -> Result<(), CudaError> {
        assert!(product.fits(), "{product:?}");
        self.order.borrow_mut().multiplied(&self.memory.borrow(), target_addresses(product));
        let MatMul { target, rows, inner, columns, scale, .. } = *product;
        let [left, right] = self.operands(product);
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

    fn takes_fp8(&self, _: &MatMul) -> bool {
        self.fp8
    }

    fn multiply_fp8(&self, product: &MatMul) -> Result<bool, CudaError> {
        assert!(matches!(product.operands, MatMulOperands::Fp8(..)), "{product:?}");
        self.multiply(product).map(|()| true)
    }
}

/// Addresses of the target of a product.
fn target_addresses(product: &MatMul) -> Range<u64> {
    let MatMul { target, rows, columns, .. } = *product;
    let of = |address: u64, stride: usize, size: usize| {
        let values = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
        address..address + (values * size) as u64
    };
    match target {
        MatMulTarget::Half(to) => of(to.values.address(), to.stride, size_of::<bf16>()),
        MatMulTarget::Single(to) | MatMulTarget::Sum(to) => of(to.values.address(), to.stride, size_of::<f32>()),
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
