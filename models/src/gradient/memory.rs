//! Memory accounting of passes, and the memory limit.

use super::attention::AttentionPlan;
use super::cpu_passes::CpuPasses;
use super::tape::{LayerActivations, PassScratch, STEPS, Tape, TapeSize};
use super::{Pack, vocabulary};
use crate::ModelError;

const MIB: f64 = (1 << 20) as f64;

impl CpuPasses {
    /// Memory of passes over up to `tokens` tokens; see [`Learner::bytes`](super::Learner::bytes).
    pub(super) fn max_bytes(&self, tokens: usize) -> usize {
        let size = self.size(tokens, tokens);
        let workspace_len = AttentionPlan::max_workspace_len(tokens, self.heads());
        self.bytes_learning(&self.fitted(size, workspace_len), workspace_len)
    }

    /// Memory of a pass; see [`Learner::bytes_of`](super::Learner::bytes_of).
    pub(super) fn bytes_needed(&self, pack: &Pack) -> usize {
        let size = self.size(pack.tokens().len(), pack.targets().len());
        let workspace_len = AttentionPlan::new(pack, self.heads()).workspace_len();
        self.bytes_learning(&self.fitted(size, workspace_len), workspace_len)
    }

    /// Resizes all buffers for learning from `pack`, and returns the number of layers that keep their activations.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the pass exceeds the limit.
    pub(super) fn resize_for_learning(&mut self, pack: &Pack, plan: &AttentionPlan) -> Result<usize, ModelError> {
        let size = self.fitted(self.size(pack.tokens().len(), pack.targets().len()), plan.workspace_len());
        self.check_limit(self.bytes_learning(&size, plan.workspace_len()), &size)?;
        let TapeSize { ranks, tokens, targets, whole, exact, .. } = size;
        let Self { config, tape, scratch, .. } = self;
        let size = TapeSize { config, ranks, tokens, targets, whole, exact };
        for step in STEPS {
            tape.fit(&size, step);
            scratch.fit(&size, true, step);
        }
        Ok(whole)
    }

    /// Resizes all buffers for scoring `pack`.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the pass exceeds the limit.
    pub(super) fn resize_for_scoring(&mut self, pack: &Pack) -> Result<(), ModelError> {
        let size = self.scoring_size(pack.tokens().len(), pack.targets().len());
        let need = self.bytes_scoring(&size);
        self.check_limit(need, &size)?;
        let TapeSize { ranks, tokens, targets, whole, exact, .. } = size;
        let Self { config, tape, scratch, limit, .. } = self;
        let size = TapeSize { config, ranks, tokens, targets, whole, exact };
        // Buffers of earlier passes are freed if they might exceed the limit together with those of this pass.
        let allocated = tape.allocated_bytes() + scratch.allocated_bytes();
        if limit.is_some_and(|limit| need + allocated > limit) {
            (*tape, *scratch) = (Tape::default(), PassScratch::default());
        }
        if tape.activations.is_empty() {
            tape.activations.push(LayerActivations::default());
        }
        for step in STEPS {
            tape.activations[0].fit(&size, 0, step);
            scratch.fit(&size, false, step);
        }
        Ok(())
    }

