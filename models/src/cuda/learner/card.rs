//! A card that learns.

use std::time::Duration;

use bytemuck::Pod;

use super::driver::{Driver, Product};
use crate::cuda::CudaError;
use crate::cuda::device::{Blas, Card, Region};
use crate::cuda::kernel::{Geometry, Kernel, KernelError, Launch, Span};
use crate::cuda::plan::Place;
use crate::gradient::{Learner, Tune};
use crate::weights::Weights;

/// How long it may take for what is in line: a whole pass, of many more tokens than a step that serves has.
const LIMIT: Duration = Duration::from_secs(600);

/// A card and what multiplies on it.
struct OnCard {
    // What needs the card before it.
    blas: Blas,
    card: Card,
}

impl Learner {
    /// Loads a checkpoint to the card `ordinal` and begins an adapter there: weights in `bf16`, the adapter in `f32`.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] where there is no such card, driver or library; [`CudaError::Call`] when it has not the
    /// memory; [`CudaError::Model`] when all weights are to be learnt, a tensor is missing, or a shape is one no kernel was
    /// written for.
    pub fn load_on_card(weights: &Weights, ordinal: usize, tune: &Tune) -> Result<Self, CudaError> {
        // What can be said without a card.
        super::check(weights.config(), tune)?;
        let card = Card::open(ordinal, weights.config().head_dim)?.with_limit(LIMIT);
        let blas = Blas::new(&card)?;
        super::learner(OnCard { blas, card }, weights, tune)
    }
}

impl Launch for OnCard {
    unsafe fn launch(
        &self,
        kernel: Kernel,
        geometry: Geometry,
        arguments: &mut [*mut std::ffi::c_void],
    ) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        unsafe { self.card.launch(kernel, geometry, arguments) }
    }
}

impl Driver for OnCard {
    type Region = Region;

    fn bind(&self) -> Result<(), CudaError> {
        self.card.bind()
    }

    fn free(&self) -> Result<usize, CudaError> {
        self.card.free_memory()
    }

    fn take(&self, bytes: usize) -> Result<Region, CudaError> {
        Region::take(&self.card, bytes)
    }

    fn span<T>(&self, region: &Region, place: Place<T>) -> Span<T> {
        region.span(place)
    }

    fn clear(&self, to: Span<f32>) -> Result<(), CudaError> {
        self.card.clear(to)
    }

    fn upload<T: Pod>(&self, from: &[T], to: Span<T>) -> Result<(), CudaError> {
        self.card.upload(from, to)?;
        self.card.synchronize()
    }

    fn download<T: Pod>(&self, from: Span<T>, to: &mut [T]) -> Result<(), CudaError> {
        self.card.download(from, to)?;
        self.card.synchronize()
    }

    fn copy<T: Pod>(&self, from: Span<T>, to: Span<T>) -> Result<(), CudaError> {
        self.card.copy(from, to)
    }

    fn multiply(&self, product: &Product) -> Result<(), CudaError> {
        self.blas.multiply(product)
    }
}
