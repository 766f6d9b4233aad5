//! One configured decoder for Llama, Qwen2 and Qwen3: tokens and a paged cache in, logits out.
//!
//! A step runs all rows of a batch together through every layer. Its parallel regions are the matrix products, attention,
//! and two passes over tokens per layer; memory for activations is kept from step to step.

mod cache;
mod clock;
mod config;
mod fused;
mod layer;
mod lora;
mod rotation;
mod step;
pub(crate) mod tensor;

use std::path::Path;
use std::sync::Arc;

pub use cache::{KvCache, KvKind};
pub use clock::{Clock, Part};
pub use config::{DecoderConfig, RopeScaling};

use crate::adapter::Adapter;
use crate::batch::{AdapterSlot, ForwardBatch, Logits};
use crate::kernel::attention::{Attention, Heads};
use crate::kernel::rope::Rope;
use crate::kernel::{Packed, Team};
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};
use layer::Layer;
use lora::Slots;
use step::Scratch;
use tensor::{matrix, vector};

/// A loaded decoder: weights, adapters, and the memory a step works in.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    arithmetic: Arithmetic,
    team: Arc<Team>,
    embedding: Packed,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// Output projection; `None` when it is the embedding.
    head: Option<Packed>,
    slots: Slots,
    rope: Rope,
    attention: Attention,
    scratch: Scratch,
    clock: Clock,
}

impl Decoder {
    /// Loads the weights of a checkpoint, repacking them for the matrix product; runs on `team` from then on.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the configuration's numbers do not fit together, [`ModelError::Tensor`] when a tensor is
    /// missing or has the wrong shape, and what [`Weights::tensor`] returns.
    pub fn load(weights: &Weights, team: Arc<Team>) -> Result<Self, ModelError> {
        Self::load_with(weights, team, Arithmetic::F32)
    }

    /// As [`load`](Self::load), with an arithmetic for the products of the layers.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_with(weights: &Weights, team: Arc<Team>, arithmetic: Arithmetic) -> Result<Self, ModelError> {
        let config = weights.config().clone();
        config.check()?;
        let (vocab, hidden) = (config.vocab, config.hidden);
        let heads = Heads { query: config.heads, kv: config.kv_heads, dim: config.head_dim };
        let layer = |index| Layer::load(weights, &config, arithmetic, index);
        let layers = (0..config.layers).map(layer).collect::<Result<_, _>>()?;
        Ok(Self {
            embedding: matrix(weights, "model.embed_tokens.weight", vocab, hidden)?,
            layers,
            norm: vector(weights, "model.norm.weight", hidden)?,
            head: match config.tied_embeddings {
                true => None,
                false => Some(matrix(weights, "lm_head.weight", vocab, hidden)?),
            },
            slots: Slots::default(),
            rope: Rope::new(config.head_dim, config.rope_base, &config.rope_scaling),
            attention: Attention::new(heads, team.threads()),
            scratch: Scratch::default(),
            clock: Clock::new(),
            config,
            arithmetic,
            team,
        })
    }

    /// Computes with other weights of the same shape from now on; adapters stay. Old and new ones are there at the same time
    /// until it is done. Cached keys and values computed with the old ones are the caller's to forget.
    ///
    /// # Errors
    /// [`ModelError::Input`] when they are of another shape, and what [`load`](Self::load) returns; the old ones stand then.
    pub fn replace_weights(&mut self, weights: &Weights) -> Result<(), ModelError> {
        if *weights.config() != self.config {
            return Err(ModelError::Input("the weights are of a decoder of another shape".to_owned()));
        }
        let new = Self::load_with(weights, Arc::clone(&self.team), self.arithmetic)?;
        (self.embedding, self.layers, self.norm, self.head) = (new.embedding, new.layers, new.norm, new.head);
        Ok(())
    }

    /// What it is configured by.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The threads it runs on.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// A cache of `blocks` blocks for sequences of this decoder, in `f32`. Its memory is taken as it is first written.
    pub fn kv_cache(&self, blocks: usize) -> KvCache {
        self.kv_cache_of(KvKind::F32, blocks)
    }

    /// A cache of `blocks` blocks that keeps keys and values as `kind`.
    pub fn kv_cache_of(&self, kind: KvKind, blocks: usize) -> KvCache {
        KvCache::new(kind, self.heads(), self.config.layers, blocks)
    }

    /// Bytes of an `f32` cache one token takes, in all layers; with [`KvKind::F16`] it is half of that.
    pub fn kv_bytes_per_token(&self) -> usize {
        2 * self.config.kv_width() * self.config.layers * KvKind::F32.size()
    }

    /// Bytes the base model's matrices take.
    pub fn weight_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::bytes).sum();
        layers + self.embedding.bytes() + self.head.as_ref().map_or(0, Packed::bytes)
    }

    /// Bytes the matrices of the loaded adapters take.
    pub fn adapter_bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Loads a PEFT LoRA directory beside those that are loaded; rows name it by the slot returned.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] names a setting this decoder does not follow (DoRA, trained biases, whole modules saved
    /// with it, …); [`ModelError::Corrupt`] and [`ModelError::Io`] say which file is damaged or missing.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, ModelError> {
        Ok(self.slots.insert(Adapter::load(dir, &self.config)?))
    }

    /// Frees an adapter's slot; a slot that holds none is left alone. Cached keys and values computed with the adapter
    /// are the caller's to forget.
    pub fn unload_adapter(&mut self, slot: AdapterSlot) {
        self.slots.remove(slot);
    }

    /// Runs one step: writes the keys and values of all new tokens into `kv` and the wanted logits into `logits`, one row
    /// each, in the batch's order.
    ///
    /// A row's logits do not depend, to the last bit, on what else is in the batch, on how its tokens were split into
    /// chunks, or on which blocks it got.
    ///
    /// # Errors
    /// [`ModelError::Input`], before anything is written, when a token, block, adapter or position does not exist, or when
    /// two rows would write to the same block.
    pub fn forward(&mut self, batch: &ForwardBatch, kv: &mut KvCache, logits: &mut Logits) -> Result<(), ModelError> {
        self.clock.start();
        self.check(batch, kv)?;
        logits.reset(self.config.vocab, batch.logit_rows());
        if batch.tokens().is_empty() {
            return Ok(());
        }
        self.begin(batch);
        for layer in 0..self.layers.len() {
            self.attend(layer, batch, kv);
            self.feed(layer);
        }
        self.project(batch, logits);
        Ok(())
    }

    /// Where the time of all steps so far went.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    fn heads(&self) -> Heads {
        Heads { query: self.config.heads, kv: self.config.kv_heads, dim: self.config.head_dim }
    }
}
