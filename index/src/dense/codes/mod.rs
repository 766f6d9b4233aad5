//! Vectors quantized to one byte per number. A scan of their codes finds the few candidates among very many vectors, so
//! that the other vectors need not be read from the flat file.
//!
//! A row `v` is stored as `scale·c + e` with integers `c` from -127 to 127, and a query `q` as `step·t + f` with
//! integers `t`. Then `v·q = scale·step·(c·t) + e·q + scale·(c·f)`. The first term is computed exactly in integers; by
//! Cauchy and Schwarz the rest is at most `‖e‖·‖q‖ + (‖v‖ + ‖e‖)·‖f‖`. The lengths of `v` and `e` are stored with the
//! codes. After adding a bound for the rounding of a dot product in `f32`, no row outside these bounds can be among the
//! best, and rows inside are scored again from the flat file: the result equals that of a scan of all vectors, to the
//! bit.
//!
//! Layout, little-endian: the codes of each row, padded with zeros to a multiple of 64 · for each row `f32` scale,
//! `f32` length of `e`, `f32` length of `v`, `i32` sum of the codes.

mod growing;
mod kernel;
mod scan;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;

use self::kernel::{BLOCK, QueryHalves};
use super::vectors::VectorFile;
use crate::error::IndexError;

pub(crate) use growing::GrowingCodes;
pub(crate) use scan::Extremes;

/// Largest code.
const MOST: f32 = 127.0;
/// Largest magnitude of a query's numbers: 63·128 + 127, a high and a low half of 7 bits each, the high one signed.
const MOST_OF_QUERY: f64 = 8191.0;
/// Longest row whose products are sure to fit 32 bits.
const MOST_DIMS: usize = 1 << 16;

/// Scale and bounds of a row of codes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CodeRow {
    scale: f32,
    /// Length of the quantization error, rounded up.
    left: f32,
    /// Length of the vector, rounded up.
    length: f32,
    sum: i32,
}

impl CodeRow {
    /// Returns a row whose bounds are as wide as the widest of `rows`.
    fn widest(rows: &[CodeRow]) -> CodeRow {
        let none = CodeRow { scale: 0.0, left: 0.0, length: 0.0, sum: 0 };
        rows.iter().fold(none, |widest, row| CodeRow {
            left: widest.left.max(row.left),
            length: widest.length.max(row.length),
            ..widest
        })
    }
}

/// Codes of a file of vectors, memory-mapped.
#[derive(Debug)]
pub(crate) struct Codes {
    map: Mmap,
    count: usize,
    stride: usize,
    /// Widest bounds of any row, found by the first scan.
    widest: OnceLock<CodeRow>,
}

impl Codes {
    /// Writes the codes of `vectors` to `path`. The file is complete but not yet synced.
    pub(crate) fn write(vectors: &VectorFile, path: &Path) -> Result<(), IndexError> {
        // Longer rows could overflow the 32-bit sums of the kernels without notice.
        if vectors.dims() > MOST_DIMS {
            let message = format!("vectors of {} numbers are longer than {MOST_DIMS}", vectors.dims());
            return Err(IndexError::Dense { action: "encode", message });
        }
        let file = File::create_new(path).map_err(IndexError::io("create", path))?;
        let mut out = BufWriter::with_capacity(1 << 18, file);
        let mut rows = Vec::with_capacity(vectors.count());
        let mut codes = vec![0; stride(vectors.dims())];
        for vector in vectors.rows() {
            rows.push(encode(vector, &mut codes));
            out.write_all(bytemuck::cast_slice(&codes)).map_err(IndexError::io("write", path))?;
        }
        out.write_all(bytemuck::cast_slice(&rows)).map_err(IndexError::io("write", path))?;
        out.flush().map_err(IndexError::io("write", path))
    }

    /// Opens the codes of `count` vectors of `dims` numbers.
    pub(crate) fn open(path: &Path, count: usize, dims: usize) -> Result<Codes, IndexError> {
        let file = File::open(path).map_err(IndexError::io("open", path))?;
        // SAFETY: files of a snapshot are never written again once they are complete, only unlinked.
        let map = unsafe { Mmap::map(&file) }.map_err(IndexError::io("map", path))?;
        let stride = stride(dims);
        let expected = stride.checked_add(size_of::<CodeRow>()).and_then(|row| row.checked_mul(count));
        if dims == 0 || dims > MOST_DIMS || expected != Some(map.len()) {
            let message = format!("{} bytes are not the codes of {count} vectors of {dims} numbers", map.len());
            return Err(IndexError::corrupt(path, message));
        }
        Ok(Codes { map, count, stride, widest: OnceLock::new() })
    }

    fn codes(&self) -> &[i8] {
        bytemuck::cast_slice(&self.map[..self.count * self.stride])
    }

    fn rows(&self) -> &[CodeRow] {
        // Cannot panic: maps start at a page boundary, and the codes before the rows are a multiple of 64 bytes.
        bytemuck::cast_slice(&self.map[self.count * self.stride..])
    }
}

fn stride(dims: usize) -> usize {
    dims.next_multiple_of(BLOCK)
}

/// Quantizes `vector` into `codes`, leaving the padding zero.
fn encode(vector: &[f32], codes: &mut [i8]) -> CodeRow {
    let largest = vector.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let scale = largest / MOST;
    let mut left = 0.0;
    let mut length = 0.0;
    let mut sum = 0;
    for (code, &x) in codes.iter_mut().zip(vector) {
        *code = if scale > 0.0 { (x / scale).round().clamp(-MOST, MOST) as i8 } else { 0 };
        left += (f64::from(x) - f64::from(scale) * f64::from(*code)).powi(2);
        length += f64::from(x).powi(2);
        sum += i32::from(*code);
    }
    // `as f32` rounds to nearest, so a margin is added first to round up.
    let up = |square: f64| (square.sqrt() * (1.0 + 1e-6)) as f32;
    CodeRow { scale, left: up(left), length: up(length), sum }
}

/// Query, quantized for multiplication with codes.
#[derive(Debug)]
struct CodedQuery {
    halves: QueryHalves,
    step: f64,
    /// Length of the quantization error.
    left: f64,
    length: f64,
}

impl CodedQuery {
    fn of(query: &[f32]) -> CodedQuery {
        let largest = query.iter().fold(0.0_f64, |largest, &x| largest.max(f64::from(x).abs()));
        let step = largest / MOST_OF_QUERY;
        let padded = stride(query.len());
        // The high half of the padding is only ever multiplied with zeros.
        let mut halves = QueryHalves { high: vec![0; padded], low: vec![0; padded] };
        let mut left = 0.0;
        let mut length = 0.0;
        for (&x, place) in query.iter().zip(0..) {
            let x = f64::from(x);
            let whole = if step > 0.0 { (x / step).round().clamp(-MOST_OF_QUERY, MOST_OF_QUERY) } else { 0.0 };
            let coded = whole as i32;
            // Adding 64 makes the high half unsigned, as the kernels require; `CodeScan::add` subtracts it again, with
            // the sum of the row's codes.
            halves.high[place] = (coded.div_euclid(128) + 64) as u8;
            halves.low[place] = coded.rem_euclid(128) as u8;
            left += (x - step * whole).powi(2);
            length += x * x;
        }
        CodedQuery { halves, step, left: left.sqrt(), length: length.sqrt() }
    }
}
