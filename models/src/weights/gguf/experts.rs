//! Experts of a decoder from GGUF metadata.

use super::config::MetadataKeys;
use crate::ModelError;
use crate::architecture::{ExpertNames, Experts, Family};

/// Values of `expert_gating_func` (`llama_expert_gating_func_type` of llama.cpp) that mean a softmax over all experts.
const SOFTMAX: [u64; 2] = [0, 1];

impl MetadataKeys<'_> {
    /// Family of the file. Some architectures have two families: one with experts and one without.
    pub(super) fn family(&self) -> Result<&'static Family, ModelError> {
        let plain = Family::of_gguf(self.architecture).map_err(|reason| self.gguf.unsupported(reason))?;
        if self.number("expert_count").unwrap_or(0) == 0 {
            return Ok(plain);
        }
        let what = || format!("mixture of experts in the architecture {}", self.architecture);
        Family::of_gguf_with_experts(self.architecture).ok_or_else(|| self.gguf.unsupported(what()))
    }

    /// Describes the experts of a family. `None` if no layer has experts.
    pub(super) fn experts(&self, family: &Family, layers: usize) -> Result<Option<Experts>, ModelError> {
        if family.experts.is_none() {
            return Ok(None);
        }
        self.refuse_other_routers()?;
        self.refuse_other_layouts(layers)?;
        let count = self.size("expert_count")?;
        let dense_layers = self.dense_layers(layers)?;
        if count == 0 || dense_layers.len() == layers {
            return Ok(None);
        }
        let per_token = self.size("expert_used_count")?;
        let shared = match family.shared_expert {
            true => Some(self.shared_width()?),
            false => None,
        };
        Ok(Some(Experts {
            count,
            per_token,
            width: self.width(family, per_token)?,
            normalized: self.gguf.flag(&self.key("expert_weights_norm")).unwrap_or(family.normalized_router),
            shared,
            dense_layers,
        }))
    }

    /// Inner width of an expert. Files of Mixtral state one width for all feed-forward blocks. Early files of Qwen's
    /// families state the total width of a token's experts, which llama.cpp divides in the same way (its pull request
    /// 7835).
    fn width(&self, family: &Family, per_token: usize) -> Result<usize, ModelError> {
        if self.number("expert_feed_forward_length").is_some_and(|width| width > 0) {
            return self.size("expert_feed_forward_length");
        }
        let together = self.size("feed_forward_length")?;
        match family.experts {
            Some(ExpertNames::Qwen) => Ok(together.checked_div(per_token).unwrap_or(0)),
            Some(ExpertNames::Mixtral) | None => Ok(together),
        }
    }

    /// Inner width of the shared expert, which early files state as that of all feed-forward blocks.
    fn shared_width(&self) -> Result<usize, ModelError> {
        let key = "expert_shared_feed_forward_length";
        self.size(if self.number(key).is_some() { key } else { "feed_forward_length" })
    }

    /// Refuses files whose experts are not stacked by projection.
    fn refuse_other_layouts(&self, layers: usize) -> Result<(), ModelError> {
        let first = |part: &str| {
            let names = (0..layers.min(1 << 16)).map(|layer| format!("blk.{layer}.{part}.weight"));
            names.into_iter().find(|name| self.gguf.header.tensors.contains_key(name))
        };
        if let Some(name) = first("ffn_gate.0") {
            let what = format!(
                "a tensor for each expert ({name}), as in files made before April 2024: convert the checkpoint again"
            );
            return Err(self.gguf.unsupported(what));
        }
        match first("ffn_gate_up_exps") {
            Some(name) => {
                let what = format!(
                    "two projections of the experts in one tensor ({name}): convert without --fuse-gate-up-exps"
                );
                Err(self.gguf.unsupported(what))
            }
            None => Ok(()),
        }
    }

    fn refuse_other_routers(&self) -> Result<(), ModelError> {
        if let Some(other) = self.number("expert_gating_func").filter(|function| !SOFTMAX.contains(function)) {
            let key = self.key("expert_gating_func");
            return Err(self.gguf.unsupported(format!("router of experts ({key} is {other}): expected a softmax, 1")));
        }
        let groups = self.number("expert_group_count").filter(|&groups| groups > 1);
        if let Some(groups) = groups {
            return Err(self.gguf.unsupported(format!("router over {groups} groups of experts")));
        }
        match self.float("expert_weights_scale").filter(|&scale| scale != 1.0 && scale != 0.0) {
            Some(scale) => Err(self.gguf.unsupported(format!("probabilities of experts scaled by {scale}"))),
            None => Ok(()),
        }
    }

    /// Layers without experts: the first ones, and those that have an ordinary feed-forward block and no router.
    fn dense_layers(&self, layers: usize) -> Result<Vec<usize>, ModelError> {
        // A damaged number of layers is refused later, by name.
        if layers > 1 << 16 {
            return Ok(Vec::new());
        }
        let leading = match self.number("leading_dense_block_count") {
            Some(_) => self.size("leading_dense_block_count")?,
            None => 0,
        };
        let has = |layer: usize, part: &str| self.gguf.has(&format!("model.layers.{layer}.mlp.{part}.weight"));
        let dense = |layer: &usize| *layer < leading || has(*layer, "gate_proj") && !has(*layer, "gate");
        Ok((0..layers).filter(dense).collect())
    }
}
