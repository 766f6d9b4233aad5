//! Output projection and loss, one chunk of targets at a time: the device computes scores, and the objective on the
//! host returns the derivatives of the loss with respect to them.

use std::ops::Range;

use half::bf16;

use super::pass::LearnerPass;
use super::pass_layout::TARGETS;
use super::{NO_TEACHER, invalid_input};
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceMatrix, Driver, MatMulTarget};
use crate::cuda::kernel::{
    DeviceSlice, RmsNorm, RmsNormBackward, RowIndex, SCORES, ScoreTargets, ScoreTargetsBackward,
};
use crate::cuda::plan::Placement;
use crate::gradient::{Objective, Score};

impl<D: Driver> LearnerPass<'_, D> {
    /// Returns the scores of all targets, in order.
    pub(super) fn score(&self) -> Result<Vec<Score>, CudaError> {
        let mut scores = Vec::with_capacity(self.rows.ids.len());
        for chunk in self.rows.chunks(TARGETS) {
            scores.extend(self.score_chunk(&chunk)?);
        }
        Ok(scores)
    }

    /// Evaluates the objective at every target, in order, and writes the gradient of the final residual stream.
    pub(super) fn loss_backward(&self, objective: &mut dyn Objective) -> Result<(), CudaError> {
        let config = self.config;
        let back = &self.buffers.back;
        // Rows that no target is predicted from have no gradient from above.
        self.driver.clear(self.work(back.stream))?;
        for chunk in self.rows.chunks(TARGETS) {
            let mut slopes = Vec::with_capacity(2 * chunk.len());
            for (target, score) in chunk.clone().zip(self.score_chunk(&chunk)?) {
                let slope = objective.slope(target, score);
                slopes.extend([slope.logprob, slope.entropy]);
                if objective.distillation(target).is_some() {
                    return Err(invalid_input(NO_TEACHER.to_owned()));
                }
            }
            self.driver.upload(&slopes, self.work(back.slopes))?;
            let gradient = self.work(back.logits);
            ScoreTargetsBackward {
                logits: self.work(self.buffers.logits),
                targets: self.part(self.buffers.layout.ids, &chunk),
                scores: self.work(self.buffers.scores),
                slopes: self.work(back.slopes),
                gradient,
                rows: chunk.len() as u32,
                vocab: config.vocab as u32,
            }
            .launch(self.driver)?;
            let normed: DeviceSlice<bf16> = self.work(back.normed);
            let operands = [DeviceMatrix::new(gradient, config.vocab), DeviceMatrix::new(self.head(), config.hidden)];
            let target = MatMulTarget::Half(DeviceMatrix::new(normed, config.hidden));
            self.matmul_bf16(operands, target, [chunk.len(), config.vocab, config.hidden])?;
            RmsNormBackward {
                stream: self.work(self.buffers.stream),
                index: Some(self.wanted(&chunk)),
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

    /// Computes the logits and the scores of some targets.
    fn score_chunk(&self, chunk: &Range<usize>) -> Result<Vec<Score>, CudaError> {
        let config = self.config;
        let normed = self.work(self.buffers.normed);
        let logits = self.work(self.buffers.logits);
        RmsNorm {
            stream: self.work(self.buffers.stream),
            index: Some(self.wanted(chunk)),
            weight: self.weight(self.weights.1.norm),
            out: normed,
            rows: chunk.len() as u32,
            width: config.hidden as u32,
            eps: config.rms_eps,
        }
        .launch(self.driver)?;
        let operands =
            [DeviceMatrix::new(normed, config.hidden), DeviceMatrix::new(self.head(), config.hidden).transpose()];
        let target = MatMulTarget::Single(DeviceMatrix::new(logits, config.vocab));
        self.matmul_bf16(operands, target, [chunk.len(), config.hidden, config.vocab])?;
        let scores = self.work(self.buffers.scores);
        ScoreTargets {
            logits,
            targets: self.part(self.buffers.layout.ids, chunk),
            scores,
            rows: chunk.len() as u32,
            vocab: config.vocab as u32,
        }
        .launch(self.driver)?;
        let mut values = vec![0.0; SCORES * chunk.len()];
        self.driver.download(scores, &mut values)?;
        Ok(values.chunks_exact(SCORES).map(|row| Score { logprob: row[0], entropy: row[1] }).collect())
    }

    /// Returns the rows of the residual stream that predict some targets.
    fn wanted(&self, chunk: &Range<usize>) -> RowIndex {
        RowIndex { rows: self.part(self.buffers.layout.wanted, chunk), bound: self.tokens }
    }

    /// Returns the entries of some targets.
    fn part(&self, place: Placement<u32>, chunk: &Range<usize>) -> DeviceSlice<u32> {
        self.work(place.part(chunk.start, chunk.len()))
    }
}
