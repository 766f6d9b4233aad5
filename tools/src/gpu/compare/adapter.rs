//! Comparison of batches that mix rows of different adapters and of none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::ensure;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use waymark_engine::{Backend, BackendError};
use waymark_models::gradient::{Learner, Lora, Module, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, ModelError};

use super::super::report::Agreement;
use super::greedy_text::{TextSide, compare_greedy};
use super::harness::SequenceHarness;
use super::tally::DifferenceTally;

/// Projections that the second adapter modifies.
const SOME_MODULES: [Module; 3] = [Module::QProj, Module::VProj, Module::DownProj];

/// Saves two adapters with random values under `dir`: one of rank 8 on all projections, and one of rank 20, which is
/// not a multiple of a tile, on some of them.
pub(crate) fn save(weights: &Weights, team: &Arc<Team>, dir: &Path) -> Result<[PathBuf; 2], ModelError> {
    let all = dir.join("all");
    let some = dir.join("some");
    random(weights, team, 8, &Module::ALL, 1, &all)?;
    random(weights, team, 20, &SOME_MODULES, 2, &some)?;
    Ok([all, some])
}

/// Saves an adapter whose change to every matrix has about half the magnitude of a random matrix of its shape, at any
/// rank.
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
    // A is initialized randomly, B to zero.
    let bound = 0.8 / (rank as f32).sqrt();
    let mut values = learner.values().to_vec();
    for parameter in learner.parameters().iter().filter(|parameter| parameter.name.ends_with("lora_B.weight")) {
        values[parameter.range.clone()].iter_mut().for_each(|value| *value = random.random_range(-bound..=bound));
    }
    learner.set_values(&values)?;
    learner.save_adapter(dir, "random")
}

/// Loads both adapters and returns the slots that rows use in turn.
pub(crate) fn load(
    backend: &mut dyn Backend,
    adapters: &[PathBuf; 2],
) -> Result<[Option<AdapterSlot>; 3], BackendError> {
    let [first, second] = adapters;
    Ok([Some(backend.load_adapter(first)?), None, Some(backend.load_adapter(second)?)])
}

/// Runs every text with the first adapter, without any, and with the second, all in one batch, compared as in
/// [`compare_greedy`]. Both backends load the adapters and keep them.
///
/// # Errors
/// Backend errors, and adapters that change the output too little for a wrong adapter to be distinguished from
/// rounding.
pub(crate) fn compare_mixed(
    reference: &mut dyn Backend,
    other: &mut dyn Backend,
    adapters: &[PathBuf; 2],
    texts: &[Vec<u32>],
    tokens: usize,
    bound: f64,
) -> anyhow::Result<Agreement> {
    let own = load(reference, adapters)?;
    let theirs = load(other, adapters)?;
    // Consecutive rows have the same text, one per adapter.
    let rows: Vec<Vec<u32>> = texts.iter().flat_map(|text| vec![text.clone(); own.len()]).collect();
    let separation = separation(reference, &own, &rows)?;
    ensure!(
        separation > bound,
        "outputs with two adapters and with none differ by only {separation:.4}: too little to detect a wrong adapter"
    );
    let what = format!("CPU and GPU, {} rows of two adapters and of none", rows.len());
    let (own, theirs) =
        (TextSide { backend: reference, adapters: &own }, TextSide { backend: other, adapters: &theirs });
    compare_greedy(&what, own, theirs, &rows, tokens, bound)
}

