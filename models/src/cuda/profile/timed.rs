//! A driver that times the work it enqueues.

use std::cell::RefCell;
use std::ffi::c_void;

use bytemuck::Pod;

use super::{WorkCost, WorkKind};
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceClock, Driver, MatMul};
use crate::cuda::kernel::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch, SkinnyMatMul};
use crate::cuda::plan::Placement;

/// Wraps a driver and marks the start and end of each launch and matrix multiplication while timing is on. Serving uses
/// the inner driver directly and pays nothing for this wrapper. Copies are not timed: a step enqueues none.
pub(in crate::cuda) struct TimedDriver<D: DeviceClock> {
    /// Launches since timing was turned on. `None` while it is off.
    entries: RefCell<Option<Vec<TimedLaunch<D::Mark>>>>,
    driver: D,
}

/// One launch with its marks.
struct TimedLaunch<M> {
    work: WorkKind,
    cost: Option<WorkCost>,
    from: M,
    to: M,
}

/// Measured time of one launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cuda) struct LaunchTiming {
    pub(in crate::cuda) work: WorkKind,
    /// Minimum cost of a matrix multiplication. `None` for kernels.
    pub(in crate::cuda) cost: Option<WorkCost>,
    pub(in crate::cuda) seconds: f64,
}

/// Measured times of a sequence of launches.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::cuda) struct StepTimings {
    /// Seconds from the start of the first launch to the end of the last.
    pub(in crate::cuda) whole: f64,
    /// If `true`, the first launch started before the last was enqueued.
    pub(in crate::cuda) late: bool,
    /// Times of the launches in order.
    pub(in crate::cuda) launches: Vec<LaunchTiming>,
}

impl<D: DeviceClock> TimedDriver<D> {
    /// Wraps a driver, with timing off.
    pub(in crate::cuda) fn new(driver: D) -> Self {
        Self { entries: RefCell::new(None), driver }
    }

    /// Returns the wrapped driver.
    pub(in crate::cuda) fn inner(&self) -> &D {
        &self.driver
    }

    /// Returns the wrapped driver for changes before timing starts.
    #[cfg(feature = "cuda")]
    pub(in crate::cuda) fn inner_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Turns timing on.
    pub(in crate::cuda) fn start(&self) {
        *self.entries.borrow_mut() = Some(Vec::new());
    }

    /// Turns timing off, waits for all enqueued work, and returns the times measured since [`start`](Self::start).
    pub(in crate::cuda) fn stop(&self) -> Result<StepTimings, CudaError> {
        let entries = self.entries.take().unwrap_or_default();
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(StepTimings::default()) };
        let late = self.driver.reached(&first.from)?;
        self.driver.settle()?;
        let whole = self.driver.seconds(&first.from, &last.to)?;
        let mut launches = Vec::with_capacity(entries.len());
        for TimedLaunch { work, cost, from, to } in &entries {
            launches.push(LaunchTiming { work: *work, cost: *cost, seconds: self.driver.seconds(from, to)? });
        }
        Ok(StepTimings { whole, late, launches })
    }

    /// Runs `put`, between two marks while timing is on.
    fn time(
        &self,
        work: WorkKind,
        cost: Option<WorkCost>,
        put: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.time_if(work, cost, || put().map(|()| true)).map(drop)
    }

    /// Like [`time`](Self::time), for work that `put` may not enqueue; `put` returns `true` if it did.
    fn time_if(
        &self,
        work: WorkKind,
        cost: Option<WorkCost>,
        put: impl FnOnce() -> Result<bool, CudaError>,
    ) -> Result<bool, CudaError> {
        let mut entries = self.entries.borrow_mut();
        // Timing is off.
        let Some(entries) = entries.as_mut() else { return put() };
        let from = self.driver.mark()?;
        let done = put()?;
        if done {
            entries.push(TimedLaunch { work, cost, from, to: self.driver.mark()? });
        }
        Ok(done)
    }
}

impl<D: DeviceClock> Launch for TimedDriver<D> {
    unsafe fn launch(
        &self,
        kernel: CudaKernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        let mut put = || unsafe { self.driver.launch(kernel, geometry, arguments) }.map_err(CudaError::from);
        // Matrix multiplications by a kernel are timed where their shape is known: in `multiply_few`.
        let timed = match WorkKind::of(kernel) {
            Some(work) => self.time(work, None, put),
            None => put(),
        };
        timed.map_err(|error| match error {
            CudaError::Kernel(error) => error,
            other => KernelError::Driver { kernel, reason: other.to_string() },
        })
    }
}

impl<D: DeviceClock> Driver for TimedDriver<D> {
    type Region = D::Region;

    fn bind(&self) -> Result<(), CudaError> {
        self.driver.bind()
    }

    fn free_memory(&self) -> Result<usize, CudaError> {
        self.driver.free_memory()
    }

    fn allocate(&self, bytes: usize) -> Result<Self::Region, CudaError> {
        self.driver.allocate(bytes)
    }

    fn slice<T>(&self, region: &Self::Region, place: Placement<T>) -> DeviceSlice<T> {
        self.driver.slice(region, place)
    }

    fn clear(&self, to: DeviceSlice<f32>) -> Result<(), CudaError> {
        self.driver.clear(to)
    }

    fn upload_all<T: Pod>(&self, pieces: &[(&[T], DeviceSlice<T>)]) -> Result<(), CudaError> {
        self.driver.upload_all(pieces)
    }

    fn download<T: Pod>(&self, from: DeviceSlice<T>, to: &mut [T]) -> Result<(), CudaError> {
        self.driver.download(from, to)
    }

    fn copy<T: Pod>(&self, from: DeviceSlice<T>, to: DeviceSlice<T>) -> Result<(), CudaError> {
        self.driver.copy(from, to)
    }

    fn multiply(&self, product: &MatMul) -> Result<(), CudaError> {
        let work = WorkKind::MatMul { inn: product.inner, out: product.columns };
        self.time(work, Some(WorkCost::of(product)), || self.driver.multiply(product))
    }

    fn takes_fp8(&self, product: &MatMul) -> bool {
        self.driver.takes_fp8(product)
    }

    fn multiply_fp8(&self, product: &MatMul) -> Result<bool, CudaError> {
        let work = WorkKind::MatMul { inn: product.inner, out: product.columns };
        self.time_if(work, Some(WorkCost::of(product)), || self.driver.multiply_fp8(product))
    }

    fn multiply_few(&self, product: &SkinnyMatMul) -> Result<(), CudaError> {
        let work = WorkKind::MatMul { inn: product.inner, out: product.weight_rows() };
        self.time(work, Some(WorkCost::of_few(product)), || self.driver.multiply_few(product))
    }
}
