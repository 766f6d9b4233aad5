//! The decoder on a card: the same steps as [`crate::decoder::Decoder`], with weights and activations in `bf16`, sums and the
//! residual stream in `f32`.

mod adapters;
mod pass;
mod source;

use std::path::Path;
use std::time::{Duration, Instant};

pub use source::Source;

use super::CudaError;
use super::bucket::Buckets;
use super::device::{Blas, Card, CardInfo, Event, Graph, Pinned, Region};
use super::graphs::{GraphUse, Graphs, Key, Line};
use super::image::{Filler, Step};
use super::kernel::Status;
use super::patience::Patience;
use super::plan::{self, Limits, Memory, Plan, WeightPlaces, WorkPlaces};
use crate::batch::{AdapterSlot, ForwardBatch, Logits};
use crate::decoder::DecoderConfig;
use crate::sampler::{Pick, SampleError, Sampled};
use adapters::Adapters;
use pass::{Machine, Pass};
use source::Loader;

/// How long recording may take before the first step, and, while others wait, after an adapter was loaded. Each size takes
/// some ten milliseconds; what is left over is recorded at its first use.
const WARM_UP: Duration = Duration::from_secs(60);
const ADAPTED_WARM_UP: Duration = Duration::from_secs(2);

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
    /// How long the card may take for what it is given, until it counts as lost.
    pub limit: Duration,
}

