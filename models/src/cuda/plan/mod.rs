//! Plan of a GPU's memory, made before any of it is allocated.
//!
//! Weights and workspace have fixed sizes; the rest of the permitted share is KV cache. All of it is allocated once,
//! when a decoder is loaded. Adapters are allocated later, from memory outside the plan.

mod matrix;
mod placement;
mod weights;
mod workspace;

use std::fmt;

pub use matrix::{MatrixLayout, WeightFormat};
pub use placement::{Placement, PlacementAllocator};
pub use weights::{LayerLayout, WeightLayout};
pub use workspace::{MAX_ADAPTERS, MAX_RANK, MAX_STACKED, SITES, WorkspaceLayout, splits};

use super::kernel::layout;
use super::step_layout::StepLayout;
use crate::ModelError;
use crate::batch::BLOCK;
use crate::decoder::DecoderConfig;

/// Bytes of cuBLAS workspace, as NVIDIA recommends for compute capability 9.0.
pub const BLAS_BYTES: usize = 32 << 20;

/// Bytes excluded from every plan, whatever the share: for cuBLAS' own state and kernels, captured graphs, and rounding
/// up to the driver's pages.
pub(in crate::cuda) const RESERVED_BYTES: usize = 1 << 30;

const GIB: f64 = (1u64 << 30) as f64;

/// Maximum number of tokens of a step: the y and z dimensions of a grid, which count tokens or rows, are limited to
/// this.
const MAX_STEP_TOKENS: usize = 65_535;

/// Limits on the size of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Maximum number of sequences, and of rows of logits.
    pub rows: usize,
    /// Maximum number of new tokens over all sequences.
    pub tokens: usize,
    /// Maximum number of tokens of one sequence.
    pub context: usize,
}

/// Memory of a GPU and the part of it that may be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryBudget {
    /// Free bytes.
    pub free: usize,
    /// Total bytes.
    pub total: usize,
    /// Share of the total that may be used, above 0 and up to 1.
    pub share: f64,
    /// Requested number of KV blocks. `None` takes as many as fit.
    pub blocks: Option<usize>,
}

impl MemoryBudget {
    /// Returns the bytes that are in use already, by any process.
    fn held(&self) -> usize {
        self.total.saturating_sub(self.free)
    }
}

/// Memory plan of a decoder, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights and rotary tables.
    pub weights: usize,
    /// Activations, logits, cuBLAS workspace, and a step's layout.
    pub workspace: usize,
    /// One KV block over all layers.
    pub block: usize,
    /// Number of KV blocks.
    pub blocks: usize,
}

/// Error: weights, workspace and a minimal KV cache exceed the available memory.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryShortage {
    plan: MemoryPlan,
    /// Usable bytes.
    usable: usize,
    memory: MemoryBudget,
    /// Minimum number of KV blocks.
    needed: usize,
    limits: StepLimits,
    /// Number of tokens per step with which the model would fit, if any.
    tokens: Option<usize>,
}

impl MemoryPlan {
    /// Divides a GPU's memory, for weights in this format.
    ///
    /// # Errors
    /// [`MemoryShortage`] when there is no room for the requested KV blocks, or by default for one sequence of a
    /// thousand tokens (of the context length, if shorter).
    pub fn new(
        config: &DecoderConfig,
        format: WeightFormat,
        limits: &StepLimits,
        multiprocessors: u32,
        memory: MemoryBudget,
    ) -> Result<Self, Box<MemoryShortage>> {
        let usable = usable(memory);
        let needed = memory.blocks.unwrap_or_else(|| limits.context.min(1000).div_ceil(BLOCK));
        let mut plan = Self::sizes(config, format, limits, multiprocessors);
        let available = usable.saturating_sub(plan.weights + plan.workspace) / plan.block;
        if available >= needed {
            plan.blocks = memory.blocks.unwrap_or(available);
            return Ok(plan);
        }
        let fits = |tokens: &usize| {
            let limits = StepLimits { tokens: *tokens, ..*limits };
            let smaller = Self::sizes(config, format, &limits, multiprocessors);
            smaller.weights + smaller.workspace + needed * smaller.block <= usable
        };
        let halves = std::iter::successors(Some(limits.tokens / 2), |tokens| Some(tokens / 2));
        let tokens = halves.take_while(|tokens| *tokens >= limits.rows.max(BLOCK)).find(fits);
        Err(Box::new(MemoryShortage { plan, usable, memory, needed, limits: *limits, tokens }))
    }

