//! One step as a line of kernels and products. Nothing in here depends on what a step holds, only on how large it is: so a
//! line that was recorded for a size is right for every step of that size.

use half::bf16;

use super::machine::Machine;
use crate::adapter::Site;
use crate::cuda::CudaError;
use crate::cuda::driver::{Driver, Matrix, Operands, Product, Target};
use crate::cuda::image::{Image, Step};
use crate::cuda::kernel::{
    AttendDecode, AttendPrefill, BatchView, Embed, LoraExpand, LoraOut, LoraShrink, Norm, Rotary, Sample, SiluMul, Span,
};
use crate::cuda::plan::{LayerPlaces, Place, splits};
use crate::cuda::reach::Grid;

impl<D: Driver> Machine<D> {
    /// Puts the whole step in line: from tokens to logits, and what is sampled from them.
    pub(super) fn run(&self, step: &Step, lora: Option<Grid>) -> Result<(), CudaError> {
        let config = &self.config;
        Embed {
            batch: self.batch(),
            table: self.weight(self.places.embedding),
            stream: self.work(self.room.stream),
            count: step.tokens as u32,
            width: config.hidden as u32,
            vocab: config.vocab as u32,
        }
        .launch(&self.driver)?;
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
        let (normed, qkv) = (self.work(room.normed), self.work(room.qkv));
        let target = Target::Half(Matrix::new(qkv, q + 2 * kv));
        self.product(normed, step.tokens, (layer.qkv, q + 2 * kv, config.hidden), target)?;
        let ends = [q, q + kv, q + 2 * kv];
        self.adapt((index, Site::Qkv), lora, (normed, config.hidden), LoraOut::Activation(qkv), ends)?;
        Rotary {
            batch: self.batch(),
            qkv,
            bias: layer.bias.map(|bias| self.weight(bias)),
            head_norms: layer.head_norms.map(|norms| norms.map(|norm| self.weight(norm))),
            table: self.weight(self.places.rotary),
            cache: self.blocks(index),
            count: step.tokens as u32,
            heads: config.heads as u32,
            kv_heads: config.kv_heads as u32,
            dim: config.head_dim as u32,
            eps: config.rms_eps,
        }
        .launch(&self.driver)?;
        self.look(index, step)?;
        let (attended, stream) = (self.work(room.attended), self.work(room.stream));
        let target = Target::Sum(Matrix::new(stream, config.hidden));
        self.product(attended, step.tokens, (layer.o, config.hidden, q), target)?;
        self.adapt((index, Site::O), lora, (attended, q), LoraOut::Stream(stream), [config.hidden; 3])
    }

