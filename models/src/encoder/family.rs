//! Encoder families: their settings and the names of their tensors.

/// Architecture of an encoder, named by the `model_type` of `config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderFamily {
    /// BERT (Devlin et al. 2018).
    Bert,
    /// RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020): BERT with positions that begin after the padding.
    Roberta,
    /// DistilBERT (Sanh et al. 2019): BERT without segments.
    DistilBert,
    /// MPNet (Song et al. 2020): RoBERTa without segments, with additional relative positions in the attention.
    Mpnet,
    /// ModernBERT (Warner et al. 2024), whose layers differ: see `modern`.
    ModernBert,
    /// NomicBERT (Nussbaum et al. 2024): BERT with rotary positions and gates, and without biases of linear maps.
    NomicBert,
    /// GTE's own architecture (Zhang et al. 2024, mGTE): BERT with rotary positions and gates.
    Gte,
}

/// Names of the parts of a layer, either complete or relative to the layer.
#[derive(Debug)]
pub(super) struct LayerParts<S> {
    /// Projections of the attention: query, key and value, or all of them in one matrix.
    pub(super) projections: Vec<S>,
    /// Projection of the attended values.
    pub(super) attended: S,
    /// Normalization after the attention, or before it in ModernBERT.
    pub(super) attended_norm: S,
    /// First matrix of the feed-forward network, or its values and its gates in two matrices.
    pub(super) up: Vec<S>,
    /// Second matrix of the feed-forward network.
    pub(super) down: S,
    /// Normalization after the feed-forward network, or before it in ModernBERT.
    pub(super) norm: S,
}

impl LayerParts<&str> {
    /// Puts `prefix` before every name.
    fn within(&self, prefix: &str) -> LayerParts<String> {
        let name = |part: &str| format!("{prefix}.{part}");
        LayerParts {
            projections: self.projections.iter().map(|part| name(part)).collect(),
            attended: name(self.attended),
            attended_norm: name(self.attended_norm),
            up: self.up.iter().map(|part| name(part)).collect(),
            down: name(self.down),
            norm: name(self.norm),
        }
    }
}

impl EncoderFamily {
    /// Model types of all families, for messages.
    pub(super) const KNOWN: &str = "bert, roberta, xlm-roberta, distilbert, mpnet, modernbert, nomic_bert, gte or new";

    /// Returns the family of a `model_type`. `None` if the type is unknown.
    pub(super) fn of(model_type: &str) -> Option<EncoderFamily> {
        match model_type {
            "bert" => Some(EncoderFamily::Bert),
            "roberta" | "xlm-roberta" => Some(EncoderFamily::Roberta),
            "distilbert" => Some(EncoderFamily::DistilBert),
            "mpnet" => Some(EncoderFamily::Mpnet),
            "modernbert" => Some(EncoderFamily::ModernBert),
            "nomic_bert" => Some(EncoderFamily::NomicBert),
            "gte" | "new" => Some(EncoderFamily::Gte),
            _ => None,
        }
    }