    /// Returns the sizes of everything, with no KV blocks.
    pub(in crate::cuda) fn sizes(
        config: &DecoderConfig,
        format: WeightFormat,
        limits: &StepLimits,
        multiprocessors: u32,
    ) -> Self {
        let image = StepLayout::new(config, limits).bytes;
        Self {
            weights: WeightLayout::of(format, config, limits.context).bytes,
            workspace: WorkspaceLayout::new(config, format, limits, multiprocessors).bytes + image + BLAS_BYTES,
            block: block_bytes(config),
            blocks: 0,
        }
    }

    /// Returns the bytes of KV cache per token, over all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.block / BLOCK
    }
}

/// Returns the bytes of a KV block, over all layers.
pub fn block_bytes(config: &DecoderConfig) -> usize {
    config.layers * layout::block_len(config.kv_heads, config.head_dim) * 2
}

/// Returns the usable bytes: the permitted share, as far as it is free.
fn usable(memory: MemoryBudget) -> usize {
    let share = (memory.total as f64 * memory.share) as usize;
    // Memory held by other processes counts against the share, which refers to the whole GPU.
    share.saturating_sub(memory.held()).min(memory.free.saturating_sub(RESERVED_BYTES))
}

/// Checks that kernels exist for this configuration.
///
/// # Errors
/// [`ModelError::Input`] names the first unsupported value.
pub fn check(config: &DecoderConfig, limits: &StepLimits) -> Result<(), ModelError> {
    config.check()?;
    let refuse = |reason: String| Err(ModelError::Input(format!("not supported on a GPU: {reason}")));
    if let Some(feature) = config.architecture.extension() {
        return refuse(format!("{feature}, of {}: use the CPU (--device cpu)", config.architecture.family));
    }
    if !layout::HEAD_DIMS.contains(&config.head_dim) {
        return refuse(format!("heads of width {}: expected one of {:?}", config.head_dim, layout::HEAD_DIMS));
    }
    if config.group() > layout::LARGEST_GROUP {
        let group = config.group();
        let most = layout::LARGEST_GROUP;
        return refuse(format!("{group} query heads per key/value head: at most {most}"));
    }
    for (name, width) in [("hidden size", config.hidden), ("feed-forward size", config.ffn)] {
        if !width.is_multiple_of(16) {
            return refuse(format!("{name} {width} is not a multiple of 16"));
        }
    }
    if limits.rows == 0 || limits.tokens < limits.rows || limits.context == 0 {
        return refuse(format!(
            "steps of {} rows and {} tokens: expected 1 row or more, and at least as many tokens",
            limits.rows, limits.tokens
        ));
    }
    if limits.tokens > MAX_STEP_TOKENS {
        return refuse(format!("steps of {} tokens: at most {MAX_STEP_TOKENS}", limits.tokens));
    }
    Ok(())
}

/// Formats bytes as GiB.
pub fn gib(bytes: usize) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB)
}

impl std::error::Error for MemoryShortage {}

impl fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, usable, memory, needed, limits, tokens } = self;
        let cache = needed * plan.block;
        write!(
            f,
            "the model does not fit into GPU memory: weights {}, workspace {} and {} of KV cache ({} tokens) need {}, {:.2} \
             of {} may be used (a share of {}, less {} in use already); ",
            gib(plan.weights),
            gib(plan.workspace),
            gib(cache),
            needed * BLOCK,
            gib(plan.weights + plan.workspace + cache),
            *usable as f64 / GIB,
            gib(memory.total),
            memory.share,
            gib(memory.held()),
        )?;
        match tokens {
            Some(tokens) => write!(f, "it fits with steps of {tokens} instead of {} tokens", limits.tokens),
            None => write!(f, "use a smaller model or a larger share of the GPU"),
        }
    }
}

#[cfg(test)]
pub(in crate::cuda) mod tests;
