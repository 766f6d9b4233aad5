//! Sampling parameters of a request.

use crate::ModelError;

/// Sampling parameters. The default samples from the model's own distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits. Below 1e-5 the most probable token is always chosen. Default 1.
    pub temperature: f32,
    /// Keeps the smallest set of most probable tokens with at least this total probability. 1 keeps all.
    pub top_p: f32,
    /// Maximum number of most probable tokens to keep. 0 keeps all.
    pub top_k: usize,
    /// Minimum probability of a token, as a fraction of the most probable token's. 0 keeps all.
    pub min_p: f32,
    /// Factor on the logits of tokens that have occurred: divides positive and multiplies negative logits (CTRL,
    /// arXiv:1909.05858, §4.1). From 0.01 to 10; 1 has no effect.
    pub repetition_penalty: f32,
    /// Amount subtracted from a token's logit for each occurrence, as in the OpenAI API. 0 has no effect.
    pub frequency_penalty: f32,
    /// Amount subtracted once from the logit of a token that has occurred. 0 has no effect.
    pub presence_penalty: f32,
    /// Amounts added to the logits of the listed token IDs.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random sequence.
    pub seed: u64,
    /// Number of most probable tokens reported in addition to the sampled one.
    pub top_logprobs: usize,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            top_logprobs: 0,
        }
    }
}

impl SamplingParams {
    /// Creates parameters that always choose the most probable token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Returns `true` if sampling is deterministic. The bound keeps `1 / temperature` and the scaled logits finite.
    pub fn is_greedy(&self) -> bool {
        self.temperature < 1e-5
    }

    /// Returns `true` if logits are changed before a token is chosen.
    pub(super) fn adjusts(&self) -> bool {
        self.penalizes() || !self.logit_bias.is_empty()
    }

    pub(super) fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Rejects values outside their ranges.
    ///
    /// # Errors
    /// [`ModelError::Input`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), ModelError> {
        let fields = [
            ("temperature", self.temperature, self.temperature >= 0.0, "at least 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                (0.01..=10.0).contains(&self.repetition_penalty),
                "from 0.01 to 10",
            ),
            ("frequency_penalty", self.frequency_penalty, true, "a finite number"),
            ("presence_penalty", self.presence_penalty, true, "a finite number"),
        ];
        for (name, value, holds, wanted) in fields {
            if !holds || !value.is_finite() {
                return Err(ModelError::Input(format!("{name} must be {wanted}, not {value}")));
            }
        }
        match self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            Some((id, bias)) => Err(ModelError::Input(format!("logit_bias of token {id} must be finite, not {bias}"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn senseless_values_are_refused_by_name() {
        assert!(SamplingParams::default().check().is_ok());
        let refused = |params: SamplingParams| params.check().unwrap_err().to_string();
        assert!(refused(SamplingParams { top_p: 0.0, ..Default::default() }).starts_with("top_p"));
        assert!(refused(SamplingParams { temperature: f32::NAN, ..Default::default() }).starts_with("temperature"));
        assert!(refused(SamplingParams { temperature: -1.0, ..Default::default() }).starts_with("temperature"));
        assert!(refused(SamplingParams { min_p: 1.5, ..Default::default() }).starts_with("min_p"));
        for repetition_penalty in [0.0, 1e-3, 11.0, f32::INFINITY] {
            let refusal = refused(SamplingParams { repetition_penalty, ..Default::default() });
            assert!(refusal.starts_with("repetition_penalty must be from 0.01 to 10"), "{refusal}");
        }
        let bias = SamplingParams { logit_bias: vec![(7, f32::INFINITY)], ..Default::default() };
        assert!(refused(bias).contains("token 7"));
    }
}
