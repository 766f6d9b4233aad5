//! How a kernel gets onto a card: typed ranges of its memory, the shape of a grid, and the seam to a driver.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

/// A range of device memory that holds values of one type. Copies name the same memory; it is freed by whoever owns it.
pub struct Span<T> {
    address: u64,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> Span<T> {
    /// `len` values from `address` on.
    ///
    /// # Safety
    /// The memory is the device's, is aligned for `T` and stays allocated as long as a kernel may use it; where it holds
    /// indices (tables, positions, tokens), what they name exists in the buffers they are used with.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len, kind: PhantomData }
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Values in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` of its values from the one at `first` on; none where that is outside.
    pub fn slice(&self, first: usize, len: usize) -> Option<Self> {
        let inside = first.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| Self { address: self.address + (first * size_of::<T>()) as u64, len, kind: PhantomData })
    }
}

impl<T> Clone for Span<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Span<T> {}

impl<T> fmt::Debug for Span<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}[{}]", self.address, self.len)
    }
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads in a block, a multiple of 32.
    pub threads: u32,
    /// Bytes of dynamic shared memory. Beyond 48 KiB a driver has to be told once per kernel; see
    /// [`Kernel::largest_shared`].
    pub shared: u32,
}

/// Something that can be asked to run kernels: a stream of a card, or the emulator.
pub trait Launch {
    /// Puts one kernel in line, after all that were launched before. Must not wait for it.
    ///
    /// # Safety
    /// `arguments` point to values of exactly the kernel's parameters, in order, as for `cuLaunchKernel`; addresses among
    /// them name memory of this device that is large enough for the geometry.
    ///
    /// # Errors
    /// [`KernelError::Driver`] with what the driver said.
    unsafe fn launch(
        &self,
        kernel: Kernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError>;
}

/// Why a kernel was not launched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A buffer is too small, or a size is one the kernel does not have.
    #[error("{}: {what}", kernel.name())]
    Shape {
        /// Which kernel.
        kernel: Kernel,
        /// What does not fit.
        what: String,
    },
    /// The driver refused.
    #[error("{}: {reason}", kernel.name())]
    Driver {
        /// Which kernel.
        kernel: Kernel,
        /// What it said.
        reason: String,
    },
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident = $name:literal,)*) => {
        /// Every kernel, by the name of its entry point.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kernel {
            $($(#[$doc])* $kernel,)*
        }

        impl Kernel {
            /// All of them; `kernel as usize` is its place here.
            pub const ALL: &[Self] = &[$(Self::$kernel,)*];

            /// Its entry point in the module.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kernel => $name,)*
                }
            }
        }
    };
}

kernels! {
    /// [`Embed`](super::Embed).
    Embed = "embed",
    /// [`Norm`](super::Norm).
    Norm = "rms_norm",
    /// [`Rotary`](super::Rotary).
    Rotary = "rotary",
    /// [`AttendDecode`](super::AttendDecode).
    AttendDecode = "attend_decode",
    /// [`AttendPrefill`](super::AttendPrefill).
    AttendPrefill = "attend_prefill",
    /// [`SiluMul`](super::SiluMul).
    SiluMul = "silu_mul",
    /// [`LoraShrink`](super::LoraShrink).
    LoraShrink = "lora_shrink",
    /// [`LoraExpand`](super::LoraExpand) into `bf16`.
    LoraExpand = "lora_expand",
    /// [`LoraExpand`](super::LoraExpand) into `f32`.
    LoraExpandStream = "lora_expand_stream",
    /// [`Sample`](super::Sample).
    Sample = "sample",
    /// [`Score`](super::Score).
    Score = "score",
    /// [`ScoreBackward`](super::ScoreBackward).
    ScoreBackward = "score_backward",
    /// [`Widen`](super::Widen).
    Widen = "widen",
    /// [`Narrow`](super::Narrow).
    Narrow = "narrow_all",
    /// [`NormBackward`](super::NormBackward).
    NormBackward = "rms_norm_backward",
    /// [`SiluMulBackward`](super::SiluMulBackward).
    SiluMulBackward = "silu_mul_backward",
    /// [`RotaryBackward`](super::RotaryBackward).
    RotaryBackward = "rotary_backward",
    /// [`AttendBackward`](super::AttendBackward): sums per token and head.
    AttendDelta = "attend_delta",
    /// [`AttendBackward`](super::AttendBackward): queries.
    AttendBackwardQueries = "attend_backward_queries",
    /// [`AttendBackward`](super::AttendBackward): keys and values.
    AttendBackwardKeys = "attend_backward_keys",
}

impl Kernel {
    /// The most dynamic shared memory any launch of it asks for, in bytes: what
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` is set to when that is more than 48 KiB.
    pub fn largest_shared(self) -> u32 {
        match self {
            Self::Sample => super::sample::SHARED,
            _ => 0,
        }
    }

    /// Refuses a launch unless `holds`.
    pub(super) fn demand(self, holds: bool, what: impl FnOnce() -> String) -> Result<(), KernelError> {
        if holds { Ok(()) } else { Err(KernelError::Shape { kernel: self, what: what() }) }
    }

    /// Refuses a buffer of fewer than `needed` values.
    pub(super) fn fits<T>(self, name: &str, span: &Span<T>, needed: usize) -> Result<(), KernelError> {
        self.demand(span.len() >= needed, || format!("{name} holds {} values, {needed} are needed", span.len()))
    }
}

/// Arguments of a launch, kept until it is made.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// Each in eight bytes of its own; parameters are addresses, `u32` or `f32`, and a little-endian machine reads those
    /// from the front.
    values: Vec<u64>,
}

impl Arguments {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn span<T>(mut self, span: &Span<T>) -> Self {
        self.values.push(span.address());
        self
    }

    /// An address, or null.
    pub(super) fn maybe<T>(mut self, span: Option<&Span<T>>) -> Self {
        self.values.push(span.map_or(0, Span::address));
        self
    }

    pub(super) fn int(mut self, value: u32) -> Self {
        self.values.push(u64::from(value));
        self
    }

    pub(super) fn float(mut self, value: f32) -> Self {
        self.values.push(u64::from(value.to_bits()));
        self
    }

    /// # Safety
    /// As for [`Launch::launch`].
    pub(super) unsafe fn launch(
        mut self,
        on: &dyn Launch,
        kernel: Kernel,
        geometry: Geometry,
    ) -> Result<(), KernelError> {
        if geometry.blocks.contains(&0) {
            return Ok(());
        }
        let mut pointers: Vec<*mut c_void> =
            self.values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        // SAFETY: the caller's promise; the values outlive the call.
        unsafe { on.launch(kernel, geometry, &mut pointers) }
    }
}
