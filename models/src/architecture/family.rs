//! Families of decoders, one entry each.

use super::{Activation, ExpertNames, LayerAttention, LayerRotary, NormPlacement, QkNorm};

/// Properties that all checkpoints of a family share. Numbers come from each checkpoint's own configuration.
#[derive(Debug, PartialEq)]
pub(crate) struct Family {
    /// `model_type` in `config.json`.
    pub(crate) model_type: &'static str,
    /// `general.architecture` of a GGUF.
    pub(crate) gguf: &'static str,
    pub(crate) norms: NormPlacement,
    /// Norm of queries and keys. `None` applies a norm per head if the checkpoint has its tensors.
    pub(crate) qk_norm: Option<QkNorm>,
    pub(crate) activation: Activation,
    /// Constant to add to all norm weights of a Hugging Face checkpoint. The norm weights of a GGUF include it.
    pub(crate) norm_offset: f32,
    /// If `true`, one tensor holds the query, key and value projections, and another holds gate and up.
    pub(crate) fused: bool,
    /// Names of experts. `None` for families without experts.
    pub(crate) experts: Option<ExpertNames>,
    /// If `true`, the probabilities of a token's experts are divided by their sum, unless a GGUF states otherwise.
    pub(crate) normalized_router: bool,
    /// If `true`, all tokens also pass through a shared expert.
    pub(crate) shared_expert: bool,
    /// If `true`, a GGUF has the halves of each query and key head interleaved.
    pub(crate) interleaved: bool,
    /// Layers with a sliding window, unless the checkpoint lists them.
    pub(crate) windows: WindowPattern,
    /// Interval of the layers without rotation (every n-th layer), unless the checkpoint lists them. `None` rotates all
    /// layers.
    pub(crate) unrotated: Option<usize>,
    /// If `true`, layers with a sliding window have a rotary base of their own.
    pub(crate) local_rope: bool,
    /// If `true`, a checkpoint may rotate a part of each head.
    pub(crate) partial_rotary: bool,
    /// If `true`, a checkpoint states factors on embeddings, residuals, scores and logits.
    pub(crate) multipliers: bool,
    /// If `true`, embeddings are multiplied by `√hidden`, and a checkpoint states the scale of attention and may limit
    /// scores and logits.
    pub(crate) gemma: bool,
    /// Width of a head where the checkpoint does not state it. `None` means `hidden / heads`.
    pub(crate) head_dim: Option<usize>,
    /// Rotary base where the checkpoint does not state it.
    pub(crate) rope_base: f32,
}

/// Layers of a family that have a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowPattern {
    /// No layer. A checkpoint with sliding windows is refused.
    None,
    /// All layers.
    All,
    /// All layers but every n-th.
    GlobalEvery(usize),
}

const LLAMA: Family = Family {
    model_type: "llama",
    gguf: "llama",
    norms: NormPlacement::Before,
    qk_norm: None,
    activation: Activation::Silu,
    norm_offset: 0.0,
    fused: false,
    experts: None,
    normalized_router: false,
    shared_expert: false,
    interleaved: true,
    windows: WindowPattern::None,
    unrotated: None,
    local_rope: false,
    partial_rotary: false,
    multipliers: false,
    gemma: false,
    head_dim: None,
    rope_base: 10_000.0,
};

const QWEN2: Family = Family { model_type: "qwen2", gguf: "qwen2", interleaved: false, ..LLAMA };

const MISTRAL: Family = Family { model_type: "mistral", windows: WindowPattern::All, ..LLAMA };

const GEMMA2: Family = Family {
    model_type: "gemma2",
    gguf: "gemma2",
    norms: NormPlacement::Around,
    activation: Activation::GeluTanh,
    norm_offset: 1.0,
    interleaved: false,
    windows: WindowPattern::GlobalEvery(2),
    gemma: true,
    head_dim: Some(256),
    ..LLAMA
};

