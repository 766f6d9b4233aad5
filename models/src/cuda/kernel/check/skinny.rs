//! Matrix multiplication of few rows.

use half::bf16;

use super::bench::CheckBench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::cuda::kernel::{CudaKernel, DeviceSlice, SiluMul, SkinnyMatMul, SkinnyTarget, reference};

/// Numbers of rows, terms and columns: one to sixteen rows and more, terms that end within a step, columns that end
/// within a block.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 16, 1), (3, 48, 61), (8, 576, 40), (9, 1040, 16), (16, 1536, 33), (37, 96, 24)];

pub(super) fn check(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for (rows, inner, columns) in SHAPES {
        let x = bench.random.halves(rows * inner, 1.0);
        let weights = bench.random.halves(columns * inner, 1.0 / (inner as f64).sqrt());
        let start = bench.random.floats(rows * columns, 1.0);
        let sums: Vec<f64> = x.chunks_exact(inner).flat_map(|x| reference::matmul(&wide(x), &wide(&weights))).collect();
        let name = format!("{rows} × {inner} → {columns}");
        let kernel = CudaKernel::SkinnyMatMul;
        let x = bench.put(&x)?;
        let weights = bench.put(&weights)?;
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
        alone(bench, &to(SkinnyTarget::Single(single)), &together, &name)?;
        bench.clear()?;
    }
    Ok(())
}

/// Requires each row to have the same bits as in a product of its own.
fn alone(bench: &mut CheckBench<'_>, product: &SkinnyMatMul, together: &[f32], name: &str) -> Result<(), CheckError> {
    let SkinnyMatMul { x, inner, columns, .. } = *product;
    let mut same = true;
    for (row, together) in together.chunks_exact(columns).enumerate() {
        let out = bench.poisoned::<f32>(columns)?;
        let x = x.slice(row * inner, inner).unwrap_or(x);
        SkinnyMatMul { x, target: SkinnyTarget::Single(out), rows: 1, ..*product }.launch(&bench.device)?;
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        same &= bits(&bench.get(&out)?) == bits(together);
    }
    bench.demand(CudaKernel::SkinnyMatMul, &format!("{name}: rows as alone"), same);
    Ok(())
}

pub(super) fn silu_mul(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for (rows, inner, columns) in [(1, 64, 16), (4, 576, 40), (16, 80, 104), (33, 32, 8)] {
        let input = bench.random.halves(rows * inner, 1.0);
        let matrix = bench.random.halves(2 * columns * inner, 2.0 / (inner as f64).sqrt());
        let row = |x: &[bf16]| {
            let both = reference::matmul(&wide(x), &wide(&matrix));
            reference::silu_mul(&both[..columns], &both[columns..])
        };
        let wanted: Vec<f64> = input.chunks_exact(inner).flat_map(row).collect();
        let x = bench.put(&input)?;
        let weights = bench.put(&matrix)?;
        let out = bench.poisoned::<bf16>(rows * columns)?;
        let product = SkinnyMatMul { x, weights, target: SkinnyTarget::SiluMul(out), rows, inner, columns };
        product.launch(&bench.device)?;
        let fused = bench.get(&out)?;
        let name = format!("{rows} × {inner} → {columns}");
        bench.compare(CudaKernel::SkinnySiluMul, &name, &wide(&fused), &wanted, BF16);
        let apart = apart(bench, &product)?;
        bench.demand(CudaKernel::SkinnySiluMul, &format!("{name}: as in two kernels"), fused == apart);
        bench.clear()?;
    }
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
