//! Checks at sizes of real use, which only a GPU computes in reasonable time.

use half::bf16;

use super::attention::{AttentionCase, compare_decode, compare_prefill};
use super::bench::CheckBench;
use super::random::wide;
use super::{BF16, CheckDevice, CheckError, KernelFinding, rotary, sample};
use crate::batch::BLOCK;
use crate::cuda::kernel::reference::{self, ReferenceSequence};
use crate::cuda::kernel::{AttendDecode, BatchBounds, BatchView, CudaKernel, DeviceSlice, layout};

/// Heads of the attention stress: Qwen2.5-3B's.
const HEADS: usize = 16;
const KV_HEADS: usize = 2;

/// Multiprocessors of the GPU that the attention stress chooses its splits for.
const MULTIPROCESSORS: u32 = 132;

/// Number of launches between two waits.
const QUEUED: usize = 10;

/// Number of random values that long caches repeat.
const POOL: usize = 1 << 20;

/// A check at the size of real use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StressCheck {
    /// Decode attention over split contexts, launched over and over: all outputs must be equal, bit by bit. Half of the
    /// launches use as many splits as a step would, the others the maximum.
    Attention {
        /// Number of rows.
        rows: usize,
        /// Cached tokens of the longest row.
        context: usize,
        /// Number of launches.
        launches: usize,
    },
    /// Attention over, and writes into, one layer's cache of a given size, with blocks from its first to its last. All
    /// unused blocks are NaN.
    Cache {
        /// Bytes of the cache.
        bytes: usize,
    },
    /// Sampling.
    Sampler {
        /// Size of the vocabulary.
        vocab: usize,
    },
}

/// Runs a check on a device whose module was built for heads of width `dim`. Findings are appended immediately.
///
/// # Errors
/// The errors of [`run`](super::run).
pub fn stress(
    device: &dyn CheckDevice,
    dim: usize,
    check: StressCheck,
    seed: u64,
    findings: &mut Vec<KernelFinding>,
) -> Result<(), CheckError> {
    let mut bench = CheckBench::new(device, seed ^ dim as u64, findings);
    bench.run(|bench| match check {
        StressCheck::Attention { rows, context, launches } => attention(bench, dim, rows, context, launches),
        StressCheck::Cache { bytes } => cache(bench, dim, bytes),
        StressCheck::Sampler { vocab } => sampler(bench, vocab),
    })
}

fn attention(
    bench: &mut CheckBench<'_>,
    dim: usize,
    rows: usize,
    context: usize,
    launches: usize,
) -> Result<(), CheckError> {
    let case = LongCase::new(bench, dim, rows, context)?;
    let step = AttendDecode::splits_for(rows as u32, KV_HEADS as u32, MULTIPROCESSORS, context as u32);
    for splits in [step, 64] {
        case.repeat(bench, splits, launches.div_ceil(2))?;
    }
    Ok(())
}

/// Rows with long contexts, whose cache repeats a pool of random values.
struct LongCase {
    dim: usize,
    /// Number of cached tokens by row.
    lengths: Vec<usize>,
    queries: Vec<bf16>,
    values: Vec<bf16>,
    tables: Vec<u32>,
    batch: BatchView,
    qkv: DeviceSlice<bf16>,
    cache: DeviceSlice<bf16>,
}

impl LongCase {
    fn new(bench: &mut CheckBench<'_>, dim: usize, rows: usize, context: usize) -> Result<Self, CheckError> {
        let stride = context.div_ceil(BLOCK);
        let len = layout::block_len(KV_HEADS, dim);
        let pool = bench.random.halves(POOL, 1.0);
        let mut values = Vec::with_capacity(rows * stride * len);
        for _ in 0..rows * stride {
            let from = bench.random.below(POOL - len);
            values.extend_from_slice(&pool[from..from + len]);
        }
        let tables = bench.random.order(rows * stride);
        let queries = bench.random.halves(rows * (HEADS + 2 * KV_HEADS) * dim, 1.5);
        // Rows of several lengths have different numbers of parts.
        let lengths: Vec<usize> = (0..rows).map(|row| (context - row * 37 % context).max(1)).collect();
        let none = bench.put(&[0u32])?;
        let batch = BatchView {
            tokens: none,
            positions: none,
            rows: none,
            first: bench.put(&(0..rows as u32).collect::<Vec<_>>())?,
            context: bench.put(&lengths.iter().map(|&len| len as u32).collect::<Vec<_>>())?,
            tables: bench.put(&tables)?,
            stride: stride as u32,
            bounds: BatchBounds { rows, tokens: rows, positions: context, blocks: rows * stride },
        };
        let qkv = bench.put(&queries)?;
        let cache = bench.put(&values)?;
        Ok(Self { dim, lengths, queries, values, tables, batch, qkv, cache })
    }

