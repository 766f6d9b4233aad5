//! Experts of a decoder from GGUF metadata.

use super::config::MetadataKeys;
use crate::ModelError;
use crate::architecture::{Experts, Family};

/// Values of `expert_gating_func` (`llama_expert_gating_func_type` of llama.cpp) that mean a softmax over all experts.
const SOFTMAX: [u64; 2] = [0, 1];

impl MetadataKeys<'_> {
    /// Family of the file, of which some architectures have one with experts and one without.
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
        let count = self.size("expert_count")?;
        let dense_layers = self.dense_layers(layers)?;
        if count == 0 || dense_layers.len() == layers {
            return Ok(None);
        }
        let shared = match family.shared_expert {
            true => Some(self.width("expert_shared_feed_forward_length")?),
            false => None,
        };
        Ok(Some(Experts {
            count,
            per_token: self.size("expert_used_count")?,
            width: self.width("expert_feed_forward_length")?,
            normalized: self.gguf.flag(&self.key("expert_weights_norm")).unwrap_or(family.normalized_router),
            shared,
            dense_layers,
        }))
    }

    /// Width of a feed-forward block. Files of Mixtral, and early ones of Qwen2-MoE, state one for all kinds.
    fn width(&self, key: &str) -> Result<usize, ModelError> {
        self.size(if self.number(key).is_some() { key } else { "feed_forward_length" })
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
