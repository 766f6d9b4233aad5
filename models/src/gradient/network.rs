//! The whole decoder, forward and backward.

use std::ops::Range;

use super::layer::{Layer, Pass};
use super::norm::Vector;
use super::tape::{Kept, Scratch, Tape};
use super::unembedding::Unembedding;
use super::vocabulary;
use super::{Likeliest, Module, Objective, Pack, Score};
use crate::kernel::{Packed, Team, add};

/// A decoder's weights for learning.
#[derive(Debug)]
pub(super) struct Network {
    /// Where tokens are looked up; none when that is the head.
    pub(super) embedding: Option<Embedding>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Vector,
    pub(super) head: Unembedding,
}

/// An embedding matrix of its own.
#[derive(Debug)]
pub(super) struct Embedding {
    /// Shape (vocab, hidden).
    pub(super) rows: Packed,
    pub(super) learnt: Option<Range<usize>>,
}

impl Network {
    /// Takes over changed values.
    pub(super) fn repack(&mut self, team: &Team, values: &[f32]) {
        team.rows(&mut self.layers, 1, 1, &|_, layers| layers.iter_mut().for_each(|layer| layer.repack(values)));
        self.norm.repack(values);
        self.head.repack(values);
        if let Some(Embedding { rows, learnt: Some(range) }) = &mut self.embedding {
            *rows = Packed::from_f32(&values[range.clone()], rows.out(), rows.inn());
        }
    }

    /// Bytes the packed forms take.
    pub(super) fn bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::bytes).sum();
        layers + self.head.bytes() + self.embedding.as_ref().map_or(0, |embedding| embedding.rows.bytes())
    }

    /// The rank of each module's adapter; 0 without one.
    pub(super) fn ranks(&self) -> [usize; Module::COUNT] {
        self.layers.first().map_or([0; Module::COUNT], Layer::ranks)
    }

    /// Scores of all targets. `kept` and `scratch` have their size.
    pub(super) fn score(&self, pass: &Pass<'_>, pack: &Pack, kept: &mut Kept, scratch: &mut Scratch) -> Vec<Score> {
        let tokens = self.forward(pass, pack, kept, scratch);
        vocabulary::score(pass.rows.team, self.head.weight(), &scratch.hidden, &tokens)
    }

    /// The `count` most probable tokens at all targets. `kept` and `scratch` have their size.
    pub(super) fn likeliest(
        &self,
        pass: &Pass<'_>,
        pack: &Pack,
        count: usize,
        kept: &mut Kept,
        scratch: &mut Scratch,
    ) -> Vec<Likeliest> {
        self.forward(pass, pack, kept, scratch);
        vocabulary::likeliest(pass.rows.team, self.head.weight(), &scratch.hidden, count)
    }

    /// The rows that predict a target, of all targets. `kept` and `scratch` have their size.
    pub(super) fn states(&self, pass: &Pass<'_>, pack: &Pack, kept: &mut Kept, scratch: &mut Scratch) -> Vec<Vec<f32>> {
        self.forward(pass, pack, kept, scratch);
        scratch.hidden.chunks_exact(pass.config.hidden).map(<[f32]>::to_vec).collect()
    }

    /// Leaves the rows that predict a target in `scratch`, and says the targets' tokens.
    fn forward(&self, pass: &Pass<'_>, pack: &Pack, kept: &mut Kept, scratch: &mut Scratch) -> Vec<u32> {
        self.begin(pass, pack, scratch);
        self.layers.iter().for_each(|layer| layer.forward(pass, kept, scratch));
        self.finish(pass, pack, scratch)
    }

    /// Forward and backward; `whole` layers keep their activations, the others compute them again. `tape` and `scratch`
    /// have their size.
    pub(super) fn learn(
        &self,
        pass: &Pass<'_>,
        pack: &Pack,
        (tape, whole): (&mut Tape, usize),
        scratch: &mut Scratch,
        objective: &mut dyn Objective,
        gradients: &mut [f32],
    ) {
        self.begin(pass, pack, scratch);
        for (index, layer) in self.layers.iter().enumerate() {
            tape.inputs[index].copy_from_slice(&scratch.stream);
            layer.forward(pass, &mut tape.kept[index.min(whole)], scratch);
        }
        let tokens = self.finish(pass, pack, scratch);
        self.end_back(pass, pack, &tokens, scratch, objective, gradients);
        let embedded = self.embedded();
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let (input, kept) = (&tape.inputs[index], &mut tape.kept[index.min(whole)]);
            // The last layer's activations are there still.
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
            for (&token, d) in pack.tokens().iter().zip(scratch.stream.chunks_exact(pass.config.hidden)) {
                add(&mut gradient[token as usize * pass.config.hidden..][..pass.config.hidden], d);
            }
        }
    }

    /// The place of the embedding's gradient, if it is learnt.
    fn embedded(&self) -> Option<Range<usize>> {
        match &self.embedding {
            Some(embedding) => embedding.learnt.clone(),
            None => self.head.range(),
        }
    }

    /// Looks up the tokens.
    fn begin(&self, pass: &Pass<'_>, pack: &Pack, scratch: &mut Scratch) {
        let rows = self.embedding.as_ref().map_or(self.head.weight(), |embedding| &embedding.rows);
        for (row, &token) in scratch.stream.chunks_exact_mut(pass.config.hidden).zip(pack.tokens()) {
            rows.row_f32(token as usize, row);
        }
    }

    /// The final norm of the rows that predict a target, and the targets' tokens.
    fn finish(&self, pass: &Pass<'_>, pack: &Pack, scratch: &mut Scratch) -> Vec<u32> {
        let hidden = pass.config.hidden;
        for (target, last) in pack.targets().iter().zip(scratch.last.chunks_exact_mut(hidden)) {
            last.copy_from_slice(&scratch.stream[target.at * hidden..][..hidden]);
        }
        self.norm.normalise(pass.rows.team, &scratch.last, pass.config.rms_eps, &mut scratch.hidden);
        pack.targets().iter().map(|target| target.token).collect()
    }

    /// The loss and its gradient down to the stream, which replaces the stream.
    fn end_back(
        &self,
        pass: &Pass<'_>,
        pack: &Pack,
        tokens: &[u32],
        scratch: &mut Scratch,
        objective: &mut dyn Objective,
        gradients: &mut [f32],
    ) {
        let (config, team) = (pass.config, pass.rows.team);
        let Scratch { stream, hidden, dhidden, last, dlast, .. } = scratch;
        let learnt = self.head.range().map(|range| &mut gradients[range]);
        vocabulary::learn(team, self.head.head(), hidden, tokens, objective, dhidden, learnt);
        dlast.fill(0.0);
        self.norm.back(team, last, config.rms_eps, dhidden, dlast, gradients);
        stream.fill(0.0);
        for (target, d) in pack.targets().iter().zip(dlast.chunks_exact(config.hidden)) {
            add(&mut stream[target.at * config.hidden..][..config.hidden], d);
        }
    }
}
