//! What steps run on: a decoder's memory on a card, or on the emulator.

use std::path::Path;

use half::bf16;

use super::adapters::Adapters;
use crate::adapter::Site;
use crate::batch::AdapterSlot;
use crate::cuda::CudaError;
use crate::cuda::driver::Driver;
use crate::cuda::image::{Image, Piece, Step};
use crate::cuda::kernel::{Factors, Span, Status, layout};
use crate::cuda::plan::{Limits, Place, WeightPlaces, WorkPlaces};
use crate::cuda::reach::{Grid, Reach};
use crate::cuda::source::{Loader, Source};
use crate::decoder::DecoderConfig;
use crate::sampler::{SampleError, Sampled};

/// Everything a step reads and writes, all of it taken when a decoder is loaded.
pub(super) struct Machine<D: Driver> {
    // In the order in which they have to go, the card last.
    adapters: Adapters<D>,
    pub(super) config: DecoderConfig,
    pub(super) limits: Limits,
    /// Multiprocessors of the card.
    pub(super) processors: u32,
    pub(super) places: WeightPlaces,
    pub(super) room: WorkPlaces,
    pub(super) image: Image,
    /// KV blocks.
    blocks: usize,
    weights: D::Region,
    work: D::Region,
    cache: D::Region,
    layout: D::Region,
    pub(super) driver: D,
}

impl<D: Driver> Machine<D> {
    /// Takes memory for steps within `limits` and for `blocks` KV blocks, and loads the weights. The configuration is one
    /// that kernels were written for.
    pub(super) fn load(
        driver: D,
        source: Source<'_>,
        limits: Limits,
        processors: u32,
        blocks: usize,
    ) -> Result<Self, CudaError> {
        let config = source.config().clone();
        let places = WeightPlaces::new(&config, limits.context);
        let room = WorkPlaces::new(&config, &limits, processors);
        let image = Image::new(&config, &limits);
        let cached = config.layers * blocks * layout::block_len(config.kv_heads, config.head_dim) * size_of::<bf16>();
        let weights = driver.take(places.bytes)?;
        let work = driver.take(room.bytes)?;
        let cache = driver.take(cached)?;
        let layout = driver.take(image.bytes)?;
        // Counters begin at zero; and what was never computed reads as numbers.
        for (region, bytes) in [(&work, room.bytes), (&cache, cached), (&layout, image.bytes)] {
            driver.clear(driver.span(region, Place::new(0, bytes / size_of::<f32>())))?;
        }
        Loader::new(source, &driver, &weights)?.load(&places, limits.context)?;
        let adapters = Adapters::new(&driver, driver.span(&work, room.factors))?;
        Ok(Self {
            adapters,
            config,
            limits,
            processors,
            places,
            room,
            image,
            blocks,
            weights,
            work,
            cache,
            layout,
            driver,
        })
    }

    /// Loads the adapter in `dir` into a free slot.
    pub(super) fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, CudaError> {
        self.adapters.load(&self.driver, dir, &self.config)
    }

    /// Forgets an adapter; its memory is given back.
    pub(super) fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<(), CudaError> {
        self.adapters.unload(&self.driver, slot)
    }

    /// Whether a slot holds an adapter.
    pub(super) fn holds(&self, slot: AdapterSlot) -> bool {
        self.adapters.holds(slot)
    }

    /// How far the adapters' kernels reach.
    pub(super) fn reach(&self) -> Reach {
        self.adapters.reach()
    }

    /// The grid of the adapters' kernels in a step; none where no row has an adapter.
    pub(super) fn grid(&self, step: &Step) -> Option<Grid> {
        let reach = self.reach();
        let grid = || if step.decode { reach.decode(step.singles) } else { reach.tiles(step.lora) };
        (step.lora > 0).then(grid)
    }

    /// The factors of all slots at one site.
    pub(super) fn factors(&self, layer: usize, site: Site) -> Option<Span<Factors>> {
        self.adapters.at(layer, site)
    }

    /// What sampling gave, as it was copied from [`results`](Self::results): for each row of logits, where the card was to
    /// choose, what it chose.
    pub(super) fn drawn(
        &self,
        results: &[u32],
        chosen: &[bool],
        drawn: &mut Vec<Option<Result<Sampled, SampleError>>>,
    ) {
        let (ids, rest) = results.split_at(self.limits.rows);
        let (logprobs, status) = rest.split_at(self.limits.rows);
        drawn.clear();
        for (row, chosen) in chosen.iter().enumerate() {
            drawn.push(chosen.then(|| match Status::of(status[row]) {
                Status::Chosen => Ok(Sampled { id: ids[row], logprob: f32::from_bits(logprobs[row]), top: Vec::new() }),
                Status::NotFinite => Err(SampleError::NotFinite),
                Status::NoCandidate => Err(SampleError::NoCandidate),
            }));
        }
    }

    /// Ids, log-probabilities and status of all rows of logits, a third each.
    pub(super) fn results(&self) -> Span<u32> {
        self.work(self.room.results)
    }

    /// Logits of some rows.
    pub(super) fn logits(&self, first: usize, rows: usize) -> Span<f32> {
        let vocab = self.config.vocab;
        self.work(self.room.logits.part(first * vocab, rows * vocab))
    }

    /// Where a step's layout is copied to.
    pub(super) fn layout(&self) -> Span<u8> {
        self.laid(Place::new(0, self.image.bytes))
    }

    /// Copies a step's layout from the host, and waits for it.
    pub(super) fn lay(&self, from: &[u8], step: &Step) -> Result<(), CudaError> {
        let rows = |Piece { first, width, pitch, rows }| (0..rows).map(move |row| (first + row * pitch, width));
        let lines = self.image.pieces(step).into_iter().flat_map(rows);
        let parts = lines.map(|(first, width)| (&from[first..first + width], self.laid(Place::new(first, width))));
        self.driver.upload_all(&parts.collect::<Vec<_>>())
    }

    /// One layer's KV blocks.
    pub(super) fn blocks(&self, layer: usize) -> Span<bf16> {
        let len = self.blocks * layout::block_len(self.config.kv_heads, self.config.head_dim);
        self.driver.span(&self.cache, Place::new(layer * len * size_of::<bf16>(), len))
    }

    pub(super) fn weight<T>(&self, place: Place<T>) -> Span<T> {
        self.driver.span(&self.weights, place)
    }

    pub(super) fn work<T>(&self, place: Place<T>) -> Span<T> {
        self.driver.span(&self.work, place)
    }

    /// A part of the step's layout.
    pub(super) fn laid<T>(&self, place: Place<T>) -> Span<T> {
        self.driver.span(&self.layout, place)
    }
}
