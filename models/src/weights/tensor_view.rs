//! A tensor as stored in its file.

use std::borrow::Cow;

use half::{bf16, f16};
use safetensors::Dtype;

use crate::ModelError;
use crate::kernel::Packed;

pub(crate) use crate::kernel::GgmlKind;

/// Raw bytes of a tensor, little-endian, row by row.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    /// Element type or quantization.
    pub kind: GgmlKind,
    /// Dimensions, outermost first: (out, in) for a matrix.
    pub shape: Vec<usize>,
    /// Bytes, borrowed from the file where possible.
    pub bytes: Cow<'a, [u8]>,
}

impl TensorView<'_> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns `true` if the tensor has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values in `f32`, in row-major order. Exact for every kind: quantized values are products and sums of a
    /// few bits with a half-precision scale.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when the bytes do not match kind and shape.
    pub fn to_f32(&self) -> Result<Vec<f32>, ModelError> {
        let bytes = &self.bytes;
        let values = match floats(self.kind, bytes) {
            Some(values) => values,
            None => dequantize(self.kind, &self.shape, bytes)?,
        };
        if values.len() == self.len() {
            Ok(values)
        } else {
            Err(self.broken(&format!("{} values, the shape says {}", values.len(), self.len())))
        }
    }

    /// Tensor in `f32` with `offset` added to every value.
    pub(super) fn plus(&self, offset: f32) -> Result<TensorView<'static>, ModelError> {
        let bytes = self.to_f32()?.into_iter().flat_map(|value| (value + offset).to_le_bytes()).collect();
        Ok(TensorView { kind: GgmlKind::F32, shape: self.shape.clone(), bytes: Cow::Owned(bytes) })
    }

    fn broken(&self, reason: &str) -> ModelError {
        ModelError::Tensor { name: format!("{:?} of shape {:?}", self.kind, self.shape), reason: reason.to_owned() }
    }
}

/// Tensor kind of a safetensors type. `None` for unsupported types.
pub(crate) fn kind_of(dtype: Dtype) -> Option<GgmlKind> {
    match dtype {
        Dtype::F32 => Some(GgmlKind::F32),
        Dtype::F16 => Some(GgmlKind::F16),
        Dtype::BF16 => Some(GgmlKind::BF16),
        _ => None,
    }
}

/// Values of a safetensors tensor in `f32`. `None` for unsupported types.
pub(crate) fn decode(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    floats(kind_of(dtype)?, bytes)
}

/// Little-endian values of an unquantized kind in `f32`. `None` for quantized kinds.
fn floats(kind: GgmlKind, bytes: &[u8]) -> Option<Vec<f32>> {
    let pairs = || bytes.chunks_exact(2).map(|at| [at[0], at[1]]);
    match kind {
        GgmlKind::F32 => {
            Some(bytes.chunks_exact(4).map(|at| f32::from_le_bytes([at[0], at[1], at[2], at[3]])).collect())
        }
        GgmlKind::F16 => Some(pairs().map(|at| f16::from_le_bytes(at).to_f32()).collect()),
        GgmlKind::BF16 => Some(pairs().map(|at| bf16::from_le_bytes(at).to_f32()).collect()),
        _ => None,
    }
}

/// Size of `len` values of a kind in bytes. `None` if they do not form whole blocks.
pub(super) fn size_of(kind: GgmlKind, len: usize) -> Option<usize> {
    let block = kind.block_size();
    if len.is_multiple_of(block) { (len / block).checked_mul(kind.type_size()) } else { None }
}

/// Values of a quantized tensor, by way of the form that multiplications use: one definition of each kind.
fn dequantize(kind: GgmlKind, shape: &[usize], bytes: &[u8]) -> Result<Vec<f32>, ModelError> {
    let inn = shape.last().copied().unwrap_or(1).max(1);
    let rows = shape.iter().product::<usize>() / inn;
    let packed = Packed::from_ggml(kind, bytes, rows, inn)?;
    let mut values = vec![0.0; rows * inn];
    values.chunks_exact_mut(inn).enumerate().for_each(|(row, values)| packed.row_f32(row, values));
    Ok(values)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn misaligned_blocks_are_read_all_the_same() {
        // One Q8_0 block: a half-precision scale of 0.5, then -16..16.
        let mut bytes = vec![0, 0x00, 0x38];
        bytes.extend((-16i8..16).map(|value| value as u8));
        let view = TensorView { kind: GgmlKind::Q8_0, shape: vec![1, 32], bytes: Cow::Borrowed(&bytes[1..]) };
        let values = view.to_f32().unwrap();
        assert_eq!(values[..3], [-8.0, -7.5, -7.0]);
        let short = TensorView { kind: GgmlKind::Q8_0, shape: vec![1, 32], bytes: Cow::Borrowed(&bytes[2..]) };
        assert!(short.to_f32().is_err());
    }

    #[test]
    fn k_quants_are_unpacked() {
        use candle_core::quantized::{GgmlDType, QTensor};
        use candle_core::{Device, Tensor};
        // A wave: two super-blocks of 256, with the bound that each kind's bits allow for values in -1..1.
        let wave: Vec<f32> = (0..512).map(|i| (i as f32 * 0.07).sin()).collect();
        let tensor = Tensor::from_slice(&wave, (2, 256), &Device::Cpu).unwrap();
        let kinds = [
            (GgmlKind::Q2K, GgmlDType::Q2K, 0.4),
            (GgmlKind::Q3K, GgmlDType::Q3K, 0.2),
            (GgmlKind::Q4K, GgmlDType::Q4K, 0.08),
            (GgmlKind::Q5K, GgmlDType::Q5K, 0.04),
            (GgmlKind::Q6K, GgmlDType::Q6K, 0.03),
        ];
        for (kind, candle, bound) in kinds {
            let packed = QTensor::quantize(&tensor, candle).unwrap();
            let bytes = packed.data().unwrap();
            assert_eq!(size_of(kind, 512), Some(bytes.len()));
            let values = TensorView { kind, shape: vec![2, 256], bytes }.to_f32().unwrap();
            let expected: Vec<f32> = packed.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            assert_eq!(values, expected, "{kind:?}");
            let worst = values.iter().zip(&wave).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < bound && worst > 0.0, "{kind:?}: {worst}");
        }
    }
}