    /// Lets the queries look at the cache: rows of one token one way, the others another.
    fn look(&self, index: usize, step: &Step) -> Result<(), CudaError> {
        let (config, room) = (&self.config, &self.room);
        let (heads, kv_heads, dim) = (config.heads as u32, config.kv_heads as u32, config.head_dim as u32);
        let (qkv, stride) = (self.work(room.qkv), (heads + 2 * kv_heads) * dim);
        let (cache, out) = (self.blocks(index), self.work(room.attended));
        if step.singles > 0 {
            AttendDecode {
                batch: self.batch(),
                qkv,
                stride,
                cache,
                workspace: self.work(room.partial),
                arrived: self.work(room.arrived),
                out,
                rows: step.singles as u32,
                splits: splits(config, &self.limits, step.singles, self.processors),
                heads,
                kv_heads,
                dim,
            }
            .launch(&self.driver)?;
        }
        if step.tiles > 0 {
            AttendPrefill {
                batch: self.batch(),
                tiles: self.laid(self.image.tiles),
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
            .launch(&self.driver)?;
        }
        Ok(())
    }

    /// The feed-forward part of one layer, added to the stream.
    fn feed(&self, index: usize, layer: &LayerPlaces, step: &Step, lora: Option<Grid>) -> Result<(), CudaError> {
        let (config, room, rows) = (&self.config, &self.room, step.tokens);
        self.normalise(layer.ffn_norm, None, rows)?;
        let (normed, gate_up) = (self.work(room.normed), self.work(room.gate_up));
        let target = Target::Half(Matrix::new(gate_up, 2 * config.ffn));
        self.product(normed, rows, (layer.gate_up, 2 * config.ffn, config.hidden), target)?;
        let ends = [config.ffn, 2 * config.ffn, 2 * config.ffn];
        self.adapt((index, Site::GateUp), lora, (normed, config.hidden), LoraOut::Activation(gate_up), ends)?;
        let out = self.work(room.activated);
        SiluMul { gate_up, out, rows: rows as u32, width: config.ffn as u32 }.launch(&self.driver)?;
        let stream = self.work(room.stream);
        let target = Target::Sum(Matrix::new(stream, config.hidden));
        self.product(out, rows, (layer.down, config.hidden, config.ffn), target)?;
        self.adapt((index, Site::Down), lora, (out, config.ffn), LoraOut::Stream(stream), [config.hidden; 3])
    }

    /// Logits of the wanted rows, and a token for each that is to be sampled.
    fn choose(&self, step: &Step) -> Result<(), CudaError> {
        if step.logits == 0 {
            return Ok(());
        }
        let (config, room) = (&self.config, &self.room);
        self.normalise(self.places.norm, Some(self.laid(self.image.wanted)), step.logits)?;
        let head = self.places.head.unwrap_or(self.places.embedding);
        let (logits, normed, most) = (self.work(room.logits), self.work(room.normed), self.limits.rows);
        let target = Target::Single(Matrix::new(logits, config.vocab));
        self.product(normed, step.logits, (head, config.vocab, config.hidden), target)?;
        Sample {
            logits,
            settings: self.laid(self.image.samples),
            ids: self.third(0),
            logprobs: self.work(Place::new(room.results.part(most, most).first(), most)),
            status: self.third(2),
            rows: step.logits as u32,
            vocab: config.vocab as u32,
        }
        .launch(&self.driver)?;
        Ok(())
    }

    /// RMS norm of the stream's first rows, or of those at `index`.
    fn normalise(&self, weight: Place<f32>, index: Option<Span<u32>>, rows: usize) -> Result<(), CudaError> {
        Norm {
            stream: self.work(self.room.stream),
            index,
            weight: self.weight(weight),
            out: self.work(self.room.normed),
            rows: rows as u32,
            width: self.config.hidden as u32,
            eps: self.config.rms_eps,
        }
        .launch(&self.driver)?;
        Ok(())
    }

    /// `target = x · Wᵀ`, or added to it: x has shape (rows, inn), the matrix (out, inn).
    fn product(
        &self,
        x: Span<bf16>,
        rows: usize,
        (matrix, out, inn): (Place<bf16>, usize, usize),
        target: Target,
    ) -> Result<(), CudaError> {
        let operands = Operands::Half(Matrix::new(x, inn), Matrix::new(self.weight(matrix), inn).transpose());
        self.driver.multiply(&Product { operands, target, rows, inner: inn, columns: out, scale: 1.0 })
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
        let Some((Grid { tiles: count, stride }, factors)) = lora.zip(self.factors(layer, site)) else {
            return Ok(());
        };
        let (tiles, order) = (self.laid(self.image.lora), self.laid(self.image.order));
        let (count, stride, small) = (count as u32, stride as u32, self.work(self.room.small));
        LoraShrink { factors, tiles, order, x, small, stride, count, inn: inn as u32 }.launch(&self.driver)?;
        let ends = ends.map(|end| end as u32);
        LoraExpand { factors, tiles, order, small, stride, y, count, ends }.launch(&self.driver)?;
        Ok(())
    }

    fn batch(&self) -> BatchView {
        let Image { tokens, positions, rows, first, context, tables, stride, .. } = self.image;
        BatchView {
            tokens: self.laid(tokens),
            positions: self.laid(positions),
            rows: self.laid(rows),
            first: self.laid(first),
            context: self.laid(context),
            tables: self.laid(tables),
            stride: stride as u32,
        }
    }

    /// One third of the results.
    fn third(&self, third: usize) -> Span<u32> {
        self.work(self.room.results.part(third * self.limits.rows, self.limits.rows))
    }
}
