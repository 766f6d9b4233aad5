//! Forward pass over rows of tokens, and the data shared with the backward pass.

use half::bf16;

use super::adapter::LearnerAdapter;
use super::pass_layout::PassLayout;
use super::pass_rows::PassRows;
use super::projection::{ProjectionOutput, ProjectionSite};
use crate::cuda::CudaError;
use crate::cuda::driver::Driver;
use crate::cuda::kernel::{AttendPrefill, BatchBounds, BatchView, DeviceSlice, EmbedTokens, RmsNorm, Rotary, SiluMul};
use crate::cuda::plan::{LayerLayout, Placement, WeightLayout};
use crate::decoder::DecoderConfig;
use crate::gradient::Module;

/// All data that a pass reads and writes.
pub(super) struct LearnerPass<'a, D: Driver> {
    pub(super) driver: &'a D,
    pub(super) config: &'a DecoderConfig,
    pub(super) weights: (&'a D::Region, &'a WeightLayout),
    /// Adapter and its memory. `None` runs the base model alone.
    pub(super) adapter: Option<(&'a LearnerAdapter, &'a D::Region)>,
    pub(super) region: &'a D::Region,
    pub(super) buffers: &'a PassLayout,
    pub(super) rows: &'a PassRows,
    pub(super) tokens: usize,
}

