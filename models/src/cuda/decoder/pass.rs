//! One step as a sequence of kernels and matrix multiplications. The sequence depends only on the size of the step,
//! never on its content, so a graph captured for a size is valid for every step of that size.

use half::bf16;

use super::runner::StepRunner;
use crate::adapter::Site;
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceMatrix, Driver, MatMulTarget};
use crate::cuda::kernel::{
    AttendDecode, AttendPrefill, BatchBounds, BatchView, DeviceSlice, EmbedTokens, LoraExpand, LoraOut, LoraShrink,
    RmsNorm, Rotary, RowIndex, SampleTokens, SiluMul, SkinnyTarget,
};
use crate::cuda::lora_grid::LoraGrid;
use crate::cuda::plan::{LayerLayout, MatrixLayout, Placement, splits};
use crate::cuda::step_layout::{StepLayout, StepShape};

impl<D: Driver> StepRunner<D> {
    /// Enqueues the whole step: from tokens to logits, and sampling.
    pub(super) fn run(&self, step: &StepShape, lora: Option<LoraGrid>) -> Result<(), CudaError> {
        let config = &self.config;
        EmbedTokens {
            batch: self.batch(),
            table: self.weight(self.weight_layout.embedding),
            stream: self.work(self.buffers.stream),
            count: step.tokens as u32,
            width: config.hidden as u32,
            vocab: config.vocab as u32,
        }
        .launch(&self.driver)?;
        for (index, layer) in self.weight_layout.layers.iter().enumerate() {
            self.attention_block(index, layer, step, lora)?;
            self.feed_forward(index, layer, step, lora)?;
        }
        self.project_and_sample(step)
    }

    /// Attention block of one layer, added to the residual stream.
    fn attention_block(
        &self,
        index: usize,
        layer: &LayerLayout<MatrixLayout>,
        step: &StepShape,
        lora: Option<LoraGrid>,
    ) -> Result<(), CudaError> {
        let config = &self.config;
        let buffers = &self.buffers;
        let q = config.q_width();
        let kv = config.kv_width();
        self.rms_norm(layer.attention_norm, None, step.tokens)?;
        let normed = self.work(buffers.normed);
        let qkv = self.work(buffers.qkv);
        let target = MatMulTarget::Half(DeviceMatrix::new(qkv, q + 2 * kv));
        self.matmul(normed, step.tokens, (layer.qkv, q + 2 * kv, config.hidden), target)?;
        let ends = [q, q + kv, q + 2 * kv];
        self.add_lora((index, Site::Qkv), lora, (normed, config.hidden), LoraOut::Activation(qkv), ends)?;
        Rotary {
            batch: self.batch(),
            qkv,
            bias: layer.bias.map(|bias| self.weight(bias)),
            head_norms: layer.head_norms.map(|norms| norms.map(|norm| self.weight(norm))),
            table: self.weight(self.weight_layout.rotary),
            cache: self.blocks(index),
            count: step.tokens as u32,
            heads: config.heads as u32,
            kv_heads: config.kv_heads as u32,
            dim: config.head_dim as u32,
            eps: config.rms_eps,
        }
        .launch(&self.driver)?;
        self.attention(index, step)?;
        let attended = self.work(buffers.attended);
        let stream = self.work(buffers.stream);
        let target = MatMulTarget::Sum(DeviceMatrix::new(stream, config.hidden));
        self.matmul(attended, step.tokens, (layer.o, config.hidden, q), target)?;
        self.add_lora((index, Site::O), lora, (attended, q), LoraOut::Stream(stream), [config.hidden; 3])
    }

