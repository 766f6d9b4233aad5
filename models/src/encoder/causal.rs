//! Decoders as encoders: Qwen3-Embedding, whose pieces attend to earlier ones only, so that the last piece has read the text.
//!
//! The layers are those of [`Decoder`], which also serves policies.

use std::sync::{Arc, Mutex, PoisonError};

use super::PASS_PIECES;
use super::config::EncoderConfig;
use super::pieces::PieceSequence;
use crate::ModelError;
use crate::batch::{BLOCK, ForwardBatch, LogitPositions};
use crate::decoder::{Decoder, KvCache};
use crate::kernel::Team;
use crate::weights::Weights;

/// Maximum number of pieces of a text, which bounds the memory for keys and values.
pub(super) const MOST_PIECES: usize = 8192;

/// Maximum memory for keys and values, beyond that of any model of today: Qwen3-Embedding-8B takes 2.4 GB.
const MOST_CACHE_BYTES: usize = 1 << 34;

/// Number of blocks of keys and values for a pass of short texts, each of which fills its last block in part.
const PASS_BLOCKS: usize = 2 * PASS_PIECES / BLOCK;

/// Layers of a decoder.
#[derive(Debug)]
pub(super) struct CausalEncoder {
    /// Number of blocks in the cache.
    blocks: usize,
    state: Mutex<CausalState>,
}

#[derive(Debug)]
struct CausalState {
    decoder: Decoder,
    cache: KvCache,
    batch: ForwardBatch,
}

impl CausalEncoder {
    pub(super) fn load(config: &EncoderConfig, weights: &Weights, team: Arc<Team>) -> Result<Self, ModelError> {
        let decoder = Decoder::load(weights, team)?;
        let blocks = config.max_pieces.div_ceil(BLOCK).max(PASS_BLOCKS);
        let bytes = blocks * BLOCK * decoder.kv_bytes_per_token();
        if bytes > MOST_CACHE_BYTES {
            let pieces = blocks * BLOCK;
            return Err(ModelError::Input(format!("keys and values of {pieces} pieces take {bytes} bytes: too many")));
        }
        let cache = decoder.kv_cache(blocks);
        Ok(CausalEncoder { blocks, state: Mutex::new(CausalState { decoder, cache, batch: ForwardBatch::new() }) })
    }

    /// Runs the decoder and leaves its normalized output in `hidden`, row by row.
    pub(super) fn forward(&self, sequences: &[PieceSequence], hidden: &mut Vec<f32>) -> Result<(), ModelError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let CausalState { decoder, cache, batch } = &mut *state;
        hidden.clear();
        let mut rest = sequences.iter().filter(|sequence| sequence.len() > 0).peekable();
        while rest.peek().is_some() {
            batch.clear();
            let mut next = 0;
            while let Some(sequence) = rest.next_if(|sequence| next + blocks_of(sequence) <= self.blocks) {
                let table: Vec<u32> = (next as u32..).take(blocks_of(sequence)).collect();
                batch.push(sequence.ids(), 0, &table, None, LogitPositions::Nothing);
                next += table.len();
            }
            if batch.is_empty() {
                return Err(ModelError::Input(format!("a text has more pieces than {} blocks hold", self.blocks)));
            }
            decoder.hidden_states(batch, cache, hidden)?;
        }
        Ok(())
    }
}

/// Number of blocks of keys and values that a sequence takes.
fn blocks_of(sequence: &PieceSequence) -> usize {
    sequence.len().div_ceil(BLOCK)
}
