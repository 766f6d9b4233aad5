//! The decoder on a card: the same steps as [`crate::decoder::Decoder`], with weights and activations in `bf16`, sums and the
//! residual stream in `f32`.

mod adapters;
mod graphs;
mod pass;
mod source;

use std::path::Path;

pub use source::Source;

use super::CudaError;
use super::bucket::Buckets;
use super::device::{Blas, Card, CardInfo, Event, Pinned, Region};
use super::image::{Filler, Step};
use super::kernel::Status;
use super::plan::{self, Limits, Memory, Plan, WeightPlaces, WorkPlaces};
use crate::batch::{AdapterSlot, ForwardBatch, Logits};
use crate::decoder::DecoderConfig;
use crate::sampler::{Pick, SampleError, Sampled};
use adapters::Adapters;
use graphs::Graphs;
use pass::{Lora, Pass};
use source::Loader;

/// How a card is used.
#[derive(Debug, Clone, PartialEq)]
pub struct CudaOptions {
    /// Which card, by the driver's count.
    pub ordinal: usize,
    /// The most a step may be.
    pub limits: Limits,
    /// The share of the card's memory that may be taken, above 0 to 1.
    pub share: f64,
    /// KV blocks; as many as fit where not given.
    pub blocks: Option<usize>,
    /// Whether decode steps are recorded and replayed.
    pub graphs: bool,
}

/// A decoder on a card, with its cache and the memory a step works in, all of which is taken when it is loaded.
///
/// A step has two halves, [`submit`](Self::submit) and [`collect`](Self::collect): between them the card works and the
/// caller does something else.
pub struct CudaDecoder {
    // Graphs before what they use, the card last.
    graphs: Graphs,
    adapters: Adapters,
    config: DecoderConfig,
    limits: Limits,
    plan: Plan,
    places: WeightPlaces,
    room: WorkPlaces,
    filler: Filler,
    buckets: Buckets,
    weights: Region,
    work: Region,
    cache: Region,
    layout: Region,
    /// The step's layout, from where the card copies it.
    upload: Pinned<u64>,
    /// Ids, log-probabilities and status, to where the card copies them.
    results: Pinned<u32>,
    /// Before and after the last step.
    events: [Event; 2],
    /// Of the step under way: for each row of logits, whether the card chooses.
    chosen: Vec<bool>,
    blas: Blas,
    card: Card,
}

impl CudaDecoder {
    /// Opens a card, takes its memory and loads the weights.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] where there is no such card, driver or library; [`CudaError::Memory`] says what would fit;
    /// [`CudaError::Model`] when a tensor is missing or a shape is one no kernel was written for.
    pub fn load(source: Source<'_>, options: &CudaOptions) -> Result<Self, CudaError> {
        let (config, limits) = (source.config().clone(), options.limits);
        plan::check(&config, &limits)?;
        let card = Card::open(options.ordinal, config.head_dim)?;
        let (total, free) = (card.info().memory, card.free_memory()?);
        let memory = Memory { free, total, share: options.share, blocks: options.blocks };
        let plan = Plan::new(&config, &limits, card.info().processors, memory)?;
        let places = WeightPlaces::new(&config, limits.context);
        let room = WorkPlaces::new(&config, &limits, card.info().processors);
        let filler = Filler::new(&config, limits, plan.blocks);
        let weights = Region::take(&card, places.bytes)?;
        let work = Region::take(&card, room.bytes)?;
        let cache = Region::take(&card, plan.blocks * plan.block)?;
        let layout = Region::take(&card, filler.image().bytes)?;
        // Counters begin at zero; and what was never computed reads as numbers.
        for region in [&work, &cache, &layout] {
            region.fill(&card, 0)?;
        }
        Loader::new(source, &card, &weights)?.load(&places, limits.context)?;
        let blas = Blas::new(&card)?;
        let decoder = Self {
            graphs: Graphs::new(options.graphs),
            adapters: Adapters::new(&card, work.span(room.factors))?,
            buckets: Buckets::up_to(limits.rows),
            upload: Pinned::filled(&card, filler.image().bytes.div_ceil(size_of::<u64>()), 0)?,
            results: Pinned::filled(&card, 3 * limits.rows, 0)?,
            events: [Event::new(&card)?, Event::new(&card)?],
            chosen: Vec::new(),
            config,
            limits,
            plan,
            places,
            room,
            filler,
            weights,
            work,
            cache,
            layout,
            blas,
            card,
        };
        decoder.card.synchronize()?;
        Ok(decoder)
    }

