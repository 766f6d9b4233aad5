//! Sampling on the device, so a step copies back token ids rather than logits.
//!
//! The semantics are those of [`crate::sampler`]: penalties and bias, a mask, temperature, then min-p, top-k, top-p,
//! ties broken by the lowest id, a walk over the remaining tokens in the order of ids, and the log-probability under
//! the raw logits at temperature 1. The random draw is an input of each row: the same 53 bits of the same ChaCha8
//! sequence that [`Sampler`](crate::sampler::Sampler) would use, so a seed gives the same tokens on a GPU as on a CPU
//! as long as the logits agree.
//!
//! Rows that report `top_logprobs` are left to the CPU sampler, which then needs their logits.

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Threads per block.
const THREADS: u32 = 512;

/// Number of blocks that share a row, each with its piece of the vocabulary.
const PIECES: u32 = 32;

/// Number of bins of a row's histogram.
const BINS: usize = 512;

/// Maximum number of candidates that are sorted, eight bytes each.
const CANDIDATES: u32 = 8192;

/// Bytes of dynamic shared memory of the last kernel.
pub(super) const SHARED: u32 = CANDIDATES * 8;

// `cu/sample_row.cu` asserts the same numbers.
const _: () = assert!(SampleTokens::SCRATCH * size_of::<u64>() == 70_920);
const _: () = assert!(size_of::<SampleRow>() == 56);
const _: () = assert!(size_of::<Adjustment>() == 16);

/// Kind of a row: the values of [`SampleRow::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SampleKind {
    /// Padding, for which nothing is read or written.
    Padding = 0,
    /// Any token may be sampled.
    Open = 1,
    /// Only the tokens in the row's mask may be sampled.
    Masked = 2,
}

/// Sampling settings of one row, in device memory. The default is padding.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub struct SampleRow {
    /// Random draw in [0, 1) from the row's sequence: `(next_u64() >> 11) / 2⁵³`. Ignored by greedy rows.
    pub draw: f64,
    /// Temperature, which divides the logits; below 1e-5 the highest logit is taken.
    pub temperature: f32,
    /// Top-p; 1 keeps all tokens.
    pub top_p: f32,
    /// Min-p; 0 keeps all tokens.
    pub min_p: f32,
    /// Top-k; 0 keeps all tokens.
    pub top_k: u32,
    /// [`SampleKind`] as a number.
    pub kind: u32,
    /// Index of the mask's first word in the adjustments: bit `id % 32` of word `id / 32`. Read for masked rows.
    pub mask: u32,
    /// Index of the word in the adjustments at which the list of [`Adjustment`] begins.
    pub list: u32,
    /// Number of entries of the list.
    pub count: u32,
    /// Repetition penalty.
    pub repetition: f32,
    /// Frequency penalty.
    pub frequency: f32,
    /// Presence penalty.
    pub presence: f32,
    /// Padding to a multiple of eight bytes.
    pub padding: u32,
}

/// Penalized or biased token of a row, in device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Adjustment {
    /// Token id. A list contains an id once.
    pub id: u32,
    /// Number of occurrences that penalties apply to; 0 for a token that is biased only.
    pub count: u32,
    /// Amount added to the logit after the penalties.
    pub bias: f32,
    /// Logit before the adjustment. Written.
    pub raw: f32,
}

/// Outcome of sampling a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleStatus {
    /// A token was sampled.
    Chosen,
    /// A logit is NaN or positive infinity, or penalties and biases made the highest logit infinite.
    NotFinite,
    /// All logits are minus infinity, or the mask leaves none that is not.
    NoCandidate,
}

impl SampleStatus {
    /// Decodes the status written by the kernel.
    pub fn of(value: u32) -> Self {
        match value {
            0 => Self::Chosen,
            2 => Self::NoCandidate,
            _ => Self::NotFinite,
        }
    }
}

/// Samples a token for each row of logits.
#[derive(Debug, Clone, Copy)]
pub struct SampleTokens {
    /// Logits of shape (rows, vocab). Those of listed tokens are overwritten with adjusted ones.
    pub logits: DeviceSlice<f32>,
    /// Settings of shape (rows).
    pub settings: DeviceSlice<SampleRow>,
    /// Masks and lists, at the indices in the settings. Lists are written to.
    pub adjustments: DeviceSlice<u32>,
    /// Upper bound of the ends of masks and lists in the adjustments.
    pub adjusted: usize,
    /// Intermediate results, [`SCRATCH`](Self::SCRATCH) values per row. Written.
    pub scratch: DeviceSlice<u64>,
    /// Sampled ids; 0 when the status is an error. Written.
    pub ids: DeviceSlice<u32>,
    /// Log-probabilities of the sampled tokens under the full distribution. Written.
    pub logprobs: DeviceSlice<f32>,
    /// [`SampleStatus`] as a number. Written.
    pub status: DeviceSlice<u32>,
    /// Number of rows in the grid.
    pub rows: u32,
    /// Number of logits per row.
    pub vocab: u32,
}

impl SampleTokens {
    /// Number of intermediate values per row: for each piece a summary of 24 bytes and two weights, the histogram, the
    /// number of candidates, and the candidates.
    pub const SCRATCH: usize = PIECES as usize * (3 + 2) + BINS + 1 + CANDIDATES as usize;

    /// Launches the kernels.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::SampleScan;
        let rows = self.rows as usize;
        kernel.demand(self.vocab > 0, || "the vocabulary is empty".to_owned())?;
        kernel.fits("logits", &self.logits, rows * self.vocab as usize)?;
        kernel.fits("settings", &self.settings, rows)?;
        kernel.fits("adjustments", &self.adjustments, self.adjusted)?;
        kernel.fits("scratch", &self.scratch, rows * Self::SCRATCH)?;
        kernel.fits("ids", &self.ids, rows)?;
        kernel.fits("logprobs", &self.logprobs, rows)?;
        kernel.fits("status", &self.status, rows)?;
        for kernel in [CudaKernel::SampleScan, CudaKernel::SampleWeigh, CudaKernel::SampleGather] {
            let arguments = self.arguments().int(self.vocab);
            let geometry = Geometry { blocks: [self.rows, PIECES, 1], threads: THREADS, shared: 0 };
            // SAFETY: the parameters of these kernels; sizes were checked.
            unsafe { arguments.launch(on, kernel, geometry)? };
        }
        let arguments = self.arguments().slice(&self.ids).slice(&self.logprobs).slice(&self.status).int(self.vocab);
        let geometry = Geometry { blocks: [self.rows, 1, 1], threads: THREADS, shared: SHARED };
        // SAFETY: as above, for `sample_choose`.
        unsafe { arguments.launch(on, CudaKernel::SampleChoose, geometry) }
    }

    /// Returns the parameters that all kernels begin with.
    fn arguments(&self) -> LaunchArguments {
        LaunchArguments::new().slice(&self.logits).slice(&self.settings).slice(&self.adjustments).slice(&self.scratch)
    }
}
