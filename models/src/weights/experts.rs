//! Places of experts in checkpoints: each under names of its own, or all experts of a layer in one tensor.

use std::borrow::Cow;
use std::ops::Range;

use super::tensor_view::TensorView;
use crate::ModelError;
use crate::architecture::{DecoderConfig, ExpertNames, Experts};

/// One expert in a tensor that holds all experts of a layer.
#[derive(Debug, PartialEq)]
pub(super) struct StackedExpert {
    /// Name of the stacked tensor, without the expert's number.
    pub(super) name: String,
    expert: usize,
    /// Shape of the stacked tensor.
    shape: [usize; 3],
    /// Rows of the projection among those of the expert.
    rows: Range<usize>,
}

/// Location of an expert's tensor by its name, such as `model.layers.3.mlp.experts.5.up_proj.weight`.
struct ExpertName<'a> {
    /// Name up to `.experts`.
    block: &'a str,
    expert: usize,
    projection: &'a str,
}

impl<'a> ExpertName<'a> {
    /// Parses a name. `None` for other tensors.
    fn parse(name: &'a str) -> Option<Self> {
        let (block, rest) = name.split_once(".experts.")?;
        let (expert, projection) = rest.split_once('.')?;
        Some(Self { block, expert: expert.parse().ok()?, projection: projection.strip_suffix(".weight")? })
    }
}

/// Expert of a tensor as in a GGUF, which stacks each projection. `None` for other tensors.
pub(super) fn stacked(config: &DecoderConfig, name: &str) -> Option<StackedExpert> {
    let Experts { count, width, .. } = *config.architecture.experts.as_ref()?;
    let ExpertName { block, expert, projection } = ExpertName::parse(name)?;
    let [out, inn] = if projection == "down_proj" { [config.hidden, width] } else { [width, config.hidden] };
    let name = format!("{block}.experts.{projection}.weight");
    Some(StackedExpert { name, expert, shape: [count, out, inn], rows: 0..out })
}

/// Expert of a tensor as `transformers` 5 has it in memory: gates and up projections in one tensor. `None` for other
/// tensors.
pub(super) fn merged(config: &DecoderConfig, name: &str) -> Option<StackedExpert> {
    let Experts { count, width, .. } = *config.architecture.experts.as_ref()?;
    let ExpertName { block, expert, projection } = ExpertName::parse(name)?;
    let hidden = config.hidden;
    let (projection, shape, rows) = match projection {
        "gate_proj" => ("gate_up_proj", [count, 2 * width, hidden], 0..width),
        "up_proj" => ("gate_up_proj", [count, 2 * width, hidden], width..2 * width),
        "down_proj" => ("down_proj", [count, hidden, width], 0..hidden),
        _ => return None,
    };
    Some(StackedExpert { name: format!("{block}.experts.{projection}"), expert, shape, rows })
}

impl StackedExpert {
    /// Cuts the expert out of the stacked tensor, without a copy of bytes that are borrowed. `name` is that of the
    /// expert's tensor.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when the stacked tensor has another shape or does not contain the expert.
    pub(super) fn of<'a>(&self, view: TensorView<'a>, name: &str) -> Result<TensorView<'a>, ModelError> {
        let [count, out, inn] = self.shape;
        if view.shape != self.shape || self.expert >= count {
            let reason = format!("{} has the shape {:?}, expected {:?}", self.name, view.shape, self.shape);
            return Err(ModelError::Tensor { name: name.to_owned(), reason });
        }
        let row = view.bytes.len() / (count * out);
        let first = self.expert * out;
        let range = (first + self.rows.start) * row..(first + self.rows.end) * row;
        let bytes = match view.bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
            Cow::Owned(bytes) => Cow::Owned(bytes[range].to_vec()),
        };
        Ok(TensorView { kind: view.kind, shape: vec![self.rows.len(), inn], bytes })
    }
}

/// Name of a tensor in a Hugging Face checkpoint whose experts have the names `names`. Only the experts and routers of
/// Mixtral are renamed.
pub(super) fn renamed(names: Option<ExpertNames>, name: &str) -> Cow<'_, str> {
    let parts = || {
        let (block, rest) = name.split_once(".mlp.")?;
        if rest == "gate.weight" {
            return Some(format!("{block}.block_sparse_moe.gate.weight"));
        }
        let (expert, projection) = rest.strip_prefix("experts.")?.split_once('.')?;
        let projection = match projection {
            "gate_proj.weight" => "w1",
            "down_proj.weight" => "w2",
            "up_proj.weight" => "w3",
            _ => return None,
        };
        Some(format!("{block}.block_sparse_moe.experts.{expert}.{projection}.weight"))
    };
    let mixtral = names == Some(ExpertNames::Mixtral);
    mixtral.then(parts).flatten().map_or(Cow::Borrowed(name), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_of_mixtral_have_names_of_their_own() {
        let mixtral = |name: &str| renamed(Some(ExpertNames::Mixtral), name).into_owned();
        assert_eq!(mixtral("model.layers.2.mlp.gate.weight"), "model.layers.2.block_sparse_moe.gate.weight");
        for (ours, theirs) in [("gate", "w1"), ("down", "w2"), ("up", "w3")] {
            let name = mixtral(&format!("model.layers.2.mlp.experts.7.{ours}_proj.weight"));
            assert_eq!(name, format!("model.layers.2.block_sparse_moe.experts.7.{theirs}.weight"));
        }
        assert_eq!(mixtral("model.layers.2.mlp.gate_proj.weight"), "model.layers.2.mlp.gate_proj.weight");
        let qwen = "model.layers.2.mlp.experts.7.up_proj.weight";
        assert_eq!(renamed(Some(ExpertNames::Qwen), qwen), qwen);
    }
}
