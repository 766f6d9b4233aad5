//! The embedder as the index and the API know one: that of the models, or a mock.

use waymark_index::{Embed, EmbedError};
use waymark_models::embedder::Embedder;

use crate::api::TextEmbedder;

/// An embedder, as `waymark-index` asks for it.
#[derive(Debug)]
pub enum Embedding {
    /// One of `waymark-models`.
    Model(Box<Embedder>),
    /// Vectors of words, by their hashes: no weights, little sense, the same at every call.
    Mock,
}

/// The name by which the mock is asked for.
pub const MOCK: &str = "mock";

/// Dimensions of the mock's vectors.
const DIMS: usize = 64;

impl Embed for Embedding {
    fn id(&self) -> &str {
        match self {
            Embedding::Model(embedder) => embedder.id(),
            Embedding::Mock => MOCK,
        }
    }

    fn dims(&self) -> usize {
        match self {
            Embedding::Model(embedder) => embedder.dims(),
            Embedding::Mock => DIMS,
        }
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        match self {
            Embedding::Model(embedder) => Ok(embedder.embed(texts)?),
            Embedding::Mock => Ok(texts.iter().map(|text| hashed(text)).collect()),
        }
    }

    fn cuts(&self, text: &str) -> bool {
        // No word piece has less than a byte: what is short need not be counted.
        text.len() > self.max_tokens() && self.count_tokens(text) > self.max_tokens()
    }
}

impl TextEmbedder for Embedding {
    fn count_tokens(&self, text: &str) -> usize {
        match self {
            Embedding::Model(embedder) => embedder.count_tokens(text),
            Embedding::Mock => text.split_whitespace().count(),
        }
    }

    fn max_tokens(&self) -> usize {
        match self {
            // The two marks at the ends are read too.
            Embedding::Model(embedder) => embedder.max_pieces().saturating_sub(2),
            Embedding::Mock => usize::MAX,
        }
    }
}

/// The words of a text, each of them one of the dimensions, as a vector of length one.
fn hashed(text: &str) -> Vec<f32> {
    let mut vector = vec![0f32; DIMS];
    // What texts without a single word have in common.
    vector[0] = 0.1;
    for word in text.split_whitespace() {
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
