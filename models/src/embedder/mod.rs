//! Sentence embeddings: an encoder of the BERT kind in the layout of sentence-transformers, such as all-MiniLM-L6-v2.
//!
//! `family`: BERT, RoBERTa and XLM-R, DistilBERT, MPNet · `bert`: the encoder · `pooling`: one vector per text

mod attention;
mod bert;
mod config;
mod family;
mod pooling;
mod prompts;
mod relative_bias;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};
use tokenizers::{NormalizedString, Normalizer as _, Tokenizer as Pipeline};

use crate::ModelError;
use crate::kernel::{Team, dot, scale};
use crate::tokenizer;
use crate::weights::Map;
use bert::{Bert, EncoderBuffers};
use config::Config;
use pooling::Pooling;

pub use prompts::EncoderPrompts;

/// Maximum number of word pieces per pass: enough to amortize reading the weights, and few enough to keep the
/// activations in the last-level cache.
const PASS_PIECES: usize = 1024;

/// Maps texts to vectors whose cosine is their similarity.
///
/// Shareable between threads: concurrent calls alternate pass by pass. The embedding of a text does not depend on
/// the other texts of the call.
pub struct Embedder {
    id: String,
    config: Config,
    prompts: EncoderPrompts,
    pipeline: Pipeline,
    bert: Bert,
    team: Arc<Team>,
    /// Held by the caller whose pass is next. Waiting for the buffers happens under this lock, so that a long
    /// batch, which asks for them again at once, cannot overtake waiting callers.
    next: Mutex<()>,
    buffers: Mutex<EncoderBuffers>,
}

impl Embedder {
    /// Opens a directory with `config.json`, `tokenizer.json`, `model.safetensors` and, optionally, `modules.json`,
    /// `1_Pooling/config.json`, `sentence_bert_config.json`, `tokenizer_config.json` and
    /// `config_sentence_transformers.json`.
    ///
    /// # Errors
    /// When a file is missing or damaged, when the model is of another family than these or has another activation than
    /// exact GELU, when it has another pooling than the mean, the first or last piece, or the maximum, when it expects
    /// lower-cased text from a tokenizer that keeps capitals, or when a module other than normalization follows the
    /// pooling.
    pub fn open(dir: &Path, team: Arc<Team>) -> Result<Self, ModelError> {
        let config = Config::open(dir)?;
        let pipeline = open_pipeline(&dir.join("tokenizer.json"))?;
        if config.lower_case && !lowers(&pipeline)? {
            let what = "do_lower_case with a tokenizer that keeps capitals".to_owned();
            return Err(ModelError::Unsupported { path: dir.join(config::LENGTH), what });
        }
        let weights = Map::open(&dir.join("model.safetensors"))?;
        let bert = Bert::load(&config, &weights)?;
        let mut hash = Sha256::new();
        for name in ["config.json", "tokenizer.json"] {
            hash.update(read(&dir.join(name))?);
        }
        hash.update(weights.bytes());
        // The length limit lives in another file, or in none, but changes the vectors.
        hash.update((config.max_pieces as u64).to_le_bytes());
        // The mean adds nothing, so that indexes of before keep their embedder.
        if config.pooling != Pooling::Mean {
            hash.update(format!("{:?}", config.pooling));
        }
        let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let id = format!("{}-{}x{}-{hash}", config.family.name(), config.layers, config.hidden);
        let prompts = EncoderPrompts::read(dir)?;
        Ok(Self { id, config, prompts, pipeline, bert, team, next: Mutex::default(), buffers: Mutex::default() })
    }

    /// Identifies the model by its shape and 64 bits of a hash over its files, pooling and length limit. Equal IDs imply
    /// vectors of equal direction.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Texts that the model expects before queries and documents. [`embed`](Self::embed) does not add them.
    pub fn prompts(&self) -> &EncoderPrompts {
        &self.prompts
    }

    /// Number of values per embedding.
    pub fn dims(&self) -> usize {
        self.config.hidden
    }

