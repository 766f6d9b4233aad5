//! LoRA with adapters of several ranks in one batch.

use half::bf16;

use super::bench::CheckBench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::cuda::kernel::reference::{self, ReferenceAdapter};
use crate::cuda::kernel::{
    CudaKernel, DeviceSlice, LoraExpand, LoraFactors, LoraOut, LoraShrink, NONE, RowIndex, lora_tiles,
};

/// Random adapters at one site.
struct LoraSite {
    inn: usize,
    /// End column of each projection.
    ends: [usize; 3],
    /// Factors per adapter and projection. `None` when the adapter does not modify the projection.
    adapters: Vec<[Option<ReferenceAdapter>; 3]>,
    factors: Vec<LoraFactors>,
}

impl LoraSite {
    /// Creates adapters of these ranks; the first one lacks the middle projection, and the second does not modify the
    /// site.
    fn new(bench: &mut CheckBench<'_>, inn: usize, outs: [usize; 3], ranks: &[usize]) -> Result<Self, CheckError> {
        let ends = [outs[0], outs[0] + outs[1], outs[0] + outs[1] + outs[2]];
        let mut site = Self { inn, ends, adapters: Vec::new(), factors: Vec::new() };
        for (index, &rank) in ranks.iter().enumerate() {
            let has = |projection: usize| outs[projection] > 0 && index != 1 && !(index == 0 && projection == 1);
            site.add(bench, outs, rank, &has)?;
        }
        Ok(site)
    }

    fn add(
        &mut self,
        bench: &mut CheckBench<'_>,
        outs: [usize; 3],
        rank: usize,
        has: &dyn Fn(usize) -> bool,
    ) -> Result<(), CheckError> {
        let padded = rank.next_multiple_of(16);
        let mut factors = LoraFactors { rank: padded as u32, ..LoraFactors::default() };
        let mut adapters = [None, None, None];
        let mut stack = Vec::new();
        for projection in (0..3).filter(|&projection| has(projection)) {
            let a = bench.random.halves(rank * self.inn, 1.0 / (self.inn as f64).sqrt());
            let b = bench.random.halves(outs[projection] * rank, 0.5);
            factors.first[projection] = (stack.len() / self.inn) as u32;
            stack.extend_from_slice(&a);
            stack.resize(stack.len() + (padded - rank) * self.inn, bf16::ZERO);
            let row = |b: &[bf16]| [b.to_vec(), vec![bf16::ZERO; padded - rank]].concat();
            factors.b[projection] = bench.put(&b.chunks_exact(rank).flat_map(row).collect::<Vec<_>>())?.address();
            let rows = |values: &[bf16], len: usize| values.chunks_exact(len).map(wide).collect();
            adapters[projection] = Some(ReferenceAdapter { a: rows(&a, self.inn), b: rows(&b, rank) });
        }
        if !stack.is_empty() {
            factors.a = bench.put(&stack)?.address();
            factors.stacked = (stack.len() / self.inn) as u32;
        }
        self.factors.push(factors);
        self.adapters.push(adapters);
        Ok(())
    }

    /// Returns `y` plus the adapters' contributions.
    fn wanted(&self, named: &[u32], x: &[bf16], y: &[f64]) -> Vec<f64> {
        let mut wanted = y.to_vec();
        for (token, &adapter) in named.iter().enumerate().filter(|&(_, &adapter)| adapter != NONE) {
            let x = wide(&x[token * self.inn..][..self.inn]);
            for (projection, adapter) in self.adapters[adapter as usize].iter().enumerate() {
                let Some(adapter) = adapter else { continue };
                let begin = if projection == 0 { 0 } else { self.ends[projection - 1] };
                let row = &mut wanted[token * self.ends[2] + begin..];
                row.iter_mut().zip(reference::lora(adapter, &x)).for_each(|(y, more)| *y += more);
            }
        }
        wanted
    }
}

