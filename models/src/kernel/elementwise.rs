//! Functions of rows and single values, fast enough that matrix multiplications dominate.
//!
//! Each function is written once as plain loops over independent lanes and compiled for every instruction set of
//! `Isa`. Sums use 16 partial sums in all versions.

#[cfg(target_arch = "x86_64")]
use super::isa::Isa;

/// Number of partial sums per reduction, enough to keep the widest vectors busy.
const LANES: usize = 16;

/// Defines functions that run `$body`, compiled for the best available instruction set. `$body` is an inline function,
/// generic over the availability of fused multiply-add.
macro_rules! versions {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)? = $body:ident;)*) => {$(
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($arg: $type),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                match Isa::best() {
                    // SAFETY: `best` names only what the CPU has.
                    Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    Isa::Portable => {}
                }
            }
            $body::<{ cfg!(target_arch = "aarch64") }>($($arg),*)
        }
    )*};
}
pub(super) use versions;

versions! {
    /// Computes `out = x / √(mean(x²) + eps) · weight`, row by row; rows have the length of `weight`. (Zhang and
    /// Sennrich 2019, "Root Mean Square Layer Normalization".)
    ///
    /// # Panics
    /// If `out` does not have the length of `x`.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_body;

    /// Computes `y += x / √(mean(x²) + eps) · weight`, row by row; rows have the length of `weight`.
    ///
    /// # Panics
    /// If `y` does not have the length of `x`.
    pub fn rms_norm_add(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) = rms_norm_add_body;

    /// Computes `x = (x - mean) / √(variance + eps) · weight + bias` in place, row by row; rows have the length of
    /// `weight`. (Ba, Kiros and Hinton 2016, "Layer Normalization".)
    pub fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) = layer_norm_body;

    /// Computes `x = exp(x - max) / Σ exp(x - max)` over the whole slice, in place. Values of -∞ become 0; an empty
    /// slice stays empty.
    pub fn softmax(x: &mut [f32]) = softmax_body;

    /// Computes `x = exp(x - max) / Σ exp(x - max)` over each of the first `count` columns, in place, for x of shape
    /// (rows, width). `count` is a multiple of 16. Values of -∞ become 0.
    ///
    /// # Panics
    /// If `count` is not a multiple of 16 or exceeds `width`.
    pub fn softmax_columns(x: &mut [f32], width: usize, count: usize) = softmax_columns_body;

    /// Computes `x = eˣ` in place, with a relative error below 1e-6. Below -87.3 the result is 0, above 88.7 it is
    /// ∞.
    pub fn exp(x: &mut [f32]) = exp_body;

    /// Computes `gate = gate · sigmoid(gate) · up`, element by element: the activation of a SwiGLU layer (Shazeer
    /// 2020).
    pub fn silu_mul(gate: &mut [f32], up: &[f32]) = silu_mul_body;

    /// Computes `gate = gelu(gate) · up`, element by element, with the tanh approximation of GELU: `gelu(x) = x / 2 ·
    /// (1 + tanh(√(2 / π) · (x + 0.044715 · x³)))`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_tanh_mul(gate: &mut [f32], up: &[f32]) = gelu_tanh_mul_body;

    /// Computes `x = cap · tanh(x / cap)` in place.
    pub fn soft_cap(x: &mut [f32], cap: f32) = soft_cap_body;

    /// Computes `x = x · Φ(x)` in place, with Φ the normal distribution function: the exact (erf) GELU of Hendrycks
    /// and Gimpel 2016, with an absolute error below 1e-6 (relative above 1).
    pub fn gelu(x: &mut [f32]) = gelu_body;

    /// Computes `y += x`, element by element.
    pub fn add(y: &mut [f32], x: &[f32]) = add_body;

    /// Adds `bias` to every row of `y`; rows have the length of `bias`.
    pub fn add_bias(y: &mut [f32], bias: &[f32]) = add_bias_body;

    /// Computes `y += a · x`, element by element.
    pub fn axpy(y: &mut [f32], a: f32, x: &[f32]) = axpy_body;

    /// Computes `x = a · x`, element by element.
    pub fn scale(x: &mut [f32], a: f32) = scale_body;

    /// Computes `Σ a · b`.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 = dot_body;
}

