//! One step as a line of kernels and products. Nothing in here depends on what a step holds, only on how large it is: so a
//! line that was recorded for a size is right for every step of that size.

use half::bf16;

use super::adapters::Adapters;
use crate::adapter::Site;
use crate::cuda::CudaError;
use crate::cuda::device::{Blas, Card, Graph, Region, Target};
use crate::cuda::graphs::Line;
use crate::cuda::image::{Image, Step};
use crate::cuda::kernel::{
    AttendDecode, AttendPrefill, BatchView, Embed, LoraExpand, LoraOut, LoraShrink, Norm, Rotary, Sample, SiluMul,
    Span, layout,
};
use crate::cuda::plan::{LayerPlaces, Limits, Place, WeightPlaces, WorkPlaces, splits};
use crate::cuda::reach::Grid;
use crate::decoder::DecoderConfig;

/// Everything a step reads and writes, all of it taken when a decoder is loaded.
pub(super) struct Machine {
    // In the order in which they have to go, the card last.
    pub(super) adapters: Adapters,
    pub(super) config: DecoderConfig,
    pub(super) limits: Limits,
    pub(super) places: WeightPlaces,
    pub(super) room: WorkPlaces,
    pub(super) image: Image,
    /// KV blocks.
    pub(super) blocks: usize,
    pub(super) weights: Region,
    pub(super) work: Region,
    pub(super) cache: Region,
    pub(super) layout: Region,
    pub(super) blas: Blas,
    pub(super) card: Card,
}

/// One step of one machine.
pub(super) struct Pass<'a> {
    pub(super) machine: &'a Machine,
    pub(super) step: Step,
    pub(super) lora: Option<Grid>,
}

impl Line for Pass<'_> {
    type Graph = Graph;
    type Error = CudaError;

    fn launch(&self) -> Result<(), CudaError> {
        self.machine.run(&self.step, self.lora)
    }

    fn record(&self) -> Result<Graph, CudaError> {
        Graph::record(&self.machine.card, || self.launch())
    }

    fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        graph.launch()
    }

    fn settle(&self) -> Result<(), CudaError> {
        self.machine.card.synchronize()
    }
}

impl Machine {
    /// Puts the whole step in line: from tokens to logits, and what is sampled from them.
    pub(super) fn run(&self, step: &Step, lora: Option<Grid>) -> Result<(), CudaError> {
        let config = &self.config;
        Embed {
            batch: self.batch(),
            table: self.weights.span(self.places.embedding),
            stream: self.work.span(self.room.stream),
            count: step.tokens as u32,
            width: config.hidden as u32,
            vocab: config.vocab as u32,
        }
        .launch(&self.card)?;
        for (index, layer) in self.places.layers.iter().enumerate() {
            self.attend(index, layer, step, lora)?;
            self.feed(index, layer, step, lora)?;
        }
        self.choose(step)
    }

    /// Attention of one layer, added to the stream.
    fn attend(&self, index: usize, layer: &LayerPlaces, step: &Step, lora: Option<Grid>) -> Result<(), CudaError> {
        let (config, room) = (&self.config, &self.room);
        let (q, kv) = (config.q_width(), config.kv_width());
        self.normalise(layer.attention_norm, None, step.tokens)?;
        let (normed, qkv) = (self.work.span(room.normed), self.work.span(room.qkv));
        self.product(normed, step.tokens, (layer.qkv, q + 2 * kv, config.hidden), Target::Half(qkv))?;
        let ends = [q, q + kv, q + 2 * kv];
        self.adapt((index, Site::Qkv), lora, (normed, config.hidden), LoraOut::Activation(qkv), ends)?;
        Rotary {
            batch: self.batch(),
            qkv,
            bias: layer.bias.map(|bias| self.weights.span(bias)),
            head_norms: layer.head_norms.map(|norms| norms.map(|norm| self.weights.span(norm))),
            table: self.weights.span(self.places.rotary),
            cache: self.blocks(index),
            count: step.tokens as u32,
            heads: config.heads as u32,
            kv_heads: config.kv_heads as u32,
            dim: config.head_dim as u32,
            eps: config.rms_eps,
        }
        .launch(&self.card)?;
        self.look(index, step)?;
        let (attended, stream) = (self.work.span(room.attended), self.work.span(room.stream));
        self.product(attended, step.tokens, (layer.o, config.hidden, q), Target::Sum(stream))?;
        self.adapt((index, Site::O), lora, (attended, q), LoraOut::Stream(stream), [config.hidden; 3])
    }

    /// Lets the queries look at the cache: rows of one token one way, the others another.
    fn look(&self, index: usize, step: &Step) -> Result<(), CudaError> {
        let (config, room) = (&self.config, &self.room);
        let (heads, kv_heads, dim) = (config.heads as u32, config.kv_heads as u32, config.head_dim as u32);
        let (qkv, stride) = (self.work.span(room.qkv), (heads + 2 * kv_heads) * dim);
        let (cache, out) = (self.blocks(index), self.work.span(room.attended));
        if step.singles > 0 {
            AttendDecode {
                batch: self.batch(),
                qkv,
                stride,
                cache,
                workspace: self.work.span(room.partial),
                arrived: self.work.span(room.arrived),
                out,
                rows: step.singles as u32,
                splits: splits(config, &self.limits, step.singles, self.card.info().processors),
                heads,
                kv_heads,
                dim,
            }
            .launch(&self.card)?;
        }
        if step.tiles > 0 {
            AttendPrefill {
                batch: self.batch(),
                tiles: self.layout.span(self.image.tiles),
                qkv,
                stride,
                cache,
                out,
                lse: None,
                count: step.tiles as u32,
                heads,
                kv_heads,
                dim,
            }
            .launch(&self.card)?;
        }
        Ok(())
    }

