//! Checks the schema in the footer of a Parquet file before the library reads it. The library calls itself for every
//! level of the schema, so a deep schema would overflow the stack and end the process.
//!
//! A footer is a `FileMetaData` of `parquet.thrift` in Thrift's compact protocol.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// Maximum number of levels of a schema. Nested lists and maps take two or three each.
const DEEPEST_SCHEMA: usize = 64;

/// Maximum bytes of a footer.
const LARGEST_FOOTER: u64 = 64 << 20;

/// Bytes behind the footer: its length, and the mark of the format.
const TAIL: u64 = 8;

/// Number of the field of `FileMetaData` that holds the schema.
const SCHEMA: i64 = 2;

/// Number of the field of `SchemaElement` that holds the number of its children.
const CHILDREN: i64 = 5;

/// Types of the compact protocol.
pub(super) const STOP: u8 = 0;
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// Types of the fields 1 to 10 of a `SchemaElement`. Other types are refused: the library reads these fields without a
/// look at their types, and so would read another schema than the one checked here.
const ELEMENT_TYPES: [u8; 10] = [I32, I32, I32, BINARY, I32, I32, I32, I32, I32, STRUCT];

/// Checks the depth of the schema.
///
/// # Errors
/// The reason, if the footer is damaged, too long, or describes too many levels.
pub(super) fn check(file: &mut File) -> Result<(), String> {
    check_schema(&footer(file)?)
}

/// Reads the footer.
fn footer(file: &mut File) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("the Parquet file cannot be read: {error}");
    let damaged = || "the Parquet file cannot be read: it has no footer".to_owned();
    let len = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
    let behind = len.checked_sub(TAIL).ok_or_else(damaged)?;
    file.seek(SeekFrom::Start(behind)).map_err(unreadable)?;
    let mut tail = [0; TAIL as usize];
    file.read_exact(&mut tail).map_err(unreadable)?;
    let [a, b, c, d, mark @ ..] = tail;
    if &mark != b"PAR1" {
        return Err(
            "the Parquet file cannot be read: it does not end in PAR1, so it is damaged or encrypted".to_owned()
        );
    }
    let size = u64::from(u32::from_le_bytes([a, b, c, d]));
    if size > LARGEST_FOOTER {
        return Err(format!("the Parquet file has a footer of {size} bytes: write larger row groups"));
    }
    let start = behind.checked_sub(size).ok_or_else(damaged)?;
    file.seek(SeekFrom::Start(start)).map_err(unreadable)?;
    let mut footer = vec![0; size as usize];
    file.read_exact(&mut footer).map_err(unreadable)?;
    file.rewind().map_err(unreadable)?;
    Ok(footer)
}

fn check_schema(footer: &[u8]) -> Result<(), String> {
    let mut thrift = Thrift { rest: footer };
    let damaged = || "the Parquet file cannot be read: its footer is damaged".to_owned();
    let mut id = 0;
    // All fields are read, because a damaged footer may hold a second schema.
    while let Some(kind) = thrift.field(&mut id).ok_or_else(damaged)? {
        if id != SCHEMA {
            thrift.skip(kind, 0).ok_or_else(damaged)?;
            continue;
        }
        let depth = (kind == LIST).then(|| thrift.schema_depth()).flatten().ok_or_else(damaged)?;
        if depth > DEEPEST_SCHEMA {
            return Err(format!("the Parquet file nests its columns more than {DEEPEST_SCHEMA} levels deep"));
        }
    }
    Ok(())
}

/// Reader of the compact protocol. Its methods return `None` for bytes that do not follow the protocol.
pub(super) struct Thrift<'a> {
    /// Bytes that are not read yet.
    pub(super) rest: &'a [u8],
}