pub(super) fn check(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for (inn, outs, tokens) in
        [(48, [16, 16, 16], 5), (576, [576, 192, 192], 70), (352, [160, 160, 0], 33), (1536, [576, 0, 0], 1)]
    {
        let site = LoraSite::new(bench, inn, outs, &[8, 16, 16, 40, 64])?;
        let mut named: Vec<u32> = (0..tokens).map(|_| bench.random.below(6) as u32).collect();
        named.iter_mut().for_each(|name| *name = if *name == 5 { NONE } else { *name });
        // The third adapter always takes part, with more than one tile if there are enough tokens.
        named[..tokens.min(20)].fill(2);
        apply(bench, &site, &named)?;
        bench.clear()?;
    }
    Ok(())
}

fn apply(bench: &mut CheckBench<'_>, site: &LoraSite, named: &[u32]) -> Result<(), CheckError> {
    let tokens = named.len();
    let width = site.ends[2];
    let x = bench.random.halves(tokens * site.inn, 1.0);
    let start = bench.random.halves(tokens * width, 1.0);
    let (mut tiles, order) = lora_tiles(named);
    // A padding tile, as in a step padded to a bucket size.
    tiles.push(crate::cuda::kernel::LoraTile { adapter: NONE, first: NONE, count: NONE });
    let count = tiles.len() as u32;
    let stride = site.factors.iter().map(|factors| factors.stacked).max().unwrap_or(16);
    let factors = bench.put(&site.factors)?;
    let tiles = bench.put(&tiles)?;
    let order = RowIndex { rows: bench.put(&order)?, bound: tokens };
    let small = bench.poisoned::<f32>(tokens * stride as usize)?;
    LoraShrink { factors, tiles, order, x: bench.put(&x)?, small, stride, count, inn: site.inn as u32 }
        .launch(&bench.device)?;
    let case = format!("{tokens} tokens, {} → {:?}", site.inn, site.ends);
    shrunk(bench, site, named, &x, &small, &case)?;
    let ends = site.ends.map(|end| end as u32);
    let wanted = site.wanted(named, &x, &wide(&start));
    let halves = bench.put(&start)?;
    LoraExpand { factors, tiles, order, small, stride, y: LoraOut::Activation(halves), count, ends }
        .launch(&bench.device)?;
    let found = wide(&bench.get(&halves)?);
    bench.compare(CudaKernel::LoraExpand, &case, &found, &wanted, BF16);
    let floats = bench.put(&start.iter().map(|value| value.to_f32()).collect::<Vec<_>>())?;
    LoraExpand { factors, tiles, order, small, stride, y: LoraOut::Stream(floats), count, ends }
        .launch(&bench.device)?;
    let found = wide32(&bench.get(&floats)?);
    // The stream is f32, but the added values come from bf16 factors.
    bench.compare(CudaKernel::LoraExpandStream, &case, &found, &wanted, BF16);
    Ok(())
}

/// Compares `A · x`.
fn shrunk(
    bench: &mut CheckBench<'_>,
    site: &LoraSite,
    named: &[u32],
    x: &[bf16],
    small: &DeviceSlice<f32>,
    case: &str,
) -> Result<(), CheckError> {
    let values = bench.get(small)?;
    let stride = values.len() / named.len();
    let mut found = Vec::new();
    let mut wanted = Vec::new();
    for (token, &name) in named.iter().enumerate().filter(|&(_, &name)| name != NONE) {
        let x = wide(&x[token * site.inn..][..site.inn]);
        for (projection, adapter) in site.adapters[name as usize].iter().enumerate() {
            let Some(adapter) = adapter else { continue };
            let first = site.factors[name as usize].first[projection] as usize;
            found.extend(wide32(&values[token * stride + first..][..adapter.a.len()]));
            wanted.extend(adapter.a.iter().map(|row| row.iter().zip(&x).map(|(a, x)| a * x).sum::<f64>()));
        }
    }
    bench.compare(CudaKernel::LoraShrink, case, &found, &wanted, F32);
    Ok(())
}
