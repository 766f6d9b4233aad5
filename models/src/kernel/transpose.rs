//! Transposition of small matrices of 32-bit words.

use super::isa::Isa;

/// Number of rows and columns of a square that is transposed in registers.
const SIDE: usize = 16;

/// Writes the transpose of `from`, which has `columns` columns, to `to`.
///
/// # Panics
/// If the lengths differ, or rows or columns are not a multiple of 16.
pub(super) fn transpose(isa: Isa, from: &[u32], columns: usize, to: &mut [u32]) {
    let rows = from.len() / columns;
    assert!(from.len() == rows * columns && to.len() == from.len(), "as many words");
    transpose_block(isa, [rows, columns], (from, columns), (to, rows));
}

/// Writes the transpose of the first `rows` rows and `columns` columns of `from` to `to`. Each matrix comes with the
/// distance from one of its rows to the next.
///
/// # Panics
/// If a matrix is too small, or rows or columns are not a multiple of 16.
pub(crate) fn transpose_block(
    isa: Isa,
    [rows, columns]: [usize; 2],
    (from, from_stride): (&[u32], usize),
    (to, to_stride): (&mut [u32], usize),
) {
    assert!(rows.is_multiple_of(SIDE) && columns.is_multiple_of(SIDE), "whole squares");
    assert!(holds(from.len(), from_stride, rows, columns), "rows to read");
    assert!(holds(to.len(), to_stride, columns, rows), "rows to write");
    for row in (0..rows).step_by(SIDE) {
        for column in (0..columns).step_by(SIDE) {
            let from = &from[row * from_stride + column..];
            let to = &mut to[column * to_stride + row..];
            match isa {
                // SAFETY: `isa` names instructions that the CPU has; sixteen rows of sixteen words lie inside both
                // slices, as asserted.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => unsafe { x86::avx512((from.as_ptr(), from_stride), (to.as_mut_ptr(), to_stride)) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { x86::avx2((from.as_ptr(), from_stride), (to.as_mut_ptr(), to_stride)) },
                _ => portable((from, from_stride), (to, to_stride)),
            }
        }
    }
}

/// Returns `true` if a slice holds so many rows and columns, with rows `stride` apart.
fn holds(len: usize, stride: usize, rows: usize, columns: usize) -> bool {
    rows == 0 || (columns <= stride && (rows - 1) * stride + columns <= len)
}

fn portable((from, from_stride): (&[u32], usize), (to, to_stride): (&mut [u32], usize)) {
    for column in 0..SIDE {
        for row in 0..SIDE {
            to[column * to_stride + row] = from[row * from_stride + column];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::SIDE;

    /// Transposes a square of sixteen rows, in pairs of words, then of double words, then of quarters of a vector.
    ///
    /// # Safety
    /// The CPU must support AVX-512 F; both places must have sixteen rows of sixteen words, at the given distances.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512((from, columns): (*const u32, usize), (to, rows): (*mut u32, usize)) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let read: [__m512i; SIDE] = std::array::from_fn(|row| _mm512_loadu_si512(from.add(row * columns).cast()));
            let words: [__m512i; SIDE] = std::array::from_fn(|i| match i % 2 {
                0 => _mm512_unpacklo_epi32(read[i], read[i + 1]),
                _ => _mm512_unpackhi_epi32(read[i - 1], read[i]),
            });
            // Entry 4 · i + j has, in quarter q, column 4 · q + j of the rows from 4 · i on.
            let fours: [__m512i; SIDE] = std::array::from_fn(|i| {
                let low = i / 4 * 4 + i % 4 / 2;
                match i % 2 {
                    0 => _mm512_unpacklo_epi64(words[low], words[low + 2]),
                    _ => _mm512_unpackhi_epi64(words[low], words[low + 2]),
                }
            });
            for j in 0..4 {
                let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
                let low = [_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d)];
                let high = [_mm512_shuffle_i32x4::<0xee>(a, b), _mm512_shuffle_i32x4::<0xee>(c, d)];
                let quarters = [
                    _mm512_shuffle_i32x4::<0x88>(low[0], low[1]),
                    _mm512_shuffle_i32x4::<0xdd>(low[0], low[1]),
                    _mm512_shuffle_i32x4::<0x88>(high[0], high[1]),
                    _mm512_shuffle_i32x4::<0xdd>(high[0], high[1]),
                ];
                for (quarter, column) in quarters.into_iter().enumerate() {
                    _mm512_storeu_si512(to.add((4 * quarter + j) * rows).cast(), column);
                }
            }
        }
    }

    /// Transposes a square of sixteen rows as four squares of eight.
    ///
    /// # Safety
    /// The same as for [`avx512`], with AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2((from, columns): (*const u32, usize), (to, rows): (*mut u32, usize)) {
        for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let from = from.add(row * columns + column);
                let to = to.add(column * rows + row);
                let read: [__m256i; 8] = std::array::from_fn(|row| _mm256_loadu_si256(from.add(row * columns).cast()));
                let words: [__m256i; 8] = std::array::from_fn(|i| match i % 2 {
                    0 => _mm256_unpacklo_epi32(read[i], read[i + 1]),
                    _ => _mm256_unpackhi_epi32(read[i - 1], read[i]),
                });
                let fours: [__m256i; 8] = std::array::from_fn(|i| {
                    let low = i / 4 * 4 + i % 4 / 2;
                    match i % 2 {
                        0 => _mm256_unpacklo_epi64(words[low], words[low + 2]),
                        _ => _mm256_unpackhi_epi64(words[low], words[low + 2]),
                    }
                });
                for j in 0..4 {
                    let halves = [
                        _mm256_permute2x128_si256::<0x20>(fours[j], fours[4 + j]),
                        _mm256_permute2x128_si256::<0x31>(fours[j], fours[4 + j]),
                    ];
                    for (half, column) in halves.into_iter().enumerate() {
                        _mm256_storeu_si256(to.add((4 * half + j) * rows).cast(), column);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns_on_every_instruction_set() {
        for isa in Isa::available() {
            for (rows, columns) in [(16, 16), (32, 16), (16, 48), (32, 32)] {
                let from: Vec<u32> = (0..(rows * columns) as u32).collect();
                let mut to = vec![0; rows * columns];
                transpose(isa, &from, columns, &mut to);
                for (at, &word) in to.iter().enumerate() {
                    assert_eq!(word as usize, at % rows * columns + at / rows, "{isa:?} {rows} {columns}");
                }
            }
        }
    }

    #[test]
    fn a_block_lands_between_the_other_words_of_a_wider_matrix() {
        for isa in Isa::available() {
            let from: Vec<u32> = (0..20 * 40).collect();
            let mut to = vec![u32::MAX; 32 * 33];
            transpose_block(isa, [16, 32], (&from, 40), (&mut to, 33));
            for (at, &word) in to.iter().enumerate() {
                let row = at / 33;
                let column = at % 33;
                let expected = if column < 16 { (column * 40 + row) as u32 } else { u32::MAX };
                assert_eq!(word, expected, "{isa:?} {row} {column}");
            }
        }
    }
}