impl Thrift<'_> {
    /// Number of levels of a list of `SchemaElement`s, which stand in depth-first order. Stops at the level that is too
    /// deep.
    fn schema_depth(&mut self) -> Option<usize> {
        let (kind, count) = self.list()?;
        // Number of children still to come of each open element.
        let mut open: Vec<u64> = Vec::new();
        let mut deepest = 0;
        for _ in 0..count {
            if kind != STRUCT {
                return None;
            }
            let children = self.children()?;
            while open.pop_if(|left| *left == 0).is_some() {}
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            open.push(children);
            deepest = deepest.max(open.len());
            if deepest > DEEPEST_SCHEMA {
                break;
            }
        }
        Some(deepest)
    }

    /// Reads a `SchemaElement`. Returns the number of its children.
    fn children(&mut self) -> Option<u64> {
        let mut id = 0;
        let mut children = 0;
        while let Some(kind) = self.field(&mut id)? {
            let expected = usize::try_from(id - 1).ok().and_then(|at| ELEMENT_TYPES.get(at));
            if expected.is_some_and(|expected| *expected != kind) {
                return None;
            }
            if id == CHILDREN {
                children = u64::try_from(self.zig_zag()?).ok()?;
            } else {
                self.skip(kind, 0)?;
            }
        }
        Some(children)
    }

    /// Reads the beginning of a field: returns its type, and sets `id` to its number. The inner `None` is the end of
    /// the structure.
    pub(super) fn field(&mut self, id: &mut i64) -> Option<Option<u8>> {
        let byte = self.byte()?;
        let kind = byte & 0x0f;
        if kind == STOP {
            return Some(None);
        }
        *id = match byte >> 4 {
            // The library keeps 16 bits of a number, so that 65538 is the field 2.
            0 => i64::from(self.zig_zag()? as i16),
            delta => id.checked_add(i64::from(delta))?,
        };
        Some(Some(kind))
    }

    /// Reads the beginning of a list: the type of its elements and their number.
    fn list(&mut self) -> Option<(u8, u64)> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        Some((byte & 0x0f, count))
    }

    /// Skips a value at the nesting depth `depth`.
    pub(super) fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEEPEST_SCHEMA {
            return None;
        }
        match kind {
            TRUE | FALSE => Some(()),
            BYTE => self.byte().map(|_| ()),
            I16 | I32 | I64 => self.varint().map(|_| ()),
            DOUBLE => self.take(8),
            UUID => self.take(16),
            BINARY => {
                let len = self.varint()?;
                self.take(len)
            }
            LIST | SET => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 0x0f, depth)
                })
            }
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    /// Skips an element of a list, set or map, where a boolean takes a byte.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Option<()> {
        let kind = if matches!(kind, TRUE | FALSE) { BYTE } else { kind };
        self.skip(kind, depth + 1)
    }

    pub(super) fn zig_zag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn take(&mut self, len: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(len).ok()?..)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Footer with a column below `levels` groups, each the only child of the one before it.
    fn footer(levels: usize) -> Vec<u8> {
        // The version, and a list of structures.
        let mut bytes = vec![0x15, 0x02, 0x19, 0xfc];
        let count = levels + 1;
        bytes.extend([(count & 0x7f) as u8 | 0x80, (count >> 7 & 0x7f) as u8 | 0x80, (count >> 14) as u8]);
        for _ in 0..levels {
            // Name and number of children.
            bytes.extend([0x48, 1, b'g', 0x15, 2, STOP]);
        }
        // Type, repetition and name.
        bytes.extend([0x15, 0x0c, 0x25, 0, 0x18, 1, b'c', STOP]);
        // The number of rows, and no row groups.
        bytes.extend([0x16, 0, 0x19, STRUCT, STOP]);
        bytes
    }

    #[test]
    fn deep_schemas_are_refused_without_a_deep_stack() {
        for levels in [0, 1, 5, DEEPEST_SCHEMA - 1] {
            assert_eq!(check_schema(&footer(levels)), Ok(()), "{levels}");
        }
        for levels in [DEEPEST_SCHEMA, 1000, 1_000_000] {
            assert!(check_schema(&footer(levels)).is_err_and(|error| error.contains("64 levels")), "{levels}");
        }
    }

    #[test]
    fn a_schema_under_a_number_that_the_library_cuts_is_checked_too() {
        let mut bytes = footer(1000);
        // The list of structures as field 65538, which ends in the 16 bits of 2.
        bytes.splice(2..3, [0x09, 0x84, 0x80, 0x08]);
        assert!(check_schema(&bytes).is_err_and(|error| error.contains("64 levels")));
    }

    #[test]
    fn siblings_are_no_levels() {
        // A root with 200 columns.
        let mut bytes = vec![0x29, 0xfc, 0xc9, 0x01, 0x48, 1, b'r', 0x15, 0x90, 0x03, STOP];
        for _ in 0..200 {
            bytes.extend([0x15, 0x0c, 0x25, 0, 0x18, 1, b'c', STOP]);
        }
        bytes.push(STOP);
        assert_eq!(check_schema(&bytes), Ok(()));
    }

    #[test]
    fn damaged_footers_are_refused() {
        let whole = footer(3);
        for end in 0..whole.len() {
            assert!(check_schema(&whole[..end]).is_err(), "{end}");
        }
        // The number of children as a boolean, and the schema as a number.
        assert!(check_schema(&[0x29, 0x1c, 0x51, STOP, STOP]).is_err());
        assert!(check_schema(&[0x25, 0x02, STOP]).is_err());
    }
}
