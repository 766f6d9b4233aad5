//! Kernel launches: typed device slices, grid geometry, and the [`Launch`] trait.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

/// A slice of device memory with values of one type. Copies refer to the same memory, which its owner frees.
pub struct DeviceSlice<T> {
    address: u64,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> DeviceSlice<T> {
    /// Creates a slice of `len` values at `address`.
    ///
    /// # Safety
    /// The memory belongs to the device, is aligned for `T`, and stays allocated as long as a kernel may use it.
    /// Indices in it (tables, positions, tokens) are below the bounds stated where the slice is used, such as
    /// [`BatchBounds`](super::BatchBounds).
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len, kind: PhantomData }
    }

    /// Returns the device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the slice has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the subslice of `len` values starting at index `first`. `None` when it is out of bounds.
    pub fn slice(&self, first: usize, len: usize) -> Option<Self> {
        let inside = first.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| Self { address: self.address + (first * size_of::<T>()) as u64, len, kind: PhantomData })
    }
}

impl<T> Clone for DeviceSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<T> {}

impl<T> fmt::Debug for DeviceSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}[{}]", self.address, self.len)
    }
}

/// Grid and block size of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads per block, a multiple of 32.
    pub threads: u32,
    /// Bytes of dynamic shared memory. More than 48 KiB must be enabled in the driver once per kernel; see
    /// [`CudaKernel::largest_shared`].
    pub shared: u32,
}

/// A launcher of kernels: the stream of a GPU, or the emulator.
pub trait Launch {
    /// Enqueues one kernel after all kernels launched before; its blocks may start earlier, and wait in the kernel. May
    /// return before the kernel has run.
    ///
    /// # Safety
    /// `arguments` point to values of exactly the kernel's parameters, in order, as for `cuLaunchKernel`; addresses
    /// among them refer to memory of this device that is large enough for the geometry.
    ///
    /// # Errors
    /// [`KernelError::Driver`] with the driver's error.
    unsafe fn launch(
        &self,
        kernel: CudaKernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError>;
}

/// Error of a kernel launch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A buffer is too small for the launch.
    #[error("{}: buffer `{buffer}` has {given} values: expected {needed} or more", kernel.name())]
    Buffer {
        /// Kernel.
        kernel: CudaKernel,
        /// Name of the buffer.
        buffer: &'static str,
        /// Required number of values.
        needed: usize,
        /// Number of values in the buffer.
        given: usize,
    },
    /// The kernel does not support a size.
    #[error("{}: {what}", kernel.name())]
    Shape {
        /// Kernel.
        kernel: CudaKernel,
        /// Description of the mismatch.
        what: String,
    },
    /// The driver returned an error.
    #[error("{}: {reason}", kernel.name())]
    Driver {
        /// Kernel.
        kernel: CudaKernel,
        /// The driver's error.
        reason: String,
    },
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident = $name:literal,)*) => {
        /// A kernel of the module.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum CudaKernel {
            $($(#[$doc])* $kernel,)*
        }

        impl CudaKernel {
            /// All kernels; `kernel as usize` is the index in this list.
            pub const ALL: &[Self] = &[$(Self::$kernel,)*];

            /// Returns the name of the entry point in the module.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kernel => $name,)*
                }
            }
        }
    };
}

