//! The whole decoder, forward and backward.

use std::ops::Range;

use super::layer::{LayerPass, TrainableLayer};
use super::norm::Vector;
use super::tape::{LayerActivations, PassScratch, Tape};
use super::unembedding::Unembedding;
use super::vocabulary;
use super::{Likeliest, Module, Objective, Pack, Score};
use crate::kernel::{Packed, Team, add, axpy, scale};

/// Trainable weights of a decoder.
#[derive(Debug)]
pub(super) struct Network {
    /// Embedding matrix. `None` if the vocabulary projection serves as one.
    pub(super) embedding: Option<EmbeddingMatrix>,
    pub(super) layers: Vec<TrainableLayer>,
    pub(super) norm: Vector,
    pub(super) head: Unembedding,
}

/// An embedding matrix separate from the vocabulary projection.
#[derive(Debug)]
pub(super) struct EmbeddingMatrix {
    /// Packed rows, shape (vocab, hidden).
    pub(super) rows: Packed,
    pub(super) trained: Option<Range<usize>>,
}

impl Network {
    /// Updates the weights with changed values.
    pub(super) fn repack(&mut self, team: &Team, values: &[f32]) {
        team.rows(&mut self.layers, 1, 1, &|_, layers| layers.iter_mut().for_each(|layer| layer.repack(values)));
        self.norm.repack(values);
        self.head.repack(values);
        if let Some(EmbeddingMatrix { rows, trained: Some(range) }) = &mut self.embedding {
            *rows = Packed::from_f32(&values[range.clone()], rows.out(), rows.inn());
        }
    }

