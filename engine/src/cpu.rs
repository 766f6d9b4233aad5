//! The decoder on the CPU.

use std::path::Path;

use waymark_models::decoder::{Decoder, KvCache, KvKind};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, BLOCK, ForwardBatch, Logits};

use super::backend::{Backend, BackendError, BackendSpec, Footprint};

/// Size of the KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvBudget {
    /// Number of bytes.
    Bytes(usize),
    /// Number of blocks of [`waymark_models::BLOCK`] tokens.
    Blocks(usize),
}

/// A decoder and its KV cache.
#[derive(Debug)]
pub struct CpuBackend {
    spec: BackendSpec,
    decoder: Decoder,
    cache: KvCache,
}

impl CpuBackend {
    /// Creates a backend called `name` over `decoder`, with a KV cache in `f32`; `generation` identifies its weights.
    ///
    /// # Errors
    /// [`BackendError`] when the budget is smaller than one block.
    pub fn new(decoder: Decoder, name: &str, generation: u64, budget: KvBudget) -> Result<Self, BackendError> {
        Self::with_kv(decoder, name, generation, budget, KvKind::F32)
    }

    /// Creates a backend like [`new`](Self::new), with a KV cache of precision `kind`. `generation` must identify the
    /// precision as well as the weights.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn with_kv(
        decoder: Decoder,
        name: &str,
        generation: u64,
        budget: KvBudget,
        kind: KvKind,
    ) -> Result<Self, BackendError> {
        let block = decoder.kv_bytes_per_token_of(kind) * BLOCK;
        let blocks = match budget {
            KvBudget::Bytes(bytes) => bytes / block,
            KvBudget::Blocks(blocks) => blocks,
        };
        if blocks == 0 {
            return Err(BackendError(format!(
                "the KV budget is too small: one block of {BLOCK} tokens takes {block} bytes"
            )));
        }
        let config = decoder.config();
        // The pool may be smaller than one context: `BackendSpec::limit` then shortens the sequences.
        let spec =
            BackendSpec { name: name.to_owned(), vocab: config.vocab, blocks, context: config.context, generation };
        Ok(Self { spec, cache: decoder.kv_cache_of(kind, blocks), decoder })
    }

    /// Allocates the memory of every KV block now, instead of at its first use.
    #[must_use]
    pub fn with_reserved_kv(mut self) -> Self {
        self.cache.reserve();
        self
    }

    /// Limits sequences to `context` tokens, if that is less than the model's context length.
    #[must_use]
    pub fn with_context(mut self, context: usize) -> Self {
        self.spec.context = self.spec.context.min(context);
        self
    }
}

impl Backend for CpuBackend {
    fn spec(&self) -> &BackendSpec {
        &self.spec
    }

    fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
        Ok(self.decoder.forward(batch, &mut self.cache, logits)?)
    }

    fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError> {
        Ok(self.decoder.load_adapter(dir)?)
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) {
        self.decoder.unload_adapter(slot);
    }

    fn replace_weights(&mut self, weights: &Weights) -> Result<(), BackendError> {
        Ok(self.decoder.replace_weights(weights)?)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        if self.cache.copy_block(from as usize, to as usize) {
            return Ok(());
        }
        Err(BackendError(format!("cannot copy block {from} to {to}: the pool has {} blocks", self.cache.blocks())))
    }

    fn footprint(&self) -> Footprint {
        Footprint { kv: self.cache.bytes(), adapters: self.decoder.adapter_bytes() }
    }

    fn team(&self) -> Option<&Team> {
        Some(self.decoder.team())
    }
}
