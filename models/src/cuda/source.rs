//! Sources of weights, and their transfer to device memory.

use bytemuck::Pod;
use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::CudaError;
use super::checkpoint::{self, WeightSink};
use super::driver::Driver;
use super::plan::{Placement, WeightLayout};
use crate::decoder::DecoderConfig;
use crate::weights::Weights;

/// Source of a decoder's weights.
#[derive(Debug, Clone, Copy)]
pub enum WeightSource<'a> {
    /// A checkpoint. Quantized matrices are dequantized and rounded to `bf16`.
    Checkpoint(&'a Weights),
    /// Random weights of a given shape, for benchmarks: matrices are normal with a standard deviation of `1 / √hidden`,
    /// so that activations keep their magnitude, norms are 1, and biases are 0.
    Random {
        /// Shape of the decoder.
        config: &'a DecoderConfig,
        /// Seed of the random numbers.
        seed: u64,
    },
}

impl WeightSource<'_> {
    /// Returns the configuration of the decoder.
    pub fn config(&self) -> &DecoderConfig {
        match self {
            Self::Checkpoint(weights) => weights.config(),
            Self::Random { config, .. } => config,
        }
    }
}

/// Number of values of the pattern that random matrices are cut from: larger than any GPU cache.
const PATTERN: usize = 1 << 24;

/// Copies weights to their placements in device memory.
pub(super) struct WeightLoader<'a, D: Driver> {
    source: WeightSource<'a>,
    driver: &'a D,
    region: &'a D::Region,
    /// Random numbers in device memory and the number of matrices made from them. `None` for a checkpoint.
    pattern: Option<(D::Region, usize)>,
    /// Staging buffer, reused from tensor to tensor.
    values: Vec<bf16>,
}

impl<'a, D: Driver> WeightLoader<'a, D> {
    pub(super) fn new(source: WeightSource<'a>, driver: &'a D, region: &'a D::Region) -> Result<Self, CudaError> {
        let pattern = match source {
            WeightSource::Checkpoint(_) => None,
            WeightSource::Random { config, seed } => Some((pattern(driver, seed, config.hidden)?, 0)),
        };
        Ok(Self { source, driver, region, pattern, values: Vec::new() })
    }

    /// Copies all weights.
    pub(super) fn load(mut self, places: &WeightLayout, context: usize) -> Result<(), CudaError> {
        let config = self.source.config().clone();
        checkpoint::visit_tensors(&config, places, context, &mut self)
    }

    fn put<T: Pod>(&self, values: &[T], place: Placement<T>) -> Result<(), CudaError> {
        self.driver.upload(values, self.driver.slice(self.region, place))
    }

    /// Fills a matrix with slices of the pattern, starting at a different offset each time.
    fn random(&mut self, place: Placement<bf16>) -> Result<(), CudaError> {
        let Some((pattern, made)) = &mut self.pattern else { return Ok(()) };
        *made += 1;
        // An odd step through a power of two visits every even offset before any is repeated.
        let mut from = *made * 2_654_435 % (PATTERN / 2) * 2;
        let mut at = 0;
        while at < place.len() {
            let len = (PATTERN - from).min(place.len() - at);
            let piece = self.driver.slice(pattern, Placement::<bf16>::new(0, PATTERN).part(from, len));
            self.driver.copy(piece, self.driver.slice(self.region, place.part(at, len)))?;
            at += len;
            from = 0;
        }
        Ok(())
    }
}

impl<D: Driver> WeightSink for WeightLoader<'_, D> {
    fn matrices(&mut self, named: &[(String, usize)], inn: usize, place: Placement<bf16>) -> Result<(), CudaError> {
        let WeightSource::Checkpoint(weights) = self.source else { return self.random(place) };
        let mut at = 0;
        for (name, out) in named {
            checkpoint::read_bf16(weights, name, &[*out, inn], &mut self.values)?;
            self.put(&self.values, place.part(at, out * inn))?;
            at += out * inn;
        }
        Ok(())
    }

    fn vectors(&mut self, named: &[(String, usize)], value: f32, place: Placement<f32>) -> Result<(), CudaError> {
        match self.source {
            WeightSource::Checkpoint(weights) => self.put(&checkpoint::read_vectors(weights, named)?, place),
            WeightSource::Random { .. } => self.put(&vec![value; place.len()], place),
        }
    }

    fn values(&mut self, values: &[f32], place: Placement<f32>) -> Result<(), CudaError> {
        self.put(values, place)
    }
}

/// Uploads normally distributed numbers.
fn pattern<D: Driver>(driver: &D, seed: u64, hidden: usize) -> Result<D::Region, CudaError> {
    let values = normals(seed, 1.0 / (hidden as f32).sqrt(), PATTERN);
    let region = driver.allocate(PATTERN * size_of::<bf16>())?;
    driver.upload(&values, driver.slice(&region, Placement::new(0, PATTERN)))?;
    Ok(region)
}

/// Returns `count` normally distributed numbers with mean 0.
pub(super) fn normals(seed: u64, deviation: f32, count: usize) -> Vec<bf16> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // The sum of twelve uniform numbers is close enough to a normal one (Irwin-Hall): four bytes of each of three
    // words.
    let mut normal = || {
        let words = [random.next_u32(), random.next_u32(), random.next_u32()];
        let sum: u32 = words.iter().flat_map(|word| word.to_le_bytes()).map(u32::from).sum();
        bf16::from_f32((sum as f32 - 12.0 * 127.5) / 256.0 * deviation)
    };
    (0..count).map(|_| normal()).collect()
}
