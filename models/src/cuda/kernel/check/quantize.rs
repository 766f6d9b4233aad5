//! Rounding of activations to `e4m3`.

use half::bf16;

use super::CheckError;
use super::bench::CheckBench;
use super::random::wide;
use crate::cuda::kernel::{CudaKernel, QuantizeFp8, fp8, reference};

/// Largest values of rows: below and above what fills the range, below any normal scale, subnormal, and huge.
const SIZES: [f32; 8] = [448.0, 450.0, 1.0, 0.02, 1e-36, 1e-39, 3e38, 0.0];

pub(super) fn check(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    // Fewer values than threads, and more than a block reads at a time.
    for inner in [16, 48, 1040, 9232] {
        let mut input = Vec::new();
        for size in SIZES {
            let row = bench.random.floats(inner, 1.0);
            let most = row.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            input.extend(row.iter().map(|x| bf16::from_f32(x / most * size)));
        }
        rows(bench, &input, inner)?;
        bench.clear()?;
        not_finite(bench, &input, inner)?;
        bench.clear()?;
    }
    Ok(())
}

/// Rounds rows, and returns their values and scales.
fn quantize(bench: &CheckBench<'_>, input: &[bf16], inner: usize) -> Result<(Vec<f64>, Vec<f32>), CheckError> {
    let rows = input.len() / inner;
    let values = bench.poisoned::<u8>(input.len())?;
    let scales = bench.poisoned::<f32>(rows)?;
    QuantizeFp8 { x: bench.put(input)?, values, scales, rows, inner }.launch(&bench.device)?;
    let bytes = bench.get(&values)?;
    let scales = bench.get(&scales)?;
    let value = |i: usize| f64::from(fp8::decode(bytes[i / inner * inner + fp8::byte_of(i % inner)]));
    Ok(((0..bytes.len()).map(|i| value(i) * f64::from(scales[i / inner])).collect(), scales))
}

/// Rounds finite rows, which must be exact.
fn rows(bench: &mut CheckBench<'_>, input: &[bf16], inner: usize) -> Result<(), CheckError> {
    let (found, scales) = quantize(bench, input, inner)?;
    let rows: Vec<_> = input.chunks_exact(inner).map(|row| reference::quantize(&wide(row))).collect();
    let name = format!("{} × {inner}", rows.len());
    for (index, ((wanted, _), found)) in rows.iter().zip(found.chunks_exact(inner)).enumerate() {
        bench.compare(CudaKernel::QuantizeFp8, &format!("{name}, row {index}"), found, wanted, f64::MIN_POSITIVE);
    }
    let same = scales.iter().zip(&rows).all(|(found, (_, wanted))| f64::from(*found) == *wanted);
    bench.demand(CudaKernel::QuantizeFp8, &format!("{name}: scales"), same);
    Ok(())
}

/// Requires rows with a value that is not finite to have NaN as their scale, and the others to be as before.
fn not_finite(bench: &mut CheckBench<'_>, input: &[bf16], inner: usize) -> Result<(), CheckError> {
    let mut broken = input.to_vec();
    for (row, value) in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY].into_iter().enumerate() {
        broken[row * inner + (row * 7 + inner - 9) % inner] = value;
    }
    let (_, before) = quantize(bench, input, inner)?;
    let (_, scales) = quantize(bench, &broken, inner)?;
    let holds = scales[..3].iter().all(|scale| scale.is_nan()) && scales[3..] == before[3..];
    bench.demand(CudaKernel::QuantizeFp8, &format!("rows of {inner} that are not finite"), holds);
    Ok(())
}
