//! Backward kernels.

use half::bf16;

use super::attention::AttentionCase;
use super::bench::CheckBench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::batch::BLOCK;
use crate::cuda::kernel::{
    AttendBackward, AttendPrefill, CudaKernel, NONE, RmsNormBackward, RowIndex, SiluMulBackward, prefill_tiles,
    reference,
};

pub(super) fn norm(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for (width, rows, indexed) in [(576, 3, false), (4, 1, false), (2052, 2, false), (576, 4, true)] {
        let x = bench.random.floats(rows * width, 3.0);
        let start = bench.random.floats(rows * width, 1.0);
        let weight = bench.random.floats(width, 1.0);
        let gradient = bench.random.halves(rows * width, 1.0);
        // Permuted rows of the stream, one of them skipped.
        let places: Vec<u32> = (0..rows as u32).rev().map(|row| if row == 2 { NONE } else { row }).collect();
        let index = if indexed { Some(RowIndex { rows: bench.put(&places)?, bound: rows }) } else { None };
        let sum = bench.put(&start)?;
        RmsNormBackward {
            stream: bench.put(&x)?,
            index,
            weight: bench.put(&weight)?,
            gradient: bench.put(&gradient)?,
            stream_gradient: sum,
            rows: rows as u32,
            width: width as u32,
            eps: 1e-5,
        }
        .launch(&bench.device)?;
        let mut wanted = wide32(&start);
        for (row, d) in gradient.chunks_exact(width).enumerate() {
            let of = if indexed { places[row] } else { row as u32 };
            if of == NONE {
                continue;
            }
            let at = of as usize * width..(of as usize + 1) * width;
            let more = reference::rms_norm_backward(&wide32(&x[at.clone()]), &wide32(&weight), &wide(d), 1e-5);
            wanted[at].iter_mut().zip(more).for_each(|(wanted, more)| *wanted += more);
        }
        let found = wide32(&bench.get(&sum)?);
        bench.compare(CudaKernel::RmsNormBackward, &format!("{rows} × {width}, index {indexed}"), &found, &wanted, F32);
        bench.clear()?;
    }
    Ok(())
}

pub(super) fn silu_mul(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for (width, rows) in [(8, 1), (1536, 3), (2056, 2)] {
        let input = bench.random.halves(2 * rows * width, 6.0);
        let gradient = bench.random.halves(rows * width, 1.0);
        let out = bench.poisoned::<bf16>(2 * rows * width)?;
        let rows32 = rows as u32;
        let width32 = width as u32;
        let gate_up = bench.put(&input)?;
        let slope = bench.put(&gradient)?;
        SiluMulBackward { gate_up, gradient: slope, gate_up_gradient: out, rows: rows32, width: width32 }
            .launch(&bench.device)?;
        let row = |(row, d): (&[bf16], &[bf16])| {
            let (gate, up) = reference::silu_mul_backward(&wide(&row[..width]), &wide(&row[width..]), &wide(d));
            [gate, up].concat()
        };
        let wanted: Vec<f64> = input.chunks_exact(2 * width).zip(gradient.chunks_exact(width)).flat_map(row).collect();
        let found = wide(&bench.get(&out)?);
        bench.compare(CudaKernel::SiluMulBackward, &format!("{rows} × {width}"), &found, &wanted, BF16);
        bench.clear()?;
    }
    Ok(())
}

pub(super) fn attention(bench: &mut CheckBench<'_>, dim: usize) -> Result<(), CheckError> {
    for (heads, kv_heads, lengths) in
        [(9, 3, vec![1, 15, 16, 17, 40]), (7, 1, vec![70, 33]), (2, 2, vec![130, 5]), (16, 1, vec![21])]
    {
        let rows: Vec<(usize, usize)> = lengths.iter().map(|&length| (0, length)).collect();
        let case = AttentionCase::new(bench, &rows, dim, heads, kv_heads)?;
        check_attention(bench, &case)?;
        bench.clear()?;
    }
    Ok(())
}

