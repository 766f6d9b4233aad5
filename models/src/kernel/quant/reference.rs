//! Reference dequantization for tests: the loops of ggml's `dequantize_row_*`, one value after another.

#![allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]

use half::f16;

use super::iq4::VALUES;
use crate::kernel::GgmlKind;

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Values of one block.
pub(super) fn dequantize(kind: GgmlKind, block: &[u8]) -> Vec<f32> {
    match kind {
        GgmlKind::Q4_0 => nibbles(&block[2..], |q| half(block) * (f32::from(q) - 8.0)),
        GgmlKind::Q4_1 => nibbles(&block[4..], |q| half(block) * f32::from(q) + half(&block[2..])),
        GgmlKind::Q5_0 => fives(&block[2..], |q| half(block) * (f32::from(q) - 16.0)),
        GgmlKind::Q5_1 => fives(&block[4..], |q| half(block) * f32::from(q) + half(&block[2..])),
        GgmlKind::Q8_0 => block[2..].iter().map(|&q| half(block) * f32::from(q as i8)).collect(),
        GgmlKind::Q2K => q2_k(block),
        GgmlKind::Q3K => q3_k(block),
        GgmlKind::Q4K => q45_k(block, None, &block[16..]),
        GgmlKind::Q5K => q45_k(block, Some(&block[16..48]), &block[48..]),
        GgmlKind::Q6K => q6_k(block),
        GgmlKind::Iq4Nl => nibbles(&block[2..], |q| half(block) * f32::from(VALUES[usize::from(q)])),
        GgmlKind::Iq4Xs => iq4_xs(block),
        GgmlKind::F32 | GgmlKind::F16 | GgmlKind::BF16 => unreachable!("not quantized"),
    }
}

fn nibbles(quants: &[u8], value: impl Fn(u8) -> f32) -> Vec<f32> {
    let low = quants.iter().map(|q| value(q & 15));
    low.chain(quants.iter().map(|q| value(q >> 4))).collect()
}

fn fives(rest: &[u8], value: impl Fn(u8) -> f32) -> Vec<f32> {
    let highs = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
    let quant = |k: usize| rest[4 + k % 16] >> (k / 16 * 4) & 15 | ((highs >> k & 1) as u8) << 4;
    (0..32).map(|k| value(quant(k))).collect()
}

fn q2_k(block: &[u8]) -> Vec<f32> {
    let scales = &block[..16];
    let quants = &block[16..80];
    let d = half(&block[80..]);
    let min = half(&block[82..]);
    let mut values = Vec::new();
    let mut index = 0;
    for quants in quants.chunks_exact(32) {
        for shift in [0, 2, 4, 6] {
            for quants in quants.chunks_exact(16) {
                let scale = scales[index];
                index += 1;
                let dl = d * f32::from(scale & 15);
                let ml = min * f32::from(scale >> 4);
                values.extend(quants.iter().map(|q| dl * f32::from(q >> shift & 3) - ml));
            }
        }
    }
    values
}

fn q3_k(block: &[u8]) -> Vec<f32> {
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let mask1 = 0x0303_0303;
    let mask2 = 0x0f0f_0f0f;
    let [a, b, c] = [word(96), word(100), word(104)];
    let scales: Vec<i8> = [
        a & mask2 | (c & mask1) << 4,
        b & mask2 | (c >> 2 & mask1) << 4,
        a >> 4 & mask2 | (c >> 4 & mask1) << 4,
        b >> 4 & mask2 | (c >> 6 & mask1) << 4,
    ]
    .iter()
    .flat_map(|word| word.to_le_bytes().map(|byte| byte as i8))
    .collect();
    let d = half(&block[108..]);
    let mut values = Vec::new();
    let mut index = 0;
    let mut bit = 1u8;
    for quants in block[32..96].chunks_exact(32) {
        for shift in [0, 2, 4, 6] {
            for part in 0..2 {
                let dl = d * (f32::from(scales[index]) - 32.0);
                index += 1;
                for k in part * 16..part * 16 + 16 {
                    let less = if block[k] & bit != 0 { 0.0 } else { 4.0 };
                    values.push(dl * (f32::from(quants[k] >> shift & 3) - less));
                }
            }
            bit = bit.wrapping_shl(1);
        }
    }
    values
}

fn scale_min(j: usize, q: &[u8]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        (q[j + 4] & 0xf | (q[j - 4] >> 6) << 4, q[j + 4] >> 4 | (q[j] >> 6) << 4)
    };
    (f32::from(scale), f32::from(min))
}

fn q45_k(block: &[u8], highs: Option<&[u8]>, quants: &[u8]) -> Vec<f32> {
    let d = half(block);
    let min = half(&block[2..]);
    let mut values = Vec::new();
    for (pair, quants) in quants.chunks_exact(32).enumerate() {
        for (j, shift) in [(2 * pair, 0), (2 * pair + 1, 4)] {
            let (scale, minimum) = scale_min(j, &block[4..16]);
            let d1 = d * scale;
            let m1 = min * minimum;
            for (k, q) in quants.iter().enumerate() {
                let high = highs.map_or(0, |highs| (highs[k] >> j & 1) << 4);
                values.push(d1 * f32::from((q >> shift & 15) + high) - m1);
            }
        }
    }
    values
}

fn q6_k(block: &[u8]) -> Vec<f32> {
    let d = half(&block[208..]);
    let mut values = vec![0.0; 256];
    for n in 0..2 {
        let ql = &block[n * 64..];
        let qh = &block[128 + n * 32..];
        let sc = &block[192 + n * 8..];
        let y = &mut values[n * 128..];
        for l in 0..32 {
            let is = l / 16;
            let quants = [
                ql[l] & 0xf | (qh[l] & 3) << 4,
                ql[l + 32] & 0xf | (qh[l] >> 2 & 3) << 4,
                ql[l] >> 4 | (qh[l] >> 4 & 3) << 4,
                ql[l + 32] >> 4 | (qh[l] >> 6 & 3) << 4,
            ];
            for (i, q) in quants.into_iter().enumerate() {
                y[l + 32 * i] = d * f32::from(sc[is + 2 * i] as i8) * (f32::from(q) - 32.0);
            }
        }
    }
    values
}

fn iq4_xs(block: &[u8]) -> Vec<f32> {
    let d = half(block);
    let highs = u16::from_le_bytes([block[2], block[3]]);
    let mut values = Vec::new();
    for ib in 0..8 {
        let ls = i32::from(block[4 + ib / 2] >> (4 * (ib % 2)) & 0xf) | i32::from(highs >> (2 * ib) & 3) << 4;
        let dl = d * (ls - 32) as f32;
        values.extend(nibbles(&block[8 + 16 * ib..24 + 16 * ib], |q| dl * f32::from(VALUES[usize::from(q)])));
    }
    values
}
