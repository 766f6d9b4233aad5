//! Matrix multiplication of few rows.

use half::bf16;

use super::bench::CheckBench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::cuda::kernel::{
    CudaKernel, DequantizeFp8, DeviceSlice, SiluMul, SkinnyMatMul, SkinnyTarget, SkinnyWeights, fp8, reference,
};
use crate::cuda::plan::WeightFormat;

/// Numbers of rows, terms and columns: one to sixteen rows and more, terms that end within a step, terms of several steps
/// in both formats, columns that end within a block.
const SHAPES: [(usize, usize, usize); 7] =
    [(1, 16, 1), (3, 48, 61), (8, 576, 40), (9, 1040, 16), (16, 1536, 33), (3, 2064, 33), (37, 96, 24)];

/// A random matrix in device memory, and its values.
struct CheckMatrix {
    weights: SkinnyWeights,
    values: Vec<f64>,
}

impl CheckMatrix {
    /// Creates a matrix with `rows` rows in a format.
    fn new(bench: &mut CheckBench<'_>, format: WeightFormat, rows: usize, inner: usize) -> Result<Self, CheckError> {
        let halves = bench.random.halves(rows * inner, 2.0 / (inner as f64).sqrt());
        if format == WeightFormat::Bf16 {
            return Ok(Self { weights: SkinnyWeights::Half(bench.put(&halves)?), values: wide(&halves) });
        }
        let mut bytes = vec![0; halves.len()];
        let both = halves.chunks_exact(inner).zip(bytes.chunks_exact_mut(inner));
        // Random numbers are finite, so every row has a scale.
        let scales: Vec<f32> = both.filter_map(|(row, bytes)| fp8::quantize_row(row, bytes)).collect();
        let value = |i: usize| f64::from(fp8::decode(bytes[i / inner * inner + fp8::byte_of(i % inner)]));
        let values = (0..bytes.len()).map(|i| value(i) * f64::from(scales[i / inner])).collect();
        Ok(Self { weights: SkinnyWeights::Fp8(bench.put(&bytes)?, bench.put(&scales)?), values })
    }
}

pub(super) fn check(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for format in [WeightFormat::Bf16, WeightFormat::Fp8] {
        for shape in SHAPES {
            products(bench, format, shape)?;
            bench.clear()?;
        }
    }
    Ok(())
}

/// Compares the products into each kind of target.
fn products(
    bench: &mut CheckBench<'_>,
    format: WeightFormat,
    (rows, inner, columns): (usize, usize, usize),
) -> Result<(), CheckError> {
    let kernel = match format {
        WeightFormat::Bf16 => CudaKernel::SkinnyMatMul,
        WeightFormat::Fp8 => CudaKernel::SkinnyMatMulFp8,
    };
    let input = bench.random.halves(rows * inner, 1.0);
    let start = bench.random.floats(rows * columns, 1.0);
    let CheckMatrix { weights, values } = CheckMatrix::new(bench, format, columns, inner)?;
    let sums: Vec<f64> = input.chunks_exact(inner).flat_map(|x| reference::matmul(&wide(x), &values)).collect();
    let name = format!("{rows} × {inner} → {columns}");
    let x = bench.put(&input)?;
    let to = |target| SkinnyMatMul { x, weights, target, rows, inner, columns };
    let half = bench.poisoned::<bf16>(rows * columns)?;
    to(SkinnyTarget::Half(half)).launch(&bench.device)?;
    let found = wide(&bench.get(&half)?);
    bench.compare(kernel, &format!("{name}, bf16"), &found, &sums, BF16);
    let single = bench.poisoned::<f32>(rows * columns)?;
    to(SkinnyTarget::Single(single)).launch(&bench.device)?;
    let together = bench.get(&single)?;
    bench.compare(kernel, &format!("{name}, f32"), &wide32(&together), &sums, F32);
    let sum = bench.put(&start)?;
    to(SkinnyTarget::Sum(sum)).launch(&bench.device)?;
    let wanted: Vec<f64> = sums.iter().zip(wide32(&start)).map(|(sum, start)| sum + start).collect();
    let found = wide32(&bench.get(&sum)?);
    bench.compare(kernel, &format!("{name}, added"), &found, &wanted, F32);
    alone(bench, kernel, &to(SkinnyTarget::Single(single)), &together, &name)
}