/// Runs the forward pass for its log-sums, then compares the backward pass with the sum of the gradients of all
/// queries.
fn check_attention(bench: &mut CheckBench<'_>, case: &AttentionCase) -> Result<(), CheckError> {
    let dim = case.dim;
    let heads = case.heads;
    let kv_heads = case.kv_heads;
    let [heads32, kv32, dim32, stride] = [heads, kv_heads, dim, case.stride()].map(|size| size as u32);
    let pairs = |count: &dyn Fn(usize) -> u32| {
        let rows = case.rows.iter().enumerate();
        let of = |(row, &(_, length)): (usize, &(usize, usize))| (0..count(length)).flat_map(move |i| [row as u32, i]);
        rows.flat_map(of).chain([NONE, NONE]).collect::<Vec<u32>>()
    };
    let tiles = pairs(&|length| prefill_tiles(length as u32, heads32, kv32));
    let blocks = pairs(&|length| length.div_ceil(BLOCK) as u32);
    let tokens: usize = case.rows.iter().map(|row| row.1).sum();
    let tile_count = tiles.len() as u32 / 2;
    let block_count = blocks.len() as u32 / 2;
    let tiles = bench.put(&tiles)?;
    let blocks = bench.put(&blocks)?;
    let out = bench.poisoned::<bf16>(tokens * heads * dim)?;
    let lse = bench.poisoned::<f32>(tokens * heads)?;
    let batch = case.batch;
    let qkv = case.qkv;
    let cache = case.cache;
    let forward = AttendPrefill {
        batch,
        tiles,
        qkv,
        stride,
        cache,
        out,
        lse: Some(lse),
        count: tile_count,
        heads: heads32,
        kv_heads: kv32,
        dim: dim32,
    };
    forward.launch(&bench.device)?;
    let gradient = bench.random.halves(tokens * heads * dim, 1.0);
    let qkv_gradient = bench.poisoned::<bf16>(tokens * case.stride())?;
    AttendBackward {
        batch,
        tiles,
        blocks,
        qkv,
        stride,
        cache,
        out,
        gradient: bench.put(&gradient)?,
        lse,
        delta: bench.poisoned(tokens * heads)?,
        qkv_gradient,
        tokens: tokens as u32,
        tile_count,
        block_count,
        heads: heads32,
        kv_heads: kv32,
        dim: dim32,
    }
    .launch(&bench.device)?;
    let found = wide(&bench.get(&qkv_gradient)?);
    let wanted = wanted(case, &wide(&gradient), tokens);
    compare_parts(bench, case, &found, &wanted);
    Ok(())
}

/// Compares the gradients of queries, keys and values separately.
fn compare_parts(bench: &mut CheckBench<'_>, case: &AttentionCase, found: &[f64], wanted: &[f64]) {
    let dim = case.dim;
    let heads = case.heads;
    let kv_heads = case.kv_heads;
    let name = format!(
        "{heads} over {kv_heads} of {dim}, rows of {:?}",
        case.rows.iter().map(|row| row.1).collect::<Vec<_>>()
    );
    let part = |values: &[f64], from: usize, until: usize| -> Vec<f64> {
        values.chunks_exact(case.stride()).flat_map(|token| token[from * dim..until * dim].to_vec()).collect()
    };
    for (what, kernel, from, until) in [
        ("queries", CudaKernel::AttendBackwardQueries, 0, heads),
        ("keys", CudaKernel::AttendBackwardKeys, heads, heads + kv_heads),
        ("values", CudaKernel::AttendBackwardKeys, heads + kv_heads, heads + 2 * kv_heads),
    ] {
        bench.compare(kernel, &format!("{name}: {what}"), &part(found, from, until), &part(wanted, from, until), BF16);
    }
}

/// Returns the gradients of queries, keys and values, token by token.
fn wanted(case: &AttentionCase, gradient: &[f64], tokens: usize) -> Vec<f64> {
    let dim = case.dim;
    let heads = case.heads;
    let stride = case.stride();
    let mut all = vec![0.0; tokens * stride];
    let mut add = |at: usize, values: &[f64]| {
        all[at..][..dim].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    };
    let mut first = 0;
    for (&(_, length), sequences) in case.rows.iter().zip(&case.sequences) {
        for position in 0..length {
            for head in 0..heads {
                let kv = head / (heads / case.kv_heads);
                let token = first + position;
                let query = wide(&case.queries[token * stride + head * dim..][..dim]);
                let d = &gradient[(token * heads + head) * dim..][..dim];
                let slopes = reference::attend_backward(&query, &sequences[kv], position, d);
                add(token * stride + head * dim, &slopes.query);
                for (seen, (key, value)) in slopes.keys.iter().zip(&slopes.values).enumerate() {
                    add((first + seen) * stride + (heads + kv) * dim, key);
                    add((first + seen) * stride + (heads + case.kv_heads + kv) * dim, value);
                }
            }
        }
        first += length;
    }
    all
}
