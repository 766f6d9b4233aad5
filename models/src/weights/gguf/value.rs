//! Metadata values: scalars are read at once, arrays on demand.

use std::borrow::Cow;
use std::ops::Range;

use super::read::{Cursor, Reason};

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MetadataValue {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Array),
}

/// Location of an array in the file: a vocabulary is iterated, not copied.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Array {
    kind: u32,
    count: u64,
    bytes: Range<usize>,
}

const FLOAT32: u32 = 6;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
/// Maximum nesting of arrays. No known model nests them; the limit keeps a damaged file from exhausting the stack.
const MAX_DEPTH: u32 = 4;

/// Size of a fixed-size value in bytes, by the type numbers of the GGUF specification.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

impl MetadataValue {
    pub(super) fn read(bytes: &[u8], cursor: &mut Cursor<'_>, key: &str) -> Result<Self, Reason> {
        match cursor.u32(key)? {
            TEXT => Ok(Self::Text(String::from_utf8_lossy(&bytes[cursor.text(key)?]).into_owned())),
            ARRAY => Array::read(cursor, key, MAX_DEPTH).map(Self::Array),
            kind => {
                let width = width(kind).ok_or_else(|| format!("{key} has the unknown value type {kind}"))?;
                Ok(Self::number(kind, &bytes[cursor.skip(width, key)?]))
            }
        }
    }

    fn number(kind: u32, bytes: &[u8]) -> Self {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(word);
        match kind {
            1 => Self::Signed(i64::from(bits as i8)),
            3 => Self::Signed(i64::from(bits as i16)),
            5 => Self::Signed(i64::from(bits as i32)),
            11 => Self::Signed(bits as i64),
            FLOAT32 => Self::Float(f64::from(f32::from_bits(bits as u32))),
            12 => Self::Float(f64::from_bits(bits)),
            7 => Self::Bool(bits != 0),
            _ => Self::Unsigned(bits),
        }
    }

    pub(super) fn unsigned(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    fn flag(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => self.unsigned().map(|value| value != 0),
        }
    }

    pub(super) fn float(&self) -> Option<f64> {
        match *self {
            Self::Float(value) => Some(value),
            Self::Unsigned(value) => Some(value as f64),
            Self::Signed(value) => Some(value as f64),
            _ => None,
        }
    }
}

impl Array {
    fn read(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Self, Reason> {
        let kind = cursor.u32(key)?;
        let least = match kind {
            TEXT => 8,
            ARRAY if depth > 0 => 12,
            _ => width(kind).ok_or_else(|| format!("{key} is an array of the unknown value type {kind}"))?,
        };
        let count = cursor.count(least, key)?;
        let start = cursor.at();
        match kind {
            TEXT => (0..count).try_for_each(|_| cursor.text(key).map(drop))?,
            ARRAY => (0..count).try_for_each(|_| Self::read(cursor, key, depth - 1).map(drop))?,
            _ => {
                cursor.skip(count * least, key)?;
            }
        }
        Ok(Self { kind, count, bytes: start..cursor.at() })
    }

    /// Elements of an array of texts. `None` for other arrays. `file` is the file that the array was read from.
    pub(super) fn texts<'a>(&self, file: &'a [u8]) -> Option<Vec<Cow<'a, str>>> {
        if self.kind != TEXT {
            return None;
        }
        let bytes = &file[self.bytes.clone()];
        let mut cursor = Cursor::new(bytes);
        let mut texts = Vec::with_capacity(self.count as usize);
        for _ in 0..self.count {
            // Cannot fail: the same bytes were checked when the header was read.
            texts.push(String::from_utf8_lossy(&bytes[cursor.text("text").ok()?]));
        }
        Some(texts)
    }

    /// Elements of an array of numbers, converted by [`MetadataValue::float`]. `None` for other arrays.
    pub(super) fn floats(&self, file: &[u8]) -> Option<Vec<f32>> {
        self.values(file)?.map(|value| Some(value.float()? as f32)).collect()
    }

    /// Elements of an array of numbers, converted by [`MetadataValue::unsigned`]. `None` for other arrays.
    pub(super) fn numbers(&self, file: &[u8]) -> Option<impl ExactSizeIterator<Item = Option<u64>>> {
        Some(self.values(file)?.map(|value| value.unsigned()))
    }

    /// Elements of an array of truth values or numbers, converted by [`MetadataValue::flag`]. `None` for other arrays.
    pub(super) fn flags(&self, file: &[u8]) -> Option<impl ExactSizeIterator<Item = Option<bool>>> {
        Some(self.values(file)?.map(|value| value.flag()))
    }

    /// Elements of an array of truth values or numbers. `None` for other arrays.
    fn values(&self, file: &[u8]) -> Option<impl ExactSizeIterator<Item = MetadataValue>> {
        let kind = self.kind;
        let elements = file[self.bytes.clone()].chunks_exact(width(kind)? as usize);
        Some(elements.map(move |bytes| MetadataValue::number(kind, bytes)))
    }
}
