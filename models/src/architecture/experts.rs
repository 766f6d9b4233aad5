//! Experts of a decoder: feed-forward blocks among which a router chooses a few for each token.

/// Maximum number of experts. A checkpoint with more is taken for damaged.
const MAX_EXPERTS: usize = 1 << 12;
/// Maximum inner width of an expert. A checkpoint with wider ones is taken for damaged.
const MAX_WIDTH: usize = 1 << 20;

/// Experts that take the place of feed-forward blocks. The router computes a softmax over all experts, and each token
/// passes through the most probable ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts in a layer.
    pub count: usize,
    /// Number of experts that each token passes through.
    pub per_token: usize,
    /// Inner width of an expert.
    pub width: usize,
    /// If `true`, the probabilities of a token's experts are divided by their sum.
    pub normalized: bool,
    /// Inner width of the shared expert, which all tokens pass through and which has its own gate (Qwen2-MoE). `None`
    /// if there is none.
    pub shared: Option<usize>,
    /// Layers that have an ordinary feed-forward block instead, in ascending order.
    pub dense_layers: Vec<usize>,
}

/// Names of experts in Hugging Face checkpoints, which also tell the family's router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertNames {
    /// `mlp.experts.0.gate_proj`.
    Qwen,
    /// `block_sparse_moe.experts.0.w1`.
    Mixtral,
}

impl Experts {
    /// Largest inner width of an expert, the shared one included.
    pub(crate) fn widest(&self) -> usize {
        self.width.max(self.shared.unwrap_or(0))
    }

    /// Number of parameters of the experts of one layer and of their router, for a residual stream of `hidden` values.
    pub(crate) fn parameters(&self, hidden: usize) -> u64 {
        let product = |a: usize, b: usize| a as u64 * b as u64;
        let shared = self.shared.map_or(0, |width| 3 * product(hidden, width) + hidden as u64);
        product(self.count, hidden) + 3 * self.count as u64 * product(hidden, self.width) + shared
    }

    /// Checks the numbers for a decoder of `layers` layers.
    pub(super) fn check(&self, layers: usize) -> Result<(), String> {
        let sizes = [
            ("number of experts", self.count, MAX_EXPERTS),
            ("number of experts per token", self.per_token, self.count),
            ("width of an expert", self.width, MAX_WIDTH),
            ("width of the shared expert", self.shared.unwrap_or(1), MAX_WIDTH),
        ];
        if let Some((name, size, most)) = sizes.iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
            return Err(format!("{name} is {size}, not from 1 to {most}"));
        }
        if !self.dense_layers.is_sorted_by(|a, b| a < b) {
            return Err("layers without experts are not in ascending order".to_owned());
        }
        match self.dense_layers.iter().find(|&&layer| layer >= layers) {
            Some(layer) => Err(format!("layer {layer} without experts: there are {layers} layers")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_router_has_are_refused() {
        let sound =
            Experts { count: 8, per_token: 2, width: 48, normalized: true, shared: Some(32), dense_layers: vec![1] };
        assert_eq!(sound.check(2), Ok(()));
        assert_eq!(sound.parameters(16), 8 * 16 + 3 * 8 * 16 * 48 + 3 * 16 * 32 + 16);
        let refused = |change: fn(&mut Experts)| {
            let mut experts = sound.clone();
            change(&mut experts);
            experts.check(2).err().unwrap_or_default()
        };
        assert!(refused(|experts| experts.count = 0).contains("number of experts is 0"));
        assert!(refused(|experts| experts.per_token = 9).contains("per token is 9, not from 1 to 8"));
        assert!(refused(|experts| experts.width = 0).contains("width of an expert is 0"));
        assert!(refused(|experts| experts.shared = Some(usize::MAX)).contains("shared expert"));
        assert!(refused(|experts| experts.dense_layers = vec![0, 2]).contains("layer 2 without experts"));
        assert!(refused(|experts| experts.dense_layers = vec![1, 0]).contains("ascending order"));
    }
}
