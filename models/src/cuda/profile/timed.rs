//! A driver that times what it puts in line.

use std::cell::RefCell;
use std::ffi::c_void;

use bytemuck::Pod;

use super::{Cost, Work};
use crate::cuda::CudaError;
use crate::cuda::driver::{Clock, Driver, Product};
use crate::cuda::kernel::{Geometry, Kernel, KernelError, Launch, Span};
use crate::cuda::plan::Place;

/// Another driver, with a mark on both sides of each launch and product while that is asked for. What serves uses the other
/// driver itself, and pays nothing for this one. Copies are passed on as they are: a step puts none in line.
pub(in crate::cuda) struct Timed<D: Clock> {
    /// What is in line, while it is timed.
    entries: RefCell<Option<Vec<Entry<D::Mark>>>>,
    driver: D,
}

/// One launch between its marks.
struct Entry<M> {
    work: Work,
    cost: Option<Cost>,
    from: M,
    to: M,
}

/// What one launch took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cuda) struct Timing {
    pub(in crate::cuda) work: Work,
    /// Where the launch says it.
    pub(in crate::cuda) cost: Option<Cost>,
    pub(in crate::cuda) seconds: f64,
}

/// What a line of launches took.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::cuda) struct Timings {
    /// Seconds from the beginning of the first to the end of the last.
    pub(in crate::cuda) whole: f64,
    /// Whether the first had begun before the last was in line.
    pub(in crate::cuda) late: bool,
    /// In their order.
    pub(in crate::cuda) launches: Vec<Timing>,
}

impl<D: Clock> Timed<D> {
    /// Times nothing yet.
    pub(in crate::cuda) fn new(driver: D) -> Self {
        Self { entries: RefCell::new(None), driver }
    }

    /// The driver itself.
    pub(in crate::cuda) fn clock(&self) -> &D {
        &self.driver
    }

    /// Times what is put in line from now on.
    pub(in crate::cuda) fn start(&self) {
        *self.entries.borrow_mut() = Some(Vec::new());
    }

    /// Times nothing any more, waits for all that is in line, and says what was timed since [`start`](Self::start).
    pub(in crate::cuda) fn stop(&self) -> Result<Timings, CudaError> {
        let entries = self.entries.take().unwrap_or_default();
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(Timings::default()) };
        let late = self.driver.reached(&first.from)?;
        self.driver.settle()?;
        let whole = self.driver.seconds(&first.from, &last.to)?;
        let mut launches = Vec::with_capacity(entries.len());
        for Entry { work, cost, from, to } in &entries {
            launches.push(Timing { work: *work, cost: *cost, seconds: self.driver.seconds(from, to)? });
        }
        Ok(Timings { whole, late, launches })
    }

    /// Puts something in line, between two marks where it is timed.
    fn note(
        &self,
        work: Work,
        cost: Option<Cost>,
        put: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let mut entries = self.entries.borrow_mut();
        let Some(entries) = entries.as_mut() else { return put() };
        let from = self.driver.mark()?;
        put()?;
        entries.push(Entry { work, cost, from, to: self.driver.mark()? });
        Ok(())
    }
}

impl<D: Clock> Launch for Timed<D> {
    unsafe fn launch(
        &self,
        kernel: Kernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        let put = || unsafe { self.driver.launch(kernel, geometry, arguments) }.map_err(CudaError::from);
        self.note(Work::of(kernel), None, put).map_err(|error| match error {
            CudaError::Kernel(error) => error,
            other => KernelError::Driver { kernel, reason: other.to_string() },
        })
    }
}

impl<D: Clock> Driver for Timed<D> {
    type Region = D::Region;

    fn bind(&self) -> Result<(), CudaError> {
        self.driver.bind()
    }

    fn free(&self) -> Result<usize, CudaError> {
        self.driver.free()
    }

    fn take(&self, bytes: usize) -> Result<Self::Region, CudaError> {
        self.driver.take(bytes)
    }

    fn span<T>(&self, region: &Self::Region, place: Place<T>) -> Span<T> {
        self.driver.span(region, place)
    }

    fn clear(&self, to: Span<f32>) -> Result<(), CudaError> {
        self.driver.clear(to)
    }

    fn upload_all<T: Pod>(&self, pieces: &[(&[T], Span<T>)]) -> Result<(), CudaError> {
        self.driver.upload_all(pieces)
    }

    fn download<T: Pod>(&self, from: Span<T>, to: &mut [T]) -> Result<(), CudaError> {
        self.driver.download(from, to)
    }

    fn copy<T: Pod>(&self, from: Span<T>, to: Span<T>) -> Result<(), CudaError> {
        self.driver.copy(from, to)
    }

    fn multiply(&self, product: &Product) -> Result<(), CudaError> {
        let work = Work::Product { inn: product.inner, out: product.columns };
        self.note(work, Some(Cost::of(product)), || self.driver.multiply(product))
    }
}
