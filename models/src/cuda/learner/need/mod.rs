//! Memory requirement of training on a GPU, computed before anything is allocated.
//!
//! The total comprises the frozen weights, the adapter with its gradients, and the largest pass. If the same GPU also
//! generates rollouts, the engine adds its own weights, workspace, KV cache and adapters. The optimizer's moments stay
//! on the host.

mod shortage;

use std::ops::Range;

pub use shortage::LearningShortage;

use super::adapter::LearnerAdapter;
use super::pass_layout::{PassLayout, PassSize};
use super::{MAX_PASS_TOKENS, check, invalid_input};
use crate::ModelError;
use crate::batch::BLOCK;
use crate::cuda::CudaError;
use crate::cuda::decoder::adapter_bytes;
use crate::cuda::plan::{
    self, BLAS_BYTES, MAX_RANK, MemoryPlan, RESERVED_BYTES, StepLimits, WeightFormat, WeightLayout,
};
use crate::decoder::DecoderConfig;
use crate::gradient::{Lora, Module, Tune};

/// Number of adapters that an engine holds while one replaces another.
const HELD: usize = 2;

/// Limits on the size of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassLimits {
    /// Maximum number of tokens over the sequences of a pass. Each sequence counts in full, shared prefixes included,
    /// and in whole blocks of [`BLOCK`] tokens.
    pub tokens: usize,
    /// Number of tokens of the longest sequence. A sequence longer than `tokens` gets a pass of its own.
    pub longest: usize,
}

/// Rollout engine on the training GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutLoad {
    /// Limits on the size of a step.
    pub limits: StepLimits,
    /// Number of multiprocessors of the GPU.
    pub multiprocessors: u32,
    /// Number of tokens of the longest sequence.
    pub longest: usize,
    /// Bytes of KV cache. `None` provides for all rows of a step at their maximum length.
    pub kv: Option<usize>,
}

/// Memory requirement of training, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingMemory {
    /// Frozen weights in `bf16`, and rotary tables.
    pub weights: usize,
    /// The adapter's values and their gradients, in `f32`.
    pub adapter: usize,
    /// Number of values of the adapter.
    pub values: usize,
    /// Buffers of a pass.
    pub pass: usize,
    /// Number of tokens of this pass, counted as in [`PassLimits`].
    pub tokens: usize,
    /// Workspace of cuBLAS.
    pub cublas: usize,
    /// Rollout engine on the same GPU. `None` when rollouts run elsewhere.
    pub engine: Option<EngineMemory>,
}

/// Memory requirement of an engine on the training GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineMemory {
    /// Weights, workspace and KV cache.
    pub plan: MemoryPlan,
    /// Bytes of all adapters loaded at a time.
    pub adapters: usize,
}

/// Returns the part of `free` bytes that may be planned with. The rest is reserved for the driver, twice when the GPU
/// is `shared` with an engine.
pub fn usable(free: usize, shared: bool) -> usize {
    free.saturating_sub(RESERVED_BYTES * (1 + usize::from(shared)))
}

