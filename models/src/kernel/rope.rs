//! Rotary position embedding, with the frequency scalings of [`RopeScaling`].
//!
//! Each head's halves are rotated against each other (`x[i]` with `x[i + dim / 2]`), as in Hugging Face
//! checkpoints. The formulas and the order of roundings follow `modeling_rope_utils.py` of `transformers`.

use std::f32::consts::PI;

use crate::architecture::RopeScaling;

/// Table of cosines and sines per position, extended as positions are first used.
#[derive(Debug)]
pub struct Rope {
    /// Radians per position, `dim / 2` of them.
    frequencies: Vec<f32>,
    /// Factor on cosine and sine (the attention factor of YaRN and LongRoPE).
    magnitude: f32,
    /// Table with `dim / 2` cosines followed by as many sines for each position.
    table: Vec<f32>,
}

impl Rope {
    /// Computes the frequencies for heads with `dim` rotated values, the first ones.
    pub fn new(dim: usize, base: f32, scaling: &RopeScaling) -> Self {
        let plain = (0..dim / 2).map(|i| 1.0 / base.powf((2 * i) as f32 / dim as f32));
        let mut magnitude = 1.0;
        let frequencies = match scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Long { factors, attention_factor } => {
                magnitude = *attention_factor;
                plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect()
            }
            RopeScaling::Factors(factors) => plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let context = *original_context as f32;
                plain
                    .map(|frequency| llama3(frequency, *factor, *low_freq_factor, *high_freq_factor, context))
                    .collect()
            }
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
                // Default of YaRN (Peng et al. 2023, §3.4): the temperature grows with the logarithm of the
                // factor.
                magnitude = attention_factor.unwrap_or(if *factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 });
                let turns = |rotations: f32| {
                    dim as f32 * (*original_context as f32 / (rotations * 2.0 * PI)).ln() / (2.0 * base.ln())
                };
                let low = turns(*beta_fast).floor().max(0.0);
                let high = turns(*beta_slow).ceil().min(dim as f32 - 1.0);
                // `transformers` avoids the division by zero with the same constant, so results agree to the bit.
                let width = if high == low { 0.001 } else { high - low };
                plain
                    .enumerate()
                    .map(|(i, frequency)| {
                        let divided = ((i as f32 - low) / width).clamp(0.0, 1.0);
                        frequency / factor * divided + frequency * (1.0 - divided)
                    })
                    .collect()
            }
        };
        Self { frequencies, magnitude, table: Vec::new() }
    }

    /// Extends the table so that positions below `positions` can be rotated.
    pub fn reserve(&mut self, positions: usize) {
        let have = self.table.len() / (2 * self.frequencies.len());
        if positions <= have {
            return;
        }
        // Doubling keeps the cost per position constant, and a long context costs nothing until it is used.
        let until = positions.next_power_of_two().max(256);
        for position in have..until {
            let angle = |frequency: &f32| position as f32 * frequency;
            // The factor is stored in the table: a rotation then needs no multiplication of its own for it.
            self.table.extend(self.frequencies.iter().map(|frequency| angle(frequency).cos() * self.magnitude));
            self.table.extend(self.frequencies.iter().map(|frequency| angle(frequency).sin() * self.magnitude));
        }
    }

    /// Table with `dim / 2` cosines followed by as many sines for each reserved position.
    pub(crate) fn table(&self) -> &[f32] {
        &self.table
    }

    /// Rotates one head to its position, which must have been [`reserve`](Self::reserve)d.
    pub fn rotate(&self, head: &mut [f32], position: usize) {
        self.turn::<false>(head, position);
    }

    /// Rotates a head's gradient back by the negative angle: the transpose of [`rotate`](Self::rotate).
    pub fn rotate_back(&self, head: &mut [f32], position: usize) {
        self.turn::<true>(head, position);
    }

    fn turn<const BACK: bool>(&self, head: &mut [f32], position: usize) {
        let half = self.frequencies.len();
        let (cos, sin) = self.table[position * 2 * half..(position + 1) * 2 * half].split_at(half);
        let (left, right) = head.split_at_mut(half);
        for (((left, right), cos), sin) in left.iter_mut().zip(right).zip(cos).zip(sin) {
            let x = *left;
            let y = *right;
            // A rotation is orthogonal, so its transpose is the rotation by the negative angle.
            let sin = if BACK { -*sin } else { *sin };
            *left = x * cos - y * sin;
            *right = y * cos + x * sin;
        }
    }
}

