//! A backend without a model: scripted or seeded, with a KV cache that stores the tokens themselves.
//!
//! Each next token is a function of the context *as it is read back through the block table*, so a wrong block, a
//! stale block or a wrong position changes the text. Everything above the engine can be tested and load-tested with
//! this backend.

mod async_pass;
mod fault;
pub(crate) mod memory;
mod random;
mod script;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use waymark_models::adaptive_wait::AdaptiveWait;
use waymark_models::kernel::Team;
use waymark_models::sampler::Pick;
use waymark_models::tokenizer::Tokenizer;
use waymark_models::{AdapterSlot, BLOCK, BatchRow, ForwardBatch, LogitPositions, Logits, ModelError};

use super::backend::{Backend, BackendError, BackendSpec, PassOutput, RecordedSteps};
pub(crate) use async_pass::draw_rows;
use async_pass::{MockPass, Overdue};
use memory::MockMemory;
use script::MockScript;

pub use fault::Faults;
pub use random::Random;
pub use script::Lines;

/// Distance of the chosen token's logit from all others: large enough that sampling practically never chooses another
/// token.
const CONFIDENCE: f32 = 40.0;
/// Default time limit of a pass.
const LIMIT: Duration = Duration::from_secs(60);

/// A backend without a model.
#[derive(Debug)]
pub struct MockBackend {
    spec: BackendSpec,
    memory: MockMemory,
    voice: MockVoice,
    confidence: f32,
    step_time: Duration,
    token_time: Duration,
    faults: Arc<Faults>,
    steps: u64,
    adapters: BTreeMap<u32, PathBuf>,
    overlap: bool,
    flight: Option<MockPass>,
    patience: AdaptiveWait,
    /// Reason of the loss, once a pass has exceeded the time limit.
    gone: Option<String>,
    recorded: RecordedSteps,
    team: Option<Arc<Team>>,
    /// Context of the current row.
    context: Vec<u32>,
}

#[derive(Debug)]
enum MockVoice {
    Random(Random),
    Script(MockScript),
}

impl MockBackend {
    /// Creates a mock that follows a script. The tokenizer should be [`Tokenizer::bytes`]: others may merge the first
    /// characters of a turn with the text before it.
    ///
    /// # Errors
    /// [`ModelError`] when the tokenizer refuses the script's text.
    pub fn script(tokenizer: &Tokenizer, lines: &Lines) -> Result<Self, ModelError> {
        Ok(Self::new(tokenizer.vocab(), MockVoice::Script(MockScript::new(tokenizer, lines)?)))
    }

    /// Creates a mock that writes printable nonsense, which depends on the seed, the adapter and every token of the
    /// context.
    pub fn random(seed: u64, vocab: usize) -> Self {
        Self::new(vocab, MockVoice::Random(Random { seed, vocab }))
    }

    fn new(vocab: usize, voice: MockVoice) -> Self {
        let spec = BackendSpec { name: "mock".into(), vocab, blocks: 0, context: 32_768, generation: 1 };
        let mock = Self {
            spec,
            memory: MockMemory::new(0),
            voice,
            confidence: CONFIDENCE,
            step_time: Duration::ZERO,
            token_time: Duration::ZERO,
            faults: Arc::default(),
            steps: 0,
            adapters: BTreeMap::new(),
            overlap: false,
            flight: None,
            patience: AdaptiveWait::new(LIMIT),
            gone: None,
            recorded: RecordedSteps::default(),
            team: None,
            context: Vec::new(),
        };
        mock.with_blocks(8192)
    }

    /// Sets the number of KV blocks. Default 8192.
    #[must_use]
    pub fn with_blocks(mut self, blocks: usize) -> Self {
        self.spec.blocks = blocks;
        self.memory = MockMemory::new(blocks * BLOCK);
        self
    }

    /// Sets the context length in tokens. Default 32768.
    #[must_use]
    pub fn with_context(mut self, context: usize) -> Self {
        self.spec.context = context;
        self
    }

