//! Sentence embeddings: an encoder in the layout of sentence-transformers, such as all-MiniLM-L6-v2 or Qwen3-Embedding.
//!
//! `pooling`: one vector per text · `modules`: the entries of `modules.json` · `prompts`: texts before queries and
//! documents · `summary`: settings, read without loading the layers

#[cfg(test)]
mod modern_tests;
mod modules;
mod pooling;
mod prompts;
mod summary;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::ModelError;
use crate::encoder::{
    BodyShape, BodySource, Encoder, EncoderArithmetic, ModelKind, PieceSequence, PieceTokenizer, read,
};
use crate::kernel::{Team, dot, scale};
use modules::{MODULES, normalizes};
use pooling::Pooling;

pub use prompts::EncoderPrompts;
pub use summary::EmbedderSummary;

/// Length limit, in pieces, if a directory states none. sentence-transformers uses the same for all-MiniLM-L6-v2.
const DEFAULT_PIECES: usize = 256;

/// Maps texts to vectors whose cosine is their similarity.
///
/// Shareable between threads: concurrent calls alternate pass by pass. The embedding of a text does not depend on
/// the other texts of the call.
pub struct Embedder {
    id: String,
    shape: BodyShape,
    pooling: Pooling,
    /// If `true`, vectors are scaled to length 1.
    normalize: bool,
    prompts: EncoderPrompts,
    /// Arithmetic for queries.
    queries: EncoderArithmetic,
    tokenizer: PieceTokenizer,
    encoder: Encoder,
}

impl Embedder {
    /// Opens a directory with `config.json`, `tokenizer.json`, `model.safetensors` (or its shards, for decoders) and,
    /// optionally, `modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json`, `tokenizer_config.json` and
    /// `config_sentence_transformers.json`.
    ///
    /// # Errors
    /// Errors name the file and its field. Opening fails in these cases:
    /// - A file is missing or damaged.
    /// - The family is unknown, the activation is not that of the family, or a feature is not supported.
    /// - The model is a decoder without `modules.json`.
    /// - The pooling is not the mean, the first piece, the last piece or the maximum.
    /// - The model expects lower-cased text, but its tokenizer keeps capitals.
    /// - `modules.json` lists a module other than the encoder, pooling and normalization.
    pub fn open(dir: &Path, team: Arc<Team>) -> Result<Self, ModelError> {
        let kind = ModelKind::read(dir)?;
        if kind == ModelKind::Decoder && !dir.join(MODULES).exists() {
            // The mean of a chat model's hidden states is not a useful embedding.
            let what = format!("decoder as an embedder without {MODULES}: expected the files of sentence-transformers");
            return Err(ModelError::Unsupported { path: dir.to_owned(), what });
        }
        let source = BodySource::open(kind, dir, DEFAULT_PIECES)?;
        let shape = source.shape();
        let pooling = Pooling::read(dir)?;
        let normalize = normalizes(dir)?;
        let tokenizer = PieceTokenizer::open(dir, &shape)?;
        let mut hash = Sha256::new();
        for name in ["config.json", "tokenizer.json"] {
            hash.update(read(&dir.join(name))?);
        }
        let encoder = source.load(dir, team, &mut hash)?;
        // The length limit changes the vectors, but comes from another file or from the default.
        hash.update((shape.max_pieces as u64).to_le_bytes());
        // Mean pooling adds nothing to the hash, so the IDs in older indexes stay valid.
        if pooling != Pooling::Mean {
            hash.update(format!("{pooling:?}"));
        }
        let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let id = format!("{}-{}x{}-{hash}", shape.family, shape.layers, shape.hidden);
        let prompts = EncoderPrompts::read(dir)?;
        let queries = EncoderArithmetic::Exact;
        Ok(Self { id, shape, pooling, normalize, prompts, queries, tokenizer, encoder })
    }

