//! Random inputs of a seed.

use half::bf16;

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// Roughly normal: mean 0, deviation 1.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    pub(super) fn floats(&mut self, len: usize, deviation: f64) -> Vec<f32> {
        (0..len).map(|_| (self.normal() * deviation) as f32).collect()
    }

    pub(super) fn halves(&mut self, len: usize, deviation: f64) -> Vec<bf16> {
        (0..len).map(|_| bf16::from_f64(self.normal() * deviation)).collect()
    }

    /// The numbers below `n` in any order.
    pub(super) fn order(&mut self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        (1..n).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }
}

/// For references.
pub(super) fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

/// For references.
pub(super) fn wide32(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}
