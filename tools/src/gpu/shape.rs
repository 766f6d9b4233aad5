//! Decoder shapes of the benchmark, and lower bounds on the time of their steps.

use std::str::FromStr;

use serde::Serialize;
use waymark_models::architecture::Architecture;
use waymark_models::cuda::plan::WeightFormat;
use waymark_models::decoder::{DecoderConfig, RopeScaling};

/// A named decoder configuration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelShape {
    pub(super) name: String,
    pub(super) config: DecoderConfig,
    /// Format of the layers' matrices.
    pub(super) weights: WeightFormat,
}

/// Peak rates of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Ceilings {
    /// Bytes per second, reads and writes together.
    pub(super) bandwidth: f64,
    /// Operations per second of `bf16` matrix multiplication, counting a multiply-add as two.
    pub(super) operations: f64,
}

impl Ceilings {
    /// Returns the minimum seconds for this much memory traffic and arithmetic, fully overlapped.
    pub(super) fn seconds(self, bytes: f64, operations: f64) -> f64 {
        (bytes / self.bandwidth).max(operations / self.operations)
    }
}

/// Shapes by name.
const KNOWN: [(&str, [usize; 8], bool, bool); 5] = [
    // vocab, hidden, layers, heads, kv heads, head dim, ffn, context; tied embeddings; biases of queries, keys and
    // values
    ("smollm2-135m", [49_152, 576, 30, 9, 3, 64, 1536, 8192], true, false),
    ("qwen2.5-3b", [151_936, 2048, 36, 16, 2, 128, 11_008, 32_768], true, true),
    ("qwen2.5-7b", [152_064, 3584, 28, 28, 4, 128, 18_944, 32_768], false, true),
    ("tiny", [4096, 576, 6, 9, 3, 64, 1536, 4096], true, true),
    ("tiny-128", [4096, 512, 6, 8, 2, 128, 1536, 4096], true, true),
];

impl FromStr for ModelShape {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = KNOWN.iter().find(|(known, ..)| *known == name);
        let &(_, [vocab, hidden, layers, heads, kv_heads, head_dim, ffn, context], tied, bias) =
            found.ok_or_else(|| {
                let names: Vec<&str> = KNOWN.iter().map(|(name, ..)| *name).collect();
                format!("unknown shape `{name}`: use one of {}", names.join(", "))
            })?;
        let config = DecoderConfig {
            vocab,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn,
            context,
            rope_base: 1e6,
            rope_scaling: RopeScaling::None,
            rms_eps: 1e-6,
            tied_embeddings: tied,
            architecture: Architecture { qkv_bias: bias, ..Architecture::default() },
        };
        Ok(Self { name: name.to_owned(), config, weights: WeightFormat::Bf16 })
    }
}

impl ModelShape {
    /// Sets the format of the layers' matrices. The name tells any but `bf16`, so the goals of a shape are
    /// judged by `bf16` alone.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU has formats to choose from"))]
    pub(super) fn with_weights(self, weights: WeightFormat) -> Self {
        let name = match weights {
            WeightFormat::Bf16 => self.name,
            WeightFormat::Fp8 => format!("{}-{weights}", self.name),
        };
        Self { name, weights, ..self }
    }

    /// Number of matrix parameters that every token is multiplied by, including the output projection.
    pub(super) fn parameters(&self) -> usize {
        self.layers() + self.config.vocab * self.config.hidden
    }

    /// Number of matrix parameters of the layers, without the output projection, which only sampled positions need.
    fn layers(&self) -> usize {
        let config = &self.config;
        let attention = config.hidden * (2 * config.q_width() + 2 * config.kv_width());
        config.layers * (attention + 3 * config.hidden * config.ffn)
    }

    /// Bytes of the matrices that every token is multiplied by. Scales are left out; the output projection is in `bf16`.
    fn weight_bytes(&self) -> usize {
        let of_layers = match self.weights {
            WeightFormat::Bf16 => 2,
            WeightFormat::Fp8 => 1,
        };
        of_layers * self.layers() + 2 * self.config.vocab * self.config.hidden
    }

    /// Bytes of KV cache per token over all layers, in `bf16`.
    pub(super) fn kv_bytes(&self) -> usize {
        2 * self.config.kv_width() * self.config.layers * 2
    }

    /// Returns the minimum seconds of a decode step of `rows` sequences with `context` tokens each: every weight and
    /// every cached token is read once, and every row is multiplied by every weight.
    pub(super) fn decode_floor(&self, rows: usize, context: usize, best: Ceilings) -> f64 {
        let bytes = self.weight_bytes() + rows * context * self.kv_bytes();
        let operations = rows * (2 * self.parameters() + context * self.attention_operations());
        best.seconds(bytes as f64, operations as f64)
    }

