//! Decoders as encoders (Qwen3-Embedding). Pieces attend to earlier ones only, so the last piece has read the
//! whole text.
//!
//! The layers are those of [`Decoder`], which also serves policies.

use std::sync::{Arc, Mutex, PoisonError};

use super::PASS_PIECES;
use super::pieces::PieceSequence;
use crate::ModelError;
use crate::batch::{BLOCK, ForwardBatch, LogitPositions};
use crate::decoder::{Decoder, KvCache};
use crate::kernel::Team;
use crate::weights::Weights;

/// Maximum number of pieces of a text, which bounds the memory of a pass.
pub(super) const MOST_PIECES: usize = 8192;

/// Maximum memory for keys and values, in bytes: 16 times as much as Qwen3-Embedding needs in any of its sizes.
const MAX_CACHE_BYTES: usize = 1 << 30;

/// Number of blocks of keys and values for a pass of short texts. Each text may fill its last block only in part.
const PASS_BLOCKS: usize = 2 * PASS_PIECES / BLOCK;

/// Layers of a decoder.
#[derive(Debug)]
pub(super) struct CausalEncoder(Mutex<CausalState>);

#[derive(Debug)]
struct CausalState {
    decoder: Decoder,
    /// Keys and values of one layer. The next layer overwrites them, because a text is read in one step.
    cache: KvCache,
    batch: ForwardBatch,
}

impl CausalEncoder {
    /// Loads the layers for texts of at most `max_pieces` pieces.
    pub(super) fn load(max_pieces: usize, weights: &Weights, team: Arc<Team>) -> Result<Self, ModelError> {
        let blocks = max_pieces.div_ceil(BLOCK).max(PASS_BLOCKS);
        // Checked before gigabytes of weights are loaded.
        let bytes = KvCache::single_layer_bytes(weights.config(), blocks);
        if bytes > MAX_CACHE_BYTES {
            return Err(ModelError::Input(format!(
                "keys and values of {} pieces take {bytes} bytes, the limit is {MAX_CACHE_BYTES}; lower model_max_length in \
                 tokenizer_config.json",
                blocks * BLOCK
            )));
        }
        let decoder = Decoder::load(weights, team)?;
        let cache = KvCache::single_layer(decoder.config(), blocks);
        Ok(CausalEncoder(Mutex::new(CausalState { decoder, cache, batch: ForwardBatch::new() })))
    }

    /// Runs the decoder and leaves its normalized output in `hidden`, row by row.
    pub(super) fn forward(&self, sequences: &[PieceSequence], hidden: &mut Vec<f32>) -> Result<(), ModelError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let CausalState { decoder, cache, batch } = &mut *state;
        hidden.clear();
        let mut rest = sequences.iter().filter(|sequence| sequence.len() > 0).peekable();
        while rest.peek().is_some() {
            batch.clear();
            let mut next = 0;
            while let Some(sequence) = rest.next_if(|sequence| next + blocks_of(sequence) <= cache.blocks()) {
                let table: Vec<u32> = (next as u32..).take(blocks_of(sequence)).collect();
                batch.push(sequence.ids(), 0, &table, None, LogitPositions::Nothing);
                next += table.len();
            }
            if batch.is_empty() {
                return Err(ModelError::Input(format!("a text has more pieces than {} blocks hold", cache.blocks())));
            }
            decoder.hidden_states(batch, cache, hidden)?;
        }
        // A long text takes hundreds of megabytes that short ones do not need.
        if batch.tokens().len() > PASS_PIECES {
            decoder.release_scratch();
        }
        Ok(())
    }
}

/// Number of blocks of keys and values that a sequence takes.
fn blocks_of(sequence: &PieceSequence) -> usize {
    sequence.len().div_ceil(BLOCK)
}
