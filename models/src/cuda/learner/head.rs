//! The vocabulary's part of a loss, a few targets at a time: the card says what it makes of them, the objective on the host
//! how the loss changes with that.

use std::ops::Range;

use half::bf16;

use super::pass::Pass;
use super::room::TARGETS;
use super::{UNTAUGHT, refused};
use crate::cuda::CudaError;
use crate::cuda::driver::{Driver, Matrix, Target};
use crate::cuda::kernel::{Norm, NormBackward, SCORES, Score as ScoreKernel, ScoreBackward, Span};
use crate::cuda::plan::Place;
use crate::gradient::{Objective, Score};

impl<D: Driver> Pass<'_, D> {
    /// Scores of all targets, in their order.
    pub(super) fn score(&self) -> Result<Vec<Score>, CudaError> {
        let mut scores = Vec::with_capacity(self.rows.ids.len());
        for chunk in self.rows.chunks(TARGETS) {
            scores.extend(self.look(&chunk)?);
        }
        Ok(scores)
    }

    /// Asks the objective about every target, in their order, and puts the gradient of the stream's last state in its place.
    pub(super) fn descend(&self, objective: &mut dyn Objective) -> Result<(), CudaError> {
        let (config, back) = (self.config, &self.room.back);
        self.driver.clear(self.work(back.stream))?;
        for chunk in self.rows.chunks(TARGETS) {
            let mut slopes = Vec::with_capacity(2 * chunk.len());
            for (target, score) in chunk.clone().zip(self.look(&chunk)?) {
                let slope = objective.slope(target, score);
                slopes.extend([slope.logprob, slope.entropy]);
                if objective.pull(target).is_some() {
                    return Err(refused(UNTAUGHT.to_owned()));
                }
            }
            self.driver.upload(&slopes, self.work(back.slopes))?;
            let gradient = self.work(back.logits);
            ScoreBackward {
                logits: self.work(self.room.logits),
                targets: self.part(self.room.layout.ids, &chunk),
                scores: self.work(self.room.scores),
                slopes: self.work(back.slopes),
                gradient,
                rows: chunk.len() as u32,
                vocab: config.vocab as u32,
            }
            .launch(self.driver)?;
            let normed: Span<bf16> = self.work(back.normed);
            let operands = [Matrix::new(gradient, config.vocab), Matrix::new(self.head(), config.hidden)];
            let target = Target::Half(Matrix::new(normed, config.hidden));
            self.half(operands, target, [chunk.len(), config.vocab, config.hidden])?;
            NormBackward {
                stream: self.work(self.room.stream),
                index: Some(self.part(self.room.layout.wanted, &chunk)),
                weight: self.weight(self.weights.1.norm),
                gradient: normed,
                stream_gradient: self.work(back.stream),
                rows: chunk.len() as u32,
                width: config.hidden as u32,
                eps: config.rms_eps,
            }
            .launch(self.driver)?;
        }
        Ok(())
    }

    /// Logits of some targets, and what they say.
    fn look(&self, chunk: &Range<usize>) -> Result<Vec<Score>, CudaError> {
        let config = self.config;
        let (normed, logits) = (self.work(self.room.normed), self.work(self.room.logits));
        Norm {
            stream: self.work(self.room.stream),
            index: Some(self.part(self.room.layout.wanted, chunk)),
            weight: self.weight(self.weights.1.norm),
            out: normed,
            rows: chunk.len() as u32,
            width: config.hidden as u32,
            eps: config.rms_eps,
        }
        .launch(self.driver)?;
        let operands = [Matrix::new(normed, config.hidden), Matrix::new(self.head(), config.hidden).transpose()];
        let target = Target::Single(Matrix::new(logits, config.vocab));
        self.half(operands, target, [chunk.len(), config.hidden, config.vocab])?;
        let scores = self.work(self.room.scores);
        ScoreKernel {
            logits,
            targets: self.part(self.room.layout.ids, chunk),
            scores,
            rows: chunk.len() as u32,
            vocab: config.vocab as u32,
        }
        .launch(self.driver)?;
        let mut values = vec![0.0; SCORES * chunk.len()];
        self.driver.download(scores, &mut values)?;
        Ok(values.chunks_exact(SCORES).map(|row| Score { logprob: row[0], entropy: row[1] }).collect())
    }

    /// What belongs to some targets.
    fn part(&self, place: Place<u32>, chunk: &Range<usize>) -> Span<u32> {
        self.work(place.part(chunk.start, chunk.len()))
    }
}
