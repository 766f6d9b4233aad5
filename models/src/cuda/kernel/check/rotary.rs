//! Biases, norms per head, rotation, and KV cache writes.

use half::bf16;

use super::bench::CheckBench;
use super::random::{wide, wide32};
use super::{BF16, CheckError};
use crate::batch::BLOCK;
use crate::cuda::kernel::{BatchBounds, BatchView, CudaKernel, NONE, Rotary, RotaryBackward, layout, reference};

const EPS: f32 = 1e-6;

/// Number of blocks that the rows may use.
const BLOCKS: usize = 9;

/// Inputs of the kernel for one step.
struct RotaryCase {
    dim: usize,
    heads: usize,
    kv_heads: usize,
    bias: Option<Vec<f32>>,
    norms: Option<[Vec<f32>; 2]>,
    table: Vec<f32>,
    qkv: Vec<bf16>,
    rows: Vec<u32>,
    positions: Vec<u32>,
}

impl RotaryCase {
    /// Returns the expected output of one head of a token.
    fn head(&self, token: usize, head: usize) -> Vec<f64> {
        let dim = self.dim;
        let all = self.heads + 2 * self.kv_heads;
        let mut x = wide(&self.qkv[(token * all + head) * dim..][..dim]);
        if let Some(bias) = &self.bias {
            x.iter_mut().zip(&bias[head * dim..]).for_each(|(x, &bias)| *x += f64::from(bias));
        }
        if head >= self.heads + self.kv_heads {
            return x;
        }
        if let Some(norms) = &self.norms {
            x = reference::rms_norm(&x, &wide32(&norms[usize::from(head >= self.heads)]), f64::from(EPS));
        }
        let angles = wide32(&self.table[self.positions[token] as usize * dim..][..dim]);
        let (cos, sin) = angles.split_at(dim / 2);
        reference::rotate(&x, cos, sin)
    }

    /// Returns the expected gradient of one head of a token's projection, from the gradient of the output.
    fn slope(&self, token: usize, head: usize, gradient: &[bf16]) -> Vec<f64> {
        let dim = self.dim;
        let all = self.heads + 2 * self.kv_heads;
        let at = (token * all + head) * dim;
        let d = wide(&gradient[at..][..dim]);
        if head >= self.heads + self.kv_heads || self.rows[token] == NONE {
            return d;
        }
        let angles = wide32(&self.table[self.positions[token] as usize * dim..][..dim]);
        let (cos, sin) = angles.split_at(dim / 2);
        let d = reference::rotate_back(&d, cos, sin);
        let Some(norms) = &self.norms else { return d };
        let mut x = wide(&self.qkv[at..][..dim]);
        if let Some(bias) = &self.bias {
            x.iter_mut().zip(&bias[head * dim..]).for_each(|(x, &bias)| *x += f64::from(bias));
        }
        let weight = wide32(&norms[usize::from(head >= self.heads)]);
        reference::rms_norm_backward(&x, &weight, &d, f64::from(EPS))
    }
}

pub(super) fn check(bench: &mut CheckBench<'_>, dim: usize) -> Result<(), CheckError> {
    for (heads, kv_heads, biased, normed) in [(9, 3, false, false), (7, 1, true, false), (4, 2, true, true)] {
        let case = case(bench, dim, (heads, kv_heads), biased, normed);
        let name = format!("{heads} over {kv_heads} of {dim}, bias {biased}, norm {normed}");
        compare(bench, &case, &name, 1)?;
        backwards(bench, &case, &name)?;
        bench.clear()?;
    }
    Ok(())
}

/// Checks writes into one layer's cache of at least `bytes` bytes.
pub(super) fn large_cache(bench: &mut CheckBench<'_>, dim: usize, bytes: usize, about: &str) -> Result<(), CheckError> {
    let heads = 16;
    let kv_heads = 8;
    let case = case(bench, dim, (heads, kv_heads), false, false);
    let part = bytes.div_ceil(BLOCKS * layout::block_len(kv_heads, dim) * size_of::<bf16>()).max(2);
    compare(bench, &case, &format!("{heads} over {kv_heads} of {dim}{about}"), part)
}