/// All supported families. Llama comes first because GGUFs of Mistral and Mixtral have the architecture `llama` as
/// well.
pub(super) static FAMILIES: [Family; 13] = [
    LLAMA,
    QWEN2,
    // If a checkpoint states no head width, it is 128 in Qwen3, but `hidden / heads` in Qwen3-MoE.
    Family { model_type: "qwen3", gguf: "qwen3", head_dim: Some(128), ..QWEN2 },
    MISTRAL,
    Family {
        model_type: "qwen2_moe",
        gguf: "qwen2moe",
        experts: Some(ExpertNames::Qwen),
        shared_expert: true,
        ..QWEN2
    },
    Family {
        model_type: "qwen3_moe",
        gguf: "qwen3moe",
        experts: Some(ExpertNames::Qwen),
        normalized_router: true,
        ..QWEN2
    },
    Family {
        model_type: "mixtral",
        experts: Some(ExpertNames::Mixtral),
        normalized_router: true,
        rope_base: 1_000_000.0,
        ..MISTRAL
    },
    Family { model_type: "smollm3", gguf: "smollm3", unrotated: Some(4), rope_base: 2_000_000.0, ..LLAMA },
    Family {
        model_type: "phi3",
        gguf: "phi3",
        fused: true,
        interleaved: false,
        windows: WindowPattern::All,
        partial_rotary: true,
        ..LLAMA
    },
    Family { model_type: "granite", gguf: "granite", multipliers: true, ..LLAMA },
    Family {
        model_type: "olmo2",
        gguf: "olmo2",
        norms: NormPlacement::After,
        qk_norm: Some(QkNorm::Whole),
        interleaved: false,
        ..LLAMA
    },
    GEMMA2,
    Family {
        model_type: "gemma3_text",
        gguf: "gemma3",
        qk_norm: Some(QkNorm::Head),
        windows: WindowPattern::GlobalEvery(6),
        local_rope: true,
        rope_base: 1_000_000.0,
        ..GEMMA2
    },
];

/// Known families that are refused, by their names in `config.json` and in a GGUF, with the reason.
const REFUSED: [(&str, &str); 17] = [
    ("llama4", "Llama 4 has experts and chunked attention"),
    ("llama4_text", "Llama 4 has experts and chunked attention"),
    ("gpt_oss", "gpt-oss has experts and attention sinks"),
    ("gpt-oss", "gpt-oss has experts and attention sinks"),
    ("qwen3_next", "Qwen3-Next has linear attention"),
    ("qwen3next", "Qwen3-Next has linear attention"),
    ("deepseek_v2", "DeepSeek-V2 has latent attention and groups of experts"),
    ("deepseek_v3", "DeepSeek-V3 has latent attention and a sigmoid router with a bias"),
    ("deepseek2", "DeepSeek-V2 and V3 have latent attention and groups of experts"),
    ("glm4_moe", "GLM-4.5 has a sigmoid router with a bias"),
    ("glm4moe", "GLM-4.5 has a sigmoid router with a bias"),
    ("olmoe", "OLMoE is not one of the families with experts that are described"),
    ("phimoe", "Phi-3.5-MoE has a router that masks by a threshold, and layer norms with biases"),
    ("granitemoe", "Granite-MoE has experts and scaled residuals"),
    ("dots1", "dots.llm1 has a sigmoid router with a bias"),
    ("gemma3", "a checkpoint of Gemma 3 with images: use a text-only one (gemma3_text) or a GGUF"),
    ("gemma3n", "Gemma 3n has per-layer embeddings"),
];