    /// Name of the encoder in checkpoints saved with a task head.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            EncoderFamily::ModernBert => "model",
            EncoderFamily::Gte => "new",
            _ => self.name(),
        }
    }

    /// Name of the family in model IDs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EncoderFamily::Bert => "bert",
            EncoderFamily::Roberta => "roberta",
            EncoderFamily::DistilBert => "distilbert",
            EncoderFamily::Mpnet => "mpnet",
            EncoderFamily::ModernBert => "modernbert",
            EncoderFamily::NomicBert => "nomic_bert",
            EncoderFamily::Gte => "gte",
        }
    }

    /// Returns `true` if queries and keys are rotated to their positions.
    pub(super) fn is_rotary(self) -> bool {
        matches!(self, EncoderFamily::ModernBert | EncoderFamily::NomicBert | EncoderFamily::Gte)
    }

    /// Returns `true` if pieces may have an embedding of their segment.
    pub(super) fn has_types(self) -> bool {
        self.needs_types() || matches!(self, EncoderFamily::NomicBert | EncoderFamily::Gte)
    }

    /// Returns `true` if pieces always have an embedding of their segment.
    pub(super) fn needs_types(self) -> bool {
        matches!(self, EncoderFamily::Bert | EncoderFamily::Roberta)
    }

    /// Returns `true` if linear maps may have no bias.
    pub(super) fn may_lack_biases(self) -> bool {
        matches!(self, EncoderFamily::NomicBert | EncoderFamily::Gte)
    }

    /// Name of the normalization after the embeddings.
    pub(super) fn embedding_norm(self) -> &'static str {
        if self == EncoderFamily::NomicBert { "emb_ln" } else { "embeddings.LayerNorm" }
    }

    /// Returns `true` if the model reads the segments of a pair. RoBERTa has one segment for all pieces, whatever the
    /// tokenizer says (`model_input_names` of its tokenizer).
    pub(super) fn tells_segments(self) -> bool {
        self == EncoderFamily::Bert
    }

    /// Returns `true` if the position table begins with rows for the padding.
    pub(super) fn pads_positions(self) -> bool {
        matches!(self, EncoderFamily::Roberta | EncoderFamily::Mpnet)
    }

    /// Returns the names of the parts of the layer `index`.
    pub(super) fn layer(self, index: usize) -> LayerParts<String> {
        self.layer_parts().within(&format!("{}.{index}", self.stack()))
    }

    /// Name of the stack of layers.
    fn stack(self) -> &'static str {
        match self {
            EncoderFamily::DistilBert => "transformer.layer",
            EncoderFamily::ModernBert => "layers",
            EncoderFamily::NomicBert => "encoder.layers",
            EncoderFamily::Bert | EncoderFamily::Roberta | EncoderFamily::Mpnet | EncoderFamily::Gte => "encoder.layer",
        }
    }

    /// Names of the parts within a layer.
    fn layer_parts(self) -> LayerParts<&'static str> {
        match self {
            EncoderFamily::Bert | EncoderFamily::Roberta => LayerParts {
                projections: vec!["attention.self.query", "attention.self.key", "attention.self.value"],
                attended: "attention.output.dense",
                attended_norm: "attention.output.LayerNorm",
                up: vec!["intermediate.dense"],
                down: "output.dense",
                norm: "output.LayerNorm",
            },
            EncoderFamily::DistilBert => LayerParts {
                projections: vec!["attention.q_lin", "attention.k_lin", "attention.v_lin"],
                attended: "attention.out_lin",
                attended_norm: "sa_layer_norm",
                up: vec!["ffn.lin1"],
                down: "ffn.lin2",
                norm: "output_layer_norm",
            },
            EncoderFamily::Mpnet => LayerParts {
                projections: vec!["attention.attn.q", "attention.attn.k", "attention.attn.v"],
                attended: "attention.attn.o",
                attended_norm: "attention.LayerNorm",
                up: vec!["intermediate.dense"],
                down: "output.dense",
                norm: "output.LayerNorm",
            },
            EncoderFamily::ModernBert => LayerParts {
                projections: vec!["attn.Wqkv"],
                attended: "attn.Wo",
                attended_norm: "attn_norm",
                up: vec!["mlp.Wi"],
                down: "mlp.Wo",
                norm: "mlp_norm",
            },
            EncoderFamily::NomicBert => LayerParts {
                projections: vec!["attn.Wqkv"],
                attended: "attn.out_proj",
                attended_norm: "norm1",
                up: vec!["mlp.fc11", "mlp.fc12"],
                down: "mlp.fc2",
                norm: "norm2",
            },
            EncoderFamily::Gte => LayerParts {
                projections: vec!["attention.qkv_proj"],
                attended: "attention.o_proj",
                attended_norm: "attn_ln",
                up: vec!["mlp.up_gate_proj"],
                down: "mlp.down_proj",
                norm: "mlp_ln",
            },
        }
    }
}
