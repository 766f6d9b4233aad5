//! What one decoder is configured by: the numbers of `config.json` or of GGUF metadata.

use crate::ModelError;

/// The shape of a decoder and the few choices in which Llama, Qwen2 and Qwen3 differ.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Rows of the embedding matrix, and values per row of logits.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of blocks of attention and feed-forward.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of one head; `hidden / heads` unless the checkpoint says otherwise (Qwen3).
    pub head_dim: usize,
    /// Inner width of the feed-forward part.
    pub ffn: usize,
    /// Most positions a sequence may have.
    pub context: usize,
    /// Base of the rotary frequencies, theta.
    pub rope_base: f32,
    /// How the rotary frequencies were stretched for a longer context.
    pub rope_scaling: RopeScaling,
    /// Added to the mean square in every RMS norm.
    pub rms_eps: f32,
    /// True when the output projection is the embedding matrix.
    pub tied_embeddings: bool,
    /// True when the query, key and value projections have a bias (Qwen2).
    pub qkv_bias: bool,
    /// True when queries and keys are normalised per head before the rotation (Qwen3).
    pub qk_norm: bool,
}

/// How rotary frequencies are changed from `base^(-2i/d)`; the formulas are those of `modeling_rope_utils.py` in `transformers`.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Ratio of the new to the original context.
        factor: f32,
    },
    /// Llama 3: low frequencies divided, high ones kept, a smooth passage between.
    Llama3 {
        /// Ratio by which the low frequencies are divided.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context of the first training.
        original_context: usize,
    },
    /// YaRN: interpolation and extrapolation mixed by how often a frequency turns within the original context.
    Yarn {
        /// Ratio of the new to the original context.
        factor: f32,
        /// Context of the first training.
        original_context: usize,
        /// Frequencies that turn more often than this are kept (usually 32).
        beta_fast: f32,
        /// Frequencies that turn less often than this are divided (usually 1).
        beta_slow: f32,
        /// Factor on cosine and sine; `0.1 · ln(factor) + 1` when the checkpoint has none.
        attention_factor: Option<f32>,
    },
    /// Each frequency divided by its own factor, `head_dim / 2` of them (the tensor `rope_freqs.weight` of a GGUF).
    Factors(Vec<f32>),
}

impl DecoderConfig {
    /// Checks that the numbers fit together, so that no later code has to.
    ///
    /// # Errors
    /// [`ModelError::Input`] names the first number that does not fit.
    pub fn check(&self) -> Result<(), ModelError> {
        let positive = [
            ("vocabulary", self.vocab),
            ("hidden size", self.hidden),
            ("number of layers", self.layers),
            ("number of heads", self.heads),
            ("number of key-value heads", self.kv_heads),
            ("feed-forward size", self.ffn),
            ("context", self.context),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(ModelError::Input(format!("decoder config: {name} is 0")));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            let reason = format!("decoder config: {heads} heads are no multiple of {kv_heads} key-value heads");
            return Err(ModelError::Input(reason));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(16) {
            let reason = format!("decoder config: head size {} is no multiple of 16", self.head_dim);
            return Err(ModelError::Input(reason));
        }
        match &self.rope_scaling {
            RopeScaling::Factors(factors) if factors.len() != self.head_dim / 2 => {
                let (found, needed) = (factors.len(), self.head_dim / 2);
                Err(ModelError::Input(format!("decoder config: {found} rope factors, {needed} are needed")))
            }
            _ => Ok(()),
        }
    }

    /// Query heads that share one key and value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