    /// Embeds each text: pools the last layer over the text's first [`max_pieces`](Self::max_pieces) word pieces. Vectors
    /// have length 1 if the model normalizes them.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when a text cannot be split into word pieces.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        let sequences = self.tokenize(texts)?;
        let mut embeddings = Vec::with_capacity(texts.len());
        let mut rest = &sequences[..];
        while !rest.is_empty() {
            let (pass, later) = rest.split_at(pass_len(rest));
            // Locked anew for each pass, so that a query waits for one pass of a long batch, not for all of it.
            let mut buffers = self.turn();
            self.bert.forward(&self.team, pass, &mut buffers);
            let mut rows = buffers.hidden();
            for sequence in pass {
                let (own, later) = rows.split_at(sequence.len() * self.config.hidden);
                embeddings.push(self.pooled(own));
                rows = later;
            }
            rest = later;
        }
        Ok(embeddings)
    }

    /// Computes the vector of a text from the rows of its pieces.
    fn pooled(&self, rows: &[f32]) -> Vec<f32> {
        let Config { hidden, pooling, normalize, .. } = self.config;
        let mut vector = pooling.pool(rows, hidden);
        if normalize {
            // Normalizing cancels the division of the mean. The lower bound is that of torch's `normalize`.
            let norm = dot(&vector, &vector).sqrt().max(1e-12);
            scale(&mut vector, 1.0 / norm);
        } else {
            pooling.divide(&mut vector, rows.len() / hidden);
        }
        vector
    }

    /// Number of word pieces in `text`, without the two end markers and without the length limit. 0 if the text
    /// cannot be split.
    pub fn count_tokens(&self, text: &str) -> usize {
        tokenizer::windows(text).map(|window| self.count_pieces(window)).sum()
    }

    fn count_pieces(&self, window: &str) -> usize {
        self.pipeline.encode_fast(window, false).map_or(0, |encoding| encoding.len())
    }

    /// Returns the beginning of `text`, in whole windows, that determines its embedding. The tokenizer takes hundreds
    /// of bytes per byte of its input, so it must not see the rest.
    fn beginning<'a>(&self, text: &'a str) -> &'a str {
        let mut pieces = 0;
        let mut end = 0;
        for window in tokenizer::windows(text) {
            end += window.len();
            // The first window suffices for nearly all texts and needs no count.
            if end == text.len() {
                break;
            }
            pieces += self.count_pieces(window);
            if pieces >= self.config.max_pieces {
                break;
            }
        }
        &text[..end]
    }

    /// Maximum number of word pieces per text, including the two end markers.
    pub fn max_pieces(&self) -> usize {
        self.config.max_pieces
    }

    /// Locks the buffers, after earlier callers have had their pass.
    fn turn(&self) -> MutexGuard<'_, EncoderBuffers> {
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut sequences: Vec<Result<Vec<u32>, ModelError>> = Vec::new();
        sequences.resize_with(texts.len(), || Ok(Vec::new()));
        self.team.rows(&mut sequences, 1, 4, &|first, share| {
            for (sequence, text) in share.iter_mut().zip(&texts[first..]) {
                *sequence = self.pieces(text);
            }
        });
        sequences.into_iter().collect()
    }

    fn pieces(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let read = self.beginning(text);
        let encoding =
            self.pipeline.encode_fast(read, true).map_err(|error| ModelError::Tokenizer(error.to_string()))?;
        let mut ids = encoding.get_ids().to_vec();
        if let Some(&last) = ids.last()
            && ids.len() > self.config.max_pieces
        {
            // The final separator stays, as when the tokenizer itself truncates.
            ids.truncate(self.config.max_pieces - 1);
            ids.push(last);
        }
        match ids.iter().find(|&&id| id as usize >= self.config.vocab) {
            Some(id) => Err(ModelError::Tokenizer(format!("word piece {id} is beyond the model's vocabulary"))),
            None => Ok(ids),
        }
    }
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedder").field("id", &self.id).field("config", &self.config).finish_non_exhaustive()
    }
}

/// Number of leading sequences that fit into one pass; at least one.
fn pass_len(sequences: &[Vec<u32>]) -> usize {
    let mut pieces = 0;
    let fits = sequences.iter().take_while(|sequence| {
        pieces += sequence.len();
        pieces <= PASS_PIECES
    });
    // A sequence longer than the limit gets a pass of its own.
    fits.count().max(1)
}

fn open_pipeline(path: &Path) -> Result<Pipeline, ModelError> {
    let mut pipeline = tokenizer::pipeline(path)?;
    // `tokenizer.json` carries the padding and truncation of the training script.
    pipeline.with_padding(None);
    pipeline.with_truncation(None).map_err(|error| ModelError::Tokenizer(error.to_string()))?;
    Ok(pipeline)
}

/// Returns `true` if the tokenizer itself lower-cases texts.
fn lowers(pipeline: &Pipeline) -> Result<bool, ModelError> {
    let Some(normalizer) = pipeline.get_normalizer() else { return Ok(false) };
    let mut text = NormalizedString::from("A");
    normalizer.normalize(&mut text).map_err(|error| ModelError::Tokenizer(error.to_string()))?;
    // Some tokenizers put a prefix before the text.
    Ok(text.get().ends_with('a'))
}

fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    fs::read(path).map_err(ModelError::io("read", path))
}
