//! AdamW and gradient clipping.

use crate::recipe::Optimizer;

/// AdamW (Loshchilov & Hutter 2019, algorithm 2) over one flat vector of values, in `f32` as `torch.optim.AdamW`:
///
/// m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  θ ← θ − lr·λ·θ − lr · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    settings: Optimizer,
    first: Vec<f32>,
    second: Vec<f32>,
    steps: u64,
}

impl AdamW {
    /// Creates an optimizer for `values` values that has made no step.
    pub fn new(settings: Optimizer, values: usize) -> Self {
        Self { settings, first: vec![0.0; values], second: vec![0.0; values], steps: 0 }
    }

    /// Restores an optimizer that has made `steps` steps, from its moments.
    ///
    /// # Panics
    /// If the moments differ in length.
    pub fn resume(settings: Optimizer, first: Vec<f32>, second: Vec<f32>, steps: u64) -> Self {
        assert_eq!(first.len(), second.len(), "first and second moments must have the same length");
        Self { settings, first, second, steps }
    }

    /// Number of steps made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// First and second moments.
    pub fn moments(&self) -> (&[f32], &[f32]) {
        (&self.first, &self.second)
    }

    /// Clips the gradients and makes one step with learning rate `rate`. Returns the gradient norm before clipping.
    ///
    /// # Panics
    /// If the number of values or gradients differs from that of the moments.
    pub fn step(&mut self, values: &mut [f32], gradients: &mut [f32], rate: f64) -> f64 {
        assert!(
            values.len() == self.first.len() && gradients.len() == values.len(),
            "values, gradients and moments must have the same length"
        );
        let norm = clip(gradients, self.settings.clip);
        self.steps += 1;
        let Optimizer { betas: (beta1, beta2), epsilon, weight_decay, .. } = self.settings;
        let power = i32::try_from(self.steps).unwrap_or(i32::MAX);
        // Constants of the step are computed in f64 and rounded once, so that long runs do not drift.
        let bias1 = 1.0 - beta1.powi(power);
        let bias2 = 1.0 - beta2.powi(power);
        let keep1 = beta1 as f32;
        let keep2 = beta2 as f32;
        let add1 = (1.0 - beta1) as f32;
        let add2 = (1.0 - beta2) as f32;
        let decay = (1.0 - rate * weight_decay) as f32;
        let size = (rate / bias1) as f32;
        let root = bias2.sqrt() as f32;
        let epsilon = epsilon as f32;
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((value, &gradient), (m, v)) in values.iter_mut().zip(gradients.iter()).zip(moments) {
            *m = keep1 * *m + add1 * gradient;
            *v = keep2 * *v + add2 * gradient * gradient;
            // Decoupled weight decay: it shrinks the value itself and does not enter the moments.
            *value = *value * decay - size * *m / (v.sqrt() / root + epsilon);
        }
        norm
    }
}

/// Scales `gradients` down to norm `limit` if theirs is larger, as `torch.nn.utils.clip_grad_norm_` does. A limit of
/// 0 disables clipping. Returns the norm before scaling.
pub fn clip(gradients: &mut [f32], limit: f64) -> f64 {
    let norm = gradients.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
    // 1e-6 as in `torch.nn.utils.clip_grad_norm_`.
    let scale = limit / (norm + 1e-6);
    if limit > 0.0 && scale < 1.0 {
        gradients.iter_mut().for_each(|g| *g *= scale as f32);
    }
    norm
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes the paper's formula for a single value in `f64`.
    fn by_hand(settings: Optimizer, start: f64, gradients: &[f64], rate: f64) -> f64 {
        let (b1, b2) = settings.betas;
        let mut value = start;
        let mut m = 0.0;
        let mut v = 0.0;
        for (i, g) in gradients.iter().enumerate() {
            let g = if settings.clip > 0.0 { g * (settings.clip / (g.abs() + 1e-6)).min(1.0) } else { *g };
            let t = i as i32 + 1;
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            let m_hat = m / (1.0 - b1.powi(t));
            let v_hat = v / (1.0 - b2.powi(t));
            value -= rate * (m_hat / (v_hat.sqrt() + settings.epsilon) + settings.weight_decay * value);
        }
        value
    }

    proptest! {
        #[test]
        fn steps_match_the_formula(
            start in -2.0f64..2.0,
            gradients in prop::collection::vec(-3.0f64..3.0, 1..40),
            rate in 1e-5f64..1e-1,
            clip in prop_oneof![Just(0.0), Just(1.0)],
        ) {
            let settings = Optimizer { clip, ..Optimizer::default() };
            let mut optimizer = AdamW::new(settings, 1);
            let mut values = [start as f32];
            for &gradient in &gradients {
                optimizer.step(&mut values, &mut [gradient as f32], rate);
            }
            let wanted = by_hand(settings, start, &gradients, rate);
            let close = 1e-5 * (1.0 + wanted.abs()) + 1e-4 * rate * gradients.len() as f64;
            prop_assert!((f64::from(values[0]) - wanted).abs() < close, "{} for {wanted}", values[0]);
        }

        #[test]
        fn clipped_gradients_keep_their_direction(gradients in prop::collection::vec(-9.0f32..9.0, 1..50)) {
            let mut clipped = gradients.clone();
            let norm = clip(&mut clipped, 1.0);
            let after = clip(&mut clipped.clone(), 0.0);
            prop_assert!(after <= 1.0 + 1e-5);
            for (before, after) in gradients.iter().zip(&clipped) {
                let wanted = if norm > 1.0 { f64::from(*before) / norm } else { f64::from(*before) };
                prop_assert!((f64::from(*after) - wanted).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn resumed_optimizers_give_identical_values() {
        let gradient = |step: u64| [0.3 * step as f32, -1.5, 0.01];
        let run = |values: &mut [f32; 3], optimizer: &mut AdamW, steps: std::ops::Range<u64>| {
            for step in steps {
                optimizer.step(values, &mut gradient(step), 1e-2);
            }
        };
        let mut whole = [1.0f32, -1.0, 0.5];
        let mut optimizer = AdamW::new(Optimizer::default(), 3);
        run(&mut whole, &mut optimizer, 0..7);
        let mut parts = [1.0f32, -1.0, 0.5];
        let mut before = AdamW::new(Optimizer::default(), 3);
        run(&mut parts, &mut before, 0..4);
        let (first, second) = before.moments();
        let mut after = AdamW::resume(Optimizer::default(), first.to_vec(), second.to_vec(), before.steps());
        run(&mut parts, &mut after, 4..7);
        assert_eq!((whole, optimizer), (parts, after));
    }
}
