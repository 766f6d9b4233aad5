//! Algorithms chosen for matrix multiplications with weights: each shape is timed once per machine, and the choice is
//! kept in memory and in a file.
//!
//! The timing itself is in the device code; this module holds what needs no GPU: shapes, the choice by measured times,
//! and the file.

mod file;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::driver::{MatMul, MatMulOperands, MatMulTarget};

pub use file::AlgorithmFile;

/// Type of a product, and its treatment of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// Overwrites with `bf16`.
    Half,
    /// Overwrites with `f32`.
    Single,
    /// Adds to `f32`.
    Sum,
}

/// Format of both operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperandFormat {
    /// `bf16`.
    #[default]
    Half,
    /// `e4m3` with a scale per row.
    Fp8,
}

/// Shape of `x · Wᵀ`, for x of shape (rows, inner) and W of shape (columns, inner).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MatMulShape {
    // The order of the fields is that of the table, which is searched for the next larger number of rows.
    /// Format of the operands. Files without it are of `bf16`.
    #[serde(default)]
    pub operands: OperandFormat,
    /// Number of summed terms.
    pub inner: usize,
    /// Number of columns of the result.
    pub columns: usize,
    /// Type of the result.
    pub output: OutputKind,
    /// Number of rows.
    pub rows: usize,
}

/// An algorithm of cublasLt in its own encoding, which only the version that wrote it can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Algorithm {
    /// Contents of `cublasLtMatmulAlgo_t`.
    pub words: [u64; 8],
    /// Bytes of workspace that it needs.
    pub workspace: usize,
}

/// Circumstances that a choice depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlgorithmScope {
    /// Product name of the GPU.
    pub gpu: String,
    /// Newest CUDA version that the driver supports.
    pub driver: String,
    /// Version of cublasLt.
    pub library: String,
}

/// Chosen algorithms by shape. `None` stands for the default of cuBLAS, which was faster than any other; for operands in
/// `e4m3`, which have no default, it says that there is no algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AlgorithmTable(BTreeMap<MatMulShape, Option<Algorithm>>);

impl MatMulShape {
    /// Returns the shape of a product. `None` when it is not of this form: operands in `f32`, or transposed otherwise.
    pub fn of(product: &MatMul) -> Option<Self> {
        let (operands, left, right) = match &product.operands {
            MatMulOperands::Half(left, right) => (OperandFormat::Half, left.transposed, right.transposed),
            MatMulOperands::Fp8(left, right) => (OperandFormat::Fp8, left.values.transposed, right.values.transposed),
            MatMulOperands::Single(..) => return None,
        };
        if left || !right {
            return None;
        }
        let output = match product.target {
            MatMulTarget::Half(_) => OutputKind::Half,
            MatMulTarget::Single(_) => OutputKind::Single,
            MatMulTarget::Sum(_) => OutputKind::Sum,
        };
        Some(Self { operands, inner: product.inner, columns: product.columns, output, rows: product.rows })
    }
}

impl AlgorithmTable {
    /// Returns `true` if an algorithm was chosen for exactly this shape.
    pub fn contains(&self, shape: &MatMulShape) -> bool {
        self.0.contains_key(shape)
    }

    /// Returns the algorithm chosen for the shape with the next larger number of rows, this one included. `None` when
    /// there is none, or when the default is the fastest.
    pub fn find(&self, shape: &MatMulShape) -> Option<Algorithm> {
        let (next, algorithm) = self.0.range(shape..).next()?;
        let alike = MatMulShape { rows: shape.rows, ..*next } == *shape;
        if alike { *algorithm } else { None }
    }

    /// Records a choice.
    pub fn insert(&mut self, shape: MatMulShape, algorithm: Option<Algorithm>) {
        self.0.insert(shape, algorithm);
    }

    /// Removes a choice that turned out to be unusable.
    pub fn remove(&mut self, shape: &MatMulShape) {
        self.0.remove(shape);
    }

