//! Error for training that does not fit into GPU memory, with advice.

use std::fmt;

use super::{EngineMemory, TrainingMemory};
use crate::batch::BLOCK;
use crate::cuda::plan::gib;

/// Error: training does not fit into GPU memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearningShortage {
    pub(super) need: TrainingMemory,
    /// Usable bytes.
    pub(super) usable: usize,
    /// Tokens per pass, or KV blocks, with which training would fit; both when neither change alone suffices.
    pub(super) tokens: Option<usize>,
    pub(super) blocks: Option<usize>,
    pub(super) both: Option<(usize, usize)>,
    /// Number of tokens of a sequence that would fit, if a pass over the longest one does not fit with the smallest
    /// cache.
    pub(super) longest: Option<usize>,
    /// If `true`, training fits without an engine on the same GPU.
    pub(super) alone: bool,
}

impl std::error::Error for LearningShortage {}

impl fmt::Display for LearningShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrainingMemory { weights, adapter, pass, tokens, cublas, engine, .. } = self.need;
        write!(
            f,
            "training does not fit into GPU memory: frozen weights {}, the adapter and its gradients {}, passes of \
             {tokens} tokens {}, cuBLAS {}",
            gib(weights),
            gib(adapter),
            gib(pass),
            gib(cublas)
        )?;
        if let Some(engine) = &engine {
            let EngineMemory { plan, adapters } = engine;
            write!(
                f,
                ", and for rollouts on the same GPU a second copy of the weights {}, workspace {}, adapters {} and a KV \
                 cache of {} tokens {}",
                gib(plan.weights),
                gib(plan.workspace),
                gib(*adapters),
                plan.blocks * BLOCK,
                gib(engine.kv())
            )?;
        }
        write!(f, "; {} in total, {} are usable; ", gib(self.need.bytes()), gib(self.usable))?;
        f.write_str(&self.advice())
    }
}

impl LearningShortage {
    /// Describes the changes with which training would fit.
    fn advice(&self) -> String {
        let cache = |blocks: usize| {
            let block = self.need.engine.map_or(0, |engine| engine.plan.block);
            format!("a KV cache of {} MiB ({} tokens)", (blocks * block) >> 20, blocks * BLOCK)
        };
        let ways = [
            self.tokens.map(|tokens| format!("passes of {tokens} tokens would fit")),
            self.blocks.map(|blocks| format!("{} would fit", cache(blocks))),
            self.both.map(|(tokens, blocks)| format!("passes of {tokens} tokens with {} would fit", cache(blocks))),
            self.alone.then(|| "without the rollouts on this GPU it would fit".to_owned()),
            self.longest.map(|tokens| format!("sequences of at most {tokens} tokens would fit")),
        ];
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        if ways.is_empty() { "use a smaller model or a GPU with more memory".to_owned() } else { ways.join(", or ") }
    }
}
