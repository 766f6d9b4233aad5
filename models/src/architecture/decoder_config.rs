//! Decoder configuration: the numbers of `config.json` or of GGUF metadata.

use std::fmt;

use super::Architecture;
use crate::ModelError;
use crate::kernel::attention::{HeadLayout, ScoreRule};

/// Shape of a decoder and the description of its computation.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Number of rows of the embedding matrix, and of values per row of logits.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of attention and feed-forward blocks.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of one head: `hidden / heads` unless the checkpoint states another one (Qwen3).
    pub head_dim: usize,
    /// Inner width of the feed-forward block, in layers without experts.
    pub ffn: usize,
    /// Maximum number of positions in a sequence.
    pub context: usize,
    /// Base of the rotary frequencies, theta.
    pub rope_base: f32,
    /// Scaling of the rotary frequencies for a longer context.
    pub rope_scaling: RopeScaling,
    /// Constant added to the mean square in every RMS norm.
    pub rms_eps: f32,
    /// If `true`, the output projection is the embedding matrix.
    pub tied_embeddings: bool,
    /// Properties of the layers in which model families differ.
    pub architecture: Architecture,
}

/// Change of the rotary frequencies `base^(-2i/d)`, with the formulas of `modeling_rope_utils.py` in
/// `transformers`.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum RopeScaling {
    /// No change.
    #[default]
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Ratio of the new to the original context.
        factor: f32,
    },
    /// Llama 3: low frequencies divided, high ones kept, with a smooth transition.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of the original training.
        original_context: usize,
    },
    /// YaRN: interpolation and extrapolation, mixed by the number of turns of a frequency within the original
    /// context.
    Yarn {
        /// Ratio of the new to the original context.
        factor: f32,
        /// Context length of the original training.
        original_context: usize,
        /// Frequencies that turn more often than this are kept (usually 32).
        beta_fast: f32,
        /// Frequencies that turn less often than this are divided (usually 1).
        beta_slow: f32,
        /// Factor on cosine and sine. `None` means `0.1 · ln(factor) + 1`.
        attention_factor: Option<f32>,
    },
    /// Each frequency divided by its own factor. There are half as many factors as rotated values of a head (the tensor
    /// `rope_freqs.weight` of a GGUF).
    Factors(Vec<f32>),
    /// LongRoPE within the context of the original training (Ding et al. 2024): each frequency divided by its own short
    /// factor.
    Long {
        /// Divisors of the frequencies, half as many as rotated values of a head.
        factors: Vec<f32>,
        /// Factor on cosine and sine.
        attention_factor: f32,
    },
}

/// Upper limit of vocabulary and context. Like the limits below, it is far beyond real models: a damaged checkpoint
/// must not cause huge allocations or overflow products of sizes, such as tokens times row width or layers times heads.
const LARGEST: usize = 1 << 26;
/// Upper limit of the hidden size and the feed-forward size.
const MAX_WIDTH: usize = 1 << 20;
/// Upper limit of the number of layers and heads, and of the head size.
const MAX_COUNT: usize = 1 << 12;

/// Minimum divisor of a rotary frequency. Smaller divisors, which no model has, would make angles infinite and every
/// result NaN.
pub(crate) const MIN_ROPE_FACTOR: f32 = 1e-3;

impl DecoderConfig {
    /// Checks that the numbers are consistent, so later code can rely on them.
    ///
    /// # Errors
    /// [`ModelError::Input`] naming the first number that is invalid.
    pub fn check(&self) -> Result<(), ModelError> {
        self.check_sizes()?;
        if !(self.rms_eps.is_finite() && self.rms_eps >= 0.0) {
            return refuse(format_args!("rms epsilon {} is not a finite number of at least 0", self.rms_eps));
        }
        if !(self.rope_base.is_finite() && self.rope_base > 1.0) {
            return refuse(format_args!("rope base {} is not a finite number above 1", self.rope_base));
        }
        self.architecture.check(self.layers, self.head_dim).or_else(|reason| refuse(format_args!("{reason}")))?;
        self.rope_scaling.check(self.rotary_dim())
    }