/// Requires each row to have the same bits as in a product of its own.
fn alone(
    bench: &mut CheckBench<'_>,
    kernel: CudaKernel,
    product: &SkinnyMatMul,
    together: &[f32],
    name: &str,
) -> Result<(), CheckError> {
    let SkinnyMatMul { x, inner, columns, .. } = *product;
    let mut same = true;
    for (row, together) in together.chunks_exact(columns).enumerate() {
        let out = bench.poisoned::<f32>(columns)?;
        let x = x.slice(row * inner, inner).unwrap_or(x);
        SkinnyMatMul { x, target: SkinnyTarget::Single(out), rows: 1, ..*product }.launch(&bench.device)?;
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        same &= bits(&bench.get(&out)?) == bits(together);
    }
    bench.demand(kernel, &format!("{name}: rows as alone"), same);
    Ok(())
}

/// Dequantizes a matrix, which must be exact.
pub(super) fn dequantize(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for (rows, inner) in [(1, 16), (37, 96), (5, 1040)] {
        let CheckMatrix { weights, values } = CheckMatrix::new(bench, WeightFormat::Fp8, rows, inner)?;
        let SkinnyWeights::Fp8(bytes, scales) = weights else { continue };
        let to = bench.poisoned::<bf16>(rows * inner)?;
        DequantizeFp8 { values: bytes, scales, to, rows, inner }.launch(&bench.device)?;
        let found = wide(&bench.get(&to)?);
        bench.compare(CudaKernel::DequantizeFp8, &format!("{rows} × {inner}"), &found, &values, f64::MIN_POSITIVE);
        bench.clear()?;
    }
    Ok(())
}

pub(super) fn silu_mul(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for format in [WeightFormat::Bf16, WeightFormat::Fp8] {
        for shape in [(1, 64, 16), (4, 576, 40), (16, 80, 104), (2, 1040, 24), (33, 32, 8)] {
            gated(bench, format, shape)?;
            bench.clear()?;
        }
    }
    Ok(())
}

/// Compares a product with its activation, and requires it to have the same bits as two kernels.
fn gated(
    bench: &mut CheckBench<'_>,
    format: WeightFormat,
    (rows, inner, columns): (usize, usize, usize),
) -> Result<(), CheckError> {
    let kernel = match format {
        WeightFormat::Bf16 => CudaKernel::SkinnySiluMul,
        WeightFormat::Fp8 => CudaKernel::SkinnySiluMulFp8,
    };
    let input = bench.random.halves(rows * inner, 1.0);
    let CheckMatrix { weights, values } = CheckMatrix::new(bench, format, 2 * columns, inner)?;
    let row = |x: &[bf16]| {
        let both = reference::matmul(&wide(x), &values);
        reference::silu_mul(&both[..columns], &both[columns..])
    };
    let wanted: Vec<f64> = input.chunks_exact(inner).flat_map(row).collect();
    let x = bench.put(&input)?;
    let out = bench.poisoned::<bf16>(rows * columns)?;
    let product = SkinnyMatMul { x, weights, target: SkinnyTarget::SiluMul(out), rows, inner, columns };
    product.launch(&bench.device)?;
    let fused = bench.get(&out)?;
    let name = format!("{rows} × {inner} → {columns}");
    bench.compare(kernel, &name, &wide(&fused), &wanted, BF16);
    let apart = apart(bench, &product)?;
    bench.demand(kernel, &format!("{name}: as in two kernels"), fused == apart);
    Ok(())
}

/// Computes the product and its activation by two kernels.
fn apart(bench: &CheckBench<'_>, product: &SkinnyMatMul) -> Result<Vec<bf16>, CheckError> {
    let SkinnyMatMul { rows, columns, .. } = *product;
    let gate_up: DeviceSlice<bf16> = bench.poisoned(2 * rows * columns)?;
    SkinnyMatMul { target: SkinnyTarget::Half(gate_up), columns: 2 * columns, ..*product }.launch(&bench.device)?;
    let out = bench.poisoned::<bf16>(rows * columns)?;
    SiluMul { gate_up, out, rows: rows as u32, width: columns as u32 }.launch(&bench.device)?;
    bench.get(&out)
}