    /// Launches attention `launches` times and compares all outputs with the first one, and the first one with the
    /// reference.
    fn repeat(&self, bench: &mut CheckBench<'_>, splits: u32, launches: usize) -> Result<(), CheckError> {
        let rows = self.lengths.len();
        let arrived = bench.put(&vec![0u32; rows * KV_HEADS])?;
        let size = AttendDecode::workspace(rows as u32, splits, HEADS as u32, self.dim as u32);
        let workspace = bench.poisoned::<f32>(size)?;
        let blank = vec![bf16::NAN; rows * HEADS * self.dim];
        let outs: Vec<_> =
            (0..QUEUED.min(launches)).map(|_| bench.poisoned::<bf16>(blank.len())).collect::<Result<_, _>>()?;
        let mut first: Option<Vec<bf16>> = None;
        let mut different = 0;
        let mut left = launches;
        // Without waits in between, a launch starts while the last blocks of the previous one may still run.
        bench.device.set_waits(false);
        while left > 0 {
            let now = &outs[..outs.len().min(left)];
            now.iter().try_for_each(|out| bench.write(out, 0, &blank))?;
            now.iter().try_for_each(|&out| self.launch(splits, workspace, arrived, out).launch(&bench.device))?;
            for out in now {
                let found = bench.get(out)?;
                let wanted = first.get_or_insert_with(|| found.clone());
                different += usize::from(!found.iter().zip(wanted).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
            left -= now.len();
        }
        bench.device.set_waits(true);
        let kernel = CudaKernel::AttendDecode;
        let longest = self.lengths.iter().max().copied().unwrap_or_default();
        let name = format!("{launches} launches of {rows} rows, up to {longest} tokens, {splits} parts");
        bench.note(
            kernel,
            &format!("{name}: outputs unlike the first"),
            different as f64 / launches as f64,
            f64::MIN_POSITIVE,
        );
        let zero = bench.get(&arrived)?.iter().all(|&count| count == 0);
        bench.demand(kernel, &format!("{name}: counters"), zero);
        let found = wide(&first.unwrap_or_default());
        for row in [0, rows - 1] {
            let width = HEADS * self.dim;
            let out = found.get(row * width..(row + 1) * width).unwrap_or_default();
            bench.compare(kernel, &format!("{name}: row {row}"), out, &self.wanted(row), BF16);
        }
        Ok(())
    }

    fn launch(
        &self,
        splits: u32,
        workspace: DeviceSlice<f32>,
        arrived: DeviceSlice<u32>,
        out: DeviceSlice<bf16>,
    ) -> AttendDecode {
        AttendDecode {
            batch: self.batch,
            qkv: self.qkv,
            stride: ((HEADS + 2 * KV_HEADS) * self.dim) as u32,
            cache: self.cache,
            workspace,
            arrived,
            out,
            rows: self.lengths.len() as u32,
            splits,
            heads: HEADS as u32,
            kv_heads: KV_HEADS as u32,
            dim: self.dim as u32,
        }
    }

    /// Computes the output of a row.
    fn wanted(&self, row: usize) -> Vec<f64> {
        let dim = self.dim;
        let stride = self.batch.stride as usize;
        let table = &self.tables[row * stride..][..stride];
        let mut sequences = vec![ReferenceSequence::default(); KV_HEADS];
        for position in 0..self.lengths[row] {
            for (head, sequence) in sequences.iter_mut().enumerate() {
                let share = (table[position / BLOCK] as usize * KV_HEADS + head) * 2 * BLOCK * dim;
                let read = |place: fn(usize, usize, usize) -> usize| {
                    (0..dim).map(|at| self.values[share + place(position % BLOCK, at, dim)].to_f64()).collect()
                };
                sequence.keys.push(read(layout::key));
                sequence.values.push(read(layout::value));
            }
        }
        let first = row * (HEADS + 2 * KV_HEADS) * dim;
        let head = |head: usize| {
            let query = wide(&self.queries[first + head * dim..][..dim]);
            reference::attend(&query, &sequences[head / (HEADS / KV_HEADS)], self.lengths[row] - 1)
        };
        (0..HEADS).flat_map(head).collect()
    }
}

fn cache(bench: &mut CheckBench<'_>, dim: usize, bytes: usize) -> Result<(), CheckError> {
    let about = format!(", a cache of {:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    rotary::large_cache(bench, dim, bytes, &about)?;
    bench.clear()?;
    let decode = AttentionCase::new(bench, &[(700, 1), (127, 1), (15, 1)], dim, 16, 8)?.spread(bench, bytes)?;
    compare_decode(bench, &decode, 3, &about)?;
    bench.clear()?;
    let prefill = AttentionCase::new(bench, &[(600, 9), (0, 70)], dim, 16, 8)?.spread(bench, bytes)?;
    compare_prefill(bench, &prefill, &about)
}

fn sampler(bench: &mut CheckBench<'_>, vocab: usize) -> Result<(), CheckError> {
    // Flat logits, whose candidates exceed the list in shared memory; logits like a model's; coarse ones with ties.
    for (deviation, step) in [(0.05, 0.0), (3.0, 0.0), (1.0, 0.25)] {
        sample::check_vocabulary(bench, vocab, deviation, step, &sample::SETTINGS)?;
    }
    Ok(())
}
