//! What learning takes of a card's memory, known before any of it is taken.
//!
//! Frozen weights, the adapter with its gradients, and a pass of the most tokens; and where the same card makes the
//! rollouts, an engine, which has weights of its own. The optimizer's moments are on the host.

mod shortage;

use std::ops::Range;

pub use shortage::Shortage;

use super::adapter::Adapter;
use super::room::{Room, Size};
use super::{LARGEST_PASS, check, refused};
use crate::ModelError;
use crate::batch::BLOCK;
use crate::cuda::CudaError;
use crate::cuda::decoder::adapter_bytes;
use crate::cuda::plan::{self, BLAS_BYTES, LARGEST_RANK, LEFT, Limits, Plan, WeightPlaces};
use crate::decoder::DecoderConfig;
use crate::gradient::{Lora, Module, Tune};

/// Adapters that an engine holds while one takes the place of another.
const HELD: usize = 2;

/// The most a pass may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passes {
    /// Tokens of its sequences, each of which counts whole, and in whole blocks of [`BLOCK`].
    pub tokens: usize,
    /// Tokens of the longest sequence, which has a pass of its own where it is longer than that.
    pub longest: usize,
}

/// What makes rollouts on the card that learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rollouts {
    /// The most a step may be.
    pub limits: Limits,
    /// Multiprocessors of the card.
    pub processors: u32,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Bytes of KV; as many as all rows of a step take at their longest where not given.
    pub kv: Option<usize>,
}

/// What learning takes of a card, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The frozen weights in `bf16`, and rotary tables.
    pub weights: usize,
    /// The adapter's values and their gradients, in `f32`.
    pub adapter: usize,
    /// How many values that are.
    pub values: usize,
    /// Whatever a pass writes.
    pub pass: usize,
    /// The tokens of that pass, counted as [`Passes`] does.
    pub tokens: usize,
    /// What cuBLAS works in.
    pub products: usize,
    /// The engine that makes rollouts on the same card.
    pub engine: Option<Serving>,
}

/// What an engine takes of the same card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serving {
    /// Weights, workspace and KV.
    pub plan: Plan,
    /// Bytes of the adapters it holds at a time.
    pub adapters: usize,
}

/// Of `free` bytes those that may be planned with. The rest is for what a driver takes beside, twice where the card is
/// `shared` with an engine.
pub fn usable(free: usize, shared: bool) -> usize {
    free.saturating_sub(LEFT * (1 + usize::from(shared)))
}

impl Need {
    /// What passes take beside rollouts on the same card, if there are any, when `usable` bytes of it may be taken.
    ///
    /// # Errors
    /// [`CudaError::Learning`] says what would fit; [`CudaError::Model`] names what a card does not learn or serve: all
    /// weights, shapes that no kernel was written for, passes that cannot be launched, an adapter whose rank is too large.
    pub fn plan(
        config: &DecoderConfig,
        tune: &Tune,
        passes: Passes,
        rollouts: Option<&Rollouts>,
        usable: usize,
    ) -> Result<Self, CudaError> {
        let lora = check(config, tune)?;
        lora.check(config)?;
        let tokens = passes.tokens.max(passes.longest);
        if tokens > LARGEST_PASS {
            let way = if passes.longest > LARGEST_PASS { "sequences shorter" } else { "packs smaller" };
            return Err(refused(format!("passes of {tokens} tokens: on a card at most {LARGEST_PASS}; make {way}")));
        }
        let engine = rollouts.map(|rollouts| Serving::new(config, lora, rollouts)).transpose()?;
        let need = |tokens: usize, engine: Option<Serving>| Self::new(config, lora, tokens, engine);
        let found = need(tokens, engine);
        if found.bytes() <= usable {
            return Ok(found);
        }
        let fits = |tokens: usize, engine: Option<Serving>| need(tokens, engine).bytes() <= usable;
        let least = engine.map(|engine| engine.with(rollouts.map_or(1, |rollouts| blocks(rollouts.longest))));
        let shortest = passes.longest.max(1);
        let cache = |tokens: usize| {
            let (engine, least) = engine.zip(least)?;
            let range = least.plan.blocks..engine.plan.blocks;
            largest(range, |blocks| fits(tokens, Some(engine.with(blocks))))
        };
        let shorter = largest(shortest..tokens, |tokens| fits(tokens, engine));
        let smaller = cache(tokens);
        let both = if shorter.or(smaller).is_none() { cache(shortest) } else { None };
        // Not even a pass of the longest sequence alone, beside the smallest cache.
        let hopeless = shorter.or(smaller).or(both).is_none();
        let longest = if hopeless { largest(1..shortest, |tokens| fits(tokens, least)) } else { None };
        Err(Box::new(Shortage {
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

    /// With passes of so many tokens.
    fn new(config: &DecoderConfig, lora: &Lora, tokens: usize, engine: Option<Serving>) -> Self {
        let ranks = Module::ALL.map(|module| if lora.targets.contains(&module) { lora.rank } else { 0 });
        let values = lora.values(config);
        Self {
            weights: WeightPlaces::new(config, config.context).bytes,
            adapter: Adapter::places(values).1,
            values,
            pass: Room::new(config, &Size::most(config, tokens, ranks)).bytes,
            tokens,
            products: BLAS_BYTES,
            engine,
        }
    }

    /// Bytes that the learner holds: weights, adapter and the memory of passes.
    pub fn learner(&self) -> usize {
        self.weights + self.adapter + self.pass
    }

    /// Bytes of everything.
    pub fn bytes(&self) -> usize {
        self.learner() + self.products + self.engine.map_or(0, |engine| engine.bytes())
    }
}

impl Serving {
    fn new(config: &DecoderConfig, lora: &Lora, rollouts: &Rollouts) -> Result<Self, ModelError> {
        plan::check(config, &rollouts.limits)?;
        if lora.rank > LARGEST_RANK {
            let rank = lora.rank;
            return Err(ModelError::Input(format!(
                "an adapter of rank {rank}: rollouts on a card take {LARGEST_RANK} at most"
            )));
        }
        let plan = Plan::sizes(config, &rollouts.limits, rollouts.processors);
        let all = rollouts.limits.rows * blocks(rollouts.longest);
        let engine = Self { plan, adapters: HELD * adapter_bytes(config, lora) };
        Ok(engine.with(rollouts.kv.map_or(all, |bytes| (bytes / plan.block).max(1))))
    }

    /// The same with so many KV blocks.
    fn with(self, blocks: usize) -> Self {
        Self { plan: Plan { blocks, ..self.plan }, ..self }
    }

    /// Bytes of its KV.
    pub fn kv(&self) -> usize {
        self.plan.blocks * self.plan.block
    }

    /// Bytes of everything.
    pub fn bytes(&self) -> usize {
        self.plan.weights + self.plan.workspace + self.kv() + self.adapters
    }
}

/// KV blocks of a sequence.
fn blocks(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK).max(1)
}

/// The largest number of a range that fits, whose end does not, where all below one that fits do so as well.
fn largest(range: Range<usize>, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if range.is_empty() || !fits(range.start) {
        return None;
    }
    let (mut good, mut bad) = (range.start, range.end);
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