#[inline(always)]
pub(super) fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Folds `x` into [`LANES`] partial results, then combines them pairwise into one.
#[inline(always)]
pub(super) fn reduce(x: &[f32], start: f32, step: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, value);
    }
    fold(lanes, join)
}

#[inline(always)]
pub(super) fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn rms_norm_body<const FUSED: bool>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "rms_norm: input and output");
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let squares = reduce(x, 0.0, |sum, x| fma::<FUSED>(x, x, sum), |a, b| a + b);
        let scale = 1.0 / (squares / x.len() as f32 + eps).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

#[inline(always)]
fn rms_norm_add_body<const FUSED: bool>(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "rms_norm_add: input and output");
    for (x, y) in x.chunks_exact(weight.len()).zip(y.chunks_exact_mut(weight.len())) {
        let squares = reduce(x, 0.0, |sum, x| fma::<FUSED>(x, x, sum), |a, b| a + b);
        let scale = 1.0 / (squares / x.len() as f32 + eps).sqrt();
        for ((y, &x), &weight) in y.iter_mut().zip(x).zip(weight) {
            *y = fma::<FUSED>(x * scale, weight, *y);
        }
    }
}

#[inline(always)]
fn layer_norm_body<const FUSED: bool>(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    for x in x.chunks_exact_mut(weight.len()) {
        let mean = reduce(x, 0.0, |sum, x| sum + x, |a, b| a + b) / x.len() as f32;
        let squares = reduce(x, 0.0, |sum, x| fma::<FUSED>(x - mean, x - mean, sum), |a, b| a + b);
        let scale = 1.0 / (squares / x.len() as f32 + eps).sqrt();
        for ((x, &weight), &bias) in x.iter_mut().zip(weight).zip(bias) {
            *x = fma::<FUSED>((*x - mean) * scale, weight, bias);
        }
    }
}

#[inline(always)]
fn softmax_body<const FUSED: bool>(x: &mut [f32]) {
    let max = reduce(x, f32::NEG_INFINITY, |a, b| if a > b { a } else { b }, |a, b| if a > b { a } else { b });
    for x in x.iter_mut() {
        *x = exp_negative::<FUSED>(*x - max);
    }
    let scale = 1.0 / reduce(x, 0.0, |sum, x| sum + x, |a, b| a + b);
    for x in x {
        *x *= scale;
    }
}

#[inline(always)]
fn softmax_columns_body<const FUSED: bool>(x: &mut [f32], width: usize, count: usize) {
    assert!(count.is_multiple_of(LANES) && count <= width, "softmax: whole vectors of columns");
    for first in (0..count).step_by(LANES) {
        let mut most = [f32::NEG_INFINITY; LANES];
        for row in x.chunks_exact(width) {
            for (most, &x) in most.iter_mut().zip(&row[first..first + LANES]) {
                *most = if x > *most { x } else { *most };
            }
        }
        let mut sums = [0.0; LANES];
        for row in x.chunks_exact_mut(width) {
            for ((x, &most), sum) in row[first..first + LANES].iter_mut().zip(&most).zip(&mut sums) {
                *x = exp_negative::<FUSED>(*x - most);
                *sum += *x;
            }
        }
        let scales = sums.map(|sum| 1.0 / sum);
        for row in x.chunks_exact_mut(width) {
            row[first..first + LANES].iter_mut().zip(&scales).for_each(|(x, scale)| *x *= scale);
        }
    }
}

#[inline(always)]
fn exp_body<const FUSED: bool>(x: &mut [f32]) {
    for x in x {
        *x = exp_one::<FUSED>(*x);
    }
}

#[inline(always)]
fn silu_mul_body<const FUSED: bool>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "silu_mul: gate and up");
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp_one::<FUSED>(-*gate)) * up;
    }
}

#[inline(always)]
fn gelu_tanh_mul_body<const FUSED: bool>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gelu_tanh_mul: gate and up");
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = *gate * gelu_share::<FUSED>(*gate) * up;
    }
}

