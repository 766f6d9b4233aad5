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
    /// NomicBERT (Nussbaum et al. 2024): BERT with rotary positions and gates, and without biases of linear maps.
    NomicBert,
    /// GTE's own architecture (Zhang et al. 2024, mGTE): BERT with rotary positions and gates.
    Gte,
    /// Qwen3 as an embedder (Zhang et al. 2025), a decoder: see `causal`.
    Qwen3,
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
    /// First matrix of the feed-forward network, or its values and its gates in two matrices.
    pub(super) up: Vec<String>,
    /// Second matrix of the feed-forward network.
    pub(super) down: String,
    /// Normalization after the feed-forward network, or before it in ModernBERT.
    pub(super) norm: String,
}

impl EncoderFamily {
    /// Model types of all families, for messages.
    pub(super) const KNOWN: &str =
        "bert, roberta, xlm-roberta, distilbert, mpnet, modernbert, nomic_bert, gte, new or qwen3";

    /// Returns the family of a `model_type`. `None` if it is none of these.
    pub(super) fn of(model_type: &str) -> Option<EncoderFamily> {
        match model_type {
            "bert" => Some(EncoderFamily::Bert),
            "roberta" | "xlm-roberta" => Some(EncoderFamily::Roberta),
            "distilbert" => Some(EncoderFamily::DistilBert),
            "mpnet" => Some(EncoderFamily::Mpnet),
            "modernbert" => Some(EncoderFamily::ModernBert),
            "nomic_bert" => Some(EncoderFamily::NomicBert),
            "gte" | "new" => Some(EncoderFamily::Gte),
            "qwen3" => Some(EncoderFamily::Qwen3),
            _ => None,
        }
    }

    /// Name of the encoder in checkpoints saved with a task head.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            EncoderFamily::ModernBert | EncoderFamily::Qwen3 => "model",
            EncoderFamily::Gte => "new",
            _ => self.name(),
        }
    }

    /// Name in IDs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EncoderFamily::Bert => "bert",
            EncoderFamily::Roberta => "roberta",
            EncoderFamily::DistilBert => "distilbert",
            EncoderFamily::Mpnet => "mpnet",
            EncoderFamily::ModernBert => "modernbert",
            EncoderFamily::NomicBert => "nomic_bert",
            EncoderFamily::Gte => "gte",
            EncoderFamily::Qwen3 => "qwen3",
        }
    }

    /// Returns `true` if the model is a decoder, whose pieces attend to earlier ones only.
    pub(crate) fn is_decoder(self) -> bool {
        self == EncoderFamily::Qwen3
    }

    /// Returns `true` if queries and keys are rotated to their positions, in families of encoders.
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

    /// Returns the names of the parts of the layer `index`. Decoders have names of their own.
    pub(super) fn layer(self, index: usize) -> LayerNames {
        let (stack, projections, up, rest) = self.layer_parts();
        let name = |part: &str| format!("{stack}.{index}.{part}");
        let names = |parts: &[&str]| parts.iter().map(|part| name(part)).collect();
        let [attended, attended_norm, down, norm] = rest.map(name);
        LayerNames { projections: names(projections), attended, attended_norm, up: names(up), down, norm }
    }

    /// Names of the stack of layers; of the projections; of the first matrix of the feed-forward network; and of the projection
    /// of the attended values, its normalization, the second matrix and its normalization.
    fn layer_parts(self) -> (&'static str, &'static [&'static str], &'static [&'static str], [&'static str; 4]) {
        match self {
            EncoderFamily::Bert | EncoderFamily::Roberta => (
                "encoder.layer",
                &["attention.self.query", "attention.self.key", "attention.self.value"],
                &["intermediate.dense"],
                ["attention.output.dense", "attention.output.LayerNorm", "output.dense", "output.LayerNorm"],
            ),
            EncoderFamily::DistilBert => (
                "transformer.layer",
                &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
                &["ffn.lin1"],
                ["attention.out_lin", "sa_layer_norm", "ffn.lin2", "output_layer_norm"],
            ),
            EncoderFamily::Mpnet => (
                "encoder.layer",
                &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
                &["intermediate.dense"],
                ["attention.attn.o", "attention.LayerNorm", "output.dense", "output.LayerNorm"],
            ),
            EncoderFamily::ModernBert | EncoderFamily::Qwen3 => {
                ("layers", &["attn.Wqkv"], &["mlp.Wi"], ["attn.Wo", "attn_norm", "mlp.Wo", "mlp_norm"])
            }
            EncoderFamily::NomicBert => (
                "encoder.layers",
                &["attn.Wqkv"],
                &["mlp.fc11", "mlp.fc12"],
                ["attn.out_proj", "norm1", "mlp.fc2", "norm2"],
            ),
            EncoderFamily::Gte => (
                "encoder.layer",
                &["attention.qkv_proj"],
                &["mlp.up_gate_proj"],
                ["attention.o_proj", "attn_ln", "mlp.down_proj", "mlp_ln"],
            ),
        }
    }
}
