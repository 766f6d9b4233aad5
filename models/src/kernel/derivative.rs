//! Derivatives of the functions in [`elementwise`](super::elementwise), for the backward pass.

use super::elementwise::{exp_one, fma, gelu_share, reduce, versions};
#[cfg(target_arch = "x86_64")]
use super::isa::Isa;

versions! {
    /// Adds the gradient of an RMS norm's input to `dx`, given the gradient `dy` of its output, row by row; rows
    /// have the length of `weight`. With `r = 1 / √(mean(x²) + eps)`, `dx += r · weight · dy - x · r³ · mean(weight
    /// · dy · x)`.
    ///
    /// # Panics
    /// If `x`, `dy` and `dx` have different lengths.
    pub(crate) fn rms_norm_back(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) = rms_norm_back_body;

    /// Adds the gradient of an RMS norm's weight to `dweight`: `Σ dy · x · r` over the rows, in order.
    ///
    /// # Panics
    /// If `x` and `dy` have different lengths.
    pub(crate) fn rms_weight_back(x: &[f32], eps: f32, dy: &[f32], dweight: &mut [f32]) = rms_weight_back_body;

    /// Replaces `gate` and `up` by their gradients, given the gradient `d` of `silu(gate) · up`: silu'(g) = σ(g) · (1 +
    /// g · (1 - σ(g))).
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn silu_mul_back(gate: &mut [f32], up: &mut [f32], d: &[f32]) = silu_mul_back_body;

    /// Replaces `gate` and `up` by their gradients, given the gradient `d` of `gelu(gate) · up` with the tanh
    /// approximation `gelu(g) = g · s(g)`: gelu'(g) = s + g · s · (1 - s) · 2u'(g), with `u = √(2 / π) · (g + 0.044715
    /// · g³)`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn gelu_tanh_mul_back(gate: &mut [f32], up: &mut [f32], d: &[f32]) = gelu_tanh_mul_back_body;
}

#[inline(always)]
fn inverse_root<const FUSED: bool>(x: &[f32], eps: f32) -> f32 {
    let squares = reduce(x, 0.0, |sum, x| fma::<FUSED>(x, x, sum), |a, b| a + b);
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn rms_norm_back_body<const FUSED: bool>(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
    const LANES: usize = 16;
    assert!(x.len() == dy.len() && x.len() == dx.len(), "rms_norm_back: input and gradients");
    let width = weight.len();
    for ((x, dy), dx) in x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
        let scale = inverse_root::<FUSED>(x, eps);
        let mut lanes = [0.0; LANES];
        for ((x, dy), weight) in x.chunks(LANES).zip(dy.chunks(LANES)).zip(weight.chunks(LANES)) {
            for (((lane, &x), &dy), &weight) in lanes.iter_mut().zip(x).zip(dy).zip(weight) {
                *lane = fma::<FUSED>(x * weight, dy, *lane);
            }
        }
        let along = reduce(&lanes, 0.0, |_, x| x, |a, b| a + b) * scale * scale * scale / width as f32;
        for (((dx, &x), &dy), &weight) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
            *dx += fma::<FUSED>(-along, x, scale * weight * dy);
        }
    }
}

#[inline(always)]
fn rms_weight_back_body<const FUSED: bool>(x: &[f32], eps: f32, dy: &[f32], dweight: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "rms_weight_back: input and gradient");
    let width = dweight.len();
    for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact(width)) {
        let scale = inverse_root::<FUSED>(x, eps);
        for ((dweight, &x), &dy) in dweight.iter_mut().zip(x).zip(dy) {
            *dweight = fma::<FUSED>(x * scale, dy, *dweight);
        }
    }
}

#[inline(always)]
fn silu_mul_back_body<const FUSED: bool>(gate: &mut [f32], up: &mut [f32], d: &[f32]) {
    assert!(gate.len() == up.len() && gate.len() == d.len(), "silu_mul_back: gate, up and gradient");
    for ((gate, up), &d) in gate.iter_mut().zip(up).zip(d) {
        let sigmoid = 1.0 / (1.0 + exp_one::<FUSED>(-*gate));
        let silu = *gate * sigmoid;
        let slope = fma::<FUSED>(silu, 1.0 - sigmoid, sigmoid);
        *gate = d * *up * slope;
        *up = d * silu;
    }
}

