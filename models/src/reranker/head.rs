//! Score of a pair from the vectors of its pieces.

use std::path::Path;

use serde::Deserialize;

use crate::ModelError;
use crate::encoder::{EncoderConfig, EncoderFamily, EncoderTensors, OutputRows, parse};
use crate::kernel::{add, dot, gelu, layer_norm, scale};

/// Classification head of one label: a pooled vector, a dense layer, an activation, and a linear map to the logit.
#[derive(Debug)]
pub(super) struct ScoreHead {
    pooling: HeadPooling,
    /// Shape (hidden, hidden).
    dense: Vec<f32>,
    dense_bias: Vec<f32>,
    activation: HeadActivation,
    /// Normalization after the activation. `None` if there is none.
    norm: Option<HeadNorm>,
    out: Vec<f32>,
    out_bias: f32,
}

/// Vector of a pair that a head reads.
#[derive(Debug, Clone, Copy)]
enum HeadPooling {
    /// The vector of the first piece.
    First,
    /// The mean over all pieces.
    Mean,
}

/// Activation of the dense layer.
#[derive(Debug, Clone, Copy)]
enum HeadActivation {
    Tanh,
    Relu,
    Gelu,
}

/// Layer normalization. The checkpoint has no bias, so `bias` is zero.
#[derive(Debug)]
struct HeadNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

/// Part of a ModernBERT's `config.json` about the head. The defaults are those of its configuration class.
#[derive(Deserialize)]
struct ModernHeadFile {
    #[serde(default = "default_pooling")]
    classifier_pooling: String,
    #[serde(default = "default_activation")]
    classifier_activation: String,
    #[serde(default)]
    classifier_bias: bool,
}

fn default_pooling() -> String {
    "cls".to_owned()
}

fn default_activation() -> String {
    "gelu".to_owned()
}

/// Names of the encoder families whose classification heads are supported.
pub(super) const FAMILIES: [&str; 5] = ["bert", "roberta", "distilbert", "mpnet", "modernbert"];

impl ScoreHead {
    /// Loads the head of the model in `dir`.
    pub(super) fn load(dir: &Path, config: &EncoderConfig, source: &EncoderTensors<'_>) -> Result<Self, ModelError> {
        let hidden = config.hidden;
        let (dense, out, activation) = match config.family {
            // The pooler belongs to the encoder (`BertPooler`).
            EncoderFamily::Bert => ("pooler.dense", "classifier", HeadActivation::Tanh),
            // `RobertaClassificationHead`, and MPNet's copy of it.
            EncoderFamily::Roberta | EncoderFamily::Mpnet => {
                ("classifier.dense", "classifier.out_proj", HeadActivation::Tanh)
            }
            EncoderFamily::DistilBert => ("pre_classifier", "classifier", HeadActivation::Relu),
            EncoderFamily::ModernBert => return Self::load_modern(dir, config, source),
            EncoderFamily::NomicBert | EncoderFamily::Gte => {
                return Err(source.unsupported(&format!("classification head of {}", config.family.name())));
            }
        };
        Ok(ScoreHead {
            pooling: HeadPooling::First,
            dense: source.floats(&format!("{dense}.weight"), &[hidden, hidden])?,
            dense_bias: source.floats(&format!("{dense}.bias"), &[hidden])?,
            activation,
            norm: None,
            out: source.floats(&format!("{out}.weight"), &[1, hidden])?,
            out_bias: source.floats(&format!("{out}.bias"), &[1])?[0],
        })
    }

    /// Loads a head as in `ModernBertForSequenceClassification`.
    fn load_modern(dir: &Path, config: &EncoderConfig, source: &EncoderTensors<'_>) -> Result<Self, ModelError> {
        let hidden = config.hidden;
        let file: ModernHeadFile = parse(&dir.join("config.json"))?;
        let activation = &file.classifier_activation;
        if activation != "gelu" {
            return Err(source.unsupported(&format!("classifier_activation {activation:?}")));
        }
        let pooling = match file.classifier_pooling.as_str() {
            "cls" => HeadPooling::First,
            "mean" => HeadPooling::Mean,
            other => return Err(source.unsupported(&format!("classifier_pooling {other:?}"))),
        };
        let weight = source.floats("head.norm.weight", &[hidden])?;
        Ok(ScoreHead {
            pooling,
            dense: source.floats("head.dense.weight", &[hidden, hidden])?,
            dense_bias: match file.classifier_bias {
                true => source.floats("head.dense.bias", &[hidden])?,
                false => vec![0.0; hidden],
            },
            activation: HeadActivation::Gelu,
            norm: Some(HeadNorm { weight, bias: vec![0.0; hidden], eps: config.norm_eps }),
            out: source.floats("classifier.weight", &[1, hidden])?,
            out_bias: source.floats("classifier.bias", &[1])?[0],
        })
    }

    /// Rows that [`logit`](Self::logit) reads.
    pub(super) fn rows(&self) -> OutputRows {
        match self.pooling {
            HeadPooling::First => OutputRows::First,
            HeadPooling::Mean => OutputRows::All,
        }
    }

    /// Computes the logit of a pair from the rows of its pieces.
    pub(super) fn logit(&self, rows: &[f32]) -> f32 {
        let hidden = self.dense_bias.len();
        let Some(first) = rows.get(..hidden) else { return self.out_bias };
        let mut pooled = first.to_vec();
        if let HeadPooling::Mean = self.pooling {
            rows.chunks_exact(hidden).skip(1).for_each(|row| add(&mut pooled, row));
            scale(&mut pooled, hidden as f32 / rows.len() as f32);
        }
        let row = self.dense.chunks_exact(hidden).zip(&self.dense_bias);
        let mut inner: Vec<f32> = row.map(|(weights, bias)| dot(weights, &pooled) + bias).collect();
        self.activation.apply(&mut inner);
        if let Some(norm) = &self.norm {
            layer_norm(&mut inner, &norm.weight, &norm.bias, norm.eps);
        }
        dot(&inner, &self.out) + self.out_bias
    }
}

impl HeadActivation {
    fn apply(self, x: &mut [f32]) {
        match self {
            HeadActivation::Tanh => x.iter_mut().for_each(|x| *x = x.tanh()),
            HeadActivation::Relu => x.iter_mut().for_each(|x| *x = x.max(0.0)),
            HeadActivation::Gelu => gelu(x),
        }
    }
}
