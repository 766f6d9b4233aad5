//! A backend without a model: scripted or seeded, with a KV cache that keeps the tokens themselves.
//!
//! Each next token is a function of the context *as it is read back through the block table*, so that a wrong block, a
//! stale one, or a wrong position changes what is said. Everything above the engine can be tested and loaded on it.

mod beside;
mod fault;
mod memory;
mod random;
mod script;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use waymark_models::cuda::graphs::GraphUse;
use waymark_models::cuda::patience::Patience;
use waymark_models::sampler::Pick;
use waymark_models::tokenizer::Tokenizer;
use waymark_models::{AdapterSlot, BLOCK, ForwardBatch, Logits, ModelError, Row, Want};

use super::backend::{Backend, BackendError, BackendSpec, Output};
use beside::{Flight, Overdue};
use memory::Memory;
use script::Script;

pub use fault::Faults;
pub use random::Random;
pub use script::Lines;

/// How far the chosen token's logit stands above all others: sampling finds another one about never.
const CONFIDENCE: f32 = 40.0;
/// How long a pass may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A backend without a model.
#[derive(Debug)]
pub struct MockBackend {
    spec: BackendSpec,
    memory: Memory,
    voice: Voice,
    confidence: f32,
    step_time: Duration,
    token_time: Duration,
    faults: Arc<Faults>,
    steps: u64,
    adapters: BTreeMap<u32, PathBuf>,
    overlap: bool,
    flight: Option<Flight>,
    patience: Patience,
    /// Why it was given up.
    gone: Option<String>,
    graphs: GraphUse,
    /// The context of the row at hand.
    context: Vec<u32>,
}

#[derive(Debug)]
enum Voice {
    Random(Random),
    Script(Script),
}

impl MockBackend {
    /// Says these lines. The tokenizer should be [`Tokenizer::bytes`]: others may join a turn's first
    /// characters with what is before it.
    ///
    /// # Errors
    /// [`ModelError`] when the tokenizer refuses the script's text.
    pub fn script(tokenizer: &Tokenizer, lines: &Lines) -> Result<Self, ModelError> {
        Ok(Self::new(tokenizer.vocab(), Voice::Script(Script::new(tokenizer, lines)?)))
    }

    /// Says printable nonsense that depends on the seed, the adapter and every token of the context.
    pub fn random(seed: u64, vocab: usize) -> Self {
        Self::new(vocab, Voice::Random(Random { seed, vocab }))
    }

    fn new(vocab: usize, voice: Voice) -> Self {
        let spec = BackendSpec { name: "mock".into(), vocab, blocks: 0, context: 32_768, generation: 1 };
        let mock = Self {
            spec,
            memory: Memory::new(0),
            voice,
            confidence: CONFIDENCE,
            step_time: Duration::ZERO,
            token_time: Duration::ZERO,
            faults: Arc::default(),
            steps: 0,
            adapters: BTreeMap::new(),
            overlap: false,
            flight: None,
            patience: Patience::new(LIMIT),
            gone: None,
            graphs: GraphUse::default(),
            context: Vec::new(),
        };
        mock.with_blocks(8192)
    }

    /// With a KV pool of this many blocks. Default 8192.
    #[must_use]
    pub fn with_blocks(mut self, blocks: usize) -> Self {
        self.spec.blocks = blocks;
        self.memory = Memory::new(blocks * BLOCK);
        self
    }

    /// With this context length in tokens. Default 32768.
    #[must_use]
    pub fn with_context(mut self, context: usize) -> Self {
        self.spec.context = context;
        self
    }

    /// With steps that take this long, and longer by `token` for each of their tokens. Default zero.
    #[must_use]
    pub fn with_time(mut self, step: Duration, token: Duration) -> Self {
        self.step_time = step;
        self.token_time = token;
        self
    }

    /// With this distance between the chosen token's logit and all others. Default 40; with 0 all are equal.
    #[must_use]
    pub fn with_confidence(mut self, confidence: f32) -> Self {
        self.confidence = confidence;
        self
    }

    /// Working beside its caller, as a device does, and drawing tokens itself where it is told how.
    #[must_use]
    pub fn with_overlap(mut self) -> Self {
        self.overlap = true;
        self
    }

