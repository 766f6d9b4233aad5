//! Embedders for the index and the API: a model's, an endpoint's, or a mock.

use std::fmt;

use waymark_index::{Embed, EmbedError, Prompts, QueryContext};
use waymark_models::embedder::{Embedder, EncoderPrompts};

use crate::query_embedder::QueryCounters;
use crate::remote::{EmbedEndpoint, MAX_EMBEDDED_BYTES};

/// An embedder that also counts tokens.
pub trait TextEmbedder: Embed + fmt::Debug {
    /// Counts the tokens of `text`. An endpoint does not report its tokens, so the count is estimated from the bytes.
    fn count_tokens(&self, text: &str) -> usize;

    /// Maximum number of tokens of a text that the embedder reads; the rest would be cut off.
    fn max_tokens(&self) -> usize;

    /// Upper bound of the size of a text that the embedder reads, in bytes. A token usually covers few bytes, but white
    /// space between words belongs to no token, so the bound is generous.
    fn max_bytes(&self) -> usize {
        self.max_tokens().saturating_mul(MAX_TOKEN_BYTES)
    }

    /// Returns `true` if the embedder is an endpoint, which bounds its requests itself and encodes no text here.
    fn is_remote(&self) -> bool {
        false
    }

    /// Counts of query embeddings. `None` if the embedder does not count them.
    fn query_counters(&self) -> Option<&QueryCounters> {
        None
    }
}

/// Upper bound of the bytes of a text per token, white space included.
const MAX_TOKEN_BYTES: usize = 256;

/// An embedder for the index and the API.
#[derive(Debug)]
pub enum Embedding {
    /// A model of `waymark-models`, with the name or the directory that it was opened by.
    Model(Box<Embedder>, String),
    /// An embedder elsewhere.
    Endpoint(Box<EmbedEndpoint>),
    /// Hashed bag-of-words vectors: deterministic, without weights, with little meaning.
    Mock,
}

/// Name that selects the mock.
pub const MOCK: &str = "mock";

/// Estimated number of bytes per token of an embedder elsewhere.
const BYTES_PER_TOKEN: usize = 4;

/// Dimensions of the mock's vectors.
const DIMS: usize = 64;

impl Embed for Embedding {
    fn id(&self) -> &str {
        match self {
            Embedding::Model(embedder, _) => embedder.id(),
            Embedding::Endpoint(endpoint) => endpoint.id(),
            Embedding::Mock => MOCK,
        }
    }

    fn source(&self) -> Option<&str> {
        match self {
            Embedding::Model(_, source) => Some(source),
            // URLs change, and may hold secrets.
            Embedding::Endpoint(_) => None,
            Embedding::Mock => Some(MOCK),
        }
    }

    fn dims(&self) -> usize {
        match self {
            Embedding::Model(embedder, _) => embedder.dims(),
            Embedding::Endpoint(endpoint) => endpoint.dims(),
            Embedding::Mock => DIMS,
        }
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        match self {
            Embedding::Model(embedder, _) => Ok(embedder.embed(texts)?),
            Embedding::Endpoint(endpoint) => endpoint.embed(texts),
            Embedding::Mock => Ok(texts.iter().map(|text| hashed(text)).collect()),
        }
    }

    fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        match self {
            Embedding::Model(embedder, _) => Ok(embedder.embed_rounded(texts)?),
            Embedding::Endpoint(endpoint) => endpoint.embed_documents(texts),
            Embedding::Mock => self.embed(texts),
        }
    }

    fn embed_queries(&self, texts: &[&str], _context: QueryContext) -> Result<Vec<Vec<f32>>, EmbedError> {
        match self {
            Embedding::Model(embedder, _) => Ok(embedder.embed_queries(texts)?),
            Embedding::Endpoint(_) | Embedding::Mock => self.embed(texts),
        }
    }

    fn cuts(&self, text: &str) -> bool {
        // A word piece has at least one byte, so that short texts need no tokenization.
        text.len() > self.max_tokens() && self.count_tokens(text) > self.max_tokens()
    }

    fn least_batch(&self) -> usize {
        match self {
            Embedding::Endpoint(endpoint) => endpoint.least_batch(),
            Embedding::Model(..) | Embedding::Mock => 1,
        }
    }

    fn prompts(&self) -> Prompts {
        match self {
            Embedding::Model(embedder, _) => {
                let EncoderPrompts { query, document } = embedder.prompts().clone();
                Prompts { query, document }
            }
            // An endpoint does not tell its prompts.
            Embedding::Endpoint(_) | Embedding::Mock => Prompts::default(),
        }
    }
}

impl TextEmbedder for Embedding {
    fn count_tokens(&self, text: &str) -> usize {
        match self {
            Embedding::Model(embedder, _) => embedder.count_tokens(text),
            Embedding::Endpoint(_) => text.len().div_ceil(BYTES_PER_TOKEN),
            Embedding::Mock => text.split_whitespace().count(),
        }
    }

    fn max_tokens(&self) -> usize {
        match self {
            // The two special tokens at the ends count too.
            Embedding::Model(embedder, _) => embedder.max_pieces().saturating_sub(2),
            Embedding::Endpoint(_) => MAX_EMBEDDED_BYTES / BYTES_PER_TOKEN,
            Embedding::Mock => usize::MAX,
        }
    }

    fn max_bytes(&self) -> usize {
        match self {
            Embedding::Endpoint(_) => MAX_EMBEDDED_BYTES,
            Embedding::Model(..) | Embedding::Mock => self.max_tokens().saturating_mul(MAX_TOKEN_BYTES),
        }
    }

    fn is_remote(&self) -> bool {
        matches!(self, Embedding::Endpoint(_))
    }
}

/// Unit vector of a text in which each word adds to one dimension.
fn hashed(text: &str) -> Vec<f32> {
    let mut vector = vec![0f32; DIMS];
    // Keeps the vector of a text without words from being zero.
    vector[0] = 0.1;
    for word in text.split_whitespace() {
        // The standard library's hasher may change between releases, and stored indexes hold these vectors.
        let hash = blake3::hash(word.to_lowercase().as_bytes());
        vector[usize::from(hash.as_bytes()[0]) % DIMS] += 1.0;
    }
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_mock_finds_texts_alike_that_share_words() {
        let vectors = Embedding::Mock.embed(&["the mona lisa", "mona lisa", "radium and polonium", ""]).unwrap();
        let like = |a: usize, b: usize| vectors[a].iter().zip(&vectors[b]).map(|(a, b)| a * b).sum::<f32>();
        assert!(like(0, 1) > 0.7 && like(0, 2) < 0.5);
        for vector in &vectors {
            let length = vector.iter().map(|value| value * value).sum::<f32>();
            assert!((length - 1.0).abs() < 1e-5 && vector.len() == Embedding::Mock.dims());
        }
    }
}