/// Creates two rows, one new and one continuing in the middle of a block, with padding in between.
fn case(
    bench: &mut CheckBench<'_>,
    dim: usize,
    (heads, kv_heads): (usize, usize),
    biased: bool,
    normed: bool,
) -> RotaryCase {
    let random = &mut bench.random;
    let width = (heads + 2 * kv_heads) * dim;
    let rows: Vec<u32> = [vec![1; 17], vec![NONE; 2], vec![0; 6]].concat();
    let positions: Vec<u32> = (0..17).chain([0, 0]).chain(29..35).collect();
    let angles: Vec<f64> = (0..64 * dim / 2).map(|_| random.unit() * 6.3).collect();
    let turn = |angles: &[f64]| {
        [angles.iter().map(|a| a.cos() as f32).collect(), angles.iter().map(|a| a.sin() as f32).collect::<Vec<f32>>()]
            .concat()
    };
    RotaryCase {
        dim,
        heads,
        kv_heads,
        bias: biased.then(|| random.floats(width, 1.0)),
        norms: normed.then(|| [random.floats(dim, 1.0), random.floats(dim, 1.0)]),
        table: angles.chunks_exact(dim / 2).flat_map(turn).collect(),
        qkv: random.halves(rows.len() * width, 1.0),
        rows,
        positions,
    }
}

/// Queries, keys and values after the kernel, and the cache that it leaves.
struct ExpectedRotary {
    /// `[token][head][dim]`, in the place of the projections.
    qkv: Vec<f64>,
    /// Elements of [`BLOCKS`] blocks. `None` for those that no token is written to.
    stored: Vec<Option<f64>>,
}

/// Width of the rows of block tables.
const STRIDE: usize = 4;

impl ExpectedRotary {
    /// Computes the result of a case whose rows have the blocks of `tables`, [`STRIDE`] each.
    fn of(case: &RotaryCase, tables: &[u32]) -> Self {
        let RotaryCase { dim, heads, kv_heads, .. } = *case;
        let all = heads + 2 * kv_heads;
        let mut qkv = wide(&case.qkv);
        let mut stored: Vec<Option<f64>> = vec![None; BLOCKS * layout::block_len(kv_heads, dim)];
        for token in (0..case.rows.len()).filter(|&token| case.rows[token] != NONE) {
            for head in 0..all {
                let x = case.head(token, head);
                if head < heads {
                    qkv[(token * all + head) * dim..][..dim].copy_from_slice(&x);
                    continue;
                }
                let kv = (head - heads) % kv_heads;
                let is_value = head >= heads + kv_heads;
                let position = case.positions[token] as usize;
                let block = tables[case.rows[token] as usize * STRIDE + position / BLOCK] as usize;
                let share = (block * kv_heads + kv) * 2 * BLOCK * dim;
                for (at, x) in x.into_iter().enumerate() {
                    let place = if is_value { layout::value } else { layout::key };
                    stored[share + place(position % BLOCK, at, dim)] = Some(x);
                }
            }
        }
        Self { qkv, stored }
    }
}

