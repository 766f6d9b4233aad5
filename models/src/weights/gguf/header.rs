//! Header of a GGUF file: metadata and tensor locations. Format: `docs/gguf.md` of ggml.

use std::collections::HashMap;
use std::ops::Range;

use super::read::{Cursor, Reason};
use super::value::MetadataValue;
use crate::weights::tensor_view::{GgmlKind, size_of};

/// Metadata and tensor locations, which precede the tensors' bytes.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: HashMap<String, MetadataValue>,
    pub(super) tensors: HashMap<String, Tensor>,
    /// Size of the header itself, in bytes.
    pub(super) len: usize,
}

/// A tensor whose bytes were checked to lie inside the file.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) kind: GgmlKind,
    /// Dimensions, outermost first.
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Range<usize>,
}

const MAGIC: &[u8; 4] = b"GGUF";
/// Maximum number of dimensions: `GGML_MAX_DIMS` of ggml.
const MAX_DIMENSIONS: u32 = 4;

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Reason> {
        let mut cursor = Cursor::new(bytes);
        if bytes[cursor.skip(4, "the magic number")?] != MAGIC[..] {
            return Err("not a gguf file: the magic number is missing".to_owned());
        }
        match cursor.u32("the version")? {
            2 | 3 => {}
            version if matches!(version.swap_bytes(), 1..=3) => {
                return Err("big-endian gguf is not supported".to_owned());
            }
            version => return Err(format!("gguf version {version} is not supported: expected 2 or 3")),
        }
        // A tensor takes at least a name length, a dimension count, one dimension, a type and an offset.
        let tensors = cursor.count(32, "number of tensors")?;
        let entries = cursor.count(13, "number of metadata entries")?;
        let mut metadata = HashMap::new();
        for _ in 0..entries {
            let key = String::from_utf8_lossy(&bytes[cursor.text("metadata key")?]).into_owned();
            let value = MetadataValue::read(bytes, &mut cursor, &key)?;
            metadata.insert(key, value);
        }
        let places = (0..tensors).map(|_| TensorEntry::read(bytes, &mut cursor)).collect::<Result<Vec<_>, _>>()?;
        let len = cursor.at();
        let data = data_start(&metadata, len)?;
        let mut tensors = HashMap::new();
        for place in places {
            let (name, tensor) = place.locate(data, bytes.len())?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(format!("two tensors are called {name}"));
            }
        }
        Ok(Self { metadata, tensors, len })
    }
}

/// Offset of the tensors' bytes: the next multiple of the alignment.
fn data_start(metadata: &HashMap<String, MetadataValue>, header: usize) -> Result<usize, Reason> {
    let alignment = metadata.get("general.alignment").map_or(Some(32), MetadataValue::unsigned);
    match alignment.and_then(|alignment| usize::try_from(alignment).ok()) {
        Some(alignment) if alignment.is_power_of_two() && alignment <= 1 << 20 => {
            Ok(header.next_multiple_of(alignment))
        }
        _ => Err("general.alignment is not a sensible power of two".to_owned()),
    }
}

/// Entry of a tensor in the header.
struct TensorEntry {
    name: String,
    kind: u32,
    /// Dimensions as in the file, innermost first.
    dimensions: Vec<u64>,
    offset: u64,
}

impl TensorEntry {
    fn read(bytes: &[u8], cursor: &mut Cursor<'_>) -> Result<Self, Reason> {
        let name = String::from_utf8_lossy(&bytes[cursor.text("tensor name")?]).into_owned();
        let count = cursor.u32(&name)?;
        if !(1..=MAX_DIMENSIONS).contains(&count) {
            return Err(format!("tensor {name} has {count} dimensions"));
        }
        let dimensions = (0..count).map(|_| cursor.u64(&name)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { kind: cursor.u32(&name)?, offset: cursor.u64(&name)?, name, dimensions })
    }

    /// Checks that the tensor lies inside the file.
    fn locate(self, data: usize, file: usize) -> Result<(String, Tensor), Reason> {
        let Self { name, dimensions, offset, .. } = self;
        let kind = kind(self.kind)
            .ok_or_else(|| format!("tensor {name} has the unsupported type {}", kind_name(self.kind)))?;
        let sizes = || dimensions.iter().map(|&size| usize::try_from(size).ok().filter(|&size| size > 0));
        let shape: Option<Vec<usize>> = sizes().rev().collect();
        let len = sizes().try_fold(1usize, |product, size| product.checked_mul(size?));
        let (Some(shape), Some(len)) = (shape, len) else {
            return Err(format!("tensor {name} has the impossible shape {dimensions:?}"));
        };
        // Quantization blocks must not span rows.
        let row = shape.last().copied().unwrap_or(1);
        let Some(size) = size_of(kind, row).and(size_of(kind, len)) else {
            return Err(format!("tensor {name}: rows of {row} values are not whole {kind:?} blocks"));
        };
        let start = usize::try_from(offset).ok().and_then(|offset| data.checked_add(offset));
        let range = start.and_then(|start| Some(start..start.checked_add(size)?));
        match range.filter(|range| range.end <= file) {
            Some(bytes) => Ok((name, Tensor { kind, shape, bytes })),
            None => Err(format!(
                "truncated: tensor {name} needs {size} bytes at {offset} after offset {data}, the file has {file} bytes"
            )),
        }
    }
}

/// Name of a type that is not supported, by ggml's type number (`ggml_type` in `ggml.h`).
fn kind_name(number: u32) -> String {
    let name = match number {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("{number} of ggml"),
    };
    format!("{name}: expected F32, F16, BF16, Q2_K to Q8_0, IQ4_NL or IQ4_XS")
}

/// Tensor kind by ggml's type number. `None` for unsupported kinds.
fn kind(number: u32) -> Option<GgmlKind> {
    Some(match number {
        0 => GgmlKind::F32,
        1 => GgmlKind::F16,
        2 => GgmlKind::Q4_0,
        3 => GgmlKind::Q4_1,
        6 => GgmlKind::Q5_0,
        7 => GgmlKind::Q5_1,
        8 => GgmlKind::Q8_0,
        10 => GgmlKind::Q2K,
        11 => GgmlKind::Q3K,
        12 => GgmlKind::Q4K,
        13 => GgmlKind::Q5K,
        14 => GgmlKind::Q6K,
        20 => GgmlKind::Iq4Nl,
        23 => GgmlKind::Iq4Xs,
        30 => GgmlKind::BF16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_are_not_supported_have_names() {
        for (number, name) in [(16, "IQ2_XXS"), (29, "IQ1_M"), (34, "TQ1_0"), (39, "MXFP4"), (250, "250 of ggml")] {
            assert!(kind(number).is_none() && kind_name(number).starts_with(name), "{number}");
        }
    }
}
