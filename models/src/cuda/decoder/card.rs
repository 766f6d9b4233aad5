//! A decoder on a card, a step of which begins and is waited for.

use std::path::Path;
use std::time::{Duration, Instant};

use super::line::Pass;
use super::machine::Machine;
use crate::batch::{AdapterSlot, ForwardBatch, Logits};
use crate::cuda::CudaError;
use crate::cuda::bucket::Buckets;
use crate::cuda::device::{Card, CardInfo, Event, Graph, Pinned};
use crate::cuda::driver::OnCard;
use crate::cuda::graphs::{GraphUse, Graphs, Key, Line};
use crate::cuda::image::{Filler, Step};
use crate::cuda::patience::Patience;
use crate::cuda::plan::{self, Limits, Memory, Plan};
use crate::cuda::source::Source;
use crate::decoder::DecoderConfig;
use crate::sampler::{Pick, SampleError, Sampled};

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
    machine: Machine<OnCard>,
}

impl CudaDecoder {
    /// Opens a card, takes its memory and loads the weights.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] where there is no such card, driver or library; [`CudaError::Memory`] says what would fit;
    /// [`CudaError::Model`] when a tensor is missing or a shape is one no kernel was written for.
    pub fn load(source: Source<'_>, options: &CudaOptions) -> Result<Self, CudaError> {
        let (config, limits) = (source.config(), options.limits);
        let (driver, plan) = open(config, options)?;
        let processors = driver.card().info().processors;
        let filler = Filler::new(config, limits, plan.blocks);
        let machine = Machine::load(driver, source, limits, processors, plan.blocks)?;
        let card = machine.driver.card();
        let decoder = Self {
            graphs: Graphs::new(options.graphs),
            warm: false,
            plan,
            filler,
            buckets: Buckets::up_to(limits.rows),
            upload: Pinned::filled(card, machine.image.bytes.div_ceil(size_of::<u64>()), 0)?,
            results: Pinned::filled(card, 3 * limits.rows, 0)?,
            done: Event::new(card)?,
            begun: None,
            patience: card.patience(),
            chosen: Vec::new(),
            machine,
        };
        decoder.machine.driver.card().synchronize()?;
        Ok(decoder)
    }

    /// What it is configured by.
    pub fn config(&self) -> &DecoderConfig {
        &self.machine.config
    }

    /// The card it runs on.
    pub fn card(&self) -> &CardInfo {
        self.machine.driver.card().info()
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
        self.machine.driver.card().synchronize()
    }

    /// Loads a PEFT LoRA directory beside those that are loaded. No step is under way.
    ///
    /// # Errors
    /// As [`Decoder::load_adapter`](crate::decoder::Decoder::load_adapter), and [`CudaError::Call`] when the card has no
    /// memory left for it.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, CudaError> {
        let slot = self.machine.load_adapter(dir)?;
        let reach = self.machine.reach();
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
        self.machine.unload_adapter(slot)
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
        let step = filler.fill(batch, picks, |slot| machine.holds(slot), bucket, bytes)?;
        self.chosen.clear();
        self.chosen.extend((0..batch.logit_rows()).map(|row| picks.get(row).is_some_and(Option::is_some)));
        if batch.is_empty() {
            return Ok(());
        }
        self.machine.driver.card().bind()?;
        self.begun = Some(Instant::now());
        self.send(&step)?;
        let pass = Pass { machine: &self.machine, step, lora: self.machine.grid(&step) };
        if step.decode && self.graphs.enabled() {
            self.graphs.run(Key { rows: step.singles, lora: pass.lora }, &pass)?;
        } else {
            pass.launch()?;
        }
        let card = self.machine.driver.card();
        card.download(self.machine.results(), self.results.values_mut())?;
        self.done.record(card)
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
            self.done.wait(self.machine.driver.card(), begun, &mut self.patience)?;
            self.begun = None;
        }
        let (machine, card) = (&self.machine, self.machine.driver.card());
        machine.drawn(self.results.values(), &self.chosen, drawn);
        let wanted = || self.chosen.iter().enumerate().filter(|(_, chosen)| !**chosen).map(|(row, _)| row);
        logits.reset(machine.config.vocab, wanted().count());
        if logits.rows() == 0 {
            return Ok(());
        }
        for (to, from) in wanted().enumerate() {
            card.download(machine.logits(from, 1), logits.row_mut(to))?;
        }
        card.synchronize()
    }

    /// Why no step can succeed any more, if none can.
    pub fn lost(&self) -> Option<String> {
        self.machine.driver.card().lost()
    }

    /// Waits for a step that is under way, whatever became of it.
    fn finish(&mut self) -> Result<(), CudaError> {
        if self.begun.is_some() {
            self.machine.driver.card().synchronize()?;
            self.begun = None;
        }
        Ok(())
    }

    /// Copies the step's layout to the card.
    fn send(&self, step: &Step) -> Result<(), CudaError> {
        let Machine { image, driver, .. } = &self.machine;
        let from = bytemuck::cast_slice(self.upload.values());
        driver.card().upload_pieces(from, &image.pieces(step), self.machine.layout())
    }

    /// Makes recordings out of steps of padding alone.
    fn record(&mut self, keys: &[Key], limit: Duration) -> Result<(), CudaError> {
        self.finish()?;
        let Self { graphs, filler, upload, machine, .. } = self;
        let machine = &*machine;
        let left = graphs.warm(keys, limit, |Key { rows, lora }| {
            let card = machine.driver.card();
            card.synchronize()?;
            let bytes = bytemuck::cast_slice_mut(upload.values_mut());
            let step = filler.blank(rows, bytes);
            card.upload_pieces(bytes, &machine.image.pieces(&step), machine.layout())?;
            Ok(Pass { machine, step, lora })
        })?;
        if left > 0 {
            tracing::info!(left, of = keys.len(), "decode steps of some sizes are recorded at their first use");
        }
        Ok(())
    }
}

/// Opens a card for a decoder, and shares out its memory, of which nothing but what cuBLAS works in is taken yet.
pub(super) fn open(config: &DecoderConfig, options: &CudaOptions) -> Result<(OnCard, Plan), CudaError> {
    let limits = options.limits;
    plan::check(config, &limits)?;
    let card = Card::open(options.ordinal, config.head_dim)?.with_limit(options.limit);
    let (total, free) = (card.info().memory, card.free_memory()?);
    let memory = Memory { free, total, share: options.share, blocks: options.blocks };
    let plan = Plan::new(config, &limits, card.info().processors, memory)?;
    Ok((OnCard::new(card)?, plan))
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
