//! Rotation that spreads large numbers over a vector before it is rounded (Ashkboos et al. 2024, QuaRot).

/// Multiplies every head of width `dim` by one orthogonal matrix: fixed signs, then a Hadamard matrix of the largest
/// power of two that divides `dim`. The dot product of two rotated heads equals that of the original heads.
pub(crate) fn rotate_heads(heads: &mut [f32], dim: usize) {
    let size = 1 << dim.trailing_zeros();
    let scale = (size as f32).sqrt().recip();
    for part in heads.chunks_exact_mut(size) {
        for (index, value) in part.iter_mut().enumerate() {
            *value *= if is_negative(index) { -scale } else { scale };
        }
        let mut half = 1;
        while half < size {
            for pair in part.chunks_exact_mut(2 * half) {
                let (left, right) = pair.split_at_mut(half);
                for (a, b) in left.iter_mut().zip(right) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
    }
}

/// Signs of the numbers of a head, as bits. Without signs, a head of equal numbers would become one large number. This
/// pattern was the best of random ones: the largest number that it leaves is at most 5/16 of that one.
const SIGNS: u128 = 0x415f_7242_e794_3b07_74ee_3d50_3b78_edd1;

/// Returns `true` if the sign of number `index` changes.
fn is_negative(index: usize) -> bool {
    SIGNS >> (index % 128) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn products_stay_and_large_numbers_are_spread() {
        for (dim, size) in [(64, 64), (80, 16), (96, 32), (128, 128)] {
            let wave = |step: f32| (0..dim).map(|i| (i as f32 * step).sin()).collect::<Vec<_>>();
            let mut query = wave(0.7);
            let mut key = wave(0.3);
            key[5] = 100.0;
            let before = product(&query, &key);
            rotate_heads(&mut query, dim);
            rotate_heads(&mut key, dim);
            assert!((product(&query, &key) - before).abs() < 1e-3 * before.abs().max(1.0), "{dim}");
            let largest = |values: &[f32]| values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            assert!(largest(&key) < 150.0 / (size as f32).sqrt(), "{dim}: {}", largest(&key));
            let mut equal = vec![1.0; dim];
            rotate_heads(&mut equal, dim);
            assert!(largest(&equal) < 0.32 * (size as f32).sqrt(), "{dim}: {}", largest(&equal));
        }
    }
}