    /// The feed-forward part of one layer, added to the stream.
    fn feed(&self, index: usize, layer: &LayerPlaces, step: &Step, lora: Option<Grid>) -> Result<(), CudaError> {
        let (config, room, rows) = (&self.config, &self.room, step.tokens);
        self.normalise(layer.ffn_norm, None, rows)?;
        let (normed, gate_up) = (self.work.span(room.normed), self.work.span(room.gate_up));
        self.product(normed, rows, (layer.gate_up, 2 * config.ffn, config.hidden), Target::Half(gate_up))?;
        let ends = [config.ffn, 2 * config.ffn, 2 * config.ffn];
        self.adapt((index, Site::GateUp), lora, (normed, config.hidden), LoraOut::Activation(gate_up), ends)?;
        let out = self.work.span(room.activated);
        SiluMul { gate_up, out, rows: rows as u32, width: config.ffn as u32 }.launch(&self.card)?;
        let stream = self.work.span(room.stream);
        self.product(out, rows, (layer.down, config.hidden, config.ffn), Target::Sum(stream))?;
        self.adapt((index, Site::Down), lora, (out, config.ffn), LoraOut::Stream(stream), [config.hidden; 3])
    }

    /// Logits of the wanted rows, and a token for each that is to be sampled.
    fn choose(&self, step: &Step) -> Result<(), CudaError> {
        if step.logits == 0 {
            return Ok(());
        }
        let (config, room) = (&self.config, &self.room);
        self.normalise(self.places.norm, Some(self.layout.span(self.image.wanted)), step.logits)?;
        let head = self.places.head.unwrap_or(self.places.embedding);
        let logits = self.work.span(room.logits);
        let normed = self.work.span(room.normed);
        self.product(normed, step.logits, (head, config.vocab, config.hidden), Target::Single(logits))?;
        let third = self.limits.rows;
        Sample {
            logits,
            settings: self.layout.span(self.image.samples),
            ids: self.results(0),
            logprobs: self.work.span(Place::new(room.results.part(third, third).first(), third)),
            status: self.results(2),
            rows: step.logits as u32,
            vocab: config.vocab as u32,
        }
        .launch(&self.card)?;
        Ok(())
    }

    /// RMS norm of the stream's first rows, or of those at `index`.
    fn normalise(&self, weight: Place<f32>, index: Option<Span<u32>>, rows: usize) -> Result<(), CudaError> {
        Norm {
            stream: self.work.span(self.room.stream),
            index,
            weight: self.weights.span(weight),
            out: self.work.span(self.room.normed),
            rows: rows as u32,
            width: self.config.hidden as u32,
            eps: self.config.rms_eps,
        }
        .launch(&self.card)?;
        Ok(())
    }

    fn product(
        &self,
        x: Span<bf16>,
        rows: usize,
        (matrix, out, inn): (Place<bf16>, usize, usize),
        y: Target,
    ) -> Result<(), CudaError> {
        self.blas.product(x, rows, (self.weights.span(matrix), out, inn), y)
    }

    /// Adds what adapters compute at a site.
    fn adapt(
        &self,
        (layer, site): (usize, Site),
        lora: Option<Grid>,
        (x, inn): (Span<bf16>, usize),
        y: LoraOut,
        ends: [usize; 3],
    ) -> Result<(), CudaError> {
        let Some((Grid { tiles: count, stride }, factors)) = lora.zip(self.adapters.at(layer, site)) else {
            return Ok(());
        };
        let (tiles, order) = (self.layout.span(self.image.lora), self.layout.span(self.image.order));
        let (count, stride, small) = (count as u32, stride as u32, self.work.span(self.room.small));
        LoraShrink { factors, tiles, order, x, small, stride, count, inn: inn as u32 }.launch(&self.card)?;
        let ends = ends.map(|end| end as u32);
        LoraExpand { factors, tiles, order, small, stride, y, count, ends }.launch(&self.card)?;
        Ok(())
    }

    fn batch(&self) -> BatchView {
        let Image { tokens, positions, rows, first, context, tables, stride, .. } = self.image;
        BatchView {
            tokens: self.layout.span(tokens),
            positions: self.layout.span(positions),
            rows: self.layout.span(rows),
            first: self.layout.span(first),
            context: self.layout.span(context),
            tables: self.layout.span(tables),
            stride: stride as u32,
        }
    }

    /// One layer's blocks.
    fn blocks(&self, layer: usize) -> Span<bf16> {
        let len = self.blocks * layout::block_len(self.config.kv_heads, self.config.head_dim);
        self.cache.span(Place::new(layer * len * size_of::<bf16>(), len))
    }

    /// One third of the results.
    fn results(&self, third: usize) -> Span<u32> {
        self.work.span(self.room.results.part(third * self.limits.rows, self.limits.rows))
    }
}
