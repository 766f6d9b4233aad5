//! The emulator as something that computes: its memory and its clock are the host's, and products are plain sums.

use std::time::{Duration, Instant};

use bytemuck::Pod;
use half::bf16;

use super::Emulator;
use super::store::Region;
use crate::cuda::CudaError;
use crate::cuda::driver::{Clock, Driver, Matrix, Operands, Product, Target};
use crate::cuda::kernel::Span;
use crate::cuda::kernel::check::Card;
use crate::cuda::plan::Place;

impl Emulator {
    /// Values of its memory.
    #[allow(clippy::mut_from_ref, reason = "a card's memory is shared, and one thread works on it")]
    fn values<T>(&self, span: Span<T>) -> &mut [T] {
        if span.is_empty() {
            return &mut [];
        }
        let at = std::ptr::with_exposed_provenance_mut(span.address() as usize);
        // SAFETY: spans of the tests are inside what was uploaded, whose provenance was exposed; nothing else looks at it
        // while the slice lives.
        unsafe { std::slice::from_raw_parts_mut(at, span.len()) }
    }

    /// A matrix as it is meant, row after row.
    fn rows<T: Pod + Into<f32>>(&self, matrix: Matrix<T>, rows: usize, columns: usize) -> Vec<f32> {
        let Matrix { values, stride, transposed } = matrix;
        let values = self.values(values);
        let at = |row: usize, column: usize| match transposed {
            true => values[column * stride + row],
            false => values[row * stride + column],
        };
        (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(r, c)| at(r, c).into()).collect()
    }
}

impl Driver for Emulator {
    type Region = Region;

    fn bind(&self) -> Result<(), CudaError> {
        Ok(())
    }

    fn free(&self) -> Result<usize, CudaError> {
        Ok(self.store.free())
    }

    /// Memory of which every value is NaN.
    fn take(&self, bytes: usize) -> Result<Self::Region, CudaError> {
        self.store.afford(bytes)?;
        Ok(self.store.take(Card::upload(self, &vec![0xff; bytes]).unwrap(), bytes))
    }

    fn span<T>(&self, region: &Self::Region, place: Place<T>) -> Span<T> {
        assert!(place.end() <= region.bytes, "a place inside the region");
        // SAFETY: inside the region, which is there until the emulator goes.
        unsafe { Span::new(region.address + place.first() as u64, place.len()) }
    }

    fn clear(&self, to: Span<f32>) -> Result<(), CudaError> {
        self.values(to).fill(0.0);
        Ok(())
    }

    fn upload_all<T: Pod>(&self, pieces: &[(&[T], Span<T>)]) -> Result<(), CudaError> {
        for &(from, to) in pieces {
            self.values(to)[..from.len()].copy_from_slice(from);
        }
        Ok(())
    }

    fn download<T: Pod>(&self, from: Span<T>, to: &mut [T]) -> Result<(), CudaError> {
        assert!(self.intact(), "a kernel wrote outside its memory");
        to.copy_from_slice(&self.values(from)[..to.len()]);
        Ok(())
    }

    fn copy<T: Pod>(&self, from: Span<T>, to: Span<T>) -> Result<(), CudaError> {
        assert!(from.len() <= to.len(), "room for what is copied");
        self.values(to)[..from.len()].copy_from_slice(self.values(from));
        Ok(())
    }

    fn multiply(&self, product: &Product) -> Result<(), CudaError> {
        assert!(product.fits(), "{product:?}");
        let Product { operands, target, rows, inner, columns, scale } = *product;
        let (left, right) = match operands {
            Operands::Half(left, right) => (self.rows(left, rows, inner), self.rows(right, inner, columns)),
            Operands::Single(left, right) => (self.rows(left, rows, inner), self.rows(right, inner, columns)),
        };
        for row in 0..rows {
            let mut sums = vec![0.0f32; columns];
            for (x, right) in left[row * inner..][..inner].iter().zip(right.chunks_exact(columns)) {
                sums.iter_mut().zip(right).for_each(|(sum, y)| *sum += x * y);
            }
            sums.iter_mut().for_each(|sum| *sum *= scale);
            match target {
                Target::Half(to) => {
                    let to = &mut self.values(to.values)[row * to.stride..][..columns];
                    to.iter_mut().zip(sums).for_each(|(to, sum)| *to = bf16::from_f32(sum));
                }
                Target::Single(to) => self.values(to.values)[row * to.stride..][..columns].copy_from_slice(&sums),
                Target::Sum(to) => {
                    let to = &mut self.values(to.values)[row * to.stride..][..columns];
                    to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
                }
            }
        }
        Ok(())
    }
}

impl Clock for Emulator {
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