/// A decoder on a card, with its cache and the memory a step works in, all of which is taken when it is loaded.
///
/// A step has two halves, [`submit`](Self::submit) and [`collect`](Self::collect): between them the card works and the
/// caller does something else.
pub struct CudaDecoder {
    // Graphs before what they use, the card last.
    graphs: Graphs<Graph>,
    /// Whether recordings are made before they are used.
    warm: bool,
    plan: Plan,
    filler: Filler,
    buckets: Buckets,
    /// The step's layout, from where the card copies it.
    upload: Pinned<u64>,
    /// Ids, log-probabilities and status, to where the card copies them.
    results: Pinned<u32>,
    /// After the last step.
    done: Event,
    /// Since when a step is under way that nobody has waited for.
    begun: Option<Instant>,
    patience: Patience,
    /// Of the step under way: for each row of logits, whether the card chooses.
    chosen: Vec<bool>,
    machine: Machine,
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
        let card = Card::open(options.ordinal, config.head_dim)?.with_limit(options.limit);
        let (total, free) = (card.info().memory, card.free_memory()?);
        let memory = Memory { free, total, share: options.share, blocks: options.blocks };
        let plan = Plan::new(&config, &limits, card.info().processors, memory)?;
        let places = WeightPlaces::new(&config, limits.context);
        let room = WorkPlaces::new(&config, &limits, card.info().processors);
        let filler = Filler::new(&config, limits, plan.blocks);
        let image = *filler.image();
        let weights = Region::take(&card, places.bytes)?;
        let work = Region::take(&card, room.bytes)?;
        let cache = Region::take(&card, plan.blocks * plan.block)?;
        let layout = Region::take(&card, image.bytes)?;
        // Counters begin at zero; and what was never computed reads as numbers.
        for region in [&work, &cache, &layout] {
            region.fill(&card, 0)?;
        }
        Loader::new(source, &card, &weights)?.load(&places, limits.context)?;
        let (blas, adapters) = (Blas::new(&card)?, Adapters::new(&card, work.span(room.factors))?);
        let blocks = plan.blocks;
        let decoder = Self {
            graphs: Graphs::new(options.graphs),
            warm: false,
            plan,
            filler,
            buckets: Buckets::up_to(limits.rows),
            upload: Pinned::filled(&card, image.bytes.div_ceil(size_of::<u64>()), 0)?,
            results: Pinned::filled(&card, 3 * limits.rows, 0)?,
            done: Event::new(&card)?,
            begun: None,
            patience: card.patience(),
            chosen: Vec::new(),
            machine: Machine {
                adapters,
                config,
                limits,
                places,
                room,
                image,
                blocks,
                weights,
                work,
                cache,
                layout,
                blas,
                card,
            },
        };
        decoder.machine.card.synchronize()?;
        Ok(decoder)
    }

    /// What it is configured by.
    pub fn config(&self) -> &DecoderConfig {
        &self.machine.config
    }

    /// The card it runs on.
    pub fn card(&self) -> &CardInfo {
        self.machine.card.info()
    }

    /// What of the card's memory it took.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The most a step may be.
    pub fn limits(&self) -> &Limits {
        &self.machine.limits
    }

    /// The batch sizes that are padded to and recorded.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Whether decode steps are recorded and replayed from now on.
    pub fn set_graphs(&mut self, graphs: bool) {
        self.graphs.set(graphs);
    }

    /// What became of recording steps.
    pub fn graphs(&self) -> GraphUse {
        self.graphs.tally()
    }

    /// Records a graph for every bucket, so that no step has to wait for it; from now on also for steps with adapters when
    /// one is loaded. Writes to no block. A bucket that cannot be recorded is launched piece by piece later.
    ///
    /// # Errors
    /// [`CudaError`] when a step cannot be computed.
    pub fn warm_up(&mut self) -> Result<(), CudaError> {
        self.warm = self.graphs.enabled();
        if self.warm {
            let keys: Vec<Key> = self.buckets.sizes().iter().map(|&rows| Key { rows, lora: None }).collect();
            self.record(&keys, WARM_UP)?;
        }
        self.machine.card.synchronize()
    }

    /// Loads a PEFT LoRA directory beside those that are loaded. No step is under way.
    ///
    /// # Errors
    /// As [`Decoder::load_adapter`](crate::decoder::Decoder::load_adapter), and [`CudaError::Call`] when the card has no
    /// memory left for it.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, CudaError> {
        let Machine { adapters, card, config, .. } = &mut self.machine;
        let slot = adapters.load(card, dir, config)?;
        let reach = adapters.reach();
        // Recordings that do not reach far enough.
        self.graphs.retain(|Key { rows, lora }| lora.is_none_or(|lora| lora == reach.decode(rows)));
        if self.warm && self.graphs.enabled() {
            let key = |&rows: &usize| Key { rows, lora: Some(reach.decode(rows)) };
            let keys: Vec<Key> = self.buckets.sizes().iter().map(key).collect();
            if let Err(error) = self.record(&keys, ADAPTED_WARM_UP) {
                self.unload_adapter(slot)?;
                return Err(error);
            }
        }
        Ok(slot)
    }

    /// Frees an adapter's slot and its memory; a slot that holds none is left alone. No step is under way.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<(), CudaError> {
        let Machine { adapters, card, .. } = &mut self.machine;
        adapters.unload(card, slot)
    }

    /// Begins a step. `picks` says for each row of logits how the card is to choose a token from it; where it says nothing,
    /// [`collect`](Self::collect) gives the logits.
    ///
    /// # Errors
    /// [`CudaError::Model`], before anything is begun, when the batch names what does not exist or is too large; other
    /// errors come from the driver.
    pub fn submit(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Result<(), CudaError> {
        // What began and was never waited for, because something failed, may still read what is written now.
        self.finish()?;
        let Self { filler, buckets, machine, upload, .. } = self;
        // Padded whether it is replayed or not: so both ways compute the same, to the last bit.
        let bucket = |rows: usize| buckets.fit(rows);
        let bytes = bytemuck::cast_slice_mut(upload.values_mut());
        let step = filler.fill(batch, picks, |slot| machine.adapters.holds(slot), bucket, bytes)?;
        self.chosen.clear();
        self.chosen.extend((0..batch.logit_rows()).map(|row| picks.get(row).is_some_and(Option::is_some)));
        if batch.is_empty() {
            return Ok(());
        }
        self.machine.card.bind()?;
        self.begun = Some(Instant::now());
        self.send(&step)?;
        let reach = self.machine.adapters.reach();
        let grid = || if step.decode { reach.decode(step.singles) } else { reach.tiles(step.lora) };
        let pass = Pass { machine: &self.machine, step, lora: (step.lora > 0).then(grid) };
        if step.decode && self.graphs.enabled() {
            self.graphs.run(Key { rows: step.singles, lora: pass.lora }, &pass)?;
        } else {
            pass.launch()?;
        }
        let results = self.machine.work.span(self.machine.room.results);
        self.machine.card.download(results, self.results.values_mut())?;
        self.done.record(&self.machine.card)
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
        if let Some(begun) = self.begun {
            self.done.wait(&self.machine.card, begun, &mut self.patience)?;
            self.begun = None;
        }
        drawn.clear();
        let values = self.results.values();
        let rows = self.machine.limits.rows;
        let (ids, rest) = values.split_at(rows);
        let (logprobs, status) = rest.split_at(rows);
        for (row, chosen) in self.chosen.iter().enumerate() {
            drawn.push(chosen.then(|| match Status::of(status[row]) {
                Status::Chosen => Ok(Sampled { id: ids[row], logprob: f32::from_bits(logprobs[row]), top: Vec::new() }),
                Status::NotFinite => Err(SampleError::NotFinite),
                Status::NoCandidate => Err(SampleError::NoCandidate),
            }));
        }
        let Machine { config, work, room, card, .. } = &self.machine;
        let vocab = config.vocab;
        let wanted = || self.chosen.iter().enumerate().filter(|(_, chosen)| !**chosen).map(|(row, _)| row);
        logits.reset(vocab, wanted().count());
        if logits.rows() == 0 {
            return Ok(());
        }
        for (to, from) in wanted().enumerate() {
            let span = work.span(room.logits.part(from * vocab, vocab));
            card.download(span, logits.row_mut(to))?;
        }
        card.synchronize()
    }

    /// Why no step can succeed any more, if none can.
    pub fn lost(&self) -> Option<String> {
        self.machine.card.lost()
    }

    /// Waits for a step that is under way, whatever became of it.
    fn finish(&mut self) -> Result<(), CudaError> {
        if self.begun.is_some() {
            self.machine.card.synchronize()?;
            self.begun = None;
        }
        Ok(())
    }

    /// Copies the step's layout to the card.
    fn send(&self, step: &Step) -> Result<(), CudaError> {
        let Machine { image, layout, card, .. } = &self.machine;
        let all = layout.span(plan::Place::new(0, image.bytes));
        card.upload_pieces(bytemuck::cast_slice(self.upload.values()), &image.pieces(step), all)
    }

    /// Makes recordings out of steps of padding alone.
    fn record(&mut self, keys: &[Key], limit: Duration) -> Result<(), CudaError> {
        self.finish()?;
        let Self { graphs, filler, upload, machine, .. } = self;
        let machine = &*machine;
        let left = graphs.warm(keys, limit, |Key { rows, lora }| {
            machine.card.synchronize()?;
            let bytes = bytemuck::cast_slice_mut(upload.values_mut());
            let step = filler.blank(rows, bytes);
            let all = machine.layout.span(plan::Place::new(0, machine.image.bytes));
            machine.card.upload_pieces(bytes, &machine.image.pieces(&step), all)?;
            Ok(Pass { machine, step, lora })
        })?;
        if left > 0 {
            tracing::info!(left, of = keys.len(), "decode steps of some sizes are recorded at their first use");
        }
        Ok(())
    }
}

impl Drop for CudaDecoder {
    fn drop(&mut self) {
        // The card may still write to memory that goes now. One that was given up is not waited for.
        let _ = self.finish();
    }
}

impl std::fmt::Debug for CudaDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDecoder").field("card", self.card()).field("plan", &self.plan).finish_non_exhaustive()
    }
}