    /// With a limit on how long a pass may take beside its caller, until the mock counts as lost. Default a minute.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.patience = Patience::new(limit);
        self
    }

    /// With what became of recording steps.
    #[must_use]
    pub fn with_graphs(mut self, graphs: GraphUse) -> Self {
        self.graphs = graphs;
        self
    }

    /// How long a pass takes.
    fn time(&self, batch: &ForwardBatch) -> Duration {
        let tokens = u32::try_from(batch.tokens().len()).unwrap_or(u32::MAX);
        self.step_time + self.token_time * tokens
    }

    /// The faults to inject, to be set before or while the engine runs.
    pub fn faults(&self) -> Arc<Faults> {
        self.faults.clone()
    }

    /// The next token after what the KV cache holds for this row.
    fn speak(&mut self, batch: &ForwardBatch, row: &Row, len: usize, logits: &mut [f32]) -> Result<(), BackendError> {
        self.memory.read(batch.table(row), len, row.adapter, &mut self.context)?;
        let id = match &mut self.voice {
            Voice::Random(random) => random.next(row.adapter, &self.context),
            Voice::Script(script) => script.next(&self.context),
        };
        logits.fill(self.faults.poison(&self.context).unwrap_or(0.0));
        logits[id as usize] += self.confidence;
        Ok(())
    }
}

impl Drop for MockBackend {
    fn drop(&mut self) {
        // As a driver waits that is to free what a card holds.
        while self.overlap && self.faults.hangs(self.steps) {
            thread::park();
        }
    }
}

impl Backend for MockBackend {
    fn spec(&self) -> &BackendSpec {
        &self.spec
    }

    fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
        self.steps += 1;
        self.faults.strike(self.steps, batch.tokens())?;
        let time = self.time(batch);
        // A device works while its caller does something else, and is waited for at the end.
        if !self.overlap && !time.is_zero() {
            thread::sleep(time);
        }
        for row in batch.rows() {
            self.memory.write(batch.table(row), row.start, batch.row_tokens(row), row.adapter)?;
        }
        logits.reset(self.spec.vocab, batch.logit_rows());
        let mut next = 0;
        for row in batch.rows() {
            let end = row.start + row.tokens.len();
            let begin = match row.want {
                Want::Nothing => end,
                Want::Last => end - 1,
                Want::All => row.start,
            };
            for len in begin + 1..=end {
                self.speak(batch, row, len, logits.row_mut(next))?;
                next += 1;
            }
        }
        Ok(())
    }

    fn overlaps(&self) -> bool {
        self.overlap
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        picks: &[Option<Pick>],
        output: &mut Output,
    ) -> Result<(), BackendError> {
        if !self.overlap {
            output.drawn.clear();
            return self.forward(batch, &mut output.logits);
        }
        let begun = Instant::now();
        let mut logits = Logits::new();
        let result = self.forward(batch, &mut logits);
        let time = (!self.faults.hangs(self.steps)).then(|| self.time(batch));
        self.flight = Some(Flight { result, logits, picks: picks.to_vec(), begun, time });
        Ok(())
    }

    fn collect(&mut self, output: &mut Output) -> Result<(), BackendError> {
        let Some(flight) = self.flight.take() else { return Ok(()) };
        if let Err(Overdue) = flight.wait(&mut self.patience) {
            let reason = format!("the mock device did not finish within {:?}", self.patience.limit());
            self.gone = Some(reason.clone());
            return Err(BackendError(reason));
        }
        flight.land(output)
    }

    fn lost(&self) -> Option<String> {
        self.gone.clone().or_else(|| self.faults.lost(self.steps))
    }

    fn graphs(&self) -> GraphUse {
        self.graphs
    }

    fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError> {
        self.faults.strike_load();
        if !dir.is_dir() {
            return Err(BackendError(format!("{} is not a directory", dir.display())));
        }
        let free = (0..).find(|slot| !self.adapters.contains_key(slot)).unwrap_or(0);
        self.adapters.insert(free, dir.to_owned());
        Ok(AdapterSlot(free))
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) {
        self.adapters.remove(&slot.0);
    }
}
