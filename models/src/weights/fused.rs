//! Projections that some families store as one tensor.

use std::borrow::Cow;
use std::ops::Range;

use super::tensor_view::TensorView;
use crate::ModelError;
use crate::architecture::{DecoderConfig, Family};

/// Rows of a fused tensor that hold one projection.
#[derive(Debug, PartialEq)]
pub(crate) struct FusedPart {
    /// Name of the fused tensor.
    pub(crate) name: String,
    /// Rows of the part.
    pub(crate) rows: Range<usize>,
    /// Number of rows of the fused tensor.
    pub(crate) total: usize,
}

/// Part of a fused tensor that holds the tensor `name`. `None` for families that do not fuse, and for other tensors.
pub(crate) fn part(family: &Family, config: &DecoderConfig, name: &str) -> Option<FusedPart> {
    if !family.fused {
        return None;
    }
    let (path, kind) = name.rsplit_once('.')?;
    let (block, projection) = path.rsplit_once('.')?;
    let q = config.q_width();
    let kv = config.kv_width();
    let ffn = config.ffn;
    let (fused, start, len, total) = match projection {
        "q_proj" => ("qkv_proj", 0, q, q + 2 * kv),
        "k_proj" => ("qkv_proj", q, kv, q + 2 * kv),
        "v_proj" => ("qkv_proj", q + kv, kv, q + 2 * kv),
        "gate_proj" => ("gate_up_proj", 0, ffn, 2 * ffn),
        "up_proj" => ("gate_up_proj", ffn, ffn, 2 * ffn),
        _ => return None,
    };
    Some(FusedPart { name: format!("{block}.{fused}.{kind}"), rows: start..start + len, total })
}

impl FusedPart {
    /// Cuts the part out of the fused tensor. `name` is that of the part.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when the fused tensor has another number of rows.
    pub(super) fn of<'a>(&self, view: TensorView<'a>, name: &str) -> Result<TensorView<'a>, ModelError> {
        let TensorView { kind, mut shape, bytes } = view;
        if shape.first() != Some(&self.total) || !bytes.len().is_multiple_of(self.total) {
            let reason = format!("{} has the shape {shape:?}, expected {} rows", self.name, self.total);
            return Err(ModelError::Tensor { name: name.to_owned(), reason });
        }
        let width = bytes.len() / self.total;
        let range = self.rows.start * width..self.rows.end * width;
        let bytes = match bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
            Cow::Owned(bytes) => Cow::Owned(bytes[range].to_vec()),
        };
        shape[0] = self.rows.len();
        Ok(TensorView { kind, shape, bytes })
    }
}
