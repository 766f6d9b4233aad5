//! What of a decoder is learnt.

use serde::{Deserialize, Serialize};

use crate::ModelError;
use crate::decoder::DecoderConfig;

/// What of a decoder is learnt.
#[derive(Debug, Clone, PartialEq)]
pub enum Tune {
    /// A low-rank adapter beside frozen weights.
    Lora(Lora),
    /// Every weight.
    Full,
}

/// A LoRA adapter: `W x + (alpha / rank) · B A x` (Hu et al. 2021, §4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rows of A and columns of B.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// The projections that get one.
    pub targets: Vec<Module>,
    /// Where the random values of A start; B starts at zero.
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
    /// Attention's output.
    OProj,
    /// The gate of the feed-forward part.
    GateProj,
    /// What the gate multiplies.
    UpProj,
    /// Back to the residual stream.
    DownProj,
}

impl Lora {
    /// What `B A x` is multiplied by.
    pub(crate) fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// How many values it has in a decoder of this configuration.
    pub(crate) fn values(&self, config: &DecoderConfig) -> usize {
        let sides = self.targets.iter().flat_map(|module| module.shape(config));
        config.layers * self.rank * sides.sum::<usize>()
    }

    /// # Errors
    /// [`ModelError::Input`] for an adapter that a decoder of this configuration cannot have: no rank, or one above a
    /// module's smaller side; no modules, or one twice; a scale that is no positive number.
    pub(crate) fn check(&self, config: &DecoderConfig) -> Result<(), ModelError> {
        let refused = |reason: String| Err(ModelError::Input(reason));
        if self.rank == 0 {
            return refused("an adapter's rank is 0, it must be at least 1".to_owned());
        }
        if self.targets.is_empty() {
            let names = Module::ALL.map(Module::name).join(", ");
            return refused(format!("an adapter's targets are empty: name at least one of {names}"));
        }
        for (index, module) in self.targets.iter().enumerate() {
            let (name, most) = (module.name(), module.shape(config).into_iter().min().unwrap_or(0));
            if self.targets[..index].contains(module) {
                return refused(format!("an adapter's targets name {name} twice: name it once"));
            }
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
    /// How many there are.
    pub(crate) const COUNT: usize = 7;

    /// All of them, in the order of the computation.
    pub const ALL: [Self; Self::COUNT] =
        [Self::QProj, Self::KProj, Self::VProj, Self::OProj, Self::GateProj, Self::UpProj, Self::DownProj];

    /// Its name in PEFT's `target_modules`.
    pub fn name(self) -> &'static str {
        self.path().rsplit('.').next().unwrap_or_default()
    }

    /// Its name inside a layer of the model hub's checkpoints.
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

    /// Shape (out, in) of its weight.
    pub(crate) fn shape(self, config: &DecoderConfig) -> [usize; 2] {
        let (hidden, ffn, q, kv) = (config.hidden, config.ffn, config.q_width(), config.kv_width());
        match self {
            Self::QProj => [q, hidden],
            Self::KProj | Self::VProj => [kv, hidden],
            Self::OProj => [hidden, q],
            Self::GateProj | Self::UpProj => [ffn, hidden],
            Self::DownProj => [hidden, ffn],
        }
    }
}
