//! Number of parameters of a decoder.

use super::DecoderConfig;

impl DecoderConfig {
    /// Returns the number of parameters: embedding, layers, final norm, and the output projection unless it is tied.
    pub fn parameters(&self) -> u64 {
        let product = |a: usize, b: usize| a as u64 * b as u64;
        let matrices =
            product(self.hidden, 2 * self.q_width() + 2 * self.kv_width()) + 3 * product(self.hidden, self.ffn);
        let biases = if self.qkv_bias { self.q_width() + 2 * self.kv_width() } else { 0 };
        let norms = 2 * self.hidden + if self.qk_norm { 2 * self.head_dim } else { 0 };
        let layer = matrices + (biases + norms) as u64;
        let tables = if self.tied_embeddings { 1 } else { 2 };
        tables * product(self.vocab, self.hidden) + self.layers as u64 * layer + self.hidden as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::decoder::RopeScaling;
    use crate::weights::{Weights, write_random};

    #[test]
    fn it_is_the_size_of_the_file() {
        for (qkv_bias, qk_norm, tied_embeddings) in [(false, false, true), (true, false, false), (false, true, false)] {
            let config = DecoderConfig {
                vocab: 96,
                hidden: 64,
                layers: 3,
                heads: 4,
                kv_heads: 2,
                head_dim: 32,
                ffn: 80,
                context: 128,
                rope_base: 10_000.0,
                rope_scaling: RopeScaling::None,
                rms_eps: 1e-5,
                tied_embeddings,
                qkv_bias,
                qk_norm,
            };
            let dir = tempfile::tempdir().unwrap();
            write_random(dir.path(), &config, 1).unwrap();
            let bytes = std::fs::read(dir.path().join("model.safetensors")).unwrap();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!((bytes.len() as u64 - 8 - header) / 2, Weights::open(dir.path()).unwrap().config().parameters());
        }
    }
}
