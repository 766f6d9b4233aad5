//! Sampling on the device, so that a step copies back token ids rather than logits.
//!
//! The semantics are those of [`crate::sampler`]: temperature, then min-p, top-k, top-p, ties broken by the lowest id,
//! a walk over the remaining tokens in the order of ids, and the log-probability under the raw logits at temperature 1.
//! The random draw is an input of each row: the same 53 bits of the same ChaCha8 sequence that
//! [`Sampler`](crate::sampler::Sampler) would use, so a seed gives the same tokens on a GPU as on a CPU as long as the
//! logits agree.
//!
//! Penalties, logit bias, allow-lists (grammars) and `top_logprobs` are handled by the CPU sampler, which then needs
//! that row's logits.

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Threads per block; one block per row.
const THREADS: u32 = 512;

/// Maximum number of candidates in shared memory, eight bytes each.
const CANDIDATES: u32 = 8192;

/// Bytes of dynamic shared memory of a launch.
pub(super) const SHARED: u32 = CANDIDATES * 8;

/// Sampling settings of one row, in device memory.
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
    /// 1 for a row to be sampled; 0 for padding, for which nothing is read or written.
    pub kind: u32,
    /// Padding to a multiple of eight bytes.
    pub padding: u32,
}

/// Outcome of sampling a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleStatus {
    /// A token was sampled.
    Chosen,
    /// A logit is NaN or positive infinity.
    NotFinite,
    /// All logits are minus infinity.
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
    /// Logits of shape (rows, vocab).
    pub logits: DeviceSlice<f32>,
    /// Settings of shape (rows).
    pub settings: DeviceSlice<SampleRow>,
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
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::SampleTokens;
        let rows = self.rows as usize;
        kernel.demand(self.vocab > 0, || "the vocabulary is empty".to_owned())?;
        kernel.fits("logits", &self.logits, rows * self.vocab as usize)?;
        kernel.fits("settings", &self.settings, rows)?;
        kernel.fits("ids", &self.ids, rows)?;
        kernel.fits("logprobs", &self.logprobs, rows)?;
        kernel.fits("status", &self.status, rows)?;
        let arguments = LaunchArguments::new()
            .slice(&self.logits)
            .slice(&self.settings)
            .slice(&self.ids)
            .slice(&self.logprobs)
            .slice(&self.status)
            .int(self.vocab);
        let geometry = Geometry { blocks: [self.rows, 1, 1], threads: THREADS, shared: SHARED };
        // SAFETY: the parameters of `sample`; sizes were checked.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}
