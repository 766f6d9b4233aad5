//! Conversions between `bf16` and `f32`.

use half::bf16;

use super::bench::CheckBench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::cuda::kernel::{CudaKernel, NarrowToBf16, WidenToF32};

pub(super) fn check(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for count in [8, 2040, 4104] {
        let halves = bench.random.halves(count, 1.0);
        let floats = bench.random.floats(count, 1e-4);
        let to = bench.poisoned::<f32>(count)?;
        WidenToF32 { from: bench.put(&halves)?, to, count }.launch(&bench.device)?;
        let found = wide32(&bench.get(&to)?);
        bench.compare(CudaKernel::WidenToF32, &format!("{count} values"), &found, &wide(&halves), F32);
        let to = bench.poisoned::<bf16>(count)?;
        NarrowToBf16 { from: bench.put(&floats)?, to, count }.launch(&bench.device)?;
        let found = wide(&bench.get(&to)?);
        bench.compare(CudaKernel::NarrowToBf16, &format!("{count} values"), &found, &wide32(&floats), BF16);
        bench.clear()?;
    }
    Ok(())
}
