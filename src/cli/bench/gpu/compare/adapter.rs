//! Rows of different adapters, and rows of none, in one batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::ensure;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use waymark_models::gradient::{Learner, Lora, Module, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, ModelError};

use super::super::report::Agreement;
use super::bed::Bed;
use super::tally::Tally;
use super::text::{Side, follow};
use crate::engine::{Backend, BackendError};

/// Projections that the second adapter has.
const SOME: [Module; 3] = [Module::QProj, Module::VProj, Module::DownProj];

/// Saves two adapters with random values under `dir`: of rank 8 on every projection, and of rank 20, which is no multiple of
/// a tile, on some of them.
pub(in crate::cli::bench::gpu) fn save(
    weights: &Weights,
    team: &Arc<Team>,
    dir: &Path,
) -> Result<[PathBuf; 2], ModelError> {
    let (all, some) = (dir.join("all"), dir.join("some"));
    random(weights, team, 8, &Module::ALL, 1, &all)?;
    random(weights, team, 20, &SOME, 2, &some)?;
    Ok([all, some])
}

/// Saves an adapter that changes every matrix by about half of what a random one of its shape has in it, whatever the rank.
fn random(
    weights: &Weights,
    team: &Arc<Team>,
    rank: usize,
    targets: &[Module],
    seed: u64,
    dir: &Path,
) -> Result<(), ModelError> {
    let tune = Tune::Lora(Lora { rank, alpha: 2.0 * rank as f32, targets: targets.to_vec(), seed });
    let mut learner = Learner::load(weights, Arc::clone(team), &tune)?;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // A begins random, B as zero.
    let bound = 0.8 / (rank as f32).sqrt();
    let mut values = learner.values().to_vec();
    for parameter in learner.parameters().iter().filter(|parameter| parameter.name.ends_with("lora_B.weight")) {
        values[parameter.range.clone()].iter_mut().for_each(|value| *value = random.random_range(-bound..=bound));
    }
    learner.set_values(&values)?;
    learner.save_adapter(dir, "random")
}

/// Loads both adapters: what rows have in turn.
pub(in crate::cli::bench::gpu) fn load(
    backend: &mut dyn Backend,
    adapters: &[PathBuf; 2],
) -> Result<[Option<AdapterSlot>; 3], BackendError> {
    let [first, second] = adapters;
    Ok([Some(backend.load_adapter(first)?), None, Some(backend.load_adapter(second)?)])
}

/// Every text with the first adapter, without any, and with the second, all in one batch, followed as
/// [`follow`] does. Both backends load the adapters and keep them.
///
/// # Errors
/// Also when the adapters change so little that a row with another one could not be told from rounding.
pub(in crate::cli::bench::gpu) fn mixed(
    reference: &mut dyn Backend,
    other: &mut dyn Backend,
    adapters: &[PathBuf; 2],
    texts: &[Vec<u32>],
    tokens: usize,
    bound: f64,
) -> anyhow::Result<Agreement> {
    let (own, theirs) = (load(reference, adapters)?, load(other, adapters)?);
    let rows: Vec<Vec<u32>> = texts.iter().flat_map(|text| vec![text.clone(); own.len()]).collect();
    let apart = apart(reference, &own, &rows)?;
    ensure!(apart > bound, "rows of two adapters and of none are only {apart:.4} apart: too little to be compared");
    let what = format!("processor and card, {} rows of two adapters and of none", rows.len());
    let (own, theirs) = (Side { backend: reference, adapters: &own }, Side { backend: other, adapters: &theirs });
    follow(&what, own, theirs, &rows, tokens, bound)
}

