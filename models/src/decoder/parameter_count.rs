//! Number of parameters of a decoder.

use super::DecoderConfig;
use crate::architecture::QkNorm;

impl DecoderConfig {
    /// Returns the number of parameters: embedding, layers, final norm, and the output projection unless it is tied.
    pub fn parameters(&self) -> u64 {
        let product = |a: usize, b: usize| a as u64 * b as u64;
        let attention = product(self.hidden, 2 * self.q_width() + 2 * self.kv_width());
        let feed_forward = (0..self.layers).map(|index| match self.architecture.experts(index) {
            Some(experts) => experts.parameters(self.hidden),
            None => 3 * product(self.hidden, self.ffn),
        });
        let biases = if self.architecture.qkv_bias { self.q_width() + 2 * self.kv_width() } else { 0 };
        let qk_norms = match self.architecture.qk_norm {
            QkNorm::None => 0,
            QkNorm::Head => 2 * self.head_dim,
            QkNorm::Whole => self.q_width() + self.kv_width(),
        };
        let norms = self.architecture.norms.count() * self.hidden + qk_norms;
        let layer = attention + (biases + norms) as u64;
        let tables = if self.tied_embeddings { 1 } else { 2 };
        let layers = self.layers as u64 * layer + feed_forward.sum::<u64>();
        tables * product(self.vocab, self.hidden) + layers + self.hidden as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::architecture::Architecture;
    use crate::decoder::RopeScaling;
    use crate::weights::{Weights, write_random};

    #[test]
    fn it_is_the_size_of_the_file() {
        let cases = [(false, QkNorm::None, true), (true, QkNorm::None, false), (false, QkNorm::Head, false)];
        for (qkv_bias, qk_norm, tied_embeddings) in cases {
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
                architecture: Architecture { qkv_bias, qk_norm, ..Architecture::default() },
            };
            let dir = tempfile::tempdir().unwrap();
            write_random(dir.path(), &config, 1).unwrap();
            let bytes = std::fs::read(dir.path().join("model.safetensors")).unwrap();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!((bytes.len() as u64 - 8 - header) / 2, Weights::open(dir.path()).unwrap().config().parameters());
        }
    }
}
