//! Dot products, written so that the compiler vectorizes them.

/// Number of independent partial sums, so that no addition waits for the previous one.
const LANES: usize = 32;

/// Computes `Σ a·b` over two slices of equal length.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both features.
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

/// Computes `Σ a·b` over two slices of equal length, of at most 2¹⁷ bytes.
pub(crate) fn dot_bytes(a: &[i8], b: &[i8]) -> i32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature.
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
