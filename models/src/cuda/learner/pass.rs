//! One pass over rows: what it runs on, and the way forward.

use half::bf16;

use super::adapter::Adapter;
use super::room::Room;
use super::rows::Rows;
use super::site::{Output, Site};
use crate::cuda::CudaError;
use crate::cuda::driver::Driver;
use crate::cuda::kernel::{AttendPrefill, BatchView, Embed, Norm, Rotary, SiluMul, Span};
use crate::cuda::plan::{LayerPlaces, Place, WeightPlaces};
use crate::decoder::DecoderConfig;
use crate::gradient::Module;

/// Everything a pass reads and writes.
pub(super) struct Pass<'a, D: Driver> {
    pub(super) driver: &'a D,
    pub(super) config: &'a DecoderConfig,
    pub(super) weights: (&'a D::Region, &'a WeightPlaces),
    /// None where the base model is asked without it.
    pub(super) adapter: Option<(&'a Adapter, &'a D::Region)>,
    pub(super) region: &'a D::Region,
    pub(super) room: &'a Room,
    pub(super) rows: &'a Rows,
    pub(super) tokens: usize,
}

impl<D: Driver> Pass<'_, D> {
    /// Copies the rows to the card and looks up the tokens.
    pub(super) fn begin(&self) -> Result<(), CudaError> {
        let (layout, rows) = (&self.room.layout, self.rows);
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
        Embed {
            batch: self.batch(),
            table: self.weight(self.weights.1.embedding),
            stream: self.work(self.room.stream),
            count: self.tokens as u32,
            width: self.config.hidden as u32,
            vocab: self.config.vocab as u32,
        }
        .launch(self.driver)?;
        Ok(())
    }

    /// Takes the stream through all layers. Where a backward pass follows, each layer's input is kept.
    pub(super) fn forward(&self, back: bool) -> Result<(), CudaError> {
        let stream = self.work(self.room.stream);
        for (index, layer) in self.weights.1.layers.iter().enumerate() {
            if back {
                self.driver.copy(stream, self.work(self.room.back.inputs[index]))?;
            }
            self.ascend(index, layer, back)?;
            let activated = self.work(self.room.activated);
            self.project(Self::down(index, layer), activated, Output::Stream(stream))?;
        }
        Ok(())
    }

    /// One layer up to the activated gate, from its input in the stream, which ends between attention and the feed-forward
    /// part.
    pub(super) fn ascend(&self, index: usize, layer: &LayerPlaces, back: bool) -> Result<(), CudaError> {
        let room = self.room;
        let (stream, normed) = (self.work(room.stream), self.work(room.normed));
        self.normalise(room.stream, layer.attention_norm)?;
        self.project(Self::qkv(index, layer), normed, Output::Activation(self.work(room.qkv)))?;
        self.attend(layer, back)?;
        self.project(Self::o(index, layer), self.work(room.attended), Output::Stream(stream))?;
        if back {
            self.driver.copy(stream, self.work(room.back.middle))?;
        }
        self.normalise(room.stream, layer.ffn_norm)?;
        self.project(Self::gate_up(index, layer), normed, Output::Activation(self.work(room.gate_up)))?;
        SiluMul {
            gate_up: self.work(room.gate_up),
            out: self.work(room.activated),
            rows: self.tokens as u32,
            width: self.config.ffn as u32,
        }
        .launch(self.driver)?;
        Ok(())
    }

    /// From a projection's outputs to what attention gives.
    fn attend(&self, layer: &LayerPlaces, back: bool) -> Result<(), CudaError> {
        let (config, room) = (self.config, self.room);
        let (qkv, cache) = (self.work(room.qkv), self.work(room.cache));
        let (heads, kv_heads, dim) = (config.heads as u32, config.kv_heads as u32, config.head_dim as u32);
        if back && layer.head_norms.is_some() {
            self.driver.copy(qkv, self.work(room.raw))?;
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
            tiles: self.work(room.layout.tiles),
            qkv,
            stride: (heads + 2 * kv_heads) * dim,
            cache,
            out: self.work(room.attended),
            lse: back.then(|| self.work(room.lse)),
            count: self.rows.tiles.len() as u32 / 2,
            heads,
            kv_heads,
            dim,
        }
        .launch(self.driver)?;
        Ok(())
    }

    /// The RMS norm of all rows of a stream.
    pub(super) fn normalise(&self, stream: Place<f32>, weight: Place<f32>) -> Result<(), CudaError> {
        Norm {
            stream: self.work(stream),
            index: None,
            weight: self.weight(weight),
            out: self.work(self.room.normed),
            rows: self.tokens as u32,
            width: self.config.hidden as u32,
            eps: self.config.rms_eps,
        }
        .launch(self.driver)?;
        Ok(())
    }

    pub(super) fn qkv(layer: usize, places: &LayerPlaces) -> Site {
        Site { layer, modules: &[Module::QProj, Module::KProj, Module::VProj], weight: places.qkv }
    }

    pub(super) fn o(layer: usize, places: &LayerPlaces) -> Site {
        Site { layer, modules: &[Module::OProj], weight: places.o }
    }

    pub(super) fn gate_up(layer: usize, places: &LayerPlaces) -> Site {
        Site { layer, modules: &[Module::GateProj, Module::UpProj], weight: places.gate_up }
    }

    pub(super) fn down(layer: usize, places: &LayerPlaces) -> Site {
        Site { layer, modules: &[Module::DownProj], weight: places.down }
    }

    pub(super) fn batch(&self) -> BatchView {
        let layout = &self.room.layout;
        BatchView {
            tokens: self.work(layout.tokens),
            positions: self.work(layout.positions),
            rows: self.work(layout.rows),
            first: self.work(layout.first),
            context: self.work(layout.context),
            tables: self.work(layout.tables),
            stride: self.rows.stride as u32,
        }
    }

    pub(super) fn work<T>(&self, place: Place<T>) -> Span<T> {
        self.driver.span(self.region, place)
    }

    pub(super) fn weight<T>(&self, place: Place<T>) -> Span<T> {
        self.driver.span(self.weights.0, place)
    }

    /// The projection to the vocabulary.
    pub(super) fn head(&self) -> Span<bf16> {
        let places = self.weights.1;
        self.weight(places.head.unwrap_or(places.embedding))
    }
}