impl<D: Driver> LearnerPass<'_, D> {
    /// Copies the rows to the device and looks up the embeddings.
    pub(super) fn begin(&self) -> Result<(), CudaError> {
        let layout = &self.buffers.layout;
        let rows = self.rows;
        for (place, values) in [
            (layout.tokens, &rows.tokens),
            (layout.positions, &rows.positions),
            (layout.rows, &rows.rows),
            (layout.first, &rows.first),
            (layout.context, &rows.context),
            (layout.tables, &rows.tables),
            (layout.tiles, &rows.tiles),
            (layout.blocks, &rows.blocks),
            (layout.wanted, &rows.wanted),
            (layout.ids, &rows.ids),
        ] {
            self.driver.upload(values, self.work(place))?;
        }
        EmbedTokens {
            batch: self.batch(),
            table: self.weight(self.weights.1.embedding),
            stream: self.work(self.buffers.stream),
            count: self.tokens as u32,
            width: self.config.hidden as u32,
            vocab: self.config.vocab as u32,
        }
        .launch(self.driver)?;
        Ok(())
    }

    /// Runs all layers. If `back` is `true`, keeps the input of each layer for the backward pass.
    pub(super) fn forward(&self, back: bool) -> Result<(), CudaError> {
        let stream = self.work(self.buffers.stream);
        for (index, layer) in self.weights.1.layers.iter().enumerate() {
            if back {
                self.driver.copy(stream, self.work(self.buffers.back.inputs[index]))?;
            }
            self.forward_layer(index, layer, back)?;
            let activated = self.work(self.buffers.activated);
            self.project(Self::down(index, layer), activated, ProjectionOutput::Stream(stream))?;
        }
        Ok(())
    }

    /// Runs one layer up to the activation of its feed-forward block, leaving the residual stream between attention and
    /// that block.
    pub(super) fn forward_layer(&self, index: usize, layer: &LayerLayout, back: bool) -> Result<(), CudaError> {
        let buffers = self.buffers;
        let stream = self.work(buffers.stream);
        let normed = self.work(buffers.normed);
        self.rms_norm(buffers.stream, layer.attention_norm)?;
        self.project(Self::qkv(index, layer), normed, ProjectionOutput::Activation(self.work(buffers.qkv)))?;
        self.attend(layer, back)?;
        self.project(Self::o(index, layer), self.work(buffers.attended), ProjectionOutput::Stream(stream))?;
        if back {
            self.driver.copy(stream, self.work(buffers.back.middle))?;
        }
        self.rms_norm(buffers.stream, layer.ffn_norm)?;
        self.project(Self::gate_up(index, layer), normed, ProjectionOutput::Activation(self.work(buffers.gate_up)))?;
        SiluMul {
            gate_up: self.work(buffers.gate_up),
            out: self.work(buffers.activated),
            rows: self.tokens as u32,
            width: self.config.ffn as u32,
        }
        .launch(self.driver)?;
        Ok(())
    }

    /// Computes attention from the outputs of the projections.
    fn attend(&self, layer: &LayerLayout, back: bool) -> Result<(), CudaError> {
        let config = self.config;
        let buffers = self.buffers;
        let qkv = self.work(buffers.qkv);
        let cache = self.work(buffers.cache);
        let heads = config.heads as u32;
        let kv_heads = config.kv_heads as u32;
        let dim = config.head_dim as u32;
        // The backward pass of the norms per head needs their inputs, but the kernel overwrites the queries.
        if back && layer.head_norms.is_some() {
            self.driver.copy(qkv, self.work(buffers.raw))?;
        }
        Rotary {
            batch: self.batch(),
            qkv,
            bias: layer.bias.map(|bias| self.weight(bias)),
            head_norms: layer.head_norms.map(|norms| norms.map(|norm| self.weight(norm))),
            table: self.weight(self.weights.1.rotary),
            cache,
            count: self.tokens as u32,
            heads,
            kv_heads,
            dim,
            eps: config.rms_eps,
        }
        .launch(self.driver)?;
        AttendPrefill {
            batch: self.batch(),
            tiles: self.work(buffers.layout.tiles),
            qkv,
            stride: (heads + 2 * kv_heads) * dim,
            cache,
            out: self.work(buffers.attended),
            lse: back.then(|| self.work(buffers.lse)),
            count: self.rows.tiles.len() as u32 / 2,
            heads,
            kv_heads,
            dim,
        }
        .launch(self.driver)?;
        Ok(())
    }

    /// RMS norm of all rows of a stream.
    pub(super) fn rms_norm(&self, stream: Placement<f32>, weight: Placement<f32>) -> Result<(), CudaError> {
        RmsNorm {
            stream: self.work(stream),
            index: None,
            weight: self.weight(weight),
            out: self.work(self.buffers.normed),
            rows: self.tokens as u32,
            width: self.config.hidden as u32,
            eps: self.config.rms_eps,
        }
        .launch(self.driver)?;
        Ok(())
    }

    pub(super) fn qkv(layer: usize, places: &LayerLayout) -> ProjectionSite {
        ProjectionSite { layer, modules: &[Module::QProj, Module::KProj, Module::VProj], weight: places.qkv }
    }

    pub(super) fn o(layer: usize, places: &LayerLayout) -> ProjectionSite {
        ProjectionSite { layer, modules: &[Module::OProj], weight: places.o }
    }

    pub(super) fn gate_up(layer: usize, places: &LayerLayout) -> ProjectionSite {
        ProjectionSite { layer, modules: &[Module::GateProj, Module::UpProj], weight: places.gate_up }
    }

    pub(super) fn down(layer: usize, places: &LayerLayout) -> ProjectionSite {
        ProjectionSite { layer, modules: &[Module::DownProj], weight: places.down }
    }

    pub(super) fn batch(&self) -> BatchView {
        let layout = &self.buffers.layout;
        BatchView {
            tokens: self.work(layout.tokens),
            positions: self.work(layout.positions),
            rows: self.work(layout.rows),
            first: self.work(layout.first),
            context: self.work(layout.context),
            tables: self.work(layout.tables),
            stride: self.rows.stride as u32,
            bounds: BatchBounds {
                rows: self.rows.first.len(),
                tokens: self.tokens,
                positions: self.rows.positions.iter().max().map_or(0, |&last| last as usize + 1),
                blocks: self.rows.blocks.len() / 2,
            },
        }
    }

    pub(super) fn work<T>(&self, place: Placement<T>) -> DeviceSlice<T> {
        self.driver.slice(self.region, place)
    }

    pub(super) fn weight<T>(&self, place: Placement<T>) -> DeviceSlice<T> {
        self.driver.slice(self.weights.0, place)
    }

    /// Output projection to the vocabulary.
    pub(super) fn head(&self) -> DeviceSlice<bf16> {
        let places = self.weights.1;
        self.weight(places.head.unwrap_or(places.embedding))
    }
}