/// The least that rows of one text are apart in the mean, by their adapters.
fn apart(
    backend: &mut dyn Backend,
    adapters: &[Option<AdapterSlot>; 3],
    rows: &[Vec<u32>],
) -> Result<f64, BackendError> {
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let new: Vec<usize> = rows.iter().map(Vec::len).collect();
    let mut bed = Bed::new(backend, longest, 0).with(adapters);
    bed.step(rows, &new)?;
    let pairs = [(0, 1), (1, 2), (2, 0)].map(|(a, b)| {
        let mut tally = Tally::default();
        for text in (0..rows.len()).step_by(adapters.len()) {
            tally.compare(0, bed.logits.row(text + a), bed.logits.row(text + b));
        }
        tally.mean()
    });
    Ok(pairs.into_iter().fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::decoder::{Decoder, DecoderConfig};
    use waymark_models::weights::write_random;
    use waymark_models::{Arithmetic, ForwardBatch, Logits};

    use super::super::super::shape::Shape;
    use super::super::prompts;
    use super::*;
    use crate::engine::{BackendSpec, CpuBackend, KvBudget};

    /// What the mean difference may be between products in `f32` and in `bf16`, over a decoder as small as this.
    const BOUND: f64 = 0.02;

    /// Gives each row the adapter that `given` says, by its number in the batch and the one it should have.
    struct Confused<F>(CpuBackend, F);

    impl<F: Fn(usize, Option<AdapterSlot>) -> Option<AdapterSlot> + Send> Backend for Confused<F> {
        fn spec(&self) -> &BackendSpec {
            self.0.spec()
        }

        fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
            let mut confused = ForwardBatch::new();
            for (number, row) in batch.rows().iter().enumerate() {
                let adapter = (self.1)(number, row.adapter);
                confused.push(batch.row_tokens(row), row.start, batch.table(row), adapter, row.want);
            }
            self.0.forward(&confused, logits)
        }

        fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError> {
            self.0.load_adapter(dir)
        }

        fn unload_adapter(&mut self, slot: AdapterSlot) {
            self.0.unload_adapter(slot);
        }
    }

    /// A small decoder whose head is not its embedding, so that the next token is anything but certain; and two adapters.
    struct House {
        weights: Weights,
        team: Arc<Team>,
        adapters: [PathBuf; 2],
        _folder: tempfile::TempDir,
    }

    impl House {
        fn new() -> Self {
            let tiny: Shape = "tiny".parse().unwrap();
            let config = DecoderConfig {
                vocab: 97,
                hidden: 64,
                layers: 2,
                heads: 2,
                kv_heads: 1,
                head_dim: 32,
                ffn: 96,
                tied_embeddings: false,
                ..tiny.config
            };
            let folder = tempfile::tempdir().unwrap();
            write_random(folder.path(), &config, 1).unwrap();
            let (weights, team) = (Weights::open(folder.path()).unwrap(), Arc::new(Team::new(2)));
            let adapters = save(&weights, &team, &folder.path().join("adapters")).unwrap();
            Self { weights, team, adapters, _folder: folder }
        }

        fn backend(&self, arithmetic: Arithmetic) -> CpuBackend {
            let decoder = Decoder::load_with(&self.weights, Arc::clone(&self.team), arithmetic).unwrap();
            CpuBackend::new(decoder, "small", 1, KvBudget::Blocks(64)).unwrap()
        }

        /// Compares with a backend that confuses adapters.
        fn compare(
            &self,
            given: impl Fn(usize, Option<AdapterSlot>) -> Option<AdapterSlot> + Send,
        ) -> anyhow::Result<Agreement> {
            let mut other = Confused(self.backend(Arithmetic::Bf16), given);
            mixed(&mut self.backend(Arithmetic::F32), &mut other, &self.adapters, &prompts(6, 8, 97, 1), 8, BOUND)
        }
    }

    #[test]
    fn rounding_holds_and_a_row_with_another_adapter_does_not() {
        let house = House::new();
        let right = house.compare(|_, adapter| adapter).unwrap();
        assert!(right.holds && right.mean > 0.0 && right.positions == 18 * 8, "{right:?}");
        let one = house.compare(|number, adapter| adapter.filter(|_| number != 15)).unwrap();
        assert!(!one.holds && one.row > 4.0 * BOUND, "one row without its adapter: {one:?}");
        let second = house.compare(|_, adapter| adapter.filter(|slot| slot.0 == 0)).unwrap();
        assert!(!second.holds, "the second adapter left out: {second:?}");
        let swapped = house.compare(|_, adapter| adapter.map(|slot| AdapterSlot(1 - slot.0))).unwrap();
        assert!(!swapped.holds, "one adapter instead of the other: {swapped:?}");
        let all = house.compare(|_, adapter| adapter.or(Some(AdapterSlot(0)))).unwrap();
        assert!(!all.holds, "an adapter on rows of none: {all:?}");
    }

    #[test]
    fn adapters_that_cannot_be_told_apart_are_refused() {
        let house = House::new();
        let (mut own, mut theirs) = (house.backend(Arithmetic::F32), house.backend(Arithmetic::F32));
        let twice = [house.adapters[0].clone(), house.adapters[0].clone()];
        let error = mixed(&mut own, &mut theirs, &twice, &prompts(2, 8, 97, 1), 2, BOUND).unwrap_err();
        assert!(error.to_string().contains("too little"), "{error}");
    }
}
