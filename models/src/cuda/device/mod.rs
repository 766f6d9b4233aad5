//! One GPU: its context, stream, memory, and kernels.
//!
//! All work goes to one stream, issued by one thread at a time: each operation starts when all operations enqueued
//! before it are done.

mod blas;
mod check;
mod context;
mod cublas;
mod cublas_lt;
mod event;
mod gemm_times;
mod graph;
mod launch;
mod library;
mod memory;
mod module;
mod nvrtc;
mod peak_rates;
mod shared_library;
mod stream;
mod tuning;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult, CUstream};
use cudarc::driver::{DriverError, result};

pub(crate) use blas::Blas;
use context::ContextHandle;
pub(crate) use event::GpuEvent;
pub use gemm_times::{GemmShape, GemmTarget};
pub(crate) use graph::CapturedGraph;
use library::describe;
pub(crate) use memory::{DeviceRegion, PinnedBuffer};
use module::KernelModule;
pub use peak_rates::PeakRates;
use stream::GpuStream;

use super::CudaError;
use crate::adaptive_wait::AdaptiveWait;

/// Default time limit for the completion of enqueued work.
const LIMIT: Duration = Duration::from_secs(60);

/// Properties of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Ordinal of the GPU in the driver's enumeration.
    pub ordinal: usize,
    /// Product name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Total device memory in bytes.
    pub memory: usize,
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Newest CUDA version that the driver supports, such as `13.0`.
    pub driver: String,
}

/// A GPU with the kernels for heads of one width.
pub struct Gpu {
    info: GpuInfo,
    // Fields drop in order: the module and the stream before the context.
    module: KernelModule,
    stream: GpuStream,
    hold: Arc<ContextHandle>,
    /// Time limit for the completion of enqueued work.
    limit: Duration,
}

impl Gpu {
    /// Opens GPU `ordinal` and compiles the kernels for heads of `dim` values.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] when there is no such GPU, [`CudaError::Compile`] when the kernels do not compile for
    /// it, [`CudaError::Lost`] when this process has given it up.
    pub fn open(ordinal: usize, dim: usize) -> Result<Self, CudaError> {
        let (hold, info) = context(ordinal)?;
        let stream = GpuStream::new(&hold)?;
        let module = KernelModule::load(&hold, info.capability, dim)?;
        Ok(Self { info, module, stream, hold, limit: LIMIT })
    }

    /// Returns the properties of GPU `ordinal` and its free memory in bytes, without allocating or compiling anything.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] when there is no such GPU, [`CudaError::Call`], [`CudaError::Lost`] when this process
    /// has given it up.
    pub fn query(ordinal: usize) -> Result<(GpuInfo, usize), CudaError> {
        let (hold, info) = context(ordinal)?;
        Ok((info, free_memory(&hold)?))
    }

    /// Sets the time limit for the completion of enqueued work, after which the GPU counts as lost. The default is a
    /// minute.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Returns the properties of the GPU.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// Returns the free device memory in bytes.
    ///
    /// # Errors
    /// [`CudaError::Call`], or [`CudaError::Lost`] when the GPU was given up.
    pub fn free_memory(&self) -> Result<usize, CudaError> {
        free_memory(&self.hold)
    }

    /// Waits for all enqueued work.
    ///
    /// # Errors
    /// [`CudaError::Call`] when enqueued work failed, [`CudaError::Lost`] when the time limit has passed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.await_until(Instant::now(), &mut self.adaptive_wait(), || {
            // SAFETY: the stream lives.
            match unsafe { sys::cuStreamQuery(self.stream.raw()) }.result() {
                Ok(()) => Ok(true),
                Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
                Err(error) => call("cannot wait for the GPU", Err(error)),
            }
        })
    }

    /// Returns the reason why the GPU is unusable. `None` while it works. A GPU survives an error that concerned a
    /// single call; after any other, every call returns the same error until the process ends. A GPU that exceeded the
    /// time limit is not called again.
    pub fn lost(&self) -> Option<String> {
        let error = self.synchronize().err()?;
        Some(format!("GPU {} ({}) is lost: {error}", self.info.ordinal, self.info.name))
    }

    /// Creates a wait with this GPU's time limit.
    pub(crate) fn adaptive_wait(&self) -> AdaptiveWait {
        AdaptiveWait::new(self.limit)
    }

    /// Polls `done`, for work that began at `started`. Gives the GPU up when the time limit has passed.
    fn await_until(
        &self,
        started: Instant,
        wait: &mut AdaptiveWait,
        done: impl FnMut() -> Result<bool, CudaError>,
    ) -> Result<(), CudaError> {
        self.bind()?;
        if wait.wait(started, done)? {
            return Ok(());
        }
        let reason = format!("its work did not finish within {:?}", wait.limit());
        tracing::error!(gpu = self.info.name, "the GPU is given up: {reason}");
        self.hold.give_up(reason.clone());
        Err(CudaError::Lost(reason))
    }

    /// Returns the driver's handle of the stream.
    fn stream(&self) -> CUstream {
        self.stream.raw()
    }

    /// Returns a handle for objects that live in this context.
    fn hold(&self) -> Arc<ContextHandle> {
        Arc::clone(&self.hold)
    }

    /// Makes the GPU current for the calling thread.
    ///
    /// # Errors
    /// [`CudaError::Lost`] when the GPU was given up; no further calls may be made to it.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.hold.bind()
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Opens a GPU and checks that the kernels support it.
fn context(ordinal: usize) -> Result<(Arc<ContextHandle>, GpuInfo), CudaError> {
    // Opening a hung GPU again would wait for it.
    context::check_not_lost(ordinal)?;
    let cards = library::load()?;
    if ordinal >= cards {
        return Err(CudaError::unavailable(format!("no GPU {ordinal}: the driver reports {cards}, numbered from 0")));
    }
    let hold = ContextHandle::open(ordinal).map_err(|error| closed(ordinal, error))?;
    let info = info(hold.device(), ordinal).map_err(|error| closed(ordinal, error))?;
    if info.capability.0 < 8 {
        let reason = format!("{} has no bf16 tensor cores: compute capability 8.0 or higher is required", info.name);
        return Err(CudaError::Unavailable(reason));
    }
    Ok((hold, info))
}

fn closed(ordinal: usize, error: DriverError) -> CudaError {
    CudaError::unavailable(format!("cannot open GPU {ordinal}: {}", describe(error)))
}

fn info(device: sys::CUdevice, ordinal: usize) -> Result<GpuInfo, DriverError> {
    // SAFETY: the driver returned the device.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map(i32::unsigned_abs);
    Ok(GpuInfo {
        ordinal,
        name: result::device::get_name(device)?,
        capability: (
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }?,
        multiprocessors: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        driver: library::format_version(library::version()?),
    })
}

fn free_memory(hold: &ContextHandle) -> Result<usize, CudaError> {
    hold.bind()?;
    call("cannot query free memory", result::mem_get_info()).map(|(free, _)| free)
}

/// Attaches the attempted action to a driver error.
pub(crate) fn call<T>(action: &'static str, result: Result<T, DriverError>) -> Result<T, CudaError> {
    result.map_err(|error| CudaError::Call { action, reason: describe(error) })
}
