//! What of a card's memory is for what, decided before any of it is taken.
//!
//! Weights and workspace have fixed sizes; what is left of the share that may be used is KV cache. Everything is taken once,
//! when a decoder is loaded; adapters come out of what the share leaves.

mod place;
mod weights;
mod workspace;

use std::fmt;

pub use place::{Carver, Place};
pub use weights::{LayerPlaces, WeightPlaces};
pub use workspace::{ADAPTERS, LARGEST_RANK, SITES, STACKED, WorkPlaces, splits};

use super::image::Image;
use super::kernel::layout;
use crate::ModelError;
use crate::batch::BLOCK;
use crate::decoder::DecoderConfig;

/// Memory that cuBLAS works in, in bytes: what its makers advise for compute capability 9.0.
pub const BLAS_BYTES: usize = 32 << 20;

/// What is left whatever share may be taken, in bytes: for cuBLAS' own state and kernels, recordings, and what rounding up
/// to the driver's pages takes.
pub(in crate::cuda) const LEFT: usize = 1 << 30;

const GIB: f64 = (1u64 << 30) as f64;

/// The most tokens of a step: a grid's second and third sides, which count tokens or rows, go no further.
const LARGEST_STEP: usize = 65_535;

/// The most a step may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences, and rows of logits.
    pub rows: usize,
    /// New tokens of all sequences together.
    pub tokens: usize,
    /// Tokens of one sequence.
    pub context: usize,
}

/// What a card has to give.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// Bytes that are free now.
    pub free: usize,
    /// Bytes it has.
    pub total: usize,
    /// The share of all of it that may be taken, above 0 to 1.
    pub share: f64,
    /// KV blocks wanted; as many as fit where not given.
    pub blocks: Option<usize>,
}

/// What is taken, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Weights and rotary tables.
    pub weights: usize,
    /// Activations, logits, cuBLAS, and a step's layout.
    pub workspace: usize,
    /// One KV block, in all layers.
    pub block: usize,
    /// KV blocks.
    pub blocks: usize,
}

/// Weights, workspace and a cache worth having do not fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    plan: Plan,
    /// Bytes that may be taken, and that are there at all.
    usable: usize,
    total: usize,
    /// KV blocks that are needed at least.
    needed: usize,
    limits: Limits,
    /// A number of tokens per step with which it fits.
    tokens: Option<usize>,
}

impl Plan {
    /// Shares out a card's memory.
    ///
    /// # Errors
    /// [`Shortage`] when not one sequence of a thousand tokens (or of the context, where that is shorter) can be held.
    pub fn new(
        config: &DecoderConfig,
        limits: &Limits,
        processors: u32,
        memory: Memory,
    ) -> Result<Self, Box<Shortage>> {
        let usable = usable(memory);
        let needed = memory.blocks.unwrap_or_else(|| limits.context.min(1000).div_ceil(BLOCK));
        let mut plan = Self::sizes(config, limits, processors);
        let room = usable.saturating_sub(plan.weights + plan.workspace) / plan.block;
        if room >= needed {
            plan.blocks = memory.blocks.unwrap_or(room);
            return Ok(plan);
        }
        let fits = |tokens: &usize| {
            let smaller = Self::sizes(config, &Limits { tokens: *tokens, ..*limits }, processors);
            smaller.weights + smaller.workspace + needed * smaller.block <= usable
        };
        let halves = std::iter::successors(Some(limits.tokens / 2), |tokens| Some(tokens / 2));
        let tokens = halves.take_while(|tokens| *tokens >= limits.rows.max(BLOCK)).find(fits);
        Err(Box::new(Shortage { plan, usable, total: memory.total, needed, limits: *limits, tokens }))
    }

    /// What everything takes, without any KV block.
    pub(in crate::cuda) fn sizes(config: &DecoderConfig, limits: &Limits, processors: u32) -> Self {
        let image = Image::new(config, limits).bytes;
        Self {
            weights: WeightPlaces::new(config, limits.context).bytes,
            workspace: WorkPlaces::new(config, limits, processors).bytes + image + BLAS_BYTES,
            block: config.layers * layout::block_len(config.kv_heads, config.head_dim) * 2,
            blocks: 0,
        }
    }

    /// Bytes of KV one token takes, in all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.block / BLOCK
    }
}

/// The share of the card that may be taken, as far as it is free and others need none of it.
fn usable(memory: Memory) -> usize {
    let share = (memory.total as f64 * memory.share) as usize;
    // What others hold counts against the share: it is of the whole card.
    let held = memory.total.saturating_sub(memory.free);
    share.saturating_sub(held).min(memory.free.saturating_sub(LEFT))
}

/// Refuses what no kernel was written for.
///
/// # Errors
/// [`ModelError::Input`] names the first number that does not fit.
pub fn check(config: &DecoderConfig, limits: &Limits) -> Result<(), ModelError> {
    config.check()?;
    let refuse = |reason: String| Err(ModelError::Input(format!("on a card: {reason}")));
    if !layout::HEAD_DIMS.contains(&config.head_dim) {
        return refuse(format!("no kernel for heads of width {}, only {:?}", config.head_dim, layout::HEAD_DIMS));
    }
    if config.group() > layout::LARGEST_GROUP {
        let (group, most) = (config.group(), layout::LARGEST_GROUP);
        return refuse(format!("{group} query heads share a key and value head, at most {most} can"));
    }
    for (name, width) in [("hidden size", config.hidden), ("feed-forward size", config.ffn)] {
        if !width.is_multiple_of(16) {
            return refuse(format!("{name} {width} is no multiple of 16"));
        }
    }
    if limits.rows == 0 || limits.tokens < limits.rows || limits.context == 0 {
        return refuse(format!("steps of {} rows and {} tokens", limits.rows, limits.tokens));
    }
    if limits.tokens > LARGEST_STEP {
        return refuse(format!("steps of {} tokens, at most {LARGEST_STEP} can be launched", limits.tokens));
    }
    Ok(())
}

/// So many bytes, for people.
pub fn gib(bytes: usize) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB)
}

impl std::error::Error for Shortage {}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, usable, total, needed, limits, tokens } = self;
        let cache = needed * plan.block;
        write!(
            f,
            "the card does not hold this model: weights {}, workspace {} and {} of KV cache ({} tokens) make {}, {:.2} of \
             {} may be used; ",
            gib(plan.weights),
            gib(plan.workspace),
            gib(cache),
            needed * BLOCK,
            gib(plan.weights + plan.workspace + cache),
            *usable as f64 / GIB,
            gib(*total),
        )?;
        match tokens {
            Some(tokens) => write!(f, "steps of {tokens} instead of {} tokens would fit", limits.tokens),
            None => write!(f, "take a smaller model or a larger share of the card"),
        }
    }
}

#[cfg(test)]
pub(in crate::cuda) mod tests;
