//! Random inputs from a seed.

use half::bf16;

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub(super) struct CheckRng(pub(super) u64);

impl CheckRng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns an integer below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// Returns a roughly normal number with mean 0 and deviation 1.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    pub(super) fn floats(&mut self, len: usize, deviation: f64) -> Vec<f32> {
        (0..len).map(|_| (self.normal() * deviation) as f32).collect()
    }

    pub(super) fn halves(&mut self, len: usize, deviation: f64) -> Vec<bf16> {
        (0..len).map(|_| bf16::from_f64(self.normal() * deviation)).collect()
    }

    /// Returns a random permutation of the numbers below `n`.
    pub(super) fn order(&mut self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        (1..n).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }
}

/// Converts to `f64` for the reference.
pub(super) fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

/// Converts to `f64` for the reference.
pub(super) fn wide32(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}
