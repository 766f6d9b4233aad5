//! Cross-encoders: encoders of the BERT kind that read a query and a document together and score the pair, such as
//! bge-reranker-base.
//!
//! `head`: the score of a pair · `labels`: the number of labels

mod head;
mod labels;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::ModelError;
use crate::encoder::{Encoder, EncoderArithmetic, EncoderConfig, EncoderFamily, EncoderTensors, PieceTokenizer, read};
use crate::kernel::Team;
use crate::weights::Map;
use head::ScoreHead;

/// Scores pairs of a query and a document.
///
/// Shareable between threads: concurrent calls alternate pass by pass. The score of a pair does not depend on the other
/// documents of the call.
pub struct Reranker {
    id: String,
    tokenizer: PieceTokenizer,
    encoder: Encoder,
    head: ScoreHead,
}

impl Reranker {
    /// Opens a directory with `config.json`, `tokenizer.json`, `model.safetensors` and, optionally,
    /// `tokenizer_config.json`: a sequence classifier of one label, as transformers saves it.
    ///
    /// # Errors
    /// When a file is missing or damaged, when the model is of another family than BERT, RoBERTa, XLM-R, DistilBERT,
    /// MPNet and ModernBERT, has another activation than exact GELU, or does not have exactly one label. Errors name
    /// the file and its field or tensor.
    pub fn open(dir: &Path, team: Arc<Team>) -> Result<Self, ModelError> {
        // Without a stated limit, a pair may fill the position table, as in sentence-transformers' `CrossEncoder`.
        let config = EncoderConfig::read(EncoderFamily::read(dir)?, dir, usize::MAX)?;
        Self::check(dir, config.family.name())?;
        let tokenizer = PieceTokenizer::open(dir, &config.shape())?;
        let weights = Map::open(&dir.join("model.safetensors"))?;
        let tensors = EncoderTensors::open(&weights, config.family)?;
        let encoder = Encoder::load(&config, &tensors, team)?;
        let head = ScoreHead::load(dir, &config, &tensors)?;
        let mut hash = Sha256::new();
        for name in ["config.json", "tokenizer.json"] {
            hash.update(read(&dir.join(name))?);
        }
        hash.update(weights.bytes());
        hash.update((config.max_pieces as u64).to_le_bytes());
        let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let id = format!("{}-{}x{}-rerank-{hash}", config.family.name(), config.layers, config.hidden);
        Ok(Self { id, tokenizer, encoder, head })
    }

    /// Checks the labels and the head of the model in `dir` without its weights. `family` is that of its encoder, as in
    /// [`EmbedderSummary`](crate::embedder::EmbedderSummary).
    ///
    /// # Errors
    /// If the model does not have exactly one label, or the head of its family is not supported.
    pub fn check(dir: &Path, family: &str) -> Result<(), ModelError> {
        labels::check(dir)?;
        if head::FAMILIES.contains(&family) {
            return Ok(());
        }
        Err(ModelError::Unsupported { path: dir.join("config.json"), what: format!("classification head of {family}") })
    }

    /// Identifies the model by its shape and 64 bits of a hash over its files and length limit.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Maximum number of word pieces per pair, special pieces included. In a longer pair, the end of the document is
    /// not read. A query that leaves the document less than half of the pieces is shortened, too.
    pub fn max_pieces(&self) -> usize {
        self.tokenizer.max_pieces()
    }

    /// Number of word pieces in `text`, without special pieces and without the length limit. 0 if the text cannot be
    /// split.
    pub fn count_tokens(&self, text: &str) -> usize {
        self.tokenizer.count(text)
    }

    /// Returns the logit of each document for `query`, in order: the higher, the more relevant. [`sigmoid`] maps it to
    /// a relevance from 0 to 1.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when a text cannot be split into word pieces.
    pub fn score(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>, ModelError> {
        let query = self.tokenizer.query(query)?;
        let pairs = self.encoder.team().map(documents.len(), &|place| self.tokenizer.pair(&query, documents[place]));
        let mut pairs: Vec<_> = pairs.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().enumerate().collect();
        // Pairs of similar length in one pass keep every thread busy until the end of the attention.
        pairs.sort_by_key(|(_, pair)| pair.len());
        let (places, pairs): (Vec<usize>, Vec<_>) = pairs.into_iter().unzip();
        let wanted = self.head.rows();
        let scores = self.encoder.run(EncoderArithmetic::Exact, wanted, &pairs, |rows| self.head.logit(rows))?;
        let mut logits = vec![0.0; scores.len()];
        for (place, score) in places.into_iter().zip(scores) {
            logits[place] = score;
        }
        Ok(logits)
    }
}

impl fmt::Debug for Reranker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reranker").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Maps a logit to a relevance from 0 to 1, as rerankers were trained to (binary cross-entropy).
pub fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}