/// Factor of `x` in the tanh approximation of GELU: `(1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))`.
#[inline(always)]
pub(super) fn gelu_share<const FUSED: bool>(x: f32) -> f32 {
    const TWICE_ROOT: f32 = 1.595_769_2;
    let twice = TWICE_ROOT * fma::<FUSED>(0.044_715 * x * x, x, x);
    1.0 / (1.0 + exp_one::<FUSED>(-twice))
}

#[inline(always)]
fn soft_cap_body<const FUSED: bool>(x: &mut [f32], cap: f32) {
    let twice = 2.0 / cap;
    for x in x {
        // tanh(z) = 1 - 2 / (1 + e^(2z)).
        *x = cap * (1.0 - 2.0 / (1.0 + exp_one::<FUSED>(*x * twice)));
    }
}

/// Computes GELU as `x·Φ(x) = max(x, 0) - |x|/2 · erfc(|x|/√2)`, which avoids cancellation. erfc is formula 7.1.26
/// of Abramowitz and Stegun, "Handbook of Mathematical Functions", with an absolute error of 1.5e-7.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "the digits of the source")]
fn gelu_body<const FUSED: bool>(x: &mut [f32]) {
    for x in x {
        let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
        let t = 1.0 / fma::<FUSED>(0.327_591_1, z, 1.0);
        let mut poly = 1.061_405_429;
        for coefficient in [-1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592] {
            poly = fma::<FUSED>(poly, t, coefficient);
        }
        let erfc = poly * t * exp_negative::<FUSED>(-z * z);
        let positive = if *x > 0.0 { *x } else { 0.0 };
        *x = fma::<FUSED>(-0.5 * x.abs(), erfc, positive);
    }
}

#[inline(always)]
fn add_body<const FUSED: bool>(y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len(), "add: both sides");
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

#[inline(always)]
fn add_bias_body<const FUSED: bool>(y: &mut [f32], bias: &[f32]) {
    for y in y.chunks_exact_mut(bias.len()) {
        y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
    }
}

#[inline(always)]
fn axpy_body<const FUSED: bool>(y: &mut [f32], a: f32, x: &[f32]) {
    assert_eq!(y.len(), x.len(), "axpy: both sides");
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = fma::<FUSED>(a, x, *y));
}

#[inline(always)]
fn scale_body<const FUSED: bool>(x: &mut [f32], a: f32) {
    x.iter_mut().for_each(|x| *x *= a);
}

#[inline(always)]
fn dot_body<const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot: both sides");
    let mut lanes = [0.0; LANES];
    let left = a.chunks_exact(LANES);
    let right = b.chunks_exact(LANES);
    let rest = left.remainder().iter().zip(right.remainder());
    for (a, b) in left.zip(right) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = fma::<FUSED>(a, b, *lane);
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(rest) {
        *lane = fma::<FUSED>(a, b, *lane);
    }
    fold(lanes, |a, b| a + b)
}

/// 1.5 · 2²³. Adding it leaves the nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// ln 2 in two parts, the first with so few bits that its product with an exponent is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Computes `eˣ = 2ⁿ · eʳ` with n the nearest integer to x / ln 2 and |r| ≤ ln 2 / 2; eʳ is its Taylor polynomial
/// of degree 7, whose remainder is below 1e-8 there. Branch-free, so loops over it vectorize.
#[inline(always)]
pub(super) fn exp_one<const FUSED: bool>(x: f32) -> f32 {
    let bounded = x.clamp(-87.3, 88.7);
    let shifted = fma::<FUSED>(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma::<FUSED>(-n, LN2_LOW, fma::<FUSED>(-n, LN2_HIGH, bounded));
    let mut poly = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = fma::<FUSED>(poly, r, coefficient);
    }
    // n goes up to 128, one more than an exponent can hold, so 2ⁿ is split into two factors.
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = exponent >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
    let value = poly * power(half) * power(exponent - half);
    let value = if x < -87.3 { 0.0 } else { value };
    if x > 88.7 { f32::INFINITY } else { value }
}