    /// Describes those of the products that are in `e4m3` and have no algorithm, by their widths: "512 to 1536 with 24, 32
    /// rows". `None` when there are none.
    pub fn missing_fp8(&self, shapes: impl Iterator<Item = MatMulShape>) -> Option<String> {
        let missing = shapes
            .filter(|shape| shape.operands == OperandFormat::Fp8 && self.0.get(shape).is_none_or(Option::is_none));
        let mut rows: BTreeMap<(usize, usize), Vec<String>> = BTreeMap::new();
        for shape in missing {
            rows.entry((shape.inner, shape.columns)).or_default().push(shape.rows.to_string());
        }
        let widths =
            rows.iter().map(|((inner, columns), rows)| format!("{inner} to {columns} with {} rows", rows.join(", ")));
        Some(widths.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
    }

    /// Returns the number of shapes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if nothing was chosen.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the index of the fastest candidate, by its measured seconds, `None` for one that failed. Of candidates within
/// 2 % of the fastest, which noise may order either way, the first one is chosen.
pub fn choose(seconds: &[Option<f64>]) -> Option<usize> {
    let usable = |seconds: &Option<f64>| seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0);
    let best = seconds.iter().filter_map(usable).min_by(f64::total_cmp)?;
    seconds.iter().position(|seconds| usable(seconds).is_some_and(|seconds| seconds <= best * 1.02))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::{DeviceMatrix, Fp8Matrix};
    use crate::cuda::kernel::DeviceSlice;

    pub(super) fn shape(rows: usize, columns: usize, output: OutputKind) -> MatMulShape {
        MatMulShape { operands: OperandFormat::Half, inner: 64, columns, output, rows }
    }

    pub(super) fn algorithm(word: u64) -> Algorithm {
        Algorithm { words: [word; 8], workspace: 4096 }
    }

    #[test]
    fn a_step_takes_the_algorithm_of_the_next_larger_one() {
        let mut table = AlgorithmTable::default();
        for (rows, word) in [(1, 1), (8, 8), (64, 64)] {
            table.insert(shape(rows, 128, OutputKind::Half), Some(algorithm(word)));
        }
        table.insert(shape(32, 128, OutputKind::Half), None);
        table.insert(shape(64, 256, OutputKind::Half), Some(algorithm(2)));
        let found = |rows, columns, output| table.find(&shape(rows, columns, output)).map(|found| found.words[0]);
        for (rows, word) in [(1, Some(1)), (2, Some(8)), (8, Some(8)), (9, None), (33, Some(64)), (65, None)] {
            assert_eq!(found(rows, 128, OutputKind::Half), word, "{rows} rows");
        }
        assert_eq!(found(1, 256, OutputKind::Half), Some(2));
        assert_eq!((found(1, 128, OutputKind::Sum), found(1, 64, OutputKind::Half)), (None, None));
        let inner = MatMulShape { inner: 65, ..shape(1, 128, OutputKind::Half) };
        assert_eq!(table.find(&inner), None);
        assert!(table.contains(&shape(32, 128, OutputKind::Half)) && !table.contains(&shape(9, 128, OutputKind::Half)));
        table.remove(&shape(64, 128, OutputKind::Half));
        assert_eq!((table.len(), table.find(&shape(33, 128, OutputKind::Half))), (4, None));
    }

    #[test]
    fn products_in_fp8_are_apart_from_others_and_those_without_an_algorithm_are_named() {
        let mut table = AlgorithmTable::default();
        let fp8 = |rows| MatMulShape { operands: OperandFormat::Fp8, ..shape(rows, 128, OutputKind::Half) };
        let half = shape(64, 128, OutputKind::Half);
        table.insert(half, None);
        table.insert(fp8(64), Some(algorithm(8)));
        assert_eq!(table.missing_fp8([half, fp8(64)].into_iter()), None);
        assert_eq!(table.find(&shape(33, 128, OutputKind::Half)), None);
        assert_eq!(table.find(&fp8(33)), Some(algorithm(8)));
        table.insert(fp8(24), None);
        assert_eq!(table.find(&fp8(20)), None);
        // 24 rows have no algorithm, 32 were never measured; a table of another model's shapes does not matter.
        let missing = table.missing_fp8([half, fp8(24), fp8(32), fp8(64)].into_iter());
        assert_eq!(missing.as_deref(), Some("64 to 128 with 24, 32 rows"));
        assert_eq!(table.missing_fp8([half].into_iter()), None);
    }

    #[test]
    fn the_fastest_is_chosen_and_the_first_of_those_that_are_as_fast() {
        assert_eq!(choose(&[Some(2.0), Some(1.0), None, Some(1.5)]), Some(1));
        assert_eq!(choose(&[Some(1.019), Some(1.0)]), Some(0));
        assert_eq!(choose(&[Some(1.03), None, Some(1.01), Some(1.0)]), Some(2));
        assert_eq!(choose(&[Some(f64::NAN), Some(0.0), Some(3.0)]), Some(2), "a time that cannot be is none");
        assert_eq!((choose(&[None, None]), choose(&[])), (None, None));
    }

    #[test]
    fn only_products_with_weights_have_a_shape() {
        // SAFETY: never read.
        let halves = || DeviceMatrix::new(unsafe { DeviceSlice::new(0, 1 << 20) }, 64);
        // SAFETY: never read.
        let single = || DeviceMatrix::new(unsafe { DeviceSlice::new(0, 1 << 20) }, 64);
        let product = |operands, target| MatMul { operands, target, rows: 3, inner: 64, columns: 128, scale: 1.0 };
        let weights = MatMulOperands::Half(halves(), halves().transpose());
        let of = |target| MatMulShape::of(&product(weights, target));
        assert_eq!(of(MatMulTarget::Half(halves())), Some(shape(3, 128, OutputKind::Half)));
        assert_eq!(of(MatMulTarget::Single(single())), Some(shape(3, 128, OutputKind::Single)));
        assert_eq!(of(MatMulTarget::Sum(single())), Some(shape(3, 128, OutputKind::Sum)));
        // SAFETY: never read.
        let values = DeviceMatrix::new(unsafe { DeviceSlice::new(0, 1 << 20) }, 64);
        let fp8 = |values| Fp8Matrix { values, scales: single().values };
        let operands = MatMulOperands::Fp8(fp8(values), fp8(values.transpose()));
        let of_fp8 = MatMulShape::of(&product(operands, MatMulTarget::Sum(single())));
        assert_eq!(of_fp8, Some(MatMulShape { operands: OperandFormat::Fp8, ..shape(3, 128, OutputKind::Sum) }));
        for operands in [
            MatMulOperands::Half(halves(), halves()),
            MatMulOperands::Half(halves().transpose(), halves().transpose()),
            MatMulOperands::Single(single(), single().transpose()),
        ] {
            assert_eq!(MatMulShape::of(&product(operands, MatMulTarget::Single(single()))), None);
        }
    }
}
