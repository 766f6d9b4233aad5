//! Backward pass: each layer except the last is recomputed from its input, then differentiated (activation
//! checkpointing).

use half::bf16;

use super::pass::LearnerPass;
use crate::cuda::CudaError;
use crate::cuda::driver::Driver;
use crate::cuda::kernel::{AttendBackward, DeviceSlice, RmsNormBackward, RotaryBackward, SiluMulBackward};
use crate::cuda::plan::{LayerLayout, Placement};

impl<D: Driver> LearnerPass<'_, D> {
    /// Backpropagates the gradient of the residual stream through all layers and adds to the adapter's gradients. The
    /// last layer's activations are still those of the forward pass.
    pub(super) fn backward(&self) -> Result<(), CudaError> {
        let layers = &self.weights.1.layers;
        for (index, layer) in layers.iter().enumerate().rev() {
            let input = self.buffers.back.inputs[index];
            if index + 1 < layers.len() {
                self.driver.copy(self.work(input), self.work(self.buffers.stream))?;
                self.forward_layer(index, layer, true)?;
                self.add_lora(Self::down(index, layer), self.work(self.buffers.activated), None)?;
            }
            self.feed_forward_backward(index, layer)?;
            self.attention_block_backward(index, layer, input)?;
        }
        Ok(())
    }

    /// Backpropagates through the feed-forward block.
    fn feed_forward_backward(&self, index: usize, layer: &LayerLayout) -> Result<(), CudaError> {
        let buffers = self.buffers;
        let back = &self.buffers.back;
        let activated = self.work(buffers.activated);
        let dactivated = self.work(back.activated);
        let gradient = self.rounded()?;
        self.project_backward(Self::down(index, layer), gradient, activated, Some(dactivated))?;
        SiluMulBackward {
            gate_up: self.work(buffers.gate_up),
            gradient: dactivated,
            gate_up_gradient: self.work(back.gate_up),
            rows: self.tokens as u32,
            width: self.config.ffn as u32,
        }
        .launch(self.driver)?;
        self.rms_norm(back.middle, layer.ffn_norm)?;
        let normed = self.work(buffers.normed);
        let dnormed = self.work(back.normed);
        self.project_backward(Self::gate_up(index, layer), (self.work(back.gate_up), None), normed, Some(dnormed))?;
        self.norm_backward(back.middle, layer.ffn_norm)
    }

    /// Backpropagates through the attention block. The input of the first layer gets no gradient: no trained parameters
    /// lie below it.
    fn attention_block_backward(
        &self,
        index: usize,
        layer: &LayerLayout,
        input: Placement<f32>,
    ) -> Result<(), CudaError> {
        let buffers = self.buffers;
        let back = &self.buffers.back;
        let attended = self.work(buffers.attended);
        let dattended = self.work(back.attended);
        let gradient = self.rounded()?;
        self.project_backward(Self::o(index, layer), gradient, attended, Some(dattended))?;
        self.attention_backward(layer)?;
        self.rms_norm(input, layer.attention_norm)?;
        let normed = self.work(buffers.normed);
        let dnormed = (index > 0).then(|| self.work(back.normed));
        self.project_backward(Self::qkv(index, layer), (self.work(back.qkv), None), normed, dnormed)?;
        if index > 0 { self.norm_backward(input, layer.attention_norm) } else { Ok(()) }
    }

    /// Backpropagates from attention's output to the outputs of the query, key and value projections.
    fn attention_backward(&self, layer: &LayerLayout) -> Result<(), CudaError> {
        let config = self.config;
        let buffers = self.buffers;
        let back = &self.buffers.back;
        let heads = config.heads as u32;
        let kv_heads = config.kv_heads as u32;
        let dim = config.head_dim as u32;
        AttendBackward {
            batch: self.batch(),
            tiles: self.work(buffers.layout.tiles),
            blocks: self.work(buffers.layout.blocks),
            qkv: self.work(buffers.qkv),
            stride: (heads + 2 * kv_heads) * dim,
            cache: self.work(buffers.cache),
            out: self.work(buffers.attended),
            gradient: self.work(back.attended),
            lse: self.work(buffers.lse),
            delta: self.work(back.delta),
            qkv_gradient: self.work(back.qkv),
            tokens: self.tokens as u32,
            tile_count: self.rows.tiles.len() as u32 / 2,
            block_count: self.rows.blocks.len() as u32 / 2,
            heads,
            kv_heads,
            dim,
        }
        .launch(self.driver)?;
        RotaryBackward {
            batch: self.batch(),
            raw: self.work(buffers.raw),
            bias: layer.bias.map(|bias| self.weight(bias)),
            head_norms: layer.head_norms.map(|norms| norms.map(|norm| self.weight(norm))),
            table: self.weight(self.weights.1.rotary),
            gradient: self.work(back.qkv),
            count: self.tokens as u32,
            heads,
            kv_heads,
            dim,
            eps: config.rms_eps,
        }
        .launch(self.driver)?;
        Ok(())
    }

    /// Returns the gradient of the residual stream rounded to `bf16`, for the base model, and in `f32`, for the
    /// adapter.
    fn rounded(&self) -> Result<(DeviceSlice<bf16>, Option<DeviceSlice<f32>>), CudaError> {
        let exact = self.work(self.buffers.back.stream);
        let half = self.work(self.buffers.back.half);
        self.narrow(exact, half, self.tokens * self.config.hidden)?;
        Ok((half, Some(exact)))
    }

    /// Backpropagates through an RMS norm, adding to the gradient of the residual stream.
    fn norm_backward(&self, stream: Placement<f32>, weight: Placement<f32>) -> Result<(), CudaError> {
        let back = &self.buffers.back;
        RmsNormBackward {
            stream: self.work(stream),
            index: None,
            weight: self.weight(weight),
            gradient: self.work(back.normed),
            stream_gradient: self.work(back.stream),
            rows: self.tokens as u32,
            width: self.config.hidden as u32,
            eps: self.config.rms_eps,
        }
        .launch(self.driver)?;
        Ok(())
    }
}
