//! The decoder on an NVIDIA GPU.

use std::path::Path;
use std::sync::Arc;

use waymark_models::cuda::{CudaDecoder, CudaError};
use waymark_models::kernel::Team;
use waymark_models::sampler::Pick;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, ForwardBatch, Logits};

use super::backend::{Backend, BackendError, BackendSpec, PassOutput, RecordedSteps};

/// A decoder on a GPU, with host threads that sample the rows the GPU leaves to them.
#[derive(Debug)]
pub struct CudaBackend {
    spec: BackendSpec,
    decoder: CudaDecoder,
    team: Arc<Team>,
}

impl CudaBackend {
    /// Creates a backend called `name` over `decoder`; `generation` identifies its weights. Tokens that the GPU does
    /// not choose are chosen on `team`.
    pub fn new(decoder: CudaDecoder, name: &str, generation: u64, team: Arc<Team>) -> Self {
        let spec = BackendSpec {
            name: name.to_owned(),
            vocab: decoder.config().vocab,
            blocks: decoder.plan().blocks,
            context: decoder.limits().context,
            generation,
        };
        Self { spec, decoder, team }
    }

    /// Returns the decoder.
    pub fn decoder(&mut self) -> &mut CudaDecoder {
        &mut self.decoder
    }
}

impl From<CudaError> for BackendError {
    fn from(error: CudaError) -> Self {
        Self(error.to_string())
    }
}

impl Backend for CudaBackend {
    fn spec(&self) -> &BackendSpec {
        &self.spec
    }

    fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
        self.decoder.submit(batch, &[])?;
        Ok(self.decoder.collect(logits, &mut Vec::new())?)
    }

    fn overlaps(&self) -> bool {
        true
    }

    fn submit(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>], _: &mut PassOutput) -> Result<(), BackendError> {
        Ok(self.decoder.submit(batch, picks)?)
    }

    fn collect(&mut self, output: &mut PassOutput) -> Result<(), BackendError> {
        Ok(self.decoder.collect(&mut output.logits, &mut output.drawn)?)
    }

    fn recorded_steps(&self) -> RecordedSteps {
        let counts = self.decoder.graphs();
        RecordedSteps { recorded: counts.recorded, refused: counts.refused }
    }

    fn lost(&self) -> Option<String> {
        self.decoder.lost()
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        Ok(self.decoder.copy_block(from as usize, to as usize)?)
    }

    fn replace_weights(&mut self, weights: &Weights) -> Result<(), BackendError> {
        Ok(self.decoder.replace_weights(weights)?)
    }

    fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError> {
        Ok(self.decoder.load_adapter(dir)?)
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) {
        if let Err(error) = self.decoder.unload_adapter(slot) {
            // This fails on a lost GPU only, and the next step reports that.
            tracing::error!(slot = slot.0, %error, "could not unload an adapter");
        }
    }

    fn team(&self) -> Option<&Team> {
        Some(&self.team)
    }
}
