//! Embedders for the tests of this crate, both unit and integration tests.
#![allow(dead_code, unreachable_pub, missing_docs)]

use waymark_index::{Embed, EmbedError};

/// Bag-of-words embedder by hashing: texts that share words are close, and no model is loaded.
#[derive(Debug, Clone)]
pub struct HashEmbed {
    pub id: &'static str,
    pub dims: usize,
}

impl HashEmbed {
    pub fn new(dims: usize) -> HashEmbed {
        HashEmbed { id: "hash", dims }
    }
}

impl Default for HashEmbed {
    fn default() -> HashEmbed {
        HashEmbed { id: "hash-64", dims: 64 }
    }
}

impl Embed for HashEmbed {
    fn id(&self) -> &str {
        self.id
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Ok(texts.iter().map(|text| hash_vector(text, self.dims)).collect())
    }
}

fn hash_vector(text: &str, dims: usize) -> Vec<f32> {
    let mut vector = vec![0.0; dims];
    for word in text.to_lowercase().split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        // FNV-1a of the word seeds a xorshift stream, which gives the word's direction.
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let mut state = word.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        for x in &mut vector {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *x += (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        }
    }
    vector
}

/// Embedder with the same ID that always fails with this message.
#[derive(Debug)]
pub struct Failing(pub &'static str);

impl Embed for Failing {
    fn id(&self) -> &str {
        "hash-64"
    }

    fn dims(&self) -> usize {
        64
    }

    fn embed(&self, _: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Err(self.0.into())
    }
}