    /// What it is configured by.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The card it runs on.
    pub fn card(&self) -> &CardInfo {
        self.card.info()
    }

    /// What of the card's memory it took.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The most a step may be.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The batch sizes that are padded to and recorded.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Whether decode steps are recorded and replayed from now on.
    pub fn set_graphs(&mut self, graphs: bool) {
        self.graphs.set(graphs);
    }

    /// Records a graph for every bucket, so that no step has to wait for it. Writes to no block.
    ///
    /// # Errors
    /// [`CudaError`] when the driver refuses.
    pub fn warm_up(&mut self) -> Result<(), CudaError> {
        if !self.graphs.enabled() {
            return Ok(());
        }
        for rows in self.buckets.sizes().to_vec() {
            let step = self.blank(rows)?;
            self.replay(&step, None)?;
        }
        self.card.synchronize()
    }

    /// Loads a PEFT LoRA directory beside those that are loaded. No step is under way.
    ///
    /// # Errors
    /// As [`Decoder::load_adapter`](crate::decoder::Decoder::load_adapter), and [`CudaError::Call`] when the card has no
    /// memory left for it.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, CudaError> {
        let slot = self.adapters.load(&self.card, dir, &self.config)?;
        // Tiles and widths of what was recorded with adapters may have changed.
        self.graphs.forget_adapted();
        Ok(slot)
    }

    /// Frees an adapter's slot and its memory; a slot that holds none is left alone. No step is under way.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<(), CudaError> {
        self.graphs.forget_adapted();
        self.adapters.unload(&self.card, slot)
    }

    /// Begins a step. `picks` says for each row of logits how the card is to choose a token from it; where it says nothing,
    /// [`collect`](Self::collect) gives the logits.
    ///
    /// # Errors
    /// [`CudaError::Model`], before anything is begun, when the batch names what does not exist or is too large; other
    /// errors come from the driver.
    pub fn submit(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Result<(), CudaError> {
        let Self { filler, buckets, adapters, upload, .. } = self;
        // Padded whether it is replayed or not: so both ways compute the same, to the last bit.
        let bucket = |rows: usize| buckets.fit(rows);
        let bytes = bytemuck::cast_slice_mut(upload.values_mut());
        let step = filler.fill(batch, picks, |slot| adapters.holds(slot), bucket, bytes)?;
        self.chosen.clear();
        self.chosen.extend((0..batch.logit_rows()).map(|row| picks.get(row).is_some_and(Option::is_some)));
        if batch.is_empty() {
            return Ok(());
        }
        self.events[0].record(&self.card)?;
        self.send(&step)?;
        let lora = (step.lora > 0).then(|| self.lora(&step));
        if step.decode && self.graphs.enabled() {
            self.replay(&step, lora)?;
        } else {
            self.pass().run(&step, lora)?;
        }
        let results = self.work.span(self.room.results);
        self.card.download(results, self.results.values_mut())?;
        self.events[1].record(&self.card)
    }

    /// Waits for the step that was begun. `drawn` gets an entry for each row of logits, `None` for those that are in
    /// `logits`.
    ///
    /// # Errors
    /// [`CudaError::Call`] when anything of the step failed.
    pub fn collect(
        &mut self,
        logits: &mut Logits,
        drawn: &mut Vec<Option<Result<Sampled, SampleError>>>,
    ) -> Result<(), CudaError> {
        self.events[1].wait()?;
        drawn.clear();
        let values = self.results.values();
        let (ids, rest) = values.split_at(self.limits.rows);
        let (logprobs, status) = rest.split_at(self.limits.rows);
        for (row, chosen) in self.chosen.iter().enumerate() {
            drawn.push(chosen.then(|| match Status::of(status[row]) {
                Status::Chosen => Ok(Sampled { id: ids[row], logprob: f32::from_bits(logprobs[row]), top: Vec::new() }),
                Status::NotFinite => Err(SampleError::NotFinite),
                Status::NoCandidate => Err(SampleError::NoCandidate),
            }));
        }
        let vocab = self.config.vocab;
        let wanted = || self.chosen.iter().enumerate().filter(|(_, chosen)| !**chosen).map(|(row, _)| row);
        logits.reset(vocab, wanted().count());
        if logits.rows() == 0 {
            return Ok(());
        }
        for (to, from) in wanted().enumerate() {
            let span = self.work.span(self.room.logits.part(from * vocab, vocab));
            self.card.download(span, logits.row_mut(to))?;
        }
        self.card.synchronize()
    }

    /// Seconds the card took for the last step that was collected.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn last_step_seconds(&self) -> Result<f64, CudaError> {
        self.events[0].seconds_to(&self.events[1])
    }

    /// Why no step can succeed any more, if none can.
    pub fn lost(&self) -> Option<String> {
        self.card.lost()
    }

    /// Copies the step's layout to the card.
    fn send(&self, step: &Step) -> Result<(), CudaError> {
        let bytes: &[u8] = bytemuck::cast_slice(self.upload.values());
        let all = self.layout.span(plan::Place::new(0, self.filler.image().bytes));
        self.card.upload(&bytes[..step.bytes], all)
    }

    /// A step of padding alone.
    fn blank(&mut self, rows: usize) -> Result<Step, CudaError> {
        let Self { filler, upload, .. } = self;
        let bytes = bytemuck::cast_slice_mut(upload.values_mut());
        let step = filler.fill(&ForwardBatch::new(), &[], |_| false, |_| Some(rows), bytes)?;
        self.send(&step)?;
        self.card.synchronize()?;
        Ok(step)
    }

    /// Runs a decode step by its graph, which is recorded at its first use.
    fn replay(&mut self, step: &Step, lora: Option<Lora>) -> Result<(), CudaError> {
        let key = (step.singles, lora.is_some());
        if !self.graphs.has(key) {
            // Once as it is: a driver loads kernels at their first use, and not while it records. That has computed this
            // step; recording runs nothing.
            self.pass().run(step, lora)?;
            self.card.synchronize()?;
            let pass = self.pass();
            let graph = super::device::Graph::record(&self.card, || pass.run(step, lora))?;
            self.graphs.insert(key, graph);
            return Ok(());
        }
        self.graphs.launch(key)
    }

    /// The grid of adapters' kernels. In a graph it covers every step of its size: as many tiles as tokens and adapters can
    /// make.
    fn lora(&self, step: &Step) -> Lora {
        let most = step.tokens.min(step.tokens / 16 + self.adapters.count());
        let tiles = if step.decode { most } else { step.lora };
        Lora { tiles, stride: self.adapters.stacked() }
    }

    fn pass(&self) -> Pass<'_> {
        Pass {
            card: &self.card,
            blas: &self.blas,
            config: &self.config,
            limits: &self.limits,
            weights: &self.weights,
            places: &self.places,
            work: &self.work,
            room: &self.room,
            cache: &self.cache,
            blocks: self.plan.blocks,
            layout: &self.layout,
            image: self.filler.image(),
            adapters: &self.adapters,
        }
    }
}

impl std::fmt::Debug for CudaDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDecoder").field("card", self.card.info()).field("plan", &self.plan).finish_non_exhaustive()
    }
}