    /// Returns the minimum seconds of prefilling `rows` prompts of `tokens` tokens each, with logits of the last tokens
    /// only.
    pub(super) fn prefill_floor(&self, rows: usize, tokens: usize, best: Ceilings) -> f64 {
        // Each position attends to itself and to all before it.
        let pairs = tokens * (tokens + 1) / 2;
        let vocabulary = 2 * self.config.vocab * self.config.hidden;
        let row = 2 * self.layers() * tokens + pairs * self.attention_operations() + vocabulary;
        // The weights are read once for all prompts.
        best.seconds(self.weight_bytes() as f64, rows as f64 * row as f64)
    }

    /// Number of operations per pair of query and key positions: scores and weighted values over all heads and layers.
    fn attention_operations(&self) -> usize {
        4 * self.config.q_width() * self.config.layers
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shape(name: &str) -> ModelShape {
        name.parse().unwrap()
    }

    #[test]
    fn shapes_have_the_sizes_their_names_say() {
        // Published: 134.5 million, 3.09 billion (2.77 without embeddings), 7.62 billion (6.53 without embeddings).
        assert!((134.4e6..134.6e6).contains(&(shape("smollm2-135m").parameters() as f64)));
        assert!((3.08e9..3.09e9).contains(&(shape("qwen2.5-3b").parameters() as f64)));
        assert!((7.06e9..7.08e9).contains(&(shape("qwen2.5-7b").parameters() as f64)), "one of two embeddings counts");
        assert_eq!(shape("qwen2.5-7b").kv_bytes(), 57_344);
        // Compared with the CPU: small enough for it, large enough to be a model.
        for tiny in ["tiny", "tiny-128"] {
            assert!((20e6..30e6).contains(&(shape(tiny).parameters() as f64)), "{tiny}");
        }
        assert!("gpt".parse::<ModelShape>().is_err_and(|error| error.contains("qwen2.5-3b")));
        for (name, ..) in KNOWN {
            assert!(shape(name).config.check().is_ok(), "{name}");
        }
    }

    #[test]
    fn one_sequence_is_bound_by_weights_and_many_by_arithmetic() {
        let best = Ceilings { bandwidth: 4e12, operations: 8e14 };
        let seven = shape("qwen2.5-7b");
        let weights = 2.0 * seven.parameters() as f64 / best.bandwidth;
        assert!((seven.decode_floor(1, 1, best) / weights - 1.0).abs() < 1e-3);
        // Number of rows at which bytes and operations balance: a row costs two operations per weight, a weight two
        // bytes.
        let balance = (best.operations / best.bandwidth) as usize;
        let floor = |rows| seven.decode_floor(rows, 0, best);
        assert!((floor(balance / 2) / floor(1) - 1.0).abs() < 1e-9);
        assert!((floor(2 * balance) / floor(1) - 2.0).abs() < 1e-3);
        // KV of 64 sequences with 4,096 tokens is more than the weights of the 7B.
        assert!(seven.decode_floor(64, 4096, best) > 2.0 * floor(1));
    }

    #[test]
    fn fp8_halves_the_layers_and_tells_so_in_the_name() {
        let best = Ceilings { bandwidth: 4e12, operations: 8e14 };
        let half = shape("qwen2.5-7b");
        let fp8 = half.clone().with_weights(WeightFormat::Fp8);
        assert_eq!(
            (fp8.name.as_str(), half.clone().with_weights(WeightFormat::Bf16)),
            ("qwen2.5-7b-fp8", half.clone())
        );
        // 6.53 billion parameters of layers at one byte, and 0.54 billion of the output projection at two.
        assert!((7.6e9..7.63e9).contains(&(fp8.weight_bytes() as f64)), "{}", fp8.weight_bytes());
        let floors = [&half, &fp8].map(|shape| shape.decode_floor(1, 1, best));
        assert!((floors[0] / floors[1] - half.weight_bytes() as f64 / fp8.weight_bytes() as f64).abs() < 1e-3);
    }

    #[test]
    fn prefill_grows_faster_than_its_length() {
        let best = Ceilings { bandwidth: 4e12, operations: 8e14 };
        let shape = shape("qwen2.5-3b");
        let short = shape.prefill_floor(1, 2048, best);
        let long = shape.prefill_floor(1, 4096, best);
        assert!(long > 2.0 * short && long < 3.0 * short);
        assert!((shape.prefill_floor(4, 2048, best) / short - 4.0).abs() < 1e-9);
    }
}
