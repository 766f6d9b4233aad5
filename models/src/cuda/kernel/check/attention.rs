//! Attention over randomly ordered blocks, with NaN in all unused entries.

use half::bf16;

use super::bench::CheckBench;
use super::random::wide;
use super::{BF16, CheckError};
use crate::batch::BLOCK;
use crate::cuda::kernel::reference::{self, ReferenceSequence};
use crate::cuda::kernel::{
    AttendDecode, AttendPrefill, BatchBounds, BatchView, CudaKernel, DeviceSlice, NONE, layout, prefill_tiles,
};

/// Inputs of an attention check: rows, each as its number of cached tokens and of new ones, and the content of the
/// cache.
pub(super) struct AttentionCase {
    pub(super) rows: Vec<(usize, usize)>,
    pub(super) dim: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: Vec<bf16>,
    pub(super) sequences: Vec<Vec<ReferenceSequence>>,
    pub(super) batch: BatchView,
    pub(super) cache: DeviceSlice<bf16>,
    pub(super) qkv: DeviceSlice<bf16>,
}

impl AttentionCase {
    /// Returns the number of values per token in `qkv`.
    pub(super) fn stride(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    pub(super) fn new(
        bench: &mut CheckBench<'_>,
        rows: &[(usize, usize)],
        dim: usize,
        heads: usize,
        kv_heads: usize,
    ) -> Result<Self, CheckError> {
        let tokens: usize = rows.iter().map(|row| row.1).sum();
        let needed = |row: &(usize, usize)| (row.0 + row.1).div_ceil(BLOCK);
        let stride = rows.iter().map(needed).max().unwrap_or(1).max(1);
        let order = bench.random.order(rows.iter().map(needed).sum::<usize>() + 3);
        // NaN in unused entries spoils the result of a kernel that reads them.
        let mut cache = vec![bf16::from_bits(0xffff); order.len() * layout::block_len(kv_heads, dim)];
        let mut free = order.iter();
        let mut tables = Vec::new();
        let mut sequences = Vec::new();
        let mut first = Vec::new();
        let mut positions = Vec::new();
        let mut token = 0;
        for row in rows {
            let table: Vec<u32> = free.by_ref().take(needed(row)).copied().collect();
            sequences.push(store(bench, &mut cache, &table, row.0 + row.1, dim, kv_heads));
            tables.extend(table.iter().copied().chain(std::iter::repeat(NONE)).take(stride));
            first.push(token as u32);
            token += row.1;
            positions.extend((row.0..row.0 + row.1).map(|position| position as u32));
        }
        let context: Vec<u32> = rows.iter().map(|row| (row.0 + row.1) as u32).collect();
        let queries = bench.random.halves(tokens * (heads + 2 * kv_heads) * dim, 1.5);
        let none = bench.put(&[0u32])?;
        let batch = BatchView {
            tokens: none,
            positions: bench.put(&positions)?,
            rows: none,
            first: bench.put(&first)?,
            context: bench.put(&context)?,
            tables: bench.put(&tables)?,
            stride: stride as u32,
            bounds: BatchBounds { rows: rows.len(), tokens, positions: stride * BLOCK, blocks: order.len() },
        };
        let cache = bench.put(&cache)?;
        let qkv = bench.put(&queries)?;
        Ok(Self { rows: rows.to_vec(), dim, heads, kv_heads, queries, sequences, batch, cache, qkv })
    }

    /// Moves the blocks into a cache of at least `bytes` bytes, at random places from its first part to its last block.
    pub(super) fn spread(self, bench: &mut CheckBench<'_>, bytes: usize) -> Result<Self, CheckError> {
        let len = layout::block_len(self.kv_heads, self.dim);
        let values = bench.get(&self.cache)?;
        let count = values.len() / len;
        let part = bytes.div_ceil(count * len * size_of::<bf16>());
        let cache = bench.reserved::<bf16>(count * part * len)?;
        let mut places = Vec::new();
        for (block, values) in values.chunks_exact(len).enumerate() {
            let last = block + 1 == count;
            let place = block * part + if last { part - 1 } else { bench.random.below(part) };
            bench.write(&cache, place * len, values)?;
            places.push(place as u32);
        }
        let tables = bench.get(&self.batch.tables)?;
        let moved = |block: &u32| places.get(*block as usize).copied().unwrap_or(NONE);
        let tables = bench.put(&tables.iter().map(moved).collect::<Vec<u32>>())?;
        let bounds = BatchBounds { blocks: count * part, ..self.batch.bounds };
        Ok(Self { cache, batch: BatchView { tables, bounds, ..self.batch }, ..self })
    }

    /// Multiplies the queries by `factor`.
    fn sharpened(self, bench: &mut CheckBench<'_>, factor: f32) -> Result<Self, CheckError> {
        let queries: Vec<bf16> = self.queries.iter().map(|value| bf16::from_f32(value.to_f32() * factor)).collect();
        Ok(Self { qkv: bench.put(&queries)?, queries, ..self })
    }

    fn wanted(&self) -> Vec<f64> {
        let mut out = Vec::new();
        let mut token = 0;
        for (row, sequences) in self.rows.iter().zip(&self.sequences) {
            for position in row.0..row.0 + row.1 {
                for head in 0..self.heads {
                    let query = wide(&self.queries[token * self.stride() + head * self.dim..][..self.dim]);
                    out.extend(reference::attend(&query, &sequences[head / (self.heads / self.kv_heads)], position));
                }
                token += 1;
            }
        }
        out
    }
}

/// Fills a row's blocks with random keys and values, and returns them per head.
fn store(
    bench: &mut CheckBench<'_>,
    cache: &mut [bf16],
    table: &[u32],
    len: usize,
    dim: usize,
    kv_heads: usize,
) -> Vec<ReferenceSequence> {
    let mut sequences = vec![ReferenceSequence::default(); kv_heads];
    for position in 0..len {
        for (head, sequence) in sequences.iter_mut().enumerate() {
            let share = (table[position / BLOCK] as usize * kv_heads + head) * 2 * BLOCK * dim;
            let key = bench.random.halves(dim, 1.0);
            let value = bench.random.halves(dim, 1.0);
            for (at, (&key, &value)) in key.iter().zip(&value).enumerate() {
                cache[share + layout::key(position % BLOCK, at, dim)] = key;
                cache[share + layout::value(position % BLOCK, at, dim)] = value;
            }
            sequence.keys.push(wide(&key));
            sequence.values.push(wide(&value));
        }
    }
    sequences
}

pub(super) fn decode(bench: &mut CheckBench<'_>, dim: usize) -> Result<(), CheckError> {
    let short = vec![(0, 1), (14, 1), (15, 1), (16, 1), (63, 1), (64, 1), (126, 1)];
    let long = vec![(127, 1), (128, 1), (299, 1), (0, 1), (700, 1)];
    for (heads, kv_heads, rows, splits) in [
        (9, 3, &short, 1),
        (7, 1, &short, 4),
        (8, 1, &long, 1),
        (6, 2, &long, 3),
        (16, 1, &long, 16),
        (2, 2, &long, 64),
    ] {
        let case = AttentionCase::new(bench, rows, dim, heads, kv_heads)?;
        compare_decode(bench, &case, splits, "")?;
        bench.clear()?;
    }
    Ok(())
}

/// Compares decode attention of a case whose rows have one new token each. `about` is added to the case's name.
pub(super) fn compare_decode(
    bench: &mut CheckBench<'_>,
    case: &AttentionCase,
    splits: u32,
    about: &str,
) -> Result<(), CheckError> {
    let &AttentionCase { ref rows, dim, heads, kv_heads, .. } = case;
    let count = rows.len() as u32;
    // Two rows of padding after the others, with and without a token to write zeros to.
    let first: Vec<u32> = (0..=count).chain([NONE]).collect();
    let context: Vec<u32> = rows.iter().map(|row| (row.0 + row.1) as u32).chain([0, 0]).collect();
    let rows32 = count + 2;
    let mut batch = case.batch;
    let tables = bench.get(&batch.tables)?;
    batch.first = bench.put(&first)?;
    batch.context = bench.put(&context)?;
    batch.tables = bench.put(&[tables, vec![NONE; 2 * batch.stride as usize]].concat())?;
    batch.bounds.rows += 2;
    batch.bounds.tokens += 1;
    let out = bench.poisoned::<bf16>((rows.len() + 1) * heads * dim)?;
    let arrived = bench.put(&vec![0u32; rows32 as usize * kv_heads])?;
    let unread = vec![bf16::NAN; case.stride()];
    let launch = AttendDecode {
        batch,
        qkv: bench.put(&[case.queries.as_slice(), &unread].concat())?,
        stride: case.stride() as u32,
        cache: case.cache,
        workspace: bench.poisoned::<f32>(AttendDecode::workspace(rows32, splits, heads as u32, dim as u32))?,
        arrived,
        out,
        rows: rows32,
        splits,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: dim as u32,
    };
    let mut wanted = case.wanted();
    wanted.extend(vec![0.0; heads * dim]);
    // Launch twice: the counters must be back at zero after the first launch.
    for turn in 0..2 {
        launch.launch(&bench.device)?;
        let found = wide(&bench.get(&out)?);
        let name = format!("{heads} over {kv_heads} of {dim}, {} rows, {splits} parts{about}, turn {turn}", rows.len());
        bench.compare(CudaKernel::AttendDecode, &name, &found, &wanted, BF16);
        let zero = bench.get(&arrived)?.iter().all(|&count| count == 0);
        bench.demand(CudaKernel::AttendDecode, &format!("{name}: counters"), zero);
    }
    Ok(())
}

pub(super) fn prefill(bench: &mut CheckBench<'_>, dim: usize) -> Result<(), CheckError> {
    let edges = vec![(0, 1), (0, 15), (0, 16), (0, 17), (15, 1), (15, 2), (31, 33)];
    let chunks = vec![(0, 70), (5, 40), (600, 9), (100, 29)];
    // Around the ends of spans of 32 tokens, of tiles, and of the rows of a warp.
    let spans = vec![(0, 32), (31, 2), (64, 129), (1, 95), (130, 127), (16, 3)];
    for (heads, kv_heads, rows, factor) in [
        (9, 3, &edges, 1.0),
        (7, 1, &chunks, 1.0),
        (8, 1, &edges, 1.0),
        (2, 2, &chunks, 1.0),
        (16, 1, &edges, 1.0),
        (2, 2, &spans, 1.0),
        (7, 1, &spans, 1.0),
        // Scores whose maximum rises far beyond that of the first tokens.
        (8, 1, &chunks, 12.0),
        (16, 1, &spans, 60.0),
    ] {
        let case = AttentionCase::new(bench, rows, dim, heads, kv_heads)?.sharpened(bench, factor)?;
        compare_prefill(bench, &case, &format!(", queries times {factor}"))?;
        bench.clear()?;
    }
    Ok(())
}

/// Compares prefill attention of a case. `about` is added to the case's name.
pub(super) fn compare_prefill(bench: &mut CheckBench<'_>, case: &AttentionCase, about: &str) -> Result<(), CheckError> {
    let &AttentionCase { ref rows, dim, heads, kv_heads, .. } = case;
    let mut tiles: Vec<[u32; 2]> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let count = prefill_tiles(row.1 as u32, heads as u32, kv_heads as u32);
        tiles.extend((0..count).map(|tile| [index as u32, tile]));
    }
    tiles.push([NONE, NONE]);
    let order = bench.random.order(tiles.len());
    let tiles: Vec<u32> = order.iter().flat_map(|&tile| tiles[tile as usize]).collect();
    let tokens: usize = rows.iter().map(|row| row.1).sum();
    let out = bench.poisoned::<bf16>(tokens * heads * dim)?;
    AttendPrefill {
        batch: case.batch,
        tiles: bench.put(&tiles)?,
        qkv: case.qkv,
        stride: case.stride() as u32,
        cache: case.cache,
        out,
        lse: None,
        count: tiles.len() as u32 / 2,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: dim as u32,
    }
    .launch(&bench.device)?;
    let name = format!("{heads} over {kv_heads} of {dim}, {} rows, {tokens} tokens{about}", rows.len());
    let found = wide(&bench.get(&out)?);
    bench.compare(CudaKernel::AttendPrefill, &name, &found, &case.wanted(), BF16);
    Ok(())
}
