//! What an adapter begins with.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::parameter::Table;
use super::{Lora, Module};
use crate::ModelError;
use crate::decoder::DecoderConfig;

/// The pairs of a new adapter, layer by layer and module by module: always the same of the same seed.
#[derive(Debug)]
pub(super) struct Beginning {
    random: ChaCha8Rng,
}

impl Beginning {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Adds a pair as PEFT begins it, and says where A and B lie: A uniform in ±1/√in (Kaiming with a = √5), B zero.
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
        let b = table.push(name("B"), &[out, lora.rank], std::iter::repeat_n(0.0, out * lora.rank));
        [a, b]
    }
}

/// Where one pair lies among the values: A, of shape (rank, in), and B, of shape (out, rank).
pub(crate) type Pair = [Range<usize>; 2];

/// A layer's pairs, by module; none where a module has no adapter.
pub(crate) type Pairs = [Option<Pair>; Module::COUNT];

/// A new adapter without the decoder it belongs to: its parameters as a learner has them, and where each layer's pairs lie,
/// by module.
///
/// # Errors
/// [`ModelError::Input`] for an adapter that the decoder cannot have.
pub(crate) fn adapter(config: &DecoderConfig, lora: &Lora) -> Result<(Table, Vec<Pairs>), ModelError> {
    lora.check(config)?;
    let (mut table, mut beginning) = (Table::default(), Beginning::new(lora.seed));
    let layer = |layer| {
        Module::ALL.map(|module| {
            let wanted = lora.targets.contains(&module);
            wanted.then(|| beginning.pair(&mut table, lora, layer, module, module.shape(config)))
        })
    };
    let pairs = (0..config.layers).map(layer).collect();
    Ok((table, pairs))
}