    /// Size of the packed weights, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(TrainableLayer::bytes).sum();
        layers + self.head.bytes() + self.embedding.as_ref().map_or(0, |embedding| embedding.rows.bytes())
    }

    /// Adapter rank of each module; 0 without an adapter.
    pub(super) fn ranks(&self) -> [usize; Module::COUNT] {
        self.layers.first().map_or([0; Module::COUNT], TrainableLayer::ranks)
    }

    /// Scores of all targets. `kept` and `scratch` must have their size.
    pub(super) fn score(
        &self,
        pass: &LayerPass<'_>,
        pack: &Pack,
        kept: &mut LayerActivations,
        scratch: &mut PassScratch,
    ) -> Vec<Score> {
        let tokens = self.forward(pass, pack, kept, scratch);
        vocabulary::score(pass.rows.team, self.head.weight(), pass.cap(), &scratch.hidden, &tokens)
    }

    /// The `count` most probable tokens at all targets. `kept` and `scratch` must have their size.
    pub(super) fn likeliest(
        &self,
        pass: &LayerPass<'_>,
        pack: &Pack,
        count: usize,
        kept: &mut LayerActivations,
        scratch: &mut PassScratch,
    ) -> Vec<Likeliest> {
        self.forward(pass, pack, kept, scratch);
        vocabulary::likeliest(pass.rows.team, self.head.weight(), pass.cap(), &scratch.hidden, count)
    }

    /// Hidden states that predict the targets. `kept` and `scratch` must have their size.
    pub(super) fn states(
        &self,
        pass: &LayerPass<'_>,
        pack: &Pack,
        kept: &mut LayerActivations,
        scratch: &mut PassScratch,
    ) -> Vec<Vec<f32>> {
        self.forward(pass, pack, kept, scratch);
        // `finish` has applied the scale of the logits, which is not part of the states.
        let factor = pass.config.architecture.logit_scale;
        let state = |row: &[f32]| row.iter().map(|value| value / factor).collect();
        scratch.hidden.chunks_exact(pass.config.hidden).map(state).collect()
    }

    /// Runs the forward pass, leaves the hidden states that predict a target in `scratch.hidden`, and returns the
    /// targets' tokens.
    fn forward(
        &self,
        pass: &LayerPass<'_>,
        pack: &Pack,
        kept: &mut LayerActivations,
        scratch: &mut PassScratch,
    ) -> Vec<u32> {
        self.begin(pass, pack, scratch);
        self.layers.iter().for_each(|layer| layer.forward(pass, kept, scratch));
        self.finish(pass, pack, scratch)
    }

    /// Runs the forward and backward passes. The first `whole` layers keep their activations, the others recompute
    /// them. `tape` and `scratch` must have their size.
    pub(super) fn learn(
        &self,
        pass: &LayerPass<'_>,
        pack: &Pack,
        (tape, whole): (&mut Tape, usize),
        scratch: &mut PassScratch,
        objective: &mut dyn Objective,
        gradients: &mut [f32],
    ) {
        self.begin(pass, pack, scratch);
        for (index, layer) in self.layers.iter().enumerate() {
            tape.inputs[index].copy_from_slice(&scratch.stream);
            layer.forward(pass, &mut tape.activations[index.min(whole)], scratch);
        }
        let tokens = self.finish(pass, pack, scratch);
        self.backward_loss(pass, pack, &tokens, scratch, objective, gradients);
        let embedded = self.embedded();
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let input = &tape.inputs[index];
            let kept = &mut tape.activations[index.min(whole)];
            // The last layer's activations are still in memory.
            if index >= whole && index + 1 < self.layers.len() {
                std::mem::swap(&mut scratch.stream, &mut scratch.dstream);
                scratch.stream.copy_from_slice(input);
                layer.forward_again(pass, kept, scratch);
                std::mem::swap(&mut scratch.stream, &mut scratch.dstream);
            }
            layer.backward(pass, input, kept, scratch, gradients, index > 0 || embedded.is_some());
        }
        if let Some(range) = embedded {
            let gradient = &mut gradients[range];
            let factor = pass.config.architecture.embedding_scale;
            for (&token, d) in pack.tokens().iter().zip(scratch.stream.chunks_exact(pass.config.hidden)) {
                axpy(&mut gradient[token as usize * pass.config.hidden..][..pass.config.hidden], factor, d);
            }
        }
    }

    /// Range of the embedding's gradient. `None` if it is frozen.
    fn embedded(&self) -> Option<Range<usize>> {
        match &self.embedding {
            Some(embedding) => embedding.trained.clone(),
            None => self.head.range(),
        }
    }

    /// Looks up the embeddings of the tokens.
    fn begin(&self, pass: &LayerPass<'_>, pack: &Pack, scratch: &mut PassScratch) {
        let rows = self.embedding.as_ref().map_or(self.head.weight(), |embedding| &embedding.rows);
        for (row, &token) in scratch.stream.chunks_exact_mut(pass.config.hidden).zip(pack.tokens()) {
            rows.row_f32(token as usize, row);
        }
        if pass.config.architecture.embedding_scale != 1.0 {
            scale(&mut scratch.stream, pass.config.architecture.embedding_scale);
        }
    }

    /// Applies the final norm and the scale of the logits to the rows that predict a target, and returns the targets'
    /// tokens.
    fn finish(&self, pass: &LayerPass<'_>, pack: &Pack, scratch: &mut PassScratch) -> Vec<u32> {
        let hidden = pass.config.hidden;
        for (target, last) in pack.targets().iter().zip(scratch.last.chunks_exact_mut(hidden)) {
            last.copy_from_slice(&scratch.stream[target.at * hidden..][..hidden]);
        }
        self.norm.normalize(pass.rows.team, &scratch.last, pass.config.rms_eps, &mut scratch.hidden);
        if pass.config.architecture.logit_scale != 1.0 {
            scale(&mut scratch.hidden, pass.config.architecture.logit_scale);
        }
        pack.targets().iter().map(|target| target.token).collect()
    }

    /// Computes the loss and its gradient with respect to the residual stream. The gradient replaces the stream.
    fn backward_loss(
        &self,
        pass: &LayerPass<'_>,
        pack: &Pack,
        tokens: &[u32],
        scratch: &mut PassScratch,
        objective: &mut dyn Objective,
        gradients: &mut [f32],
    ) {
        let config = pass.config;
        let team = pass.rows.team;
        let PassScratch { stream, hidden, dhidden, last, dlast, .. } = scratch;
        let trained = self.head.range().map(|range| &mut gradients[range]);
        vocabulary::learn(team, self.head.head(pass.cap()), hidden, tokens, objective, dhidden, trained);
        if config.architecture.logit_scale != 1.0 {
            scale(dhidden, config.architecture.logit_scale);
        }
        dlast.fill(0.0);
        self.norm.back(team, last, config.rms_eps, dhidden, dlast, gradients);
        stream.fill(0.0);
        for (target, d) in pack.targets().iter().zip(dlast.chunks_exact(config.hidden)) {
            add(&mut stream[target.at * config.hidden..][..config.hidden], d);
        }
    }
}
