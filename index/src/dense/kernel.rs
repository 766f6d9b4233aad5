//! Dot products, written so that the compiler vectorizes them.

/// Number of independent partial sums, so that no addition waits for the previous one.
const LANES: usize = 32;

/// Computes `Σ a·b` over two slices of equal length.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the CPU has both features.
        return unsafe { dot_avx2(a, b) };
    }
    if cfg!(target_arch = "aarch64") {
        return dot_by(a, b, f32::mul_add);
    }
    // `mul_add` would be a library call without the instruction.
    dot_by(a, b, |x, y, sum| x * y + sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn dot_avx2(a: &[f32], b: &[f32]) -> f32 {
    dot_by(a, b, f32::mul_add)
}

#[inline(always)]
fn dot_by(a: &[f32], b: &[f32], multiply_add: impl Fn(f32, f32, f32) -> f32) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut sums = [0.0; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            sums[lane] = multiply_add(a[lane], b[lane], sums[lane]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

/// Number of partial sums of [`near_dot`]: four of the widest registers.
const NEAR_LANES: usize = 64;

/// Computes `Σ a·b` over two slices of equal length for comparisons within a nearest-neighbor graph. Sums in a shorter
/// chain than [`dot`], which matters where each product decides about the next, and rounds differently between CPUs.
pub(super) fn near_dot(a: &[f32], b: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") {
            // SAFETY: the CPU has the feature.
            return unsafe { near_dot_avx512(a, b) };
        }
        if has!("avx2") && has!("fma") {
            // SAFETY: the CPU has both features.
            return unsafe { near_dot_avx2(a, b) };
        }
    }
    near_dot_by(a, b, |x, y, sum| x * y + sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn near_dot_avx512(a: &[f32], b: &[f32]) -> f32 {
    near_dot_by(a, b, f32::mul_add)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn near_dot_avx2(a: &[f32], b: &[f32]) -> f32 {
    near_dot_by(a, b, f32::mul_add)
}

#[inline(always)]
fn near_dot_by(a: &[f32], b: &[f32], multiply_add: impl Fn(f32, f32, f32) -> f32) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut sums = [0.0_f32; NEAR_LANES];
    let (a_blocks, a_rest) = a.as_chunks::<NEAR_LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<NEAR_LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..NEAR_LANES {
            sums[lane] = multiply_add(a[lane], b[lane], sums[lane]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    // Constant bounds, so that the sums stay in registers.
    let mut sixteen = [0.0; 16];
    for lane in 0..16 {
        sixteen[lane] = (sums[lane] + sums[lane + 16]) + (sums[lane + 32] + sums[lane + 48]);
    }
    let mut four = [0.0; 4];
    for lane in 0..4 {
        four[lane] = (sixteen[lane] + sixteen[lane + 4]) + (sixteen[lane + 8] + sixteen[lane + 12]);
    }
    (four[0] + four[1]) + (four[2] + four[3]) + rest
}

/// Computes `Σ a·b` over two slices of equal length, of at most 2¹⁷ bytes.
pub(crate) fn dot_bytes(a: &[i8], b: &[i8]) -> i32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the feature.
        return unsafe { dot_bytes_avx2(a, b) };
    }
    dot_bytes_by(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dot_bytes_avx2(a: &[i8], b: &[i8]) -> i32 {
    dot_bytes_by(a, b)
}

#[inline(always)]
fn dot_bytes_by(a: &[i8], b: &[i8]) -> i32 {
    debug_assert_eq!(a.len(), b.len());
    // The sums cannot overflow. Wrapping addition keeps overflow checks, which tests enable, from preventing
    // vectorization.
    a.iter().zip(b).fold(0_i32, |sum, (&x, &y)| sum.wrapping_add(i32::from(x).wrapping_mul(i32::from(y))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dot_products_agree_at_every_length() {
        let row = |seed: usize| (0..200).map(|i| ((i * 37 + seed * 11) % 23) as f32 / 8.0 - 1.25).collect::<Vec<_>>();
        let a = row(1);
        let b = row(2);
        for len in 0..200 {
            // Multiples of 1/64 of moderate size: every sum is exact, in whatever order it is taken.
            assert_eq!(near_dot(&a[..len], &b[..len]), dot(&a[..len], &b[..len]), "{len}");
        }
    }
}
