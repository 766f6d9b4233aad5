//! Between `bf16` and `f32`.

use half::bf16;

use super::bench::Bench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::cuda::kernel::{Kernel, Narrow, Widen};

pub(super) fn check(bench: &mut Bench<'_>) -> Result<(), CheckError> {
    for count in [8, 2040, 4104] {
        let (halves, floats) = (bench.random.halves(count, 1.0), bench.random.floats(count, 1e-4));
        let to = bench.poisoned::<f32>(count)?;
        Widen { from: bench.put(&halves)?, to, count }.launch(&bench.card)?;
        let found = wide32(&bench.get(&to)?);
        bench.compare(Kernel::Widen, &format!("{count} values"), &found, &wide(&halves), F32);
        let to = bench.poisoned::<bf16>(count)?;
        Narrow { from: bench.put(&floats)?, to, count }.launch(&bench.card)?;
        let found = wide(&bench.get(&to)?);
        bench.compare(Kernel::Narrow, &format!("{count} values"), &found, &wide32(&floats), BF16);
        bench.clear()?;
    }
    Ok(())
}
