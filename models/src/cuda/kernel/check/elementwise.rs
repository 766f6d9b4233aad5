//! Embedding, norm and activation.

use half::bf16;

use super::bench::CheckBench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::cuda::kernel::{
    BatchBounds, BatchView, CudaKernel, EmbedTokens, NONE, RmsNorm, RowIndex, SiluMul, reference,
};

pub(super) fn embed(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for width in [8, 576, 1032] {
        let vocab = 50;
        let table = bench.random.halves(vocab * width, 1.0);
        let tokens = [0, 49, NONE, 50, 12];
        let ids = [Some(0), Some(49), None, None, Some(12)];
        let none = bench.put(&[0u32])?;
        let batch = BatchView {
            tokens: bench.put(&tokens)?,
            positions: none,
            rows: none,
            first: none,
            context: none,
            tables: none,
            stride: 1,
            bounds: BatchBounds { rows: 0, tokens: tokens.len(), positions: 0, blocks: 0 },
        };
        let stream = bench.poisoned::<f32>(tokens.len() * width)?;
        EmbedTokens {
            batch,
            table: bench.put(&table)?,
            stream,
            count: tokens.len() as u32,
            width: width as u32,
            vocab: vocab as u32,
        }
        .launch(&bench.device)?;
        let row = |id: Option<usize>| id.map_or(vec![0.0; width], |id| wide(&table[id * width..][..width]));
        let wanted: Vec<f64> = ids.into_iter().flat_map(row).collect();
        let found = wide32(&bench.get(&stream)?);
        bench.compare(CudaKernel::EmbedTokens, &format!("width {width}"), &found, &wanted, F32);
        bench.clear()?;
    }
    Ok(())
}

pub(super) fn norm(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for (width, rows, indexed) in [(576, 5, false), (4, 1, false), (2052, 3, false), (896, 4, true)] {
        let x = bench.random.floats(rows * width, 3.0);
        let weight = bench.random.floats(width, 1.0);
        let index: Vec<u32> = (0..rows as u32).rev().map(|row| if row == 1 { NONE } else { row }).collect();
        let stream = bench.put(&x)?;
        let out = bench.poisoned::<bf16>(rows * width)?;
        let places = if indexed { Some(RowIndex { rows: bench.put(&index)?, bound: rows }) } else { None };
        let rows32 = rows as u32;
        let width32 = width as u32;
        let weights = bench.put(&weight)?;
        RmsNorm { stream, index: places, weight: weights, out, rows: rows32, width: width32, eps: 1e-5 }
            .launch(&bench.device)?;
        let row = |row: u32| match row {
            NONE => vec![0.0; width],
            row => reference::rms_norm(&wide32(&x[row as usize * width..][..width]), &wide32(&weight), 1e-5),
        };
        let wanted: Vec<f64> = match indexed {
            true => index.iter().copied().flat_map(row).collect(),
            false => (0..rows32).flat_map(row).collect(),
        };
        let found = wide(&bench.get(&out)?);
        bench.compare(CudaKernel::RmsNorm, &format!("{rows} × {width}, index {indexed}"), &found, &wanted, BF16);
        bench.clear()?;
    }
    Ok(())
}

pub(super) fn silu_mul(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for (width, rows) in [(8, 1), (1536, 3), (2056, 2), (4096, 2)] {
        let input = bench.random.halves(2 * rows * width, 6.0);
        let out = bench.poisoned::<bf16>(rows * width)?;
        SiluMul { gate_up: bench.put(&input)?, out, rows: rows as u32, width: width as u32 }.launch(&bench.device)?;
        let row = |row: &[bf16]| reference::silu_mul(&wide(&row[..width]), &wide(&row[width..]));
        let wanted: Vec<f64> = input.chunks_exact(2 * width).flat_map(row).collect();
        let found = wide(&bench.get(&out)?);
        bench.compare(CudaKernel::SiluMul, &format!("{rows} × {width}"), &found, &wanted, BF16);
        bench.clear()?;
    }
    Ok(())
}
