//! A card as what computing asks for.

use std::time::Duration;

use bytemuck::Pod;

use super::{Clock, Driver, Product};
use crate::cuda::CudaError;
use crate::cuda::device::{Blas, Card, Event, Region};
use crate::cuda::kernel::{Geometry, Kernel, KernelError, Launch, Span};
use crate::cuda::plan::Place;

/// A card and what multiplies on it.
pub(crate) struct OnCard {
    // What needs the card before it.
    blas: Blas,
    card: Card,
}

impl OnCard {
    /// Starts what multiplies.
    pub(crate) fn new(card: Card) -> Result<Self, CudaError> {
        Ok(Self { blas: Blas::new(&card)?, card })
    }

    pub(crate) fn card(&self) -> &Card {
        &self.card
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

    fn upload_all<T: Pod>(&self, pieces: &[(&[T], Span<T>)]) -> Result<(), CudaError> {
        for &(from, to) in pieces {
            self.card.upload(from, to)?;
        }
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

impl Clock for OnCard {
    type Mark = Event;

    fn mark(&self) -> Result<Event, CudaError> {
        let event = Event::new(&self.card)?;
        event.record(&self.card)?;
        Ok(event)
    }

    fn pause(&self, time: Duration) -> Result<(), CudaError> {
        self.card.pause(time)
    }

    fn reached(&self, mark: &Event) -> Result<bool, CudaError> {
        mark.reached()
    }

    fn settle(&self) -> Result<(), CudaError> {
        self.card.synchronize()
    }

    fn seconds(&self, from: &Event, to: &Event) -> Result<f64, CudaError> {
        from.seconds_to(to)
    }
}
