//! LoRA adapters in the layout that PEFT saves: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! An adapter changes a projection from `W · x` to `W · x + s · B · (A · x)`, with `s = alpha / r`, or `alpha / √r` for
//! rank-stabilized LoRA (Hu et al. 2021, Kalajdzievski 2023). DoRA scales each row of `W + s · B · A` to a trained
//! length (Liu et al. 2024). An adapter may also change or replace the embedding and the output projection, and replace
//! biases.

mod factors;
mod settings;
mod source;

pub(crate) use factors::{AdapterFactors, AdapterModules, FactorPart, VocabularyFactors};
pub(crate) use source::AdapterSource;

use crate::gradient::Module;

/// Sites in a layer: groups of projections that share their input, in the order of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// Queries, keys and values.
    Qkv,
    /// Attention's output projection.
    O,
    /// Gate and up projections.
    GateUp,
    /// Down projection.
    Down,
}

impl Site {
    /// All sites.
    pub(crate) const ALL: [Self; SITES] = [Self::Qkv, Self::O, Self::GateUp, Self::Down];
}

/// Number of sites in a layer.
pub(crate) const SITES: usize = 4;

/// Projections that an adapter may change: each with its site and its index among the site's projections.
const TARGETS: [(Module, Site, usize); 7] = [
    (Module::QProj, Site::Qkv, 0),
    (Module::KProj, Site::Qkv, 1),
    (Module::VProj, Site::Qkv, 2),
    (Module::OProj, Site::O, 0),
    (Module::GateProj, Site::GateUp, 0),
    (Module::UpProj, Site::GateUp, 1),
    (Module::DownProj, Site::Down, 0),
];

/// Name of the embedding in `transformers`.
const EMBEDDING: &str = "model.embed_tokens";
/// Name of the output projection in `transformers`.
const HEAD: &str = "lm_head";