impl Family {
    /// Llama. The tensors of all families are presented in its layout.
    pub(crate) fn llama() -> &'static Family {
        &FAMILIES[0]
    }

    /// Family by its `model_type` in `config.json`.
    pub(crate) fn of_model_type(name: &str) -> Result<&'static Family, String> {
        FAMILIES.iter().find(|family| family.model_type == name).ok_or_else(|| refusal("model_type", name))
    }

    /// Family by the architecture of a GGUF.
    pub(crate) fn of_gguf(name: &str) -> Result<&'static Family, String> {
        FAMILIES.iter().find(|family| family.gguf == name).ok_or_else(|| refusal("architecture", name))
    }

    /// Family of a GGUF whose metadata names experts. `None` if no supported family of this architecture has experts.
    pub(crate) fn of_gguf_with_experts(name: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.gguf == name && family.experts.is_some())
    }

    /// Attention of `count` layers where the configuration lists neither windows nor rotations. Empty if all layers
    /// have the default.
    pub(crate) fn layers(&self, count: usize, window: Option<usize>) -> Vec<LayerAttention> {
        let layer = |index: usize| {
            let nth = |every: usize| (index + 1).is_multiple_of(every);
            let global = match self.windows {
                WindowPattern::None => true,
                WindowPattern::All => false,
                WindowPattern::GlobalEvery(every) => nth(every),
            };
            self.layer(if global { None } else { window }, !global, self.unrotated.is_some_and(nth))
        };
        simplest((0..count).map(layer).collect())
    }

    /// Attention of one layer with the given window. `local` is `true` for layers of the kind that has windows.
    pub(crate) fn layer(&self, window: Option<usize>, local: bool, unrotated: bool) -> LayerAttention {
        let rotary = match (unrotated, local && self.local_rope) {
            (true, _) => LayerRotary::None,
            (false, true) => LayerRotary::Local,
            (false, false) => LayerRotary::Global,
        };
        LayerAttention { window, rotary }
    }
}

/// Returns `layers`, or an empty list if all layers have the default.
pub(crate) fn simplest(layers: Vec<LayerAttention>) -> Vec<LayerAttention> {
    let default = LayerAttention::default();
    if layers.iter().all(|layer| *layer == default) { Vec::new() } else { layers }
}

/// Message for a family that is not supported.
fn refusal(key: &str, name: &str) -> String {
    let mut known: Vec<&str> = FAMILIES.iter().map(|family| family.model_type).collect();
    known.sort_unstable();
    let reason = REFUSED.iter().find(|(refused, _)| *refused == name).map_or("", |(_, reason)| reason);
    let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    format!("{key} {name:?}{reason}: expected one of {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_families_are_refused_with_their_reason() {
        let refused = Family::of_model_type("llama4").err().unwrap_or_default();
        assert!(
            refused.contains("chunked attention") && refused.contains("gemma3_text, granite, llama, mistral, mixtral"),
            "{refused}"
        );
        assert!(Family::of_gguf("gpt-oss").err().unwrap_or_default().contains("sinks"));
        assert!(Family::of_model_type("qwen3_next").err().unwrap_or_default().contains("linear attention"));
        assert!(Family::of_model_type("mamba").err().unwrap_or_default().starts_with("model_type \"mamba\": expected"));
        assert_eq!(Family::of_gguf("llama").map(|family| family.model_type), Ok("llama"));
    }

    #[test]
    fn layers_follow_the_pattern_of_their_family() {
        let layers = |name: &str, count, window| {
            Family::of_model_type(name).map(|family| family.layers(count, window)).unwrap_or_default()
        };
        assert!(layers("llama", 4, None).is_empty());
        assert!(layers("mistral", 4, None).is_empty());
        let windows: Vec<_> = layers("mistral", 2, Some(8)).iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [Some(8), Some(8)]);
        let rotated: Vec<bool> =
            layers("smollm3", 5, None).iter().map(|layer| layer.rotary != LayerRotary::None).collect();
        assert_eq!(rotated, [true, true, true, false, true]);
        let windows: Vec<_> = layers("gemma2", 3, Some(8)).iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [Some(8), None, Some(8)]);
        let local: Vec<bool> =
            layers("gemma3_text", 7, None).iter().map(|layer| layer.rotary == LayerRotary::Local).collect();
        assert_eq!(local, [true, true, true, true, true, false, true]);
    }
}