    /// Size of a pass in which all layers keep their activations.
    fn size(&self, tokens: usize, targets: usize) -> TapeSize<'_> {
        let ranks = self.network.ranks();
        // The last layer needs no slot of its own: its backward pass follows its forward pass directly.
        let whole = self.config.layers - 1;
        TapeSize { config: &self.config, ranks, tokens, targets, whole, exact: self.limit.is_some() }
    }

    /// Size of a scoring pass, in which all layers share one slot for their activations.
    fn scoring_size(&self, tokens: usize, targets: usize) -> TapeSize<'_> {
        TapeSize { whole: 0, ..self.size(tokens, targets) }
    }

    /// Size of a pass in which as many layers keep their activations as the limit allows, possibly none.
    fn fitted<'a>(&self, mut size: TapeSize<'a>, workspace_len: usize) -> TapeSize<'a> {
        while size.whole > 0 && self.limit.is_some_and(|limit| self.bytes_learning(&size, workspace_len) > limit) {
            size.whole -= 1;
        }
        size
    }

    /// Number of bytes while learning; attention works in `workspace_len` values.
    fn bytes_learning(&self, size: &TapeSize<'_>, workspace_len: usize) -> usize {
        let buffers = Tape::bytes(size) + PassScratch::bytes(size, true);
        // The vocabulary projection has freed its memory when the backward pass of attention begins.
        let workspace = workspace_len.max(self.vocabulary_workspace_len(size));
        self.bytes_between_passes() + buffers + size_of::<f32>() * workspace
    }

    /// Number of bytes while scoring.
    fn bytes_scoring(&self, size: &TapeSize<'_>) -> usize {
        let buffers = LayerActivations::bytes(size, 0) + PassScratch::bytes(size, false);
        self.bytes_between_passes() + buffers + size_of::<f32>() * self.vocabulary_workspace_len(size)
    }

    /// Number of bytes of the weights, values and gradients, which stay between passes.
    fn bytes_between_passes(&self) -> usize {
        self.network.bytes() + 2 * size_of::<f32>() * self.values
    }

    /// Number of values in the working memory of the vocabulary projection.
    fn vocabulary_workspace_len(&self, size: &TapeSize<'_>) -> usize {
        vocabulary::workspace_len(self.config.vocab, self.config.hidden, size.targets)
    }

    fn check_limit(&self, need: usize, size: &TapeSize<'_>) -> Result<(), ModelError> {
        match self.limit {
            Some(limit) if need > limit => Err(ModelError::Input(format!(
                "a pass over {} tokens with {} targets needs {:.2} MiB of memory, the limit is {:.2} MiB; raise the limit \
                 or make packs smaller",
                size.tokens,
                size.targets,
                need as f64 / MIB,
                limit as f64 / MIB
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::Arithmetic;
    use crate::gradient::{Compute, Lora, Module, Score, ScoredModel, Slope, Tune};
    use crate::kernel::Team;
    use crate::weights::Weights;

    fn learner(name: &str, tune: &Tune) -> CpuPasses {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/decoder"));
        let weights = Weights::open(&folder.join(name)).unwrap();
        CpuPasses::load(&weights, Arc::new(Team::new(2)), tune, Arithmetic::F32).unwrap().0
    }

    fn learn(learner: &mut CpuPasses, pack: &Pack) -> Result<(), ModelError> {
        let mut gradients = vec![0.0; learner.values];
        learner.learn(pack, &mut slope, &mut gradients)
    }

    fn pack(lengths: &[usize]) -> Pack {
        let mut pack = Pack::new();
        for &length in lengths {
            // The fixtures with experts have a vocabulary of 64 tokens.
            let tokens: Vec<u32> = (0..length as u32).map(|token| token % 64).collect();
            let segment = pack.push(&tokens, None);
            (1..length).for_each(|index| pack.target(segment, index));
        }
        pack
    }

    fn slope(_: usize, _: Score) -> Slope {
        Slope { logprob: -1.0, entropy: 0.1 }
    }

    /// Memory after learning from `pack`, including what the pass has already freed.
    fn measured_bytes(learner: &mut CpuPasses, pack: &Pack) -> usize {
        learn(learner, pack).unwrap();
        let config = &learner.config;
        let workspace = AttentionPlan::new(pack, learner.heads()).workspace_len().max(vocabulary::workspace_len(
            config.vocab,
            config.hidden,
            pack.targets().len(),
        ));
        let allocated = learner.tape.allocated_bytes() + learner.scratch.allocated_bytes();
        learner.network.bytes() + allocated + size_of::<f32>() * (2 * learner.values + workspace)
    }

    #[test]
    fn a_pass_takes_the_stated_bytes_after_any_earlier_pass() {
        let lora = Tune::Lora(Lora { rank: 3, alpha: 6.0, targets: Module::ALL.to_vec(), seed: 5 });
        let attention = vec![Module::QProj, Module::OProj];
        let on_attention = Tune::Lora(Lora { rank: 3, alpha: 6.0, targets: attention, seed: 5 });
        for (name, tune) in [
            ("llama", &lora),
            ("qwen2", &Tune::Full),
            ("qwen3", &lora),
            ("qwen3", &Tune::Full),
            ("../experts/qwen2-moe", &on_attention),
            ("../experts/qwen3-moe", &on_attention),
        ] {
            let long = pack(&[100, 60, 9]);
            let short = pack(&[30, 7]);
            let mut learner = learner(name, tune);
            assert_eq!(measured_bytes(&mut learner, &short), learner.bytes_of(&short), "{name}");
            assert_eq!(measured_bytes(&mut learner, &long), learner.bytes_of(&long), "{name}");
            let all = learner.bytes_of(&long);
            for pack in [&long, &short] {
                assert!(learner.bytes_of(pack) <= learner.bytes(pack.tokens().len()), "{name}");
            }
            learner.set_limit(Some(0));
            let least = learner.bytes_of(&long);
            for limit in [least, (least + all) / 2, all] {
                learner.set_limit(Some(limit));
                for pack in [&long, &short, &long, &short, &short] {
                    assert_eq!(measured_bytes(&mut learner, pack), learner.bytes_of(pack), "{name}");
                    assert!(learner.bytes_of(pack) <= limit, "{name}");
                }
                learner.score(&long, ScoredModel::Adapted).unwrap();
                let allocated = learner.tape.allocated_bytes() + learner.scratch.allocated_bytes();
                let size = learner.scoring_size(long.tokens().len(), long.targets().len());
                let workspace = size_of::<f32>() * learner.vocabulary_workspace_len(&size);
                let after = learner.bytes_between_passes() + allocated + workspace;
                assert!(after <= limit, "{name}: {after} bytes, the limit is {limit}");
            }
        }
    }

    #[test]
    fn a_limit_below_the_smallest_pass_is_refused() {
        let mut learner = learner("llama", &Tune::Full);
        let pack = pack(&[50]);
        learner.set_limit(Some(0));
        learner.set_limit(Some(learner.bytes_of(&pack) - 1));
        let error = learn(&mut learner, &pack).unwrap_err().to_string();
        for part in ["50 tokens with 49 targets", "MiB", "limit", "smaller"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(learner.score(&pack, ScoredModel::Adapted).is_ok());
        learner.set_limit(Some(1));
        assert!(learner.score(&pack, ScoredModel::Adapted).unwrap_err().to_string().contains("limit"));
    }
}