impl TrainingMemory {
    /// Computes the memory requirement of passes and, on the same GPU, of rollouts, when `usable` bytes may be used.
    ///
    /// # Errors
    /// [`CudaError::Learning`] with a size that would fit; [`CudaError::Model`] for unsupported requests: full
    /// fine-tuning, shapes that no kernel supports, passes that cannot be launched, or an adapter whose rank is too
    /// large.
    pub fn plan(
        config: &DecoderConfig,
        tune: &Tune,
        passes: PassLimits,
        rollouts: Option<&RolloutLoad>,
        usable: usize,
    ) -> Result<Self, CudaError> {
        let lora = check(config, tune)?;
        lora.check(config)?;
        let tokens = passes.tokens.max(passes.longest);
        if tokens > MAX_PASS_TOKENS {
            let way = if passes.longest > MAX_PASS_TOKENS { "sequences shorter" } else { "packs smaller" };
            return Err(invalid_input(format!(
                "passes of {tokens} tokens: at most {MAX_PASS_TOKENS} on a GPU; make {way}"
            )));
        }
        let engine = rollouts.map(|rollouts| EngineMemory::new(config, lora, rollouts)).transpose()?;
        let need = |tokens: usize, engine: Option<EngineMemory>| Self::new(config, lora, tokens, engine);
        let found = need(tokens, engine);
        if found.bytes() <= usable {
            return Ok(found);
        }
        let fits = |tokens: usize, engine: Option<EngineMemory>| need(tokens, engine).bytes() <= usable;
        let smallest_engine =
            engine.map(|engine| engine.with_blocks(rollouts.map_or(1, |rollouts| blocks(rollouts.longest))));
        let shortest = passes.longest.max(1);
        let cache = |tokens: usize| {
            let (engine, smallest) = engine.zip(smallest_engine)?;
            let range = smallest.plan.blocks..engine.plan.blocks;
            largest(range, |blocks| fits(tokens, Some(engine.with_blocks(blocks))))
        };
        let shorter = largest(shortest..tokens, |tokens| fits(tokens, engine));
        let smaller = cache(tokens);
        let both = if shorter.or(smaller).is_none() { cache(shortest) } else { None };
        // Not even a pass over the longest sequence fits together with the smallest cache.
        let hopeless = shorter.or(smaller).or(both).is_none();
        let longest = if hopeless { largest(1..shortest, |tokens| fits(tokens, smallest_engine)) } else { None };
        Err(Box::new(LearningShortage {
            usable,
            tokens: shorter,
            blocks: smaller,
            both: both.map(|blocks| (shortest, blocks)),
            longest,
            alone: engine.is_some() && fits(tokens, None),
            need: found,
        })
        .into())
    }

    /// Requirement of passes with this number of tokens.
    fn new(config: &DecoderConfig, lora: &Lora, tokens: usize, engine: Option<EngineMemory>) -> Self {
        let ranks = Module::ALL.map(|module| if lora.targets.contains(&module) { lora.rank } else { 0 });
        let values = lora.values(config);
        Self {
            weights: WeightLayout::new(config, config.context).bytes,
            adapter: LearnerAdapter::places(values).1,
            values,
            pass: PassLayout::new(config, &PassSize::upper_bound(config, tokens, ranks)).bytes,
            tokens,
            cublas: BLAS_BYTES,
            engine,
        }
    }

    /// Returns the bytes held by the learner: weights, adapter and the buffers of a pass.
    pub fn learner(&self) -> usize {
        self.weights + self.adapter + self.pass
    }

    /// Returns the total bytes.
    pub fn bytes(&self) -> usize {
        self.learner() + self.cublas + self.engine.map_or(0, |engine| engine.bytes())
    }
}

impl EngineMemory {
    fn new(config: &DecoderConfig, lora: &Lora, rollouts: &RolloutLoad) -> Result<Self, ModelError> {
        plan::check(config, &rollouts.limits)?;
        if lora.rank > MAX_RANK {
            let rank = lora.rank;
            return Err(ModelError::Input(format!(
                "an adapter of rank {rank}: at most {MAX_RANK} for rollouts on a GPU"
            )));
        }
        let plan = MemoryPlan::sizes(config, WeightFormat::Bf16, &rollouts.limits, rollouts.multiprocessors);
        let all = rollouts.limits.rows * blocks(rollouts.longest);
        let engine = Self { plan, adapters: HELD * adapter_bytes(config, lora) };
        Ok(engine.with_blocks(rollouts.kv.map_or(all, |bytes| (bytes / plan.block).max(1))))
    }

    /// Returns the same engine with this number of KV blocks.
    fn with_blocks(self, blocks: usize) -> Self {
        Self { plan: MemoryPlan { blocks, ..self.plan }, ..self }
    }

    /// Returns the bytes of the KV cache.
    pub fn kv(&self) -> usize {
        self.plan.blocks * self.plan.block
    }

    /// Returns the total bytes.
    pub fn bytes(&self) -> usize {
        self.plan.weights + self.plan.workspace + self.kv() + self.adapters
    }
}

/// Returns the number of KV blocks of a sequence.
fn blocks(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK).max(1)
}

/// Returns the largest number in `range` that fits, by bisection. The end of the range must not fit, and every number
/// below one that fits must fit as well.
fn largest(range: Range<usize>, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if range.is_empty() || !fits(range.start) {
        return None;
    }
    let mut good = range.start;
    let mut bad = range.end;
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Some(good)
}

#[cfg(test)]
mod tests;