/// Compares a launch over a cache of [`BLOCKS`] parts of `part` blocks each, of which only the last block is used.
fn compare(bench: &mut CheckBench<'_>, case: &RotaryCase, name: &str, part: usize) -> Result<(), CheckError> {
    let RotaryCase { dim, heads, kv_heads, .. } = *case;
    let count = case.rows.len();
    let order = bench.random.order(BLOCKS);
    let tables = &order[..2 * STRIDE];
    let places: Vec<u32> = tables.iter().map(|block| (*block + 1) * part as u32 - 1).collect();
    let none = bench.put(&[0u32])?;
    let batch = BatchView {
        tokens: none,
        positions: bench.put(&case.positions)?,
        rows: bench.put(&case.rows)?,
        first: none,
        context: none,
        tables: bench.put(&places)?,
        stride: STRIDE as u32,
        bounds: BatchBounds { rows: 2, tokens: count, positions: 64, blocks: BLOCKS * part },
    };
    let len = layout::block_len(kv_heads, dim);
    let cache = bench.reserved::<bf16>(BLOCKS * part * len)?;
    let qkv = bench.put(&case.qkv)?;
    let norms = case.norms.as_ref().map(|[q, k]| Ok::<_, CheckError>([bench.put(q)?, bench.put(k)?]));
    let head_norms = norms.transpose()?;
    Rotary {
        batch,
        qkv,
        bias: case.bias.as_ref().map(|bias| bench.put(bias)).transpose()?,
        head_norms,
        table: bench.put(&case.table)?,
        cache,
        count: count as u32,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: dim as u32,
        eps: EPS,
    }
    .launch(&bench.device)?;

    let expected = ExpectedRotary::of(case, tables);
    let found = wide(&bench.get(&qkv)?);
    bench.compare(CudaKernel::Rotary, &format!("{name}: queries"), &found, &expected.qkv, BF16);
    let mut found = Vec::new();
    if part == 1 {
        found = bench.get(&cache)?;
    } else {
        // A block that is followed by an unused one, which is a guard.
        for block in (0..BLOCKS).filter_map(|block| cache.slice(((block + 1) * part - 1) * len, len)) {
            found.extend(bench.get(&block)?);
        }
    }
    compare_cache(bench, name, &found, &expected.stored);
    Ok(())
}

/// Compares the elements of the cache that were to be written, and demands that the others are as they were.
fn compare_cache(bench: &mut CheckBench<'_>, name: &str, found: &[bf16], stored: &[Option<f64>]) {
    let mut written = Vec::new();
    let mut wanted = Vec::new();
    for (found, stored) in found.iter().zip(stored) {
        if let Some(stored) = stored {
            written.push(found.to_f64());
            wanted.push(*stored);
        }
    }
    bench.compare(CudaKernel::Rotary, &format!("{name}: cache"), &written, &wanted, BF16);
    let untouched = found.iter().zip(stored).all(|(found, stored)| stored.is_some() || found.to_bits() == 0xffff);
    bench.demand(CudaKernel::Rotary, &format!("{name}: the rest of the cache"), untouched);
}

fn backwards(bench: &mut CheckBench<'_>, case: &RotaryCase, name: &str) -> Result<(), CheckError> {
    let dim = case.dim;
    let heads = case.heads;
    let kv_heads = case.kv_heads;
    let count = case.rows.len();
    let none = bench.put(&[0u32])?;
    let positions = bench.put(&case.positions)?;
    let rows = bench.put(&case.rows)?;
    let bounds = BatchBounds { rows: 2, tokens: count, positions: 64, blocks: 0 };
    let batch =
        BatchView { tokens: none, positions, rows, first: none, context: none, tables: none, stride: 1, bounds };
    let bias = case.bias.as_ref().map(|bias| bench.put(bias)).transpose()?;
    let norms = case.norms.as_ref().map(|[q, k]| Ok::<_, CheckError>([bench.put(q)?, bench.put(k)?]));
    let start = bench.random.halves(case.qkv.len(), 1.0);
    let gradient = bench.put(&start)?;
    RotaryBackward {
        batch,
        raw: bench.put(&case.qkv)?,
        bias,
        head_norms: norms.transpose()?,
        table: bench.put(&case.table)?,
        gradient,
        count: count as u32,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: dim as u32,
        eps: EPS,
    }
    .launch(&bench.device)?;
    let heads = (0..count).flat_map(|token| (0..heads + 2 * kv_heads).map(move |head| (token, head)));
    let wanted: Vec<f64> = heads.flat_map(|(token, head)| case.slope(token, head, &start)).collect();
    let found = wide(&bench.get(&gradient)?);
    bench.compare(CudaKernel::RotaryBackward, name, &found, &wanted, BF16);
    Ok(())
}
