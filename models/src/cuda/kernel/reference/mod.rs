//! Reference implementations of the kernels, in `f64` and as simple as possible.

mod attention;
mod fp8;
mod gradient;
mod lora;
mod sample;
mod score;

pub use attention::{ReferenceSequence, attend};
pub use fp8::quantize;
pub use gradient::{AttentionGradients, attend_backward, rms_norm_backward, rotate_back, silu_mul_backward};
pub use lora::{ReferenceAdapter, lora};
pub use sample::{ReferenceChoice, ReferenceOutcome, log_sum, sample};
pub use score::{ReferenceScore, score_target, score_target_backward};

/// Computes `x / √(mean(x²) + eps) · weight` for one row.
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let squares: f64 = x.iter().map(|x| x * x).sum();
    let scale = 1.0 / (squares / x.len() as f64 + eps).sqrt();
    x.iter().zip(weight).map(|(x, weight)| x * scale * weight).collect()
}

/// Computes `x · Wᵀ` for one row and the rows of `W`, one after the other.
pub fn matmul(x: &[f64], weights: &[f64]) -> Vec<f64> {
    weights.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

/// Computes `gate · sigmoid(gate) · up` elementwise.
pub fn silu_mul(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
}

/// Rotates one head: its first half against its second half, by the cosines and sines of its position.
pub fn rotate(head: &[f64], cos: &[f64], sin: &[f64]) -> Vec<f64> {
    let (x, y) = head.split_at(head.len() / 2);
    let left = x.iter().zip(y).zip(cos.iter().zip(sin)).map(|((x, y), (cos, sin))| x * cos - y * sin);
    let right = x.iter().zip(y).zip(cos.iter().zip(sin)).map(|((x, y), (cos, sin))| y * cos + x * sin);
    left.chain(right).collect()
}
