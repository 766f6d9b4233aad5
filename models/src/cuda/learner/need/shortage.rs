//! What is said where learning does not fit on a card.

use std::fmt;

use super::{Need, Serving};
use crate::batch::BLOCK;
use crate::cuda::plan::gib;

/// Learning does not fit on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub(super) need: Need,
    /// Bytes that may be taken.
    pub(super) usable: usize,
    /// Tokens of a pass with which it fits, or KV blocks; both where neither does alone.
    pub(super) tokens: Option<usize>,
    pub(super) blocks: Option<usize>,
    pub(super) both: Option<(usize, usize)>,
    /// Tokens of a sequence that would fit, where a pass of the longest does not beside the smallest cache.
    pub(super) longest: Option<usize>,
    /// Whether it fits without an engine beside it.
    pub(super) alone: bool,
}

impl std::error::Error for Shortage {}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Need { weights, adapter, pass, tokens, products, engine, .. } = self.need;
        write!(
            f,
            "the card does not hold what learning takes: frozen weights {}, the adapter and its gradients {}, passes of \
             {tokens} tokens {}, cuBLAS {}",
            gib(weights),
            gib(adapter),
            gib(pass),
            gib(products)
        )?;
        if let Some(engine) = &engine {
            let Serving { plan, adapters } = engine;
            write!(
                f,
                ", and for the rollouts beside it weights of their own {}, workspace {}, adapters {} and a KV cache of {} \
                 tokens {}",
                gib(plan.weights),
                gib(plan.workspace),
                gib(*adapters),
                plan.blocks * BLOCK,
                gib(engine.kv())
            )?;
        }
        write!(f, "; together {}, of which {} may be taken; ", gib(self.need.bytes()), gib(self.usable))?;
        f.write_str(&self.advice())
    }
}

impl Shortage {
    /// What would fit.
    fn advice(&self) -> String {
        let cache = |blocks: usize| {
            let block = self.need.engine.map_or(0, |engine| engine.plan.block);
            format!("a KV cache of {} MiB ({} tokens)", (blocks * block) >> 20, blocks * BLOCK)
        };
        let ways = [
            self.tokens.map(|tokens| format!("passes of {tokens} tokens would fit")),
            self.blocks.map(|blocks| format!("{} would fit", cache(blocks))),
            self.both.map(|(tokens, blocks)| format!("passes of {tokens} tokens with {} would fit", cache(blocks))),
            self.alone.then(|| "without the rollouts on this card it would fit".to_owned()),
            self.longest.map(|tokens| format!("sequences of at most {tokens} tokens would fit")),
        ];
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        if ways.is_empty() { "take a smaller model or a larger card".to_owned() } else { ways.join(", or ") }
    }
}
