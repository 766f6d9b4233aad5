//! One card: its context, its stream, its memory, and what runs on it.
//!
//! All work goes to one stream, from one thread at a time: each thing begins when what was put in line before it is done.

mod blas;
mod ceiling;
mod check;
mod event;
mod graph;
mod library;
mod memory;
mod module;

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{CudaContext, CudaStream, result};

pub(crate) use blas::{Blas, Target};
pub use ceiling::Ceilings;
pub(crate) use event::Event;
pub(crate) use graph::Graph;
use library::said;
pub(crate) use memory::{Pinned, Region};
use module::Module;

use super::CudaError;
use super::kernel::{Geometry, Kernel, KernelError, Launch};

/// What is known of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardInfo {
    /// Its number among the driver's cards.
    pub ordinal: usize,
    /// What its maker calls it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Bytes of its memory.
    pub memory: usize,
    /// Multiprocessors.
    pub processors: u32,
    /// The newest CUDA version the driver knows, such as `13.0`.
    pub driver: String,
}

/// A card with the kernels for heads of one width.
pub struct Card {
    info: CardInfo,
    // In the order in which they have to go.
    module: Module,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

impl Card {
    /// Opens card `ordinal` and compiles the kernels for heads of `dim` values.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] when there is no such card, [`CudaError::Compile`] when the kernels do not fit it.
    pub fn open(ordinal: usize, dim: usize) -> Result<Self, CudaError> {
        let cards = library::load()?;
        if ordinal >= cards {
            return Err(CudaError::unavailable(format!("there is no card {ordinal}; the driver sees {cards}")));
        }
        let opening = |error| CudaError::unavailable(format!("card {ordinal} does not open: {}", said(error)));
        let context = CudaContext::new(ordinal).map_err(opening)?;
        // SAFETY: there is one stream, so nothing has to be ordered by events.
        unsafe { context.disable_event_tracking() };
        let info = info(&context, ordinal).map_err(opening)?;
        if info.capability.0 < 8 {
            let reason = format!("{} has no bf16 tensor cores: compute capability 8.0 is needed", info.name);
            return Err(CudaError::Unavailable(reason));
        }
        let stream = context.new_stream().map_err(opening)?;
        let module = Module::load(&context, info.capability, dim)?;
        Ok(Self { info, module, stream, context })
    }

    /// What is known of it.
    pub fn info(&self) -> &CardInfo {
        &self.info
    }

    /// Free bytes of its memory.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn free_memory(&self) -> Result<usize, CudaError> {
        call("ask for free memory", self.context.mem_get_info()).map(|(free, _)| free)
    }

    /// Waits for everything in line.
    ///
    /// # Errors
    /// [`CudaError::Call`]: something in line failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        call("wait for the card", self.stream.synchronize())
    }

    /// Why it is gone for good, if it is. A failure that concerned one call leaves a card that answers; after any other,
    /// every call gives the same error until the process ends.
    pub fn lost(&self) -> Option<String> {
        let error = self.stream.synchronize().err()?;
        Some(format!("card {} ({}) is lost: {}", self.info.ordinal, self.info.name, said(error)))
    }

    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes it the one that this thread's calls mean.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        call("bind the card to this thread", self.context.bind_to_thread())
    }
}

impl Launch for Card {
    unsafe fn launch(
        &self,
        kernel: Kernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        let Geometry { blocks: [x, y, z], threads, shared } = geometry;
        let function = self.module.function(kernel);
        // SAFETY: the caller's promise.
        unsafe {
            result::launch_kernel(function, (x, y, z), (threads, 1, 1), shared, self.stream.cu_stream(), arguments)
        }
        .map_err(|error| KernelError::Driver { kernel, reason: said(error) })
    }
}

impl std::fmt::Debug for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Card").field("info", &self.info).finish_non_exhaustive()
    }
}

fn info(context: &CudaContext, ordinal: usize) -> Result<CardInfo, result::DriverError> {
    let (major, minor) = context.compute_capability()?;
    let processors = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let mut driver = 0;
    // SAFETY: writes one number.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut driver) }.result()?;
    Ok(CardInfo {
        ordinal,
        name: context.name()?,
        capability: (major.unsigned_abs(), minor.unsigned_abs()),
        memory: context.total_mem()?,
        processors: processors.unsigned_abs(),
        driver: format!("{}.{}", driver / 1000, driver % 1000 / 10),
    })
}

/// Names what a call was for.
pub(crate) fn call<T>(action: &'static str, result: Result<T, result::DriverError>) -> Result<T, CudaError> {
    result.map_err(|error| CudaError::Call { action, reason: said(error) })
}