    /// Sets the duration of a step, and the additional duration per token of it. Default zero.
    #[must_use]
    pub fn with_time(mut self, step: Duration, token: Duration) -> Self {
        self.step_time = step;
        self.token_time = token;
        self
    }

    /// Sets the distance between the logit of the chosen token and all others. Default 40; with 0 all logits are equal.
    #[must_use]
    pub fn with_confidence(mut self, confidence: f32) -> Self {
        self.confidence = confidence;
        self
    }

    /// Makes the mock asynchronous, as a device is: it draws tokens itself where it gets a [`Pick`].
    #[must_use]
    pub fn with_overlap(mut self) -> Self {
        self.overlap = true;
        self
    }

    /// Sets the maximum duration of an asynchronous pass, after which the mock counts as lost. Default one minute.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.patience = AdaptiveWait::new(limit);
        self
    }

    /// Sets the graph counts to report.
    #[must_use]
    pub fn with_recorded_steps(mut self, recorded: RecordedSteps) -> Self {
        self.recorded = recorded;
        self
    }

    /// Sets the threads that sample, as the GPU backend has them. By default, the engine thread samples.
    #[must_use]
    pub fn with_team(mut self, team: Arc<Team>) -> Self {
        self.team = Some(team);
        self
    }

    /// Returns the duration of a pass.
    fn time(&self, batch: &ForwardBatch) -> Duration {
        let tokens = u32::try_from(batch.tokens().len()).unwrap_or(u32::MAX);
        self.step_time + self.token_time * tokens
    }

    /// Returns the faults to inject. They can be changed while the engine runs.
    pub fn faults(&self) -> Arc<Faults> {
        self.faults.clone()
    }

    /// Writes the logits that follow the first `len` tokens of a row, as they are read back from the KV cache.
    fn speak(
        &mut self,
        batch: &ForwardBatch,
        row: &BatchRow,
        len: usize,
        logits: &mut [f32],
    ) -> Result<(), BackendError> {
        self.memory.read(batch.table(row), len, row.adapter, &mut self.context)?;
        let id = match &mut self.voice {
            MockVoice::Random(random) => random.next(row.adapter, &self.context),
            MockVoice::Script(script) => script.next(&self.context),
        };
        logits.fill(self.faults.poison(&self.context).unwrap_or(0.0));
        logits[id as usize] += self.confidence;
        Ok(())
    }
}

impl Drop for MockBackend {
    fn drop(&mut self) {
        // A driver that frees the memory of a hanging GPU blocks in the same way.
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
        // An asynchronous pass takes its time in `collect`.
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
                LogitPositions::Nothing => end,
                LogitPositions::Last => end - 1,
                LogitPositions::All => row.start,
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
        output: &mut PassOutput,
    ) -> Result<(), BackendError> {
        if !self.overlap {
            output.drawn.clear();
            return self.forward(batch, &mut output.logits);
        }
        self.flight = Some(MockPass { batch: batch.clone(), picks: picks.to_vec(), started: Instant::now() });
        Ok(())
    }

    fn collect(&mut self, output: &mut PassOutput) -> Result<(), BackendError> {
        let Some(flight) = self.flight.take() else { return Ok(()) };
        // Computed here rather than in `submit`, after which a device computes on its own.
        let mut logits = Logits::new();
        let result = self.forward(&flight.batch, &mut logits);
        let time = (!self.faults.hangs(self.steps)).then(|| self.time(&flight.batch));
        if let Err(Overdue) = flight.wait(time, &mut self.patience) {
            let reason = format!("the mock device did not finish within {:?}", self.patience.limit());
            self.gone = Some(reason.clone());
            return Err(BackendError(reason));
        }
        result?;
        draw_rows(&logits, &flight.picks, output);
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.faults.strike_copy()?;
        self.memory.copy(from, to)
    }

    fn lost(&self) -> Option<String> {
        self.gone.clone().or_else(|| self.faults.lost(self.steps))
    }

    fn recorded_steps(&self) -> RecordedSteps {
        self.recorded
    }

    fn team(&self) -> Option<&Team> {
        self.team.as_deref()
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
        self.faults.strike_unload();
        self.adapters.remove(&slot.0);
    }
}