/// Scales one frequency by Llama 3's rule.
fn llama3(frequency: f32, factor: f32, low: f32, high: f32, context: f32) -> f32 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength < context / high {
        frequency
    } else if wavelength > context / low {
        frequency / factor
    } else {
        let smooth = (context / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rotation_keeps_length_and_depends_on_the_distance_only() {
        let mut rope = Rope::new(16, 10_000.0, &RopeScaling::None);
        rope.reserve(300);
        let query: Vec<f32> = (0..16).map(|i| (i as f32 * 0.7).sin()).collect();
        let key: Vec<f32> = (0..16).map(|i| (i as f32 * 1.3).cos()).collect();
        let product = |at_query: usize, at_key: usize| -> f32 {
            let mut query = query.clone();
            let mut key = key.clone();
            rope.rotate(&mut query, at_query);
            rope.rotate(&mut key, at_key);
            query.iter().zip(&key).map(|(a, b)| a * b).sum()
        };
        assert!((product(5, 3) - product(257, 255)).abs() < 1e-4);
        assert!((product(5, 3) - product(5, 4)).abs() > 1e-2);
    }

    #[test]
    fn turning_back_undoes_the_rotation() {
        let mut rope = Rope::new(16, 10_000.0, &RopeScaling::None);
        rope.reserve(40);
        let head: Vec<f32> = (0..16).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut turned = head.clone();
        rope.rotate(&mut turned, 37);
        assert!(turned.iter().zip(&head).any(|(a, b)| (a - b).abs() > 0.1));
        rope.rotate_back(&mut turned, 37);
        assert!(turned.iter().zip(&head).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn frequencies_agree_with_transformers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/decoder/rope.json");
        let file: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for kind in ["linear", "llama3", "yarn"] {
            let number = |name: &str| file[kind][name].as_f64().unwrap_or(f64::NAN) as f32;
            let original_context = number("original_max_position_embeddings") as usize;
            let factor = number("factor");
            let scaling = match kind {
                "linear" => RopeScaling::Linear { factor },
                "llama3" => RopeScaling::Llama3 {
                    factor,
                    low_freq_factor: number("low_freq_factor"),
                    high_freq_factor: number("high_freq_factor"),
                    original_context,
                },
                _ => RopeScaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    attention_factor: None,
                },
            };
            let rope = Rope::new(64, number("rope_theta"), &scaling);
            let expected = file[kind]["frequencies"].as_array().unwrap();
            assert_eq!(expected.len(), rope.frequencies.len());
            for (found, expected) in rope.frequencies.iter().zip(expected) {
                let expected = expected.as_f64().unwrap() as f32;
                assert!((found - expected).abs() <= 1e-6 * expected, "{kind}: {found}, expected {expected}");
            }
            assert!((rope.magnitude - number("magnitude")).abs() < 1e-6, "{kind}");
        }
    }

    #[test]
    fn linear_scaling_stretches_positions() {
        let mut plain = Rope::new(32, 10_000.0, &RopeScaling::None);
        let mut scaled = Rope::new(32, 10_000.0, &RopeScaling::Linear { factor: 4.0 });
        plain.reserve(64);
        scaled.reserve(64);
        let mut a = vec![1.0; 32];
        let mut b = vec![1.0; 32];
        plain.rotate(&mut a, 5);
        scaled.rotate(&mut b, 20);
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6));
    }
}
