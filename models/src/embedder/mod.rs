//! Sentence embeddings: a BERT encoder in the layout of sentence-transformers, such as all-MiniLM-L6-v2.

mod attention;
mod bert;
mod config;

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
use bert::{Bert, Buffers};
use config::Config;

/// Word pieces of one forward pass: enough to share each weight among many, few enough for the activations to stay in
/// the last-level cache.
const PASS_PIECES: usize = 1024;

/// Turns texts into unit vectors whose dot product is their similarity.
///
/// May be shared between threads: concurrent calls take turns, pass by pass. An embedding does not depend on the other texts of the
/// call.
pub struct Embedder {
    id: String,
    config: Config,
    pipeline: Pipeline,
    bert: Bert,
    team: Arc<Team>,
    /// Held by whoever has the next pass. The buffers are waited for under it, so that a long batch, which asks for
    /// them again at once, does not overtake those who wait.
    next: Mutex<()>,
    buffers: Mutex<Buffers>,
}

impl Embedder {
    /// Opens a directory with `config.json`, `tokenizer.json`, `model.safetensors` and, optionally, `modules.json`,
    /// `1_Pooling/config.json` and `sentence_bert_config.json`.
    ///
    /// # Errors
    /// When a file is missing or damaged, or asks for another architecture, activation or pooling than BERT, exact GELU
    /// and the mean, for other positions than absolute ones, for small letters that the tokenizer does not make, or for a
    /// module after these other than normalising.
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
        // Where texts are cut stands in another file, or in none.
        hash.update((config.max_pieces as u64).to_le_bytes());
        let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let id = format!("bert-{}x{}-{hash}", config.layers, config.hidden);
        Ok(Self { id, config, pipeline, bert, team, next: Mutex::default(), buffers: Mutex::default() })
    }

    /// Names the model by its shape and 64 bits of a hash of its files and of where it cuts texts: equal ids give equal
    /// vectors.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Values per embedding.
    pub fn dims(&self) -> usize {
        self.config.hidden
    }

    /// One unit vector per text: the mean of the last layer over the text's word pieces, the first
    /// [`max_pieces`](Self::max_pieces) of them.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when a text cannot be split into word pieces.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        let sequences = self.tokenise(texts)?;
        let mut embeddings = Vec::with_capacity(texts.len());
        let mut rest = &sequences[..];
        while !rest.is_empty() {
            let (pass, later) = rest.split_at(pass_len(rest));
            // Taken anew for each pass: a query then waits for one pass of a long batch, not for all of it.
            let mut buffers = self.turn();
            self.bert.forward(&self.team, pass, &mut buffers);
            pool(buffers.hidden(), self.config.hidden, pass, &mut embeddings);
            rest = later;
        }
        Ok(embeddings)
    }

    /// Word pieces of `text`, without the two that mark its ends and without a limit; 0 for a text that cannot be split.
    pub fn count_tokens(&self, text: &str) -> usize {
        self.pipeline.encode_fast(text, false).map_or(0, |encoding| encoding.len())
    }

    /// How many word pieces of a text count, the two that mark its ends included.
    pub fn max_pieces(&self) -> usize {
        self.config.max_pieces
    }

    /// The buffers, once those who asked before have had their pass.
    fn turn(&self) -> MutexGuard<'_, Buffers> {
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokenise(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, ModelError> {
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
        let encoding =
            self.pipeline.encode_fast(text, true).map_err(|error| ModelError::Tokenizer(error.to_string()))?;
        let mut ids = encoding.get_ids().to_vec();
        if let Some(&last) = ids.last()
            && ids.len() > self.config.max_pieces
        {
            // The separator at the end stays, as when the tokenizer itself truncates.
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

/// How many of the first sequences fit into one pass; at least one.
fn pass_len(sequences: &[Vec<u32>]) -> usize {
    let mut pieces = 0;
    let fits = sequences.iter().take_while(|sequence| {
        pieces += sequence.len();
        pieces <= PASS_PIECES
    });
    fits.count().max(1)
}

/// Appends the normalised mean of each sequence's rows.
fn pool(hidden: &[f32], width: usize, sequences: &[Vec<u32>], embeddings: &mut Vec<Vec<f32>>) {
    let mut rows = hidden.chunks_exact(width);
    for sequence in sequences {
        let mut mean = vec![0.0; width];
        rows.by_ref().take(sequence.len()).for_each(|row| crate::kernel::add(&mut mean, row));
        // The norm takes the division of a mean with it. The bound is that of torch's `normalize`.
        let norm = dot(&mean, &mean).sqrt().max(1e-12);
        scale(&mut mean, 1.0 / norm);
        embeddings.push(mean);
    }
}

fn open_pipeline(path: &Path) -> Result<Pipeline, ModelError> {
    let mut pipeline = tokenizer::pipeline(path)?;
    // Files carry the padding and truncation of the training script.
    pipeline.with_padding(None);
    pipeline.with_truncation(None).map_err(|error| ModelError::Tokenizer(error.to_string()))?;
    Ok(pipeline)
}

/// True when the tokenizer itself makes capitals small.
fn lowers(pipeline: &Pipeline) -> Result<bool, ModelError> {
    let Some(normalizer) = pipeline.get_normalizer() else { return Ok(false) };
    let mut text = NormalizedString::from("A");
    normalizer.normalize(&mut text).map_err(|error| ModelError::Tokenizer(error.to_string()))?;
    // Some put a mark before a text.
    Ok(text.get().ends_with('a'))
}

fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    fs::read(path).map_err(ModelError::io("read", path))
}