    /// Attention of the queries to the KV cache: one kernel for rows with one token, another for the rest.
    fn attention(&self, index: usize, step: &StepShape) -> Result<(), CudaError> {
        let config = &self.config;
        let buffers = &self.buffers;
        let heads = config.heads as u32;
        let kv_heads = config.kv_heads as u32;
        let dim = config.head_dim as u32;
        let qkv = self.work(buffers.qkv);
        let stride = (heads + 2 * kv_heads) * dim;
        let cache = self.blocks(index);
        let out = self.work(buffers.attended);
        if step.single_token_rows > 0 {
            AttendDecode {
                batch: self.batch(),
                qkv,
                stride,
                cache,
                workspace: self.work(buffers.partial),
                arrived: self.work(buffers.arrived),
                out,
                rows: step.single_token_rows as u32,
                splits: splits(config, &self.limits, step.single_token_rows, self.multiprocessors),
                heads,
                kv_heads,
                dim,
            }
            .launch(&self.driver)?;
        }
        if step.tiles > 0 {
            AttendPrefill {
                batch: self.batch(),
                tiles: self.layout_slice(self.step_layout.tiles),
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

    /// Feed-forward block of one layer, added to the residual stream.
    fn feed_forward(
        &self,
        index: usize,
        layer: &LayerLayout<MatrixLayout>,
        step: &StepShape,
        lora: Option<LoraGrid>,
    ) -> Result<(), CudaError> {
        let config = &self.config;
        let buffers = &self.buffers;
        let rows = step.tokens;
        self.rms_norm(layer.ffn_norm, None, rows)?;
        let normed = self.work(buffers.normed);
        let out = self.work(buffers.activated);
        let gate_up = self.work(buffers.gate_up);
        let weights = (layer.gate_up, 2 * config.ffn, config.hidden);
        let target = MatMulTarget::Half(DeviceMatrix::new(gate_up, 2 * config.ffn));
        // Adapters add to the projections before the activation.
        if self.is_skinny(rows, weights, target) && lora.is_none() {
            self.skinny(normed, rows, (layer.gate_up, config.ffn, config.hidden), SkinnyTarget::SiluMul(out))?;
        } else {
            self.matmul(normed, rows, weights, target)?;
            let ends = [config.ffn, 2 * config.ffn, 2 * config.ffn];
            self.add_lora((index, Site::GateUp), lora, (normed, config.hidden), LoraOut::Activation(gate_up), ends)?;
            SiluMul { gate_up, out, rows: rows as u32, width: config.ffn as u32 }.launch(&self.driver)?;
        }
        let stream = self.work(buffers.stream);
        let target = MatMulTarget::Sum(DeviceMatrix::new(stream, config.hidden));
        self.matmul(out, rows, (layer.down, config.hidden, config.ffn), target)?;
        self.add_lora((index, Site::Down), lora, (out, config.ffn), LoraOut::Stream(stream), [config.hidden; 3])
    }

    /// Computes the logits of the wanted rows and samples a token for each row with settings.
    fn project_and_sample(&self, step: &StepShape) -> Result<(), CudaError> {
        if step.logits == 0 {
            return Ok(());
        }
        let config = &self.config;
        let buffers = &self.buffers;
        let wanted = RowIndex { rows: self.layout_slice(self.step_layout.wanted), bound: self.limits.tokens };
        self.rms_norm(self.weight_layout.norm, Some(wanted), step.logits)?;
        let head = self.weight_layout.head.unwrap_or(self.weight_layout.embedding);
        let logits = self.work(buffers.logits);
        let normed = self.work(buffers.normed);
        let most = self.limits.rows;
        let target = MatMulTarget::Single(DeviceMatrix::new(logits, config.vocab));
        self.matmul(normed, step.logits, (head.into(), config.vocab, config.hidden), target)?;
        SampleTokens {
            logits,
            settings: self.layout_slice(self.step_layout.samples),
            adjustments: self.layout_slice(self.step_layout.adjustments),
            adjusted: self.step_layout.adjustments.len(),
            scratch: self.work(buffers.sampling),
            ids: self.results_third(0),
            logprobs: self.work(Placement::new(buffers.results.part(most, most).first(), most)),
            status: self.results_third(2),
            rows: step.logits as u32,
            vocab: config.vocab as u32,
        }
        .launch(&self.driver)?;
        Ok(())
    }

    /// RMS norm of the first rows of the residual stream, or of the rows at `index`.
    fn rms_norm(&self, weight: Placement<f32>, index: Option<RowIndex>, rows: usize) -> Result<(), CudaError> {
        RmsNorm {
            stream: self.work(self.buffers.stream),
            index,
            weight: self.weight(weight),
            out: self.work(self.buffers.normed),
            rows: rows as u32,
            width: self.config.hidden as u32,
            eps: self.config.rms_eps,
        }
        .launch(&self.driver)?;
        Ok(())
    }

    /// Adds the adapters' contribution at a site.
    fn add_lora(
        &self,
        (layer, site): (usize, Site),
        lora: Option<LoraGrid>,
        (x, inn): (DeviceSlice<bf16>, usize),
        y: LoraOut,
        ends: [usize; 3],
    ) -> Result<(), CudaError> {
        let Some((LoraGrid { tiles: count, stride }, factors)) = lora.zip(self.factors(layer, site)) else {
            return Ok(());
        };
        let tiles = self.layout_slice(self.step_layout.lora);
        let order = RowIndex { rows: self.layout_slice(self.step_layout.order), bound: self.limits.tokens };
        let count = count as u32;
        let stride = stride as u32;
        let small = self.work(self.buffers.small);
        LoraShrink { factors, tiles, order, x, small, stride, count, inn: inn as u32 }.launch(&self.driver)?;
        let ends = ends.map(|end| end as u32);
        LoraExpand { factors, tiles, order, small, stride, y, count, ends }.launch(&self.driver)?;
        Ok(())
    }

    fn batch(&self) -> BatchView {
        let StepLayout { tokens, positions, rows, first, context, tables, stride, .. } = self.step_layout;
        BatchView {
            tokens: self.layout_slice(tokens),
            positions: self.layout_slice(positions),
            rows: self.layout_slice(rows),
            first: self.layout_slice(first),
            context: self.layout_slice(context),
            tables: self.layout_slice(tables),
            stride: stride as u32,
            bounds: BatchBounds {
                rows: self.limits.rows,
                tokens: self.limits.tokens,
                positions: self.limits.context,
                blocks: self.blocks,
            },
        }
    }

    /// Returns one third of the results.
    fn results_third(&self, third: usize) -> DeviceSlice<u32> {
        self.work(self.buffers.results.part(third * self.limits.rows, self.limits.rows))
    }
}
