//! What the card can do at best, measured on it: no step is faster than these allow.

use std::time::Instant;

use half::bf16;

use super::{Blas, Card, Event, Region};
use crate::cuda::CudaError;
use crate::cuda::driver::{Matrix, Operands, Product, Target};
use crate::cuda::kernel::Span;
use crate::cuda::plan::Place;
use crate::cuda::source::normals;

/// Bytes copied at once, more than any cache holds.
const COPIED: usize = 2 << 30;
/// Rows, columns and depth of the matrices multiplied.
const SIDE: usize = 8192;
/// Numbers that these are made of, again and again; and where they start.
const SCATTERED: usize = 1 << 22;
const SEED: u64 = 42;
/// How often each is repeated between two readings of the clock.
const TIMES: usize = 10;

/// The best rates measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Bytes per second read and written together by a copy within the card.
    pub bandwidth: f64,
    /// Operations per second (a multiplication and an addition are two) of a `bf16` matrix product.
    pub operations: f64,
}

impl Card {
    /// Measures copy bandwidth and the rate of a large `bf16` matrix product: of `rounds` rounds the best.
    ///
    /// # Errors
    /// [`CudaError::Call`], also when the card has no 4 GiB free.
    pub fn ceilings(&self, rounds: usize) -> Result<Ceilings, CudaError> {
        let from = Region::take(self, COPIED)?;
        let to = Region::take(self, COPIED)?;
        self.scatter(&from)?;
        to.fill(self, 0)?;
        let bytes = |region: &Region| -> Span<u8> { region.span(Place::new(0, COPIED)) };
        let seconds = self.best(rounds, || self.copy(bytes(&from), bytes(&to)))?;
        let bandwidth = (2 * COPIED * TIMES) as f64 / seconds;
        let blas = Blas::new(self)?;
        let matrix = |region: &Region, at: usize| -> Matrix<bf16> {
            let values = region.span(Place::new(at * SIDE * SIDE * size_of::<bf16>(), SIDE * SIDE));
            Matrix::new(values, SIDE)
        };
        let product = Product {
            operands: Operands::Half(matrix(&from, 0), matrix(&from, 1).transpose()),
            target: Target::Half(matrix(&to, 0)),
            rows: SIDE,
            inner: SIDE,
            columns: SIDE,
            scale: 1.0,
        };
        let seconds = self.best(rounds, || blas.multiply(&product))?;
        let operations = 2.0 * (SIDE as f64).powi(3) * TIMES as f64 / seconds;
        Ok(Ceilings { bandwidth, operations })
    }

    /// Fills `region` with normal numbers, as weights are: of equal ones hardly a bit changes from one to the next, so that a
    /// product of them draws less power and runs faster than any real one.
    fn scatter(&self, region: &Region) -> Result<(), CudaError> {
        const ALL: usize = COPIED / size_of::<bf16>();
        let span = |at: usize, len: usize| -> Span<bf16> { region.span(Place::new(at * size_of::<bf16>(), len)) };
        self.upload(&normals(SEED, 1.0, SCATTERED), span(0, SCATTERED))?;
        let mut filled = SCATTERED;
        while filled < ALL {
            let len = filled.min(ALL - filled);
            self.copy(span(0, len), span(filled, len))?;
            filled += len;
        }
        self.synchronize()
    }

    /// Seconds that [`TIMES`] times `work` take: the best of some rounds after one that does not count.
    fn best(&self, rounds: usize, work: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let (before, after) = (Event::new(self)?, Event::new(self)?);
        let mut best = f64::INFINITY;
        for round in 0..=rounds.max(1) {
            let begun = Instant::now();
            before.record(self)?;
            for _ in 0..TIMES {
                work()?;
            }
            after.record(self)?;
            after.wait(self, begun, &mut self.patience())?;
            let seconds = before.seconds_to(&after)?;
            best = if round == 0 { best } else { best.min(seconds) };
        }
        Ok(best)
    }
}
