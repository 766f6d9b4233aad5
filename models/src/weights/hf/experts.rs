//! Experts of a decoder from `config.json`.

use std::collections::HashSet;

use serde::Deserialize;

use super::Safetensors;
use crate::architecture::{ExpertNames, Experts, Family};

/// Fields that families with experts have.
#[derive(Debug, Deserialize)]
pub(super) struct ExpertFields {
    num_experts: Option<usize>,
    /// Mixtral's name of `num_experts`.
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    shared_expert_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    /// Every n-th layer has experts.
    decoder_sparse_step: Option<usize>,
    /// Layers without experts.
    mlp_only_layers: Option<Vec<usize>>,
}

impl ExpertFields {
    /// Describes the experts of a family, in a decoder with `layers` layers whose ordinary feed-forward block has the
    /// width `ffn`. `None` if no layer has experts.
    pub(super) fn experts(
        &self,
        family: &Family,
        tensors: &Safetensors,
        [layers, ffn]: [usize; 2],
    ) -> Result<Option<Experts>, String> {
        let Some(names) = family.experts else { return Ok(None) };
        let missing = |field: &str| format!("{} without {field}", family.model_type);
        let count = self.num_experts.or(self.num_local_experts).ok_or_else(|| missing("num_experts"))?;
        let dense_layers = self.dense_layers(layers);
        if count == 0 || dense_layers.len() == layers {
            return Ok(None);
        }
        refuse_bias(tensors, layers)?;
        let mixtral = names == ExpertNames::Mixtral;
        let shared = self.shared_expert_intermediate_size.filter(|_| family.shared_expert);
        Ok(Some(Experts {
            count,
            per_token: self.num_experts_per_tok.ok_or_else(|| missing("num_experts_per_tok"))?,
            width: match self.moe_intermediate_size.filter(|_| !mixtral) {
                Some(width) => width,
                None if mixtral => ffn,
                None => return Err(missing("moe_intermediate_size")),
            },
            normalized: mixtral || self.norm_topk_prob.unwrap_or(false),
            shared: match family.shared_expert {
                true => Some(shared.ok_or_else(|| missing("shared_expert_intermediate_size"))?),
                false => None,
            },
            dense_layers,
        }))
    }

    fn dense_layers(&self, layers: usize) -> Vec<usize> {
        // A damaged number of layers is refused later, by name.
        if layers > 1 << 16 {
            return Vec::new();
        }
        let listed: HashSet<usize> = self.mlp_only_layers.iter().flatten().copied().collect();
        let every = self.decoder_sparse_step.unwrap_or(1).max(1);
        (0..layers).filter(|layer| listed.contains(layer) || !(layer + 1).is_multiple_of(every)).collect()
    }
}

/// Refuses routers that add a bias.
fn refuse_bias(tensors: &Safetensors, layers: usize) -> Result<(), String> {
    let names = ["mlp.gate.bias", "mlp.gate.e_score_correction_bias", "block_sparse_moe.gate.bias"];
    let paths = (0..layers.min(1 << 16)).flat_map(|layer| names.map(|name| format!("model.layers.{layer}.{name}")));
    match paths.into_iter().find(|path| tensors.has(path)) {
        Some(path) => Err(format!("a bias in the router of experts ({path})")),
        None => Ok(()),
    }
}
