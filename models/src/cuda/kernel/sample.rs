//! The next token of each row, chosen on the device, so that a step copies back ids and not logits.
//!
//! Semantics are those of [`crate::sampler`]: temperature, then min-p, top-k, top-p, ties by the lowest id, a walk over
//! what is left in the order of ids, and the log-probability under raw logits at temperature 1. The draw is given per row:
//! the same 53 bits of the same ChaCha8 sequence that [`Sampler`](crate::sampler::Sampler) would take next, so a seed gives
//! the same tokens on a card as on a processor wherever their logits do.
//!
//! What stays with the processor, which then needs that row's logits: penalties, logit bias, allow-lists (grammars) and
//! `top_logprobs`.

use super::launch::Arguments;
use super::{Geometry, Kernel, KernelError, Launch, Span};

/// Threads in a block, one block per row.
const THREADS: u32 = 512;

/// Candidates that are kept in shared memory, eight bytes each.
const CANDIDATES: u32 = 8192;

/// Shared memory of a launch.
pub(super) const SHARED: u32 = CANDIDATES * 8;

/// How one row is sampled, in device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub struct SampleRow {
    /// In [0, 1), from the row's random sequence: `(next_u64() >> 11) / 2⁵³`. Not looked at by greedy rows.
    pub draw: f64,
    /// Divides the logits; below 1e-5 the highest is taken.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 for a row to be sampled; 0 for padding, of which nothing is read or written.
    pub kind: u32,
    /// Keeps the size a multiple of eight.
    pub padding: u32,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// An id was chosen.
    Chosen,
    /// A logit is NaN or positive infinity.
    NotFinite,
    /// All logits are minus infinity.
    NoCandidate,
}

impl Status {
    /// From what the kernel wrote.
    pub fn of(value: u32) -> Self {
        match value {
            0 => Self::Chosen,
            2 => Self::NoCandidate,
            _ => Self::NotFinite,
        }
    }
}

/// Chooses a token per row of logits.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Shape (rows, vocab).
    pub logits: Span<f32>,
    /// Shape (rows).
    pub settings: Span<SampleRow>,
    /// The chosen ids; 0 where the status is another than chosen. Written.
    pub ids: Span<u32>,
    /// Their log-probabilities under the full distribution. Written.
    pub logprobs: Span<f32>,
    /// [`Status`] as a number. Written.
    pub status: Span<u32>,
    /// Rows in the grid.
    pub rows: u32,
    /// Values per row.
    pub vocab: u32,
}

impl Sample {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::Sample;
        let rows = self.rows as usize;
        kernel.demand(self.vocab > 0, || "an empty vocabulary".to_owned())?;
        kernel.fits("logits", &self.logits, rows * self.vocab as usize)?;
        kernel.fits("settings", &self.settings, rows)?;
        kernel.fits("ids", &self.ids, rows)?;
        kernel.fits("logprobs", &self.logprobs, rows)?;
        kernel.fits("status", &self.status, rows)?;
        let arguments = Arguments::new()
            .span(&self.logits)
            .span(&self.settings)
            .span(&self.ids)
            .span(&self.logprobs)
            .span(&self.status)
            .int(self.vocab);
        let geometry = Geometry { blocks: [self.rows, 1, 1], threads: THREADS, shared: SHARED };
        // SAFETY: the parameters of `sample`; sizes were checked.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}