/// Returns the minimum over pairs of adapters of the mean difference between rows of the same text.
fn separation(
    backend: &mut dyn Backend,
    adapters: &[Option<AdapterSlot>; 3],
    rows: &[Vec<u32>],
) -> Result<f64, BackendError> {
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let new: Vec<usize> = rows.iter().map(Vec::len).collect();
    let mut harness = SequenceHarness::new(backend, longest, 0).with(adapters);
    harness.step(rows, &new)?;
    let pairs = [(0, 1), (1, 2), (2, 0)].map(|(a, b)| {
        let mut tally = DifferenceTally::default();
        for text in (0..rows.len()).step_by(adapters.len()) {
            tally.compare(0, harness.logits.row(text + a), harness.logits.row(text + b));
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

    use super::super::super::shape::ModelShape;
    use super::super::prompts;
    use super::*;
    use waymark_engine::{BackendSpec, CpuBackend, KvBudget};

    /// Bound on the mean difference between `f32` and `bf16` arithmetic over such a small decoder.
    const BOUND: f64 = 0.02;

    /// A backend that replaces the adapter of each row by a function of its number in the batch and its adapter.
    struct MisroutedBackend<F>(CpuBackend, F);

    impl<F: Fn(usize, Option<AdapterSlot>) -> Option<AdapterSlot> + Send> Backend for MisroutedBackend<F> {
        fn spec(&self) -> &BackendSpec {
            self.0.spec()
        }

        fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
            let mut misrouted = ForwardBatch::new();
            for (number, row) in batch.rows().iter().enumerate() {
                let adapter = (self.1)(number, row.adapter);
                misrouted.push(batch.row_tokens(row), row.start, batch.table(row), adapter, row.want);
            }
            self.0.forward(&misrouted, logits)
        }

        fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
            self.0.copy_block(from, to)
        }

        fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError> {
            self.0.load_adapter(dir)
        }

        fn unload_adapter(&mut self, slot: AdapterSlot) {
            self.0.unload_adapter(slot);
        }
    }

    /// A small decoder with an untied output projection, so the next token is uncertain, and two adapters.
    struct AdapterFixture {
        weights: Weights,
        team: Arc<Team>,
        adapters: [PathBuf; 2],
        _folder: tempfile::TempDir,
    }

    impl AdapterFixture {
        fn new() -> Self {
            let tiny: ModelShape = "tiny".parse().unwrap();
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
            let weights = Weights::open(folder.path()).unwrap();
            let team = Arc::new(Team::new(2));
            let adapters = save(&weights, &team, &folder.path().join("adapters")).unwrap();
            Self { weights, team, adapters, _folder: folder }
        }

        fn backend(&self, arithmetic: Arithmetic) -> CpuBackend {
            let decoder = Decoder::load_with(&self.weights, Arc::clone(&self.team), arithmetic).unwrap();
            CpuBackend::new(decoder, "small", 1, KvBudget::Blocks(64)).unwrap()
        }

        /// Compares with a backend that replaces adapters.
        fn compare(
            &self,
            given: impl Fn(usize, Option<AdapterSlot>) -> Option<AdapterSlot> + Send,
        ) -> anyhow::Result<Agreement> {
            let mut other = MisroutedBackend(self.backend(Arithmetic::Bf16), given);
            compare_mixed(
                &mut self.backend(Arithmetic::F32),
                &mut other,
                &self.adapters,
                &prompts(6, 8, 97, 1),
                8,
                BOUND,
            )
        }
    }

    #[test]
    fn rounding_holds_and_a_row_with_another_adapter_does_not() {
        let fixture = AdapterFixture::new();
        let right = fixture.compare(|_, adapter| adapter).unwrap();
        assert!(right.holds && right.mean > 0.0 && right.positions == 18 * 8, "{right:?}");
        let one = fixture.compare(|number, adapter| adapter.filter(|_| number != 15)).unwrap();
        assert!(!one.holds && one.row > 4.0 * BOUND, "one row without its adapter: {one:?}");
        let second = fixture.compare(|_, adapter| adapter.filter(|slot| slot.0 == 0)).unwrap();
        assert!(!second.holds, "the second adapter left out: {second:?}");
        let swapped = fixture.compare(|_, adapter| adapter.map(|slot| AdapterSlot(1 - slot.0))).unwrap();
        assert!(!swapped.holds, "one adapter instead of the other: {swapped:?}");
        let all = fixture.compare(|_, adapter| adapter.or(Some(AdapterSlot(0)))).unwrap();
        assert!(!all.holds, "an adapter on rows of none: {all:?}");
    }

    #[test]
    fn adapters_that_cannot_be_told_apart_are_refused() {
        let fixture = AdapterFixture::new();
        let mut own = fixture.backend(Arithmetic::F32);
        let mut theirs = fixture.backend(Arithmetic::F32);
        let twice = [fixture.adapters[0].clone(), fixture.adapters[0].clone()];
        let error = compare_mixed(&mut own, &mut theirs, &twice, &prompts(2, 8, 97, 1), 2, BOUND).unwrap_err();
        assert!(error.to_string().contains("too little"), "{error}");
    }
}