    /// ID of the model: its family, its shape, and 64 bits of a hash over `config.json`, `tokenizer.json`, the weights,
    /// the pooling and the length limit. The hash covers only samples of a decoder's weights
    /// ([`Weights::id`](crate::weights::Weights::id)). It does not cover normalization, which leaves the cosines of
    /// vectors as they are: an index built with a model stays valid for its copy with another `modules.json`. Vectors of
    /// [`embed_rounded`](Self::embed_rounded) have the same ID, but deviate by a few degrees and depend on the CPU.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Texts that the model expects before queries and documents. [`embed`](Self::embed) does not add them.
    pub fn prompts(&self) -> &EncoderPrompts {
        &self.prompts
    }

    /// Sets the prompts of a model whose files state none.
    #[must_use]
    pub fn or_prompts(mut self, prompts: EncoderPrompts) -> Self {
        if self.prompts == EncoderPrompts::default() {
            self.prompts = prompts;
        }
        self
    }

    /// Rounds queries to bytes as [`embed_rounded`](Self::embed_rounded) does, if `rounded`.
    #[must_use]
    pub fn with_rounded_queries(mut self, rounded: bool) -> Self {
        self.queries = if rounded { EncoderArithmetic::Bytes } else { EncoderArithmetic::Exact };
        self
    }

    /// Number of values per embedding.
    pub fn dims(&self) -> usize {
        self.shape.hidden
    }

    /// Embeds each text: pools the last layer over the text's first [`max_pieces`](Self::max_pieces) word pieces.
    /// Vectors have length 1 if the model normalizes them.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when a text cannot be split into word pieces.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.embed_in(EncoderArithmetic::Exact, texts)
    }

    /// Embeds each text as [`embed`](Self::embed) does, with weights and activations rounded to bytes if the CPU has
    /// instructions for products of bytes (AVX512-VNNI, FEAT_DotProd). Takes about 0.4 of the time (AVX512-VNNI).
    /// Vectors deviate from the exact ones by a few degrees. Encoders that normalize before a block (ModernBERT) and
    /// decoders compute exact vectors.
    ///
    /// # Errors
    /// The same as of [`embed`](Self::embed).
    pub fn embed_rounded(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.embed_in(EncoderArithmetic::Bytes, texts)
    }

    /// Embeds search queries: as [`embed`](Self::embed) does, unless they are
    /// [rounded](Self::with_rounded_queries).
    ///
    /// # Errors
    /// The same as of [`embed`](Self::embed).
    pub fn embed_queries(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.embed_in(self.queries, texts)
    }

    fn embed_in(&self, arithmetic: EncoderArithmetic, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        let sequences = self.tokenize(texts)?;
        self.encoder.run(arithmetic, self.pooling.rows(), &sequences, |rows| self.pooled(rows))
    }

    /// Computes the vector of a text from the rows of its pieces, or from those that the pooling reads.
    fn pooled(&self, rows: &[f32]) -> Vec<f32> {
        let hidden = self.shape.hidden;
        let mut vector = self.pooling.pool(rows, hidden);
        if self.normalize {
            // Normalizing cancels the division of the mean. The lower bound is that of torch's `normalize`.
            let norm = dot(&vector, &vector).sqrt().max(1e-12);
            scale(&mut vector, 1.0 / norm);
        } else {
            self.pooling.divide(&mut vector, rows.len() / hidden);
        }
        vector
    }

    /// Number of word pieces in `text`, without the two end markers and without the length limit. 0 if the text
    /// cannot be split.
    pub fn count_tokens(&self, text: &str) -> usize {
        self.tokenizer.count(text)
    }

    /// Maximum number of word pieces per text, including the two end markers.
    pub fn max_pieces(&self) -> usize {
        self.tokenizer.max_pieces()
    }

    fn tokenize(&self, texts: &[&str]) -> Result<Vec<PieceSequence>, ModelError> {
        let team = self.encoder.team();
        let sequences = team.map(texts.len(), &|place| self.tokenizer.single(texts[place]));
        sequences.into_iter().collect()
    }
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedder").field("id", &self.id).field("shape", &self.shape).finish_non_exhaustive()
    }
}