#[inline(always)]
fn gelu_tanh_mul_back_body<const FUSED: bool>(gate: &mut [f32], up: &mut [f32], d: &[f32]) {
    const TWICE_ROOT: f32 = 1.595_769_2;
    assert!(gate.len() == up.len() && gate.len() == d.len(), "gelu_tanh_mul_back: gate, up and gradient");
    for ((gate, up), &d) in gate.iter_mut().zip(up).zip(d) {
        let g = *gate;
        let share = gelu_share::<FUSED>(g);
        let twice = TWICE_ROOT * fma::<FUSED>(3.0 * 0.044_715 * g, g, 1.0);
        // Far from zero, the second summand is zero times a square.
        let slope = fma::<FUSED>(g * share * (1.0 - share), twice, share);
        *gate = d * *up * slope;
        *up = d * g * share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{gelu_tanh_mul, rms_norm, silu_mul};

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin() * 2.0).collect()
    }

    /// Derivative of `Σ_i dy[i] · f(x)[i]` with respect to `x[at]`, by finite differences.
    fn slope(x: &[f32], dy: &[f32], at: usize, f: impl Fn(&[f32]) -> Vec<f32>) -> f32 {
        const STEP: f32 = 2e-2;
        let value = |shift: f32| {
            let mut x = x.to_vec();
            x[at] += shift;
            f(&x).iter().zip(dy).map(|(y, dy)| f64::from(y * dy)).sum::<f64>()
        };
        ((8.0 * (value(STEP) - value(-STEP)) - (value(2.0 * STEP) - value(-2.0 * STEP))) / f64::from(12.0 * STEP))
            as f32
    }

    fn close(found: f32, expected: f32) {
        assert!((found - expected).abs() <= 1e-3 * expected.abs().max(1.0), "{found}, differences give {expected}");
    }

    #[test]
    fn rms_norm_agrees_with_differences() {
        for width in [5, 16, 48] {
            let x = wave(2 * width, 0.7);
            let weight = wave(width, 0.3);
            let dy = wave(2 * width, 1.1);
            let norm = |x: &[f32], weight: &[f32]| {
                let mut y = vec![0.0; x.len()];
                rms_norm(x, weight, 1e-5, &mut y);
                y
            };
            let mut dx = vec![1.0; x.len()];
            let mut dweight = vec![1.0; width];
            rms_norm_back(&x, &weight, 1e-5, &dy, &mut dx);
            rms_weight_back(&x, 1e-5, &dy, &mut dweight);
            for (at, dx) in dx.iter().enumerate() {
                close(dx - 1.0, slope(&x, &dy, at, |x| norm(x, &weight)));
            }
            for (at, dweight) in dweight.iter().enumerate() {
                close(dweight - 1.0, slope(&weight, &dy, at, |weight| norm(&x, weight)));
            }
        }
    }

    #[test]
    fn the_tanh_gate_agrees_with_differences() {
        let gate = wave(37, 0.7);
        let up = wave(37, 0.3);
        let d = wave(37, 1.1);
        let value = |gate: &[f32], up: &[f32]| {
            let mut y = gate.to_vec();
            gelu_tanh_mul(&mut y, up);
            y
        };
        let mut dgate = gate.clone();
        let mut dup = up.clone();
        gelu_tanh_mul_back(&mut dgate, &mut dup, &d);
        for at in 0..gate.len() {
            close(dgate[at], slope(&gate, &d, at, |gate| value(gate, &up)));
            close(dup[at], slope(&up, &d, at, |up| value(&gate, up)));
        }
    }

    #[test]
    fn the_gate_agrees_with_differences() {
        let gate = wave(37, 0.7);
        let up = wave(37, 0.3);
        let d = wave(37, 1.1);
        let value = |gate: &[f32], up: &[f32]| {
            let mut y = gate.to_vec();
            silu_mul(&mut y, up);
            y
        };
        let mut dgate = gate.clone();
        let mut dup = up.clone();
        silu_mul_back(&mut dgate, &mut dup, &d);
        for at in 0..gate.len() {
            close(dgate[at], slope(&gate, &d, at, |gate| value(gate, &up)));
            close(dup[at], slope(&up, &d, at, |up| value(&gate, up)));
        }
        let mut far = [-200.0, 200.0];
        let mut one = [1.0, 1.0];
        silu_mul_back(&mut far, &mut one, &[1.0, 1.0]);
        assert_eq!((far, one), ([0.0, 1.0], [0.0, 200.0]));
    }
}
