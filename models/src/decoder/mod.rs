//! Decoder for all families of [`architecture`](crate::architecture): tokens and a paged KV cache in, logits out.
//!
//! A step runs all rows of a batch through every layer together. In the last layer, tokens that get no logits leave
//! the step as soon as their keys and values are stored. A step runs in parallel in the matrix multiplications, in
//! attention, and in two passes over tokens per layer. Activation memory is reused from step to step.

mod cache;
mod experts;
#[cfg(test)]
mod family_test;
mod feed_forward;
mod fused;
mod layer;
mod loaded_matrices;
mod lora;
mod lora_update;
mod lora_vocabulary;
mod parameter_count;
mod ropes;
mod rotation;
mod step;
mod step_clock;
pub(crate) mod tensor;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use cache::{KvCache, KvKind};
pub(crate) use experts::ExpertRoutes;
pub use step_clock::{StepClock, StepPhase};

pub use crate::architecture::{DecoderConfig, RopeScaling};
use crate::batch::{AdapterSlot, BLOCK, ForwardBatch, Logits};
use crate::kernel::attention::{Attention, HeadLayout};
use crate::kernel::{Packed, Team};
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};
use layer::DecoderLayer;
use loaded_matrices::LoadedMatrices;
use lora::AdapterSlots;
use lora_update::{AdapterBase, LoraAdapter};
pub(crate) use ropes::Ropes;
use step::StepScratch;
use tensor::vector;

/// A loaded decoder: weights, adapters, and the working memory of a step.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    arithmetic: Arithmetic,
    team: Arc<Team>,
    embedding: Packed,
    layers: Vec<DecoderLayer>,
    norm: Vec<f32>,
    /// Output projection. `None` if the embedding matrix serves as output projection.
    head: Option<Packed>,
    slots: AdapterSlots,
    ropes: Ropes,
    attention: Attention,
    scratch: StepScratch,
    clock: StepClock,
}

impl Decoder {
    /// Loads the weights of a checkpoint and repacks them for the matrix multiplication. All steps run on `team`.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the configuration is inconsistent, [`ModelError::Tensor`] when a tensor is
    /// missing or has the wrong shape, and the errors of [`Weights::tensor`].
    pub fn load(weights: &Weights, team: Arc<Team>) -> Result<Self, ModelError> {
        Self::load_with(weights, team, Arithmetic::F32)
    }

    /// Loads a checkpoint like [`load`](Self::load), with the given arithmetic for the matrix multiplications.
    ///
    /// # Errors
    /// The same as for [`load`](Self::load).
    pub fn load_with(weights: &Weights, team: Arc<Team>, arithmetic: Arithmetic) -> Result<Self, ModelError> {
        let config = weights.config().clone();
        config.check()?;
        let heads = HeadLayout { query: config.heads, kv: config.kv_heads, dim: config.head_dim };
        let LoadedMatrices { embedding, head, layers } = LoadedMatrices::load(weights, &config, &team, arithmetic)?;
        let decoder = Self {
            embedding,
            layers,
            norm: vector(weights, "model.norm.weight", config.hidden)?,
            head,
            slots: AdapterSlots::default(),
            ropes: Ropes::new(&config),
            attention: Attention::new(heads, team.threads()),
            scratch: StepScratch::default(),
            clock: StepClock::new(),
            config,
            arithmetic,
            team,
        };
        weights.release();
        Ok(decoder)
    }

    /// Replaces the base weights with others of the same shape and keeps the adapters. Old and new weights are in
    /// memory together until the call returns. The caller must discard keys and values cached with the old weights.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the shapes differ, or a loaded adapter is valid only for the old weights (DoRA, saved
    /// matrices, biases), and the errors of [`load`](Self::load). On error the old weights remain.
    pub fn replace_weights(&mut self, weights: &Weights) -> Result<(), ModelError> {
        if *weights.config() != self.config {
            return Err(ModelError::Input("the new weights have another shape than the loaded decoder".to_owned()));
        }
        if self.slots.any_bound_to_base() {
            return Err(ModelError::Input(
                "an adapter with DoRA, saved matrices or biases holds for the old weights alone: unload it first"
                    .to_owned(),
            ));
        }
        // Loading first and swapping afterwards keeps the old weights usable if a tensor is missing.
        let new = Self::load_with(weights, Arc::clone(&self.team), self.arithmetic)?;
        (self.embedding, self.layers, self.norm, self.head) = (new.embedding, new.layers, new.norm, new.head);
        Ok(())
    }

