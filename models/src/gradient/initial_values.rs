//! Initial values of adapters.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::parameter::Table;
use super::{Lora, Module};
use crate::ModelError;
use crate::decoder::DecoderConfig;

/// Initial parameter pairs of a new adapter, layer by layer and module by module, determined by the seed.
#[derive(Debug)]
pub(super) struct InitialPairs {
    random: ChaCha8Rng,
}

impl InitialPairs {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Adds a pair with PEFT's initial values and returns the ranges of A and B. A is uniform in ±1/√in (Kaiming with a
    /// = √5), and B is zero.
    pub(super) fn pair(
        &mut self,
        table: &mut Table,
        lora: &Lora,
        layer: usize,
        module: Module,
        [out, inn]: [usize; 2],
    ) -> [Range<usize>; 2] {
        let name = |side: &str| format!("base_model.model.model.layers.{layer}.{}.lora_{side}.weight", module.path());
        let bound = 1.0 / (inn as f64).sqrt();
        let random = &mut self.random;
        let uniform = |_| ((f64::from(random.next_u32()) / f64::from(u32::MAX) * 2.0 - 1.0) * bound) as f32;
        let a = table.push(name("A"), &[lora.rank, inn], (0..lora.rank * inn).map(uniform));
        // With B zero, a new adapter leaves the base model unchanged (Hu et al. 2021, §4.1).
        let b = table.push(name("B"), &[out, lora.rank], std::iter::repeat_n(0.0, out * lora.rank));
        [a, b]
    }
}

/// Ranges of one pair among the trained values: A of shape (rank, in) and B of shape (out, rank).
pub(crate) type Pair = [Range<usize>; 2];

/// Pairs of a layer, by module. `None` where a module has no adapter.
pub(crate) type Pairs = [Option<Pair>; Module::COUNT];

/// Creates a new adapter without loading its decoder. Returns its parameters in a learner's order, and the ranges of
/// each layer's pairs by module.
///
/// # Errors
/// [`ModelError::Input`] for an adapter that does not fit the decoder.
pub(crate) fn adapter(config: &DecoderConfig, lora: &Lora) -> Result<(Table, Vec<Pairs>), ModelError> {
    lora.check(config)?;
    let mut table = Table::default();
    let mut beginning = InitialPairs::new(lora.seed);
    let layer = |layer| {
        Module::ALL.map(|module| {
            let wanted = lora.targets.contains(&module);
            wanted.then(|| beginning.pair(&mut table, lora, layer, module, module.shape(config)))
        })
    };
    let pairs = (0..config.layers).map(layer).collect();
    Ok((table, pairs))
}
