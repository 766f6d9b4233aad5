//! Where a card's weights come from.

use bytemuck::Pod;
use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::CudaError;
use super::checkpoint::{self, Bring};
use super::driver::Driver;
use super::plan::{Place, WeightPlaces};
use crate::decoder::DecoderConfig;
use crate::weights::Weights;

/// Where weights come from.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A checkpoint; quantised matrices are unpacked and rounded to `bf16`.
    Checkpoint(&'a Weights),
    /// Numbers without meaning in a given shape, to measure with: matrices are normal with a standard deviation of
    /// `1 / √hidden`, so that activations keep their size, and norms are one.
    Random {
        /// The shape.
        config: &'a DecoderConfig,
        /// Where the numbers start.
        seed: u64,
    },
}

impl Source<'_> {
    /// The decoder the weights are for.
    pub fn config(&self) -> &DecoderConfig {
        match self {
            Self::Checkpoint(weights) => weights.config(),
            Self::Random { config, .. } => config,
        }
    }
}

/// Values of a pattern that random matrices are made of: enough that no cache of a card holds them.
const PATTERN: usize = 1 << 24;

/// Copies weights to their places.
pub(super) struct Loader<'a, D: Driver> {
    source: Source<'a>,
    driver: &'a D,
    region: &'a D::Region,
    /// Random numbers on the card, where they are wanted, and how many matrices were made of them.
    pattern: Option<(D::Region, usize)>,
    /// Staging, used again.
    values: Vec<bf16>,
}

impl<'a, D: Driver> Loader<'a, D> {
    pub(super) fn new(source: Source<'a>, driver: &'a D, region: &'a D::Region) -> Result<Self, CudaError> {
        let pattern = match source {
            Source::Checkpoint(_) => None,
            Source::Random { config, seed } => Some((pattern(driver, seed, config.hidden)?, 0)),
        };
        Ok(Self { source, driver, region, pattern, values: Vec::new() })
    }

    /// Copies everything.
    pub(super) fn load(mut self, places: &WeightPlaces, context: usize) -> Result<(), CudaError> {
        let config = self.source.config().clone();
        checkpoint::bring(&config, places, context, &mut self)
    }

    fn put<T: Pod>(&self, values: &[T], place: Place<T>) -> Result<(), CudaError> {
        self.driver.upload(values, self.driver.span(self.region, place))
    }

    /// Fills a matrix with pieces of the pattern, each time from another beginning.
    fn random(&mut self, place: Place<bf16>) -> Result<(), CudaError> {
        let Some((pattern, made)) = &mut self.pattern else { return Ok(()) };
        *made += 1;
        // Odd steps through a power of two come to every even place before they repeat.
        let mut from = *made * 2_654_435 % (PATTERN / 2) * 2;
        let mut at = 0;
        while at < place.len() {
            let len = (PATTERN - from).min(place.len() - at);
            let piece = self.driver.span(pattern, Place::<bf16>::new(0, PATTERN).part(from, len));
            self.driver.copy(piece, self.driver.span(self.region, place.part(at, len)))?;
            at += len;
            from = 0;
        }
        Ok(())
    }
}

impl<D: Driver> Bring for Loader<'_, D> {
    fn matrices(&mut self, named: &[(String, usize)], inn: usize, place: Place<bf16>) -> Result<(), CudaError> {
        let Source::Checkpoint(weights) = self.source else { return self.random(place) };
        let mut at = 0;
        for (name, out) in named {
            checkpoint::half(weights, name, &[*out, inn], &mut self.values)?;
            self.put(&self.values, place.part(at, out * inn))?;
            at += out * inn;
        }
        Ok(())
    }

    fn vectors(&mut self, named: &[(String, usize)], value: f32, place: Place<f32>) -> Result<(), CudaError> {
        match self.source {
            Source::Checkpoint(weights) => self.put(&checkpoint::vectors(weights, named)?, place),
            Source::Random { .. } => self.put(&vec![value; place.len()], place),
        }
    }

    fn values(&mut self, values: &[f32], place: Place<f32>) -> Result<(), CudaError> {
        self.put(values, place)
    }
}

/// Normal numbers on the card.
fn pattern<D: Driver>(driver: &D, seed: u64, hidden: usize) -> Result<D::Region, CudaError> {
    let values = normals(seed, 1.0 / (hidden as f32).sqrt(), PATTERN);
    let region = driver.take(PATTERN * size_of::<bf16>())?;
    driver.upload(&values, driver.span(&region, Place::new(0, PATTERN)))?;
    Ok(region)
}

/// So many normal numbers about 0.
pub(super) fn normals(seed: u64, deviation: f32, count: usize) -> Vec<bf16> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // The sum of twelve uniform numbers, close enough to a normal one (Irwin and Hall): four bytes each of three words.
    let mut normal = || {
        let words = [random.next_u32(), random.next_u32(), random.next_u32()];
        let sum: u32 = words.iter().flat_map(|word| word.to_le_bytes()).map(u32::from).sum();
        bf16::from_f32((sum as f32 - 12.0 * 127.5) / 256.0 * deviation)
    };
    (0..count).map(|_| normal()).collect()
}