/// Computes `eˣ` for x ≤ 0 as [`exp_one`] does, with fewer operations: 2ⁿ is never too large for one factor. The
/// polynomial has degree 6, whose remainder is below 1.3e-7.
#[inline(always)]
fn exp_negative<const FUSED: bool>(x: f32) -> f32 {
    const LEAST: f32 = -87.3;
    // Comparisons in this order keep NaN.
    let bounded = if LEAST > x { LEAST } else { x };
    let shifted = fma::<FUSED>(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma::<FUSED>(-n, LN2_LOW, fma::<FUSED>(-n, LN2_HIGH, bounded));
    let mut poly = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = fma::<FUSED>(poly, r, coefficient);
    }
    // The low bits of the sum are n; 127 is the bias of an exponent.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if LEAST > x { 0.0 } else { poly * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(from: f32, to: f32, count: usize) -> Vec<f32> {
        (0..count).map(|i| from + (to - from) * i as f32 / (count - 1) as f32).collect()
    }

    fn close(found: f32, expected: f64, tolerance: f64) {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= tolerance * expected.abs().max(1.0), "{found} for {expected}");
    }

    /// erf by its Maclaurin series, good for |x| < 5 in f64; ±1 beyond.
    fn erf(x: f64) -> f64 {
        if x.abs() > 5.0 {
            return x.signum();
        }
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn exp_is_within_a_millionth() {
        let x = ramp(-87.2, 88.6, 100_003);
        let mut y = x.clone();
        exp(&mut y);
        for (x, y) in x.iter().zip(y) {
            let expected = f64::from(*x).exp();
            assert!(((f64::from(y) - expected) / expected).abs() < 1e-6, "exp({x}) = {y}");
        }
        let mut edges = [f32::NEG_INFINITY, -1e30, 0.0, 1.0, 200.0, f32::INFINITY, f32::NAN];
        exp(&mut edges);
        assert_eq!(edges[..3], [0.0, 0.0, 1.0]);
        close(edges[3], std::f64::consts::E, 1e-7);
        assert_eq!(edges[4..6], [f32::INFINITY; 2]);
        assert!(edges[6].is_nan());
    }

    #[test]
    fn gelu_and_silu_agree_with_f64() {
        let x = ramp(-12.0, 12.0, 20_001);
        let mut y = x.clone();
        gelu(&mut y);
        for (&x, &y) in x.iter().zip(&y) {
            let x = f64::from(x);
            close(y, x * 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2)), 1e-6);
        }
        let x = ramp(-90.0, 90.0, 20_001);
        let mut y = x.clone();
        let up = ramp(3.0, -2.0, x.len());
        silu_mul(&mut y, &up);
        for ((&x, &up), &y) in x.iter().zip(&up).zip(&y) {
            let x = f64::from(x);
            close(y, x / (1.0 + (-x).exp()) * f64::from(up), 1e-6);
        }
    }

    #[test]
    fn the_tanh_gate_and_the_soft_limit_agree_with_f64() {
        let x = ramp(-30.0, 30.0, 20_001);
        let up = ramp(3.0, -2.0, x.len());
        let mut y = x.clone();
        gelu_tanh_mul(&mut y, &up);
        for ((&x, &up), &y) in x.iter().zip(&up).zip(&y) {
            let x = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            close(y, x * 0.5 * (1.0 + u.tanh()) * f64::from(up), 1e-5);
        }
        let mut y = x.clone();
        soft_cap(&mut y, 5.0);
        x.iter().zip(&y).for_each(|(&x, &y)| close(y, 5.0 * (f64::from(x) / 5.0).tanh(), 1e-6));
    }

    #[test]
    fn exp_of_negative_values_is_within_a_millionth() {
        for x in ramp(-87.2, 0.0, 100_003) {
            let expected = f64::from(x).exp();
            for y in [exp_negative::<true>(x), exp_negative::<false>(x)] {
                assert!(((f64::from(y) - expected) / expected).abs() < 1e-6, "exp({x}) = {y}");
            }
        }
        assert_eq!([f32::NEG_INFINITY, -1e30, -87.4, 0.0].map(exp_negative::<true>), [0.0, 0.0, 0.0, 1.0]);
        assert!(exp_negative::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn softmax_sums_to_one_and_masks() {
        for count in [1, 2, 15, 16, 17, 100] {
            let mut x = ramp(-5.0, 80.0, count.max(2))[..count].to_vec();
            let total: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
            let expected: Vec<f64> = x.iter().map(|&x| f64::from(x).exp() / total).collect();
            softmax(&mut x);
            x.iter().zip(expected).for_each(|(&x, expected)| close(x, expected, 1e-6));
        }
        let mut masked = [1.0, f32::NEG_INFINITY, 1.0];
        softmax(&mut masked);
        assert_eq!(masked, [0.5, 0.0, 0.5]);
        softmax(&mut []);
    }

    #[test]
    fn softmax_sums_each_column_to_one_and_masks() {
        for (rows, width, count) in [(1, 16, 16), (2, 32, 16), (17, 32, 32), (100, 40, 32)] {
            let before = ramp(-5.0, 80.0, rows * width);
            let mut x = before.clone();
            softmax_columns(&mut x, width, count);
            for column in 0..width {
                let of = |x: &[f32]| -> Vec<f32> { x.iter().skip(column).step_by(width).copied().collect() };
                let before = of(&before);
                if column >= count {
                    assert_eq!(of(&x), before, "column {column} of {width} is left alone");
                    continue;
                }
                let total: f64 = before.iter().map(|&x| f64::from(x).exp()).sum();
                let expected = before.iter().map(|&x| f64::from(x).exp() / total);
                of(&x).into_iter().zip(expected).for_each(|(x, expected)| close(x, expected, 1e-6));
            }
        }
        let mut masked = [[1.0; 16], [f32::NEG_INFINITY; 16], [1.0; 16]];
        softmax_columns(masked.as_flattened_mut(), 16, 16);
        assert_eq!(masked, [[0.5; 16], [0.0; 16], [0.5; 16]]);
        softmax_columns(&mut [], 16, 16);
    }

    #[test]
    fn norms_agree_with_f64() {
        for width in [1, 7, 16, 33, 576] {
            let x = ramp(-3.0, 5.0, 3 * width.max(2))[..3 * width].to_vec();
            let weight = ramp(0.5, 1.5, width.max(2))[..width].to_vec();
            let bias = ramp(-1.0, 1.0, width.max(2))[..width].to_vec();
            let mut rms = vec![0.0; x.len()];
            rms_norm(&x, &weight, 1e-5, &mut rms);
            let mut sums = vec![1.0; x.len()];
            rms_norm_add(&x, &weight, 1e-5, &mut sums);
            sums.iter().zip(&rms).for_each(|(&sum, &rms)| close(sum, 1.0 + f64::from(rms), 1e-6));
            let mut layer = x.clone();
            layer_norm(&mut layer, &weight, &bias, 1e-5);
            for (row, x) in x.chunks_exact(width).enumerate() {
                let n = width as f64;
                let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
                let square = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
                let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
                for (i, &x) in x.iter().enumerate() {
                    let x = f64::from(x);
                    let w = f64::from(weight[i]);
                    let b = f64::from(bias[i]);
                    close(rms[row * width + i], x / (square + 1e-5).sqrt() * w, 1e-5);
                    if width > 1 {
                        close(layer[row * width + i], (x - mean) / (variance + 1e-5).sqrt() * w + b, 1e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn sums_and_products() {
        for count in [0, 1, 16, 37] {
            let a = ramp(1.0, 2.0, 37)[..count].to_vec();
            let mut b = ramp(-1.0, 3.0, 37)[..count].to_vec();
            let expected: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            close(dot(&a, &b), expected, 1e-6);
            let before = b.clone();
            add(&mut b, &a);
            scale(&mut b, 2.0);
            axpy(&mut b, -2.0, &a);
            b.iter().zip(before).for_each(|(&b, before)| close(b, f64::from(before) * 2.0, 1e-6));
        }
        let mut rows = [1.0, 2.0, 3.0, 4.0];
        add_bias(&mut rows, &[10.0, 20.0]);
        assert_eq!(rows, [11.0, 22.0, 13.0, 24.0]);
    }
}
