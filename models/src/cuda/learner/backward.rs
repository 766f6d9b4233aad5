//! The way back, layer by layer: each is computed again from its input, then taken backwards.

use half::bf16;

use super::pass::Pass;
use crate::cuda::CudaError;
use crate::cuda::driver::Driver;
use crate::cuda::kernel::{AttendBackward, NormBackward, RotaryBackward, SiluMulBackward, Span};
use crate::cuda::plan::{LayerPlaces, Place};

impl<D: Driver> Pass<'_, D> {
    /// Takes the gradient of the stream down through all layers, and adds what adapters learn to their gradients. The last
    /// layer's activations are those of the forward pass still.
    pub(super) fn backward(&self) -> Result<(), CudaError> {
        let layers = &self.weights.1.layers;
        for (index, layer) in layers.iter().enumerate().rev() {
            let input = self.room.back.inputs[index];
            if index + 1 < layers.len() {
                self.driver.copy(self.work(input), self.work(self.room.stream))?;
                self.ascend(index, layer, true)?;
                self.add(Self::down(index, layer), self.work(self.room.activated), None)?;
            }
            self.feed_back(index, layer)?;
            self.attend_back(index, layer, input)?;
        }
        Ok(())
    }

    /// The feed-forward part.
    fn feed_back(&self, index: usize, layer: &LayerPlaces) -> Result<(), CudaError> {
        let (room, back) = (self.room, &self.room.back);
        let (activated, dactivated) = (self.work(room.activated), self.work(back.activated));
        let gradient = self.rounded()?;
        self.project_back(Self::down(index, layer), gradient, activated, Some(dactivated))?;
        SiluMulBackward {
            gate_up: self.work(room.gate_up),
            gradient: dactivated,
            gate_up_gradient: self.work(back.gate_up),
            rows: self.tokens as u32,
            width: self.config.ffn as u32,
        }
        .launch(self.driver)?;
        self.normalise(back.middle, layer.ffn_norm)?;
        let (normed, dnormed) = (self.work(room.normed), self.work(back.normed));
        self.project_back(Self::gate_up(index, layer), (self.work(back.gate_up), None), normed, Some(dnormed))?;
        self.normalise_back(back.middle, layer.ffn_norm)
    }

    /// The attention part. Below the first layer there is nothing that learns.
    fn attend_back(&self, index: usize, layer: &LayerPlaces, input: Place<f32>) -> Result<(), CudaError> {
        let (room, back) = (self.room, &self.room.back);
        let (attended, dattended) = (self.work(room.attended), self.work(back.attended));
        let gradient = self.rounded()?;
        self.project_back(Self::o(index, layer), gradient, attended, Some(dattended))?;
        self.look_back(layer)?;
        self.normalise(input, layer.attention_norm)?;
        let (normed, dnormed) = (self.work(room.normed), (index > 0).then(|| self.work(back.normed)));
        self.project_back(Self::qkv(index, layer), (self.work(back.qkv), None), normed, dnormed)?;
        if index > 0 { self.normalise_back(input, layer.attention_norm) } else { Ok(()) }
    }

    /// From the gradient of what attention gave to that of the projection's outputs.
    fn look_back(&self, layer: &LayerPlaces) -> Result<(), CudaError> {
        let (config, room, back) = (self.config, self.room, &self.room.back);
        let (heads, kv_heads, dim) = (config.heads as u32, config.kv_heads as u32, config.head_dim as u32);
        AttendBackward {
            batch: self.batch(),
            tiles: self.work(room.layout.tiles),
            blocks: self.work(room.layout.blocks),
            qkv: self.work(room.qkv),
            stride: (heads + 2 * kv_heads) * dim,
            cache: self.work(room.cache),
            out: self.work(room.attended),
            gradient: self.work(back.attended),
            lse: self.work(room.lse),
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
            raw: self.work(room.raw),
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

    /// The gradient of the stream, rounded for the base model's products and as it is for adapters.
    fn rounded(&self) -> Result<(Span<bf16>, Option<Span<f32>>), CudaError> {
        let (exact, half) = (self.work(self.room.back.stream), self.work(self.room.back.half));
        self.narrow(exact, half, self.tokens * self.config.hidden)?;
        Ok((half, Some(exact)))
    }

    /// Adds what a norm's input gets to the gradient of the stream.
    fn normalise_back(&self, stream: Place<f32>, weight: Place<f32>) -> Result<(), CudaError> {
        let back = &self.room.back;
        NormBackward {
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