    /// Configuration of the decoder.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Threads that run the steps.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Creates an `f32` cache of `blocks` blocks. Its memory is allocated on first write.
    pub fn kv_cache(&self, blocks: usize) -> KvCache {
        self.kv_cache_of(KvKind::F32, blocks)
    }

    /// Creates a cache of `blocks` blocks with storage precision `kind`.
    pub fn kv_cache_of(&self, kind: KvKind, blocks: usize) -> KvCache {
        KvCache::new(kind, self.heads(), self.config.layers, blocks)
    }

    /// Size of one token in an `f32` cache, over all layers, in bytes.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv_bytes_per_token_of(KvKind::F32)
    }

    /// Size of one token in a cache of precision `kind`, over all layers, in bytes.
    pub fn kv_bytes_per_token_of(&self, kind: KvKind) -> usize {
        self.config.layers * kind.block_bytes(self.heads()) / BLOCK
    }

    /// Size of the base model's matrices, in bytes.
    pub fn weight_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(DecoderLayer::bytes).sum();
        layers + self.embedding.bytes() + self.head.as_ref().map_or(0, Packed::bytes)
    }

    /// Size of all loaded adapters, in bytes.
    pub fn adapter_bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Loads a PEFT LoRA directory as a further adapter and returns the slot by which rows name it.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a setting that is not implemented (trained tokens, saved norms, …);
    /// [`ModelError::Corrupt`] and [`ModelError::Io`] for a damaged or missing file.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, ModelError> {
        let base = AdapterBase {
            config: &self.config,
            team: &self.team,
            layers: &self.layers,
            embedding: &self.embedding,
            head: self.head.as_ref().unwrap_or(&self.embedding),
        };
        let adapter = LoraAdapter::load(dir, &base)?;
        Ok(self.slots.insert(adapter))
    }

    /// Frees an adapter's slot; an empty slot is ignored. The caller must discard keys and values cached with the
    /// adapter.
    pub fn unload_adapter(&mut self, slot: AdapterSlot) {
        self.slots.remove(slot);
    }

    /// Runs one step: writes the keys and values of all new tokens to `kv` and the requested logits to `logits`, in
    /// the order of the batch.
    ///
    /// The logits of a row are bit-for-bit independent of the other rows in the batch, of the split of its tokens
    /// into chunks, and of its blocks.
    ///
    /// # Errors
    /// [`ModelError::Input`], before anything is written, when a token, block, adapter or position does not exist,
    /// or when two rows would write to the same block.
    pub fn forward(&mut self, batch: &ForwardBatch, kv: &mut KvCache, logits: &mut Logits) -> Result<(), ModelError> {
        self.clock.start();
        self.check(batch, kv)?;
        // Reset even for an empty batch: callers read the logits of this step, never those of the last one.
        let wanted = batch.logit_rows();
        logits.reset(self.config.vocab, wanted);
        if batch.tokens().is_empty() {
            return Ok(());
        }
        self.begin(batch);
        let last = self.layers.len() - 1;
        self.run_layers(0..last, batch, kv);
        self.store_tokens(last, kv);
        // No layer reads what the last one adds to the other tokens.
        if wanted == 0 {
            return Ok(());
        }
        if wanted == batch.tokens().len() {
            self.attend(last, batch, kv);
        } else {
            self.attend_wanted(last, batch, kv);
        }
        self.feed_forward(last);
        self.project_logits(logits);
        Ok(())
    }

    /// Runs one step like [`forward`](Self::forward), and appends the normalized output of the last layer for every
    /// token to `rows`, in the order of the batch, instead of computing logits.
    ///
    /// # Errors
    /// The same as for [`forward`](Self::forward).
    pub(crate) fn hidden_states(
        &mut self,
        batch: &ForwardBatch,
        kv: &mut KvCache,
        rows: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        self.clock.start();
        self.check(batch, kv)?;
        if !batch.tokens().is_empty() {
            self.begin(batch);
            self.run_layers(0..self.layers.len(), batch, kv);
            rows.extend_from_slice(self.normalize_stream());
        }
        Ok(())
    }

    /// Frees the working memory kept from earlier steps.
    pub(crate) fn release_scratch(&mut self) {
        self.scratch = StepScratch::default();
    }

    /// Runs some layers for all tokens.
    fn run_layers(&mut self, layers: Range<usize>, batch: &ForwardBatch, kv: &mut KvCache) {
        for layer in layers {
            self.store_tokens(layer, kv);
            self.attend(layer, batch, kv);
            self.feed_forward(layer);
        }
    }

    /// Time per phase over all steps so far.
    pub fn clock(&self) -> &StepClock {
        &self.clock
    }

    fn heads(&self) -> HeadLayout {
        self.config.head_layout()
    }
}
