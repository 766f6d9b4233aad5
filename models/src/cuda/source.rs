//! Sources of weights, and their transfer to device memory.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytemuck::Pod;
use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::CudaError;
use super::checkpoint::{self, WeightSink};
use super::driver::Driver;
use super::kernel::fp8;
use super::plan::{MatrixLayout, Placement, WeightLayout};
use crate::ModelError;
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

/// Maximum number of threads that quantize a tensor; more would wait for memory.
const QUANTIZERS: usize = 16;

/// Copies weights to their placements in device memory.
pub(super) struct WeightLoader<'a, D: Driver> {
    source: WeightSource<'a>,
    driver: &'a D,
    region: &'a D::Region,
    /// Random numbers. `None` for a checkpoint.
    pattern: Option<RandomPattern<D>>,
    /// Staging buffers, reused from tensor to tensor.
    values: Vec<bf16>,
    bytes: Vec<u8>,
}

/// Random numbers, on the host and in device memory.
struct RandomPattern<D: Driver> {
    values: Vec<bf16>,
    half: D::Region,
    /// The same numbers as one row in `e4m3`, and its scale. `None` before the first matrix in this format.
    fp8: Option<(D::Region, f32)>,
    /// Number of matrices made from it.
    made: usize,
}

impl<'a, D: Driver> WeightLoader<'a, D> {
    pub(super) fn new(source: WeightSource<'a>, driver: &'a D, region: &'a D::Region) -> Result<Self, CudaError> {
        let pattern = match source {
            WeightSource::Checkpoint(_) => None,
            WeightSource::Random { config, seed } => Some(RandomPattern::new(driver, seed, config.hidden)?),
        };
        Ok(Self { source, driver, region, pattern, values: Vec::new(), bytes: Vec::new() })
    }

    /// Copies all weights.
    pub(super) fn load<M: Copy + Into<MatrixLayout>>(
        mut self,
        places: &WeightLayout<M>,
        context: usize,
    ) -> Result<(), CudaError> {
        let config = self.source.config().clone();
        checkpoint::visit_tensors(&config, places, context, &mut self)
    }

    fn put<T: Pod>(&self, values: &[T], place: Placement<T>) -> Result<(), CudaError> {
        self.driver.upload(values, self.driver.slice(self.region, place))
    }

    /// Fills a matrix with random numbers.
    fn random(&mut self, place: MatrixLayout) -> Result<(), CudaError> {
        let Some(pattern) = &mut self.pattern else { return Ok(()) };
        let from = pattern.next_offset();
        match place {
            MatrixLayout::Half(place) => fill(self.driver, &pattern.half, from, self.region, place),
            MatrixLayout::Fp8 { values, scales } => {
                let (fp8, scale) = pattern.fp8(self.driver)?;
                fill(self.driver, fp8, from, self.region, values)?;
                self.put(&vec![scale; scales.len()], scales)
            }
        }
    }

    /// Quantizes the rows of the tensor in the staging buffer to `e4m3` and copies them and their scales.
    fn put_fp8(
        &mut self,
        name: &str,
        inn: usize,
        values: Placement<u8>,
        scales: Placement<f32>,
    ) -> Result<(), CudaError> {
        self.bytes.resize(self.values.len(), 0);
        let row_scales = quantize(&self.values, inn, &mut self.bytes).map_err(|row| not_finite(name, row))?;
        self.put(&self.bytes, values)?;
        self.put(&row_scales, scales)
    }
}

impl<D: Driver> WeightSink for WeightLoader<'_, D> {
    fn matrices(&mut self, named: &[(String, usize)], inn: usize, place: MatrixLayout) -> Result<(), CudaError> {
        let WeightSource::Checkpoint(weights) = self.source else { return self.random(place) };
        let mut at = 0;
        for (name, out) in named {
            checkpoint::read_bf16(weights, name, &[*out, inn], &mut self.values)?;
            match place {
                MatrixLayout::Half(place) => self.put(&self.values, place.part(at * inn, out * inn))?,
                MatrixLayout::Fp8 { values, scales } => {
                    self.put_fp8(name, inn, values.part(at * inn, out * inn), scales.part(at, *out))?;
                }
            }
            at += out;
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

impl<D: Driver> RandomPattern<D> {
    /// Uploads normally distributed numbers.
    fn new(driver: &D, seed: u64, hidden: usize) -> Result<Self, CudaError> {
        let values = normals(seed, 1.0 / (hidden as f32).sqrt(), PATTERN);
        let half = driver.allocate(PATTERN * size_of::<bf16>())?;
        driver.upload(&values, driver.slice(&half, Placement::new(0, PATTERN)))?;
        Ok(Self { values, half, fp8: None, made: 0 })
    }

    /// Returns the numbers in `e4m3` and their scale.
    fn fp8(&mut self, driver: &D) -> Result<(&D::Region, f32), CudaError> {
        let fp8 = match self.fp8.take() {
            Some(fp8) => fp8,
            None => {
                let mut bytes = vec![0; PATTERN];
                let scale =
                    fp8::quantize_row(&self.values, &mut bytes).ok_or_else(|| not_finite("of random numbers", 0))?;
                let region = driver.allocate(PATTERN)?;
                driver.upload(&bytes, driver.slice(&region, Placement::new(0, PATTERN)))?;
                (region, scale)
            }
        };
        let (region, scale) = self.fp8.insert(fp8);
        Ok((region, *scale))
    }

    /// Returns the offset of the next matrix's first value.
    fn next_offset(&mut self) -> usize {
        self.made += 1;
        // An odd step through a power of two visits every even offset before any is repeated.
        self.made * 2_654_435 % (PATTERN / 2) * 2
    }
}

/// Fills a matrix with values of a pattern from an offset on, as often as needed.
fn fill<D: Driver, T: Pod>(
    driver: &D,
    pattern: &D::Region,
    mut from: usize,
    to: &D::Region,
    place: Placement<T>,
) -> Result<(), CudaError> {
    let mut at = 0;
    while at < place.len() {
        let len = (PATTERN - from).min(place.len() - at);
        let piece = driver.slice(pattern, Placement::<T>::new(0, PATTERN).part(from, len));
        driver.copy(piece, driver.slice(to, place.part(at, len)))?;
        at += len;
        from = 0;
    }
    Ok(())
}

/// Quantizes rows of `inn` values on up to [`QUANTIZERS`] threads, and returns their scales, or the index of the first row that has
/// none.
fn quantize(values: &[bf16], inn: usize, to: &mut [u8]) -> Result<Vec<f32>, usize> {
    let rows = values.len() / inn;
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(QUANTIZERS);
    let part = rows.div_ceil(threads).max(1);
    let mut scales = vec![None; rows];
    let parts = values.chunks(part * inn).zip(to.chunks_mut(part * inn)).zip(scales.chunks_mut(part));
    let parts = Mutex::new(parts);
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(((values, to), scales)) = next() {
            for ((row, to), scale) in values.chunks_exact(inn).zip(to.chunks_exact_mut(inn)).zip(scales) {
                *scale = fp8::quantize_row(row, to);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without a further thread, the others do its part.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    scales.into_iter().enumerate().map(|(row, scale)| scale.ok_or(row)).collect()
}

/// Returns the error of a tensor that `e4m3` cannot hold.
pub(super) fn not_finite(name: &str, row: usize) -> ModelError {
    let reason = format!("row {row} has a value that is not finite in bf16: fp8 cannot hold it; use bf16 weights");
    ModelError::Tensor { name: name.to_owned(), reason }
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
