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
    /// MPNet (Song et al. 2020): RoBERTa without segments, with relative positions in the attention besides.
    Mpnet,
    /// ModernBERT (Warner et al. 2024), whose layers differ: see `modern`.
    ModernBert,
}

/// Names of the parts of a layer.
#[derive(Debug)]
pub(super) struct LayerNames {
    /// Projections of the attention: query, key and value, or all of them in one matrix.
    pub(super) projections: Vec<String>,
    /// Projection of the attended values.
    pub(super) attended: String,
    /// Normalization after the attention, or before it in ModernBERT.
    pub(super) attended_norm: String,
    /// First matrix of the feed-forward network.
    pub(super) up: String,
    /// Second matrix of the feed-forward network.
    pub(super) down: String,
    /// Normalization after the feed-forward network, or before it in ModernBERT.
    pub(super) norm: String,
}

impl EncoderFamily {
    /// Model types of all families, for messages.
    pub(super) const KNOWN: &str = "bert, roberta, xlm-roberta, distilbert, mpnet or modernbert";

    /// Returns the family of a `model_type`. `None` if it is none of these.
    pub(super) fn of(model_type: &str) -> Option<EncoderFamily> {
        match model_type {
            "bert" => Some(EncoderFamily::Bert),
            "roberta" | "xlm-roberta" => Some(EncoderFamily::Roberta),
            "distilbert" => Some(EncoderFamily::DistilBert),
            "mpnet" => Some(EncoderFamily::Mpnet),
            "modernbert" => Some(EncoderFamily::ModernBert),
            _ => None,
        }
    }

    /// Name of the encoder in checkpoints saved with a task head.
    pub(super) fn prefix(self) -> &'static str {
        if self == EncoderFamily::ModernBert { "model" } else { self.name() }
    }

    /// Name in IDs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EncoderFamily::Bert => "bert",
            EncoderFamily::Roberta => "roberta",
            EncoderFamily::DistilBert => "distilbert",
            EncoderFamily::Mpnet => "mpnet",
            EncoderFamily::ModernBert => "modernbert",
        }
    }

    /// Returns `true` if pieces have an embedding of their segment.
    pub(super) fn has_types(self) -> bool {
        matches!(self, EncoderFamily::Bert | EncoderFamily::Roberta)
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
    pub(super) fn layer(self, index: usize) -> LayerNames {
        let (stack, projections, rest) = match self {
            EncoderFamily::Bert | EncoderFamily::Roberta => (
                "encoder.layer",
                &["attention.self.query", "attention.self.key", "attention.self.value"][..],
                [
                    "attention.output.dense",
                    "attention.output.LayerNorm",
                    "intermediate.dense",
                    "output.dense",
                    "output.LayerNorm",
                ],
            ),
            EncoderFamily::DistilBert => (
                "transformer.layer",
                &["attention.q_lin", "attention.k_lin", "attention.v_lin"][..],
                ["attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"],
            ),
            EncoderFamily::Mpnet => (
                "encoder.layer",
                &["attention.attn.q", "attention.attn.k", "attention.attn.v"][..],
                ["attention.attn.o", "attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"],
            ),
            EncoderFamily::ModernBert => {
                ("layers", &["attn.Wqkv"][..], ["attn.Wo", "attn_norm", "mlp.Wi", "mlp.Wo", "mlp_norm"])
            }
        };
        let name = |part: &str| format!("{stack}.{index}.{part}");
        let [attended, attended_norm, up, down, norm] = rest.map(name);
        let projections = projections.iter().map(|part| name(part)).collect();
        LayerNames { projections, attended, attended_norm, up, down, norm }
    }
}