kernels! {
    /// [`EmbedTokens`](super::EmbedTokens).
    EmbedTokens = "embed",
    /// [`RmsNorm`](super::RmsNorm).
    RmsNorm = "rms_norm",
    /// [`Rotary`](super::Rotary).
    Rotary = "rotary",
    /// [`AttendDecode`](super::AttendDecode).
    AttendDecode = "attend_decode",
    /// [`AttendPrefill`](super::AttendPrefill).
    AttendPrefill = "attend_prefill",
    /// [`SiluMul`](super::SiluMul).
    SiluMul = "silu_mul",
    /// [`SkinnyMatMul`](super::SkinnyMatMul).
    SkinnyMatMul = "skinny",
    /// [`SkinnyMatMul`](super::SkinnyMatMul) with the activation of a feed-forward block.
    SkinnySiluMul = "skinny_silu",
    /// [`SkinnyMatMul`](super::SkinnyMatMul) with weights in `e4m3`.
    SkinnyMatMulFp8 = "skinny_fp8",
    /// [`SkinnyMatMul`](super::SkinnyMatMul) with weights in `e4m3` and the activation of a feed-forward block.
    SkinnySiluMulFp8 = "skinny_silu_fp8",
    /// [`DequantizeFp8`](super::DequantizeFp8).
    DequantizeFp8 = "dequantize_fp8",
    /// [`QuantizeFp8`](super::QuantizeFp8).
    QuantizeFp8 = "quantize_fp8",
    /// [`LoraShrink`](super::LoraShrink).
    LoraShrink = "lora_shrink",
    /// [`LoraExpand`](super::LoraExpand) into `bf16`.
    LoraExpand = "lora_expand",
    /// [`LoraExpand`](super::LoraExpand) into `f32`.
    LoraExpandStream = "lora_expand_stream",
    /// Adjusted logits and partial maxima of [`SampleTokens`](super::SampleTokens).
    SampleScan = "sample_scan",
    /// Partial weights of [`SampleTokens`](super::SampleTokens).
    SampleWeigh = "sample_weigh",
    /// Lists of candidates of [`SampleTokens`](super::SampleTokens).
    SampleGather = "sample_gather",
    /// Choices of [`SampleTokens`](super::SampleTokens).
    SampleChoose = "sample_choose",
    /// [`ScoreTargets`](super::ScoreTargets).
    ScoreTargets = "score",
    /// [`ScoreTargetsBackward`](super::ScoreTargetsBackward).
    ScoreTargetsBackward = "score_backward",
    /// [`WidenToF32`](super::WidenToF32).
    WidenToF32 = "widen",
    /// [`NarrowToBf16`](super::NarrowToBf16).
    NarrowToBf16 = "narrow_all",
    /// [`RmsNormBackward`](super::RmsNormBackward).
    RmsNormBackward = "rms_norm_backward",
    /// [`SiluMulBackward`](super::SiluMulBackward).
    SiluMulBackward = "silu_mul_backward",
    /// [`RotaryBackward`](super::RotaryBackward).
    RotaryBackward = "rotary_backward",
    /// Sums per token and head of [`AttendBackward`](super::AttendBackward).
    AttendDelta = "attend_delta",
    /// Query gradients of [`AttendBackward`](super::AttendBackward).
    AttendBackwardQueries = "attend_backward_queries",
    /// Key and value gradients of [`AttendBackward`](super::AttendBackward).
    AttendBackwardKeys = "attend_backward_keys",
}

impl CudaKernel {
    /// Returns the maximum dynamic shared memory of any launch in bytes: the value for
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` when it exceeds 48 KiB.
    pub fn largest_shared(self) -> u32 {
        match self {
            Self::SampleChoose => super::sample::SHARED,
            Self::SkinnyMatMul | Self::SkinnySiluMul | Self::SkinnyMatMulFp8 | Self::SkinnySiluMulFp8 => {
                super::skinny::SHARED
            }
            _ => 0,
        }
    }

    /// Returns an error unless `holds`.
    pub(super) fn demand(self, holds: bool, what: impl FnOnce() -> String) -> Result<(), KernelError> {
        if holds { Ok(()) } else { Err(KernelError::Shape { kernel: self, what: what() }) }
    }

    /// Returns an error if a buffer has fewer than `needed` values.
    pub(super) fn fits<T>(
        self,
        buffer: &'static str,
        slice: &DeviceSlice<T>,
        needed: usize,
    ) -> Result<(), KernelError> {
        let given = slice.len();
        if given >= needed { Ok(()) } else { Err(KernelError::Buffer { kernel: self, buffer, needed, given }) }
    }
}

/// Arguments of a launch.
#[derive(Debug, Default)]
pub(super) struct LaunchArguments {
    /// Arguments in eight bytes each. Parameters are addresses, `u32` or `f32`, which a little-endian machine reads
    /// from the front.
    values: Vec<u64>,
}

impl LaunchArguments {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn slice<T>(mut self, slice: &DeviceSlice<T>) -> Self {
        self.values.push(slice.address());
        self
    }

    /// Appends an address, null for `None`.
    pub(super) fn maybe<T>(mut self, slice: Option<&DeviceSlice<T>>) -> Self {
        self.values.push(slice.map_or(0, DeviceSlice::address));
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
        kernel: CudaKernel,
        geometry: Geometry,
    ) -> Result<(), KernelError> {
        // The driver rejects empty grids.
        if geometry.blocks.contains(&0) {
            return Ok(());
        }
        let mut pointers: Vec<*mut c_void> =
            self.values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        // SAFETY: the caller's promise; the values outlive the call.
        unsafe { on.launch(kernel, geometry, &mut pointers) }
    }
}