    fn check_sizes(&self) -> Result<(), ModelError> {
        let sizes = [
            ("vocabulary", self.vocab, LARGEST),
            ("hidden size", self.hidden, MAX_WIDTH),
            ("number of layers", self.layers, MAX_COUNT),
            ("number of heads", self.heads, MAX_COUNT),
            ("number of key-value heads", self.kv_heads, MAX_COUNT),
            ("head size", self.head_dim, MAX_COUNT),
            ("feed-forward size", self.ffn, MAX_WIDTH),
            ("context", self.context, LARGEST),
        ];
        if let Some((name, size, most)) = sizes.iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
            return refuse(format_args!("{name} is {size}, not from 1 to {most}"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return refuse(format_args!("{} heads: not a multiple of {} key-value heads", self.heads, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(16) {
            return refuse(format_args!("head size {}: not a multiple of 16", self.head_dim));
        }
        Ok(())
    }

    /// Largest inner width of any feed-forward block, experts included.
    pub fn widest_feed_forward(&self) -> usize {
        let Some(experts) = &self.architecture.experts else { return self.ffn };
        let dense = if experts.dense_layers.is_empty() { 0 } else { self.ffn };
        experts.widest().max(dense)
    }

    /// Number of query heads that share one key and value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Number of values of each head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        self.architecture.rotary_dim.unwrap_or(self.head_dim)
    }

    /// Head counts and width.
    pub(crate) fn head_layout(&self) -> HeadLayout {
        HeadLayout { query: self.heads, kv: self.kv_heads, dim: self.head_dim }
    }

    /// Scale, window and limit of the scores in layer `index`.
    pub fn score_rule(&self, index: usize) -> ScoreRule {
        let scale = self.architecture.attention_scale.unwrap_or(1.0 / (self.head_dim as f32).sqrt());
        ScoreRule { scale, window: self.architecture.layer(index).window, cap: self.architecture.score_cap }
    }

    /// Total width of all query heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Total width of all key heads, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl RopeScaling {
    /// Checks the numbers for heads with `dim` rotated values.
    fn check(&self, dim: usize) -> Result<(), ModelError> {
        let positive = |value: f32| value.is_finite() && value > 0.0;
        let divides = |factor: f32| factor.is_finite() && factor >= MIN_ROPE_FACTOR;
        let (numbers, original_context) = match self {
            Self::None => return Ok(()),
            Self::Factors(factors) | Self::Long { factors, .. } => {
                if factors.len() != dim / 2 {
                    return refuse(format_args!("{} rope factors, {} are needed", factors.len(), dim / 2));
                }
                if let Self::Long { attention_factor, .. } = self
                    && !positive(*attention_factor)
                {
                    return refuse(format_args!(
                        "rope attention_factor {attention_factor} is not a finite number above 0"
                    ));
                }
                return match factors.iter().find(|factor| !divides(**factor)) {
                    Some(factor) => refuse_factor(*factor),
                    None => Ok(()),
                };
            }
            Self::Linear { factor } | Self::Llama3 { factor, .. } | Self::Yarn { factor, .. } if !divides(*factor) => {
                return refuse_factor(*factor);
            }
            Self::Linear { .. } => return Ok(()),
            Self::Llama3 { low_freq_factor: low, high_freq_factor: high, original_context, .. } => {
                if high <= low {
                    return refuse(format_args!("rope high_freq_factor {high} is not above low_freq_factor {low}"));
                }
                (vec![("low_freq_factor", *low), ("high_freq_factor", *high)], *original_context)
            }
            Self::Yarn { original_context, beta_fast, beta_slow, attention_factor, .. } => {
                let mut numbers = vec![("beta_fast", *beta_fast), ("beta_slow", *beta_slow)];
                numbers.extend(attention_factor.map(|factor| ("attention_factor", factor)));
                (numbers, *original_context)
            }
        };
        if let Some((name, value)) = numbers.iter().find(|(_, value)| !positive(*value)) {
            return refuse(format_args!("rope {name} {value} is not a finite number above 0"));
        }
        if !(1..=LARGEST).contains(&original_context) {
            return refuse(format_args!("original context is {original_context}, not from 1 to {LARGEST}"));
        }
        Ok(())
    }
}

fn refuse_factor(factor: f32) -> Result<(), ModelError> {
    refuse(format_args!("rope factor {factor} is not a finite number of at least {MIN_ROPE_FACTOR}"))
}

fn refuse(reason: fmt::Arguments<'_>) -> Result<(), ModelError> {
    Err(ModelError::Input(format!("decoder config: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> DecoderConfig {
        DecoderConfig {
            vocab: 40,
            hidden: 32,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            ffn: 64,
            context: 128,
            rope_base: 10_000.0,
            rope_scaling: RopeScaling::None,
            rms_eps: 0.0,
            tied_embeddings: true,
            architecture: Architecture::default(),
        }
    }

    fn refused(change: impl Fn(&mut DecoderConfig)) -> String {
        let mut config = sound();
        change(&mut config);
        config.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn numbers_that_no_model_has_are_refused_by_name() {
        assert!(sound().check().is_ok());
        assert!(refused(|config| config.vocab = LARGEST + 1).contains("vocabulary"));
        assert!(refused(|config| config.context = usize::MAX).contains("context"));
        assert!(refused(|config| config.layers = 0).contains("layers"));
        assert!(refused(|config| config.layers = MAX_COUNT + 1).contains("layers"));
        assert!(refused(|config| config.hidden = MAX_WIDTH + 1).contains("hidden"));
        assert!(refused(|config| config.rms_eps = f32::NAN).contains("rms epsilon"));
        assert!(refused(|config| config.rope_base = 1.0).contains("rope base"));
        assert!(refused(|config| config.rope_base = f32::INFINITY).contains("rope base"));
    }

    #[test]
    fn rope_scaling_must_make_sense() {
        let with = |scaling: RopeScaling| refused(|config| config.rope_scaling = scaling.clone());
        let llama3 = |low_freq_factor, high_freq_factor, original_context| {
            with(RopeScaling::Llama3 { factor: 8.0, low_freq_factor, high_freq_factor, original_context })
        };
        let yarn = |factor, attention_factor| {
            with(RopeScaling::Yarn { factor, original_context: 64, beta_fast: 32.0, beta_slow: 1.0, attention_factor })
        };
        assert_eq!(llama3(1.0, 4.0, 64), "");
        assert!(llama3(4.0, 4.0, 64).contains("high_freq_factor"));
        assert!(llama3(1.0, f32::NAN, 64).contains("high_freq_factor"));
        assert!(llama3(1.0, 4.0, 0).contains("original context"));
        assert_eq!(yarn(4.0, None), "");
        assert!(yarn(0.0, None).contains("factor"));
        assert!(yarn(4.0, Some(f32::INFINITY)).contains("attention_factor"));
        assert!(with(RopeScaling::Linear { factor: -1.0 }).contains("factor"));
        assert_eq!(with(RopeScaling::Linear { factor: 0.5 }), "");
        // The frequencies would be infinite.
        assert!(with(RopeScaling::Linear { factor: 1e-39 }).contains("factor"));
        assert!(yarn(1e-39, None).contains("factor"));
        assert!(with(RopeScaling::Factors(vec![1e-39; 8])).contains("rope factor"));
        assert!(with(RopeScaling::Factors(vec![1.0; 7])).contains("8 are needed"));
        assert!(with(RopeScaling::Factors(vec![0.0; 8])).contains("rope factor 0"));
    }
}
