//! Score of a pair from the vector of its first piece.

use crate::ModelError;
use crate::encoder::{EncoderConfig, EncoderFamily, EncoderTensors};
use crate::kernel::dot;

/// Classification head of one label: a dense layer, an activation, and a linear map to the logit.
#[derive(Debug)]
pub(super) struct ScoreHead {
    /// Shape (hidden, hidden).
    dense: Vec<f32>,
    dense_bias: Vec<f32>,
    activation: HeadActivation,
    out: Vec<f32>,
    out_bias: f32,
}

/// Activation of the dense layer.
#[derive(Debug, Clone, Copy)]
enum HeadActivation {
    Tanh,
    Relu,
}

/// Names of the encoder families whose classification heads are supported.
pub(super) const FAMILIES: [&str; 4] = ["bert", "roberta", "distilbert", "mpnet"];

impl ScoreHead {
    pub(super) fn load(config: &EncoderConfig, source: &EncoderTensors<'_>) -> Result<Self, ModelError> {
        let hidden = config.hidden;
        let (dense, out, activation) = match config.family {
            // The pooler belongs to the encoder (`BertPooler`).
            EncoderFamily::Bert => ("pooler.dense", "classifier", HeadActivation::Tanh),
            // `RobertaClassificationHead`, and MPNet's copy of it.
            EncoderFamily::Roberta | EncoderFamily::Mpnet => {
                ("classifier.dense", "classifier.out_proj", HeadActivation::Tanh)
            }
            EncoderFamily::DistilBert => ("pre_classifier", "classifier", HeadActivation::Relu),
            EncoderFamily::ModernBert | EncoderFamily::NomicBert | EncoderFamily::Gte => {
                return Err(source.unsupported(&format!("classification head of {}", config.family.name())));
            }
        };
        Ok(ScoreHead {
            dense: source.floats(&format!("{dense}.weight"), &[hidden, hidden])?,
            dense_bias: source.floats(&format!("{dense}.bias"), &[hidden])?,
            activation,
            out: source.floats(&format!("{out}.weight"), &[1, hidden])?,
            out_bias: source.floats(&format!("{out}.bias"), &[1])?[0],
        })
    }

    /// Computes the logit of a pair from the rows of its pieces.
    pub(super) fn logit(&self, rows: &[f32]) -> f32 {
        let hidden = self.dense_bias.len();
        let Some(first) = rows.get(..hidden) else { return self.out_bias };
        let row = self.dense.chunks_exact(hidden).zip(&self.dense_bias);
        let inner: Vec<f32> = row.map(|(weights, bias)| self.activation.of(dot(weights, first) + bias)).collect();
        dot(&inner, &self.out) + self.out_bias
    }
}

impl HeadActivation {
    fn of(self, x: f32) -> f32 {
        match self {
            HeadActivation::Tanh => x.tanh(),
            HeadActivation::Relu => x.max(0.0),
        }
    }
}
