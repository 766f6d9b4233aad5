//! One card: its context, its stream, its memory, and what runs on it.
//!
//! All work goes to one stream, from one thread at a time: each thing begins when what was put in line before it is done.

mod blas;
mod ceiling;
mod check;
mod event;
mod graph;
mod hold;
mod library;
mod memory;
mod module;

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

pub(crate) use blas::Blas;
pub use ceiling::Ceilings;
pub(crate) use event::Event;
pub(crate) use graph::Graph;
use hold::Hold;
use library::said;
pub(crate) use memory::{Pinned, Region};
use module::Module;

use super::CudaError;
use super::kernel::{Geometry, Kernel, KernelError, Launch};
use super::patience::Patience;

/// How long a card may take for what is in line, where nothing else is said.
const LIMIT: Duration = Duration::from_secs(60);

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
    hold: Arc<Hold>,
    /// How long it may take for what is in line.
    limit: Duration,
}

impl Card {
    /// Opens card `ordinal` and compiles the kernels for heads of `dim` values.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] when there is no such card, [`CudaError::Compile`] when the kernels do not fit it,
    /// [`CudaError::Lost`] when this process gave it up before.
    pub fn open(ordinal: usize, dim: usize) -> Result<Self, CudaError> {
        let (context, info) = context(ordinal)?;
        // SAFETY: there is one stream, so nothing has to be ordered by events.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|error| closed(ordinal, error))?;
        let hold = Hold::new(context);
        let module = Module::load(&hold, info.capability, dim)?;
        Ok(Self { info, module, stream, hold, limit: LIMIT })
    }

    /// What is known of card `ordinal`, and how many bytes of its memory are free, without taking any of them or compiling
    /// anything.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] when there is no such card, [`CudaError::Call`], [`CudaError::Lost`] when this process gave it
    /// up before.
    pub fn look(ordinal: usize) -> Result<(CardInfo, usize), CudaError> {
        let (context, info) = context(ordinal)?;
        let (free, _) = call("ask for free memory", context.mem_get_info())?;
        Ok((info, free))
    }

    /// With this limit on how long it may take for what is in line, until it counts as lost; a minute where nothing is said.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
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
        call("ask for free memory", self.context().mem_get_info()).map(|(free, _)| free)
    }

    /// Waits for everything in line.
    ///
    /// # Errors
    /// [`CudaError::Call`]: something in line failed. [`CudaError::Lost`]: it takes longer than the limit.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.await_until(Instant::now(), &mut self.patience(), || {
            // SAFETY: the stream lives.
            match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) }.result() {
                Ok(()) => Ok(true),
                Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
                Err(error) => call("wait for the card", Err(error)),
            }
        })
    }

    /// Why it is gone for good, if it is. A failure that concerned one call leaves a card that answers; after any other,
    /// every call gives the same error until the process ends. A card that did not finish in time is not asked again.
    pub fn lost(&self) -> Option<String> {
        let error = self.synchronize().err()?;
        Some(format!("card {} ({}) is lost: {error}", self.info.ordinal, self.info.name))
    }

    /// Its patience with one thing.
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(self.limit)
    }

    /// Waits until `done`, for work that began at `begun`. The card is given up when that takes too long.
    fn await_until(
        &self,
        begun: Instant,
        patience: &mut Patience,
        done: impl FnMut() -> Result<bool, CudaError>,
    ) -> Result<(), CudaError> {
        self.bind()?;
        if patience.wait(begun, done)? {
            return Ok(());
        }
        let reason = format!("it did not finish within {:?}", patience.limit());
        tracing::error!(card = self.info.name, "{reason}: nothing is asked of it any more");
        self.hold.give_up(reason.clone());
        Err(CudaError::Lost(reason))
    }

    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.hold.context()
    }

    /// For what lives on it.
    fn hold(&self) -> Arc<Hold> {
        Arc::clone(&self.hold)
    }

    /// Makes it the one that this thread's calls mean.
    ///
    /// # Errors
    /// [`CudaError::Lost`] of a card that was given up: nothing more is to be asked of it.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.hold.bind()
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

/// Opens a card that kernels were written for.
fn context(ordinal: usize) -> Result<(Arc<CudaContext>, CardInfo), CudaError> {
    // Opening it again would wait for it, and so would letting go of what was opened.
    hold::answers(ordinal)?;
    let cards = library::load()?;
    if ordinal >= cards {
        return Err(CudaError::unavailable(format!("there is no card {ordinal}; the driver sees {cards}")));
    }
    let context = CudaContext::new(ordinal).map_err(|error| closed(ordinal, error))?;
    let info = info(&context, ordinal).map_err(|error| closed(ordinal, error))?;
    if info.capability.0 < 8 {
        let reason = format!("{} has no bf16 tensor cores: compute capability 8.0 is needed", info.name);
        return Err(CudaError::Unavailable(reason));
    }
    Ok((context, info))
}

fn closed(ordinal: usize, error: DriverError) -> CudaError {
    CudaError::unavailable(format!("card {ordinal} does not open: {}", said(error)))
}

fn info(context: &CudaContext, ordinal: usize) -> Result<CardInfo, result::DriverError> {
    let (major, minor) = context.compute_capability()?;
    let processors = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    Ok(CardInfo {
        ordinal,
        name: context.name()?,
        capability: (major.unsigned_abs(), minor.unsigned_abs()),
        memory: context.total_mem()?,
        processors: processors.unsigned_abs(),
        driver: library::spoken(library::version()?),
    })
}

/// Names what a call was for.
pub(crate) fn call<T>(action: &'static str, result: Result<T, result::DriverError>) -> Result<T, CudaError> {
    result.map_err(|error| CudaError::Call { action, reason: said(error) })
}
