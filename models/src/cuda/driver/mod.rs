//! What computing asks of a card beside kernels: memory, copies, and products of matrices. Steps that serve and passes that
//! learn are written against this, so that in tests they run whole on the emulator of kernels.

#[cfg(feature = "cuda")]
mod card;
mod clock;

use bytemuck::Pod;
use half::bf16;

#[cfg(feature = "cuda")]
pub(crate) use card::OnCard;
pub use clock::Clock;

use crate::cuda::CudaError;
use crate::cuda::kernel::{Launch, Span};
use crate::cuda::plan::Place;

/// A card, or the emulator: everything is done in the order it is asked for.
pub trait Driver: Launch {
    /// A piece of memory that was taken; given back when it is dropped.
    type Region: Send;

    /// Makes what it stands for the one that this thread's calls mean.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn bind(&self) -> Result<(), CudaError>;

    /// Bytes that could be taken now.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn free(&self) -> Result<usize, CudaError>;

    /// Takes memory, which holds nothing in particular.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn take(&self, bytes: usize) -> Result<Self::Region, CudaError>;

    /// The values at a place of it.
    fn span<T>(&self, region: &Self::Region, place: Place<T>) -> Span<T>;

    /// Sets values to zero.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn clear(&self, to: Span<f32>) -> Result<(), CudaError>;

    /// Copies to the card, each to its place, and waits once.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn upload_all<T: Pod>(&self, pieces: &[(&[T], Span<T>)]) -> Result<(), CudaError>;

    /// Copies to the card, and waits.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn upload<T: Pod>(&self, from: &[T], to: Span<T>) -> Result<(), CudaError> {
        self.upload_all(&[(from, to)])
    }

    /// Waits for everything that was asked for, and copies from the card.
    ///
    /// # Errors
    /// [`CudaError::Call`], also when any of that failed.
    fn download<T: Pod>(&self, from: Span<T>, to: &mut [T]) -> Result<(), CudaError>;

    /// Copies within the card.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn copy<T: Pod>(&self, from: Span<T>, to: Span<T>) -> Result<(), CudaError>;

    /// Multiplies. Sums are `f32`.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn multiply(&self, product: &Product) -> Result<(), CudaError>;
}

/// A matrix in device memory, row after row.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<T> {
    /// Its values.
    pub values: Span<T>,
    /// Values from one row to the next.
    pub stride: usize,
    /// Whether its transpose is meant.
    pub transposed: bool,
}

/// Both sides of a product.
#[derive(Debug, Clone, Copy)]
pub enum Operands {
    /// In `bf16`.
    Half(Matrix<bf16>, Matrix<bf16>),
    /// In `f32`.
    Single(Matrix<f32>, Matrix<f32>),
}

/// Where a product goes.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// Replaced, rounded to `bf16`; of operands in `bf16` alone.
    Half(Matrix<bf16>),
    /// Replaced.
    Single(Matrix<f32>),
    /// Added to.
    Sum(Matrix<f32>),
}

/// `target = scale · left · right`, or added to it.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// Of shape (rows, inner) and (inner, columns), once transposed where they say so.
    pub operands: Operands,
    /// Of shape (rows, columns).
    pub target: Target,
    /// Rows of the left side.
    pub rows: usize,
    /// What is summed over.
    pub inner: usize,
    /// Columns of the right side.
    pub columns: usize,
    /// What the product is multiplied by.
    pub scale: f32,
}

impl<T> Matrix<T> {
    /// A matrix of rows of `stride` values.
    pub fn new(values: Span<T>, stride: usize) -> Self {
        Self { values, stride, transposed: false }
    }

    /// Its transpose.
    #[must_use]
    pub fn transpose(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Its columns from the one at `first` on.
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        let values = self.values.slice(first, self.values.len().saturating_sub(first));
        Self { values: values.unwrap_or(self.values), ..self }
    }

    /// Whether it holds this shape, as it is meant.
    pub fn holds(&self, rows: usize, columns: usize) -> bool {
        let (rows, columns) = if self.transposed { (columns, rows) } else { (rows, columns) };
        columns <= self.stride && (rows == 0 || (rows - 1) * self.stride + columns <= self.values.len())
    }
}

impl Product {
    /// Whether all matrices hold their shapes.
    pub fn fits(&self) -> bool {
        let Self { rows, inner, columns, .. } = *self;
        let operands = match &self.operands {
            Operands::Half(left, right) => left.holds(rows, inner) && right.holds(inner, columns),
            Operands::Single(left, right) => left.holds(rows, inner) && right.holds(inner, columns),
        };
        operands
            && match &self.target {
                Target::Half(to) => to.holds(rows, columns) && !to.transposed,
                Target::Single(to) | Target::Sum(to) => to.holds(rows, columns) && !to.transposed,
            }
    }
}
