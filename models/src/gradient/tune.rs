//! Choice of trained parameters.

use serde::{Deserialize, Serialize};

use crate::ModelError;
use crate::decoder::DecoderConfig;

/// Trained parameters of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub enum Tune {
    /// A low-rank adapter on top of frozen weights.
    Lora(Lora),
    /// Every weight.
    Full,
}

/// A LoRA adapter: `W x + (alpha / rank) · B A x` (Hu et al. 2021, §4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rank: number of rows of A and of columns of B.
    pub rank: usize,
    /// Numerator of the scale `alpha / rank`.
    pub alpha: f32,
    /// Projections that get an adapter.
    pub targets: Vec<Module>,
    /// Seed for the random values of A; B starts at zero.
    pub seed: u64,
}

/// A projection of a decoder layer, by its name in PEFT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Module {
    /// Queries.
    QProj,
    /// Keys.
    KProj,
    /// Values.
    VProj,
    /// Output projection of attention.
    OProj,
    /// Gate of the feed-forward block.
    GateProj,
    /// Up projection of the feed-forward block, multiplied by the gate.
    UpProj,
    /// Down projection to the residual stream.
    DownProj,
}

impl Lora {
    /// Factor applied to `B A x`.
    pub(crate) fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// Number of values of the adapter in a decoder with this configuration.
    pub(crate) fn values(&self, config: &DecoderConfig) -> usize {
        let sides = self.targets.iter().flat_map(|module| module.shape(config));
        config.layers * self.rank * sides.sum::<usize>()
    }

    /// Checks that the adapter fits a decoder with this configuration.
    ///
    /// # Errors
    /// [`ModelError::Input`] for a rank of 0 or above a module's smaller side, for missing or duplicate modules, for
    /// feed-forward modules of a model with experts, and for an `alpha` that is not a finite positive number.
    pub(crate) fn check(&self, config: &DecoderConfig) -> Result<(), ModelError> {
        let refused = |reason: String| Err(ModelError::Input(reason));
        if self.rank == 0 {
            return refused("the adapter's rank is 0: it must be at least 1".to_owned());
        }
        if self.targets.is_empty() {
            let names = Module::ALL.map(Module::name).join(", ");
            return refused(format!("an adapter's targets are empty: name at least one of {names}"));
        }
        for (index, module) in self.targets.iter().enumerate() {
            let name = module.name();
            if config.architecture.experts.is_some() && module.path().starts_with("mlp.") {
                return refused(format!(
                    "an adapter on {name}: models with experts ({}) are trained on q_proj, k_proj, v_proj and o_proj",
                    config.architecture.family
                ));
            }
            let most = module.shape(config).into_iter().min().unwrap_or(0);
            if self.targets[..index].contains(module) {
                return refused(format!("an adapter's targets name {name} twice: name it once"));
            }
            // A rank above the smaller side adds parameters but no further directions.
            if self.rank > most {
                let rank = self.rank;
                return refused(format!("an adapter of rank {rank} on {name}, whose shape allows {most} at most"));
            }
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return refused(format!("alpha {} is not a finite number above 0", self.alpha));
        }
        Ok(())
    }
}

impl Module {
    /// Number of modules.
    pub(crate) const COUNT: usize = 7;

    /// All modules, in the order of the computation.
    pub const ALL: [Self; Self::COUNT] =
        [Self::QProj, Self::KProj, Self::VProj, Self::OProj, Self::GateProj, Self::UpProj, Self::DownProj];

    /// Name in PEFT's `target_modules`.
    pub fn name(self) -> &'static str {
        self.path().rsplit('.').next().unwrap_or_default()
    }

    /// Name inside a layer of Hugging Face checkpoints.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::QProj => "self_attn.q_proj",
            Self::KProj => "self_attn.k_proj",
            Self::VProj => "self_attn.v_proj",
            Self::OProj => "self_attn.o_proj",
            Self::GateProj => "mlp.gate_proj",
            Self::UpProj => "mlp.up_proj",
            Self::DownProj => "mlp.down_proj",
        }
    }

    /// Shape (out, in) of the weight.
    pub(crate) fn shape(self, config: &DecoderConfig) -> [usize; 2] {
        let hidden = config.hidden;
        let ffn = config.ffn;
        let q = config.q_width();
        let kv = config.kv_width();
        match self {
            Self::QProj => [q, hidden],
            Self::KProj | Self::VProj => [kv, hidden],
            Self::OProj => [hidden, q],
            Self::GateProj | Self::UpProj => [ffn, hidden],
            Self::DownProj => [hidden, ffn],
        }
    }
}
