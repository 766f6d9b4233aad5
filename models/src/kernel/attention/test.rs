#![allow(clippy::unwrap_used)]

use super::*;
use crate::batch::LogitPositions;

/// Deterministic values between -1 and 1.
fn noise(seed: usize) -> impl FnMut() -> f32 {
    let mut state = seed as u64 * 2 + 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A pool filled with NaN except for the keys and values of some sequences.
struct Cache {
    heads: HeadLayout,
    pool: Vec<f32>,
}

impl Cache {
    fn place(&self, table: &[u32], position: usize, head: usize) -> (usize, usize) {
        let start = table[position / BLOCK] as usize * self.heads.block_len() + head * self.heads.head_len();
        (start + position % BLOCK, start + BLOCK * self.heads.dim + position % BLOCK * self.heads.dim)
    }

    fn key(&self, table: &[u32], position: usize, head: usize, d: usize) -> usize {
        self.place(table, position, head).0 + d * BLOCK
    }

    fn value(&self, table: &[u32], position: usize, head: usize, d: usize) -> usize {
        self.place(table, position, head).1 + d
    }

    fn fill(&mut self, table: &[u32], tokens: usize, mut noise: impl FnMut() -> f32) {
        for position in 0..tokens {
            for head in 0..self.heads.kv {
                for d in 0..self.heads.dim {
                    let (key, value) = (self.key(table, position, head, d), self.value(table, position, head, d));
                    self.pool[key] = 3.0 * noise();
                    self.pool[value] = noise();
                }
            }
        }
    }

    /// Attention by the definition, in `f64`.
    fn naive(&self, table: &[u32], position: usize, head: usize, query: &[f32], rule: ScoreRule) -> Vec<f64> {
        let kv = head / self.heads.group();
        let score = |t: usize| -> f64 {
            let dot =
                (0..self.heads.dim).map(|d| f64::from(query[d]) * f64::from(self.pool[self.key(table, t, kv, d)]));
            let score = dot.sum::<f64>() * f64::from(rule.scale);
            rule.cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let first = rule.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let scores: Vec<f64> = (first..=position).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let value = |d, t| f64::from(self.pool[self.value(table, t, kv, d)]);
        (0..self.heads.dim)
            .map(|d| weights.iter().zip(first..).map(|(w, t)| w * value(d, t)).sum::<f64>() / total)
            .collect()
    }
}

/// Largest difference from the definition for rows of (tokens in the cache, new tokens).
fn difference(isa: Isa, heads: HeadLayout, rows: &[(usize, usize)], rule: ScoreRule) -> f64 {
    let mut noise = noise(heads.dim + rows.len());
    let mut batch = ForwardBatch::new();
    let blocks: usize = rows.iter().map(|(start, new)| (start + new).div_ceil(BLOCK)).sum();
    let mut cache = Cache { heads, pool: vec![f32::NAN; blocks * heads.block_len()] };
    let mut free = (0..blocks as u32).rev();
    for &(start, new) in rows {
        let table: Vec<u32> = free.by_ref().take((start + new).div_ceil(BLOCK)).collect();
        cache.fill(&table, start + new, &mut noise);
        batch.push(&vec![0; new], start, &table, None, LogitPositions::Last);
    }
    let width = heads.query * heads.dim;
    let stride = width + 5;
    let queries: Vec<f32> = (0..batch.tokens().len() * stride).map(|_| 4.0 * noise()).collect();
    let mut out = vec![f32::NAN; batch.tokens().len() * width];
    let team = Team::new(2);
    let mut attention = Attention::new(heads, team.threads());
    attention.isa = isa;
    attention.plan(&batch);
    attention.run(&team, &batch, &cache.pool, Queries { data: &queries, stride }, rule, &mut out);
    let mut most = 0.0;
    for row in batch.rows() {
        for (offset, token) in row.tokens.clone().enumerate() {
            for head in 0..heads.query {
                let query = &queries[token * stride + head * heads.dim..][..heads.dim];
                let expected = cache.naive(batch.table(row), row.start + offset, head, query, rule);
                let found = &out[token * width + head * heads.dim..][..heads.dim];
                let differences = expected.iter().zip(found).map(|(a, b)| (a - f64::from(*b)).abs());
                most = differences.fold(most, |most, d| if d.is_nan() { f64::INFINITY } else { d.max(most) });
            }
        }
    }
    most
}

#[test]
fn agrees_with_the_definition_on_every_instruction_set() {
    let shapes = [(3, 1, 64), (9, 3, 64), (14, 2, 64), (4, 4, 32), (4, 2, 128), (5, 1, 48), (2, 1, 16)];
    for isa in Isa::available() {
        for (query, kv, dim) in shapes {
            let heads = HeadLayout { query, kv, dim };
            for rows in [
                &[(0, 1)][..],
                &[(15, 1), (16, 1), (17, 1), (300, 1)],
                &[(0, 40), (127, 3), (128, 1), (5, 60), (250, 17)],
            ] {
                let plain = ScoreRule::plain(dim);
                let difference = |rule| difference(isa, heads, rows, rule);
                assert!(difference(plain) < 2e-5, "{isa:?} {heads:?} {rows:?}: {}", difference(plain));
                for window in [1, 20, 130, 200] {
                    let rule = ScoreRule { window: Some(window), ..plain };
                    assert!(difference(rule) < 2e-5, "{isa:?} {heads:?} {rows:?} {rule:?}: {}", difference(rule));
                }
                let rule = ScoreRule { scale: 0.3 * plain.scale, window: Some(33), cap: Some(1.5) };
                assert!(difference(rule) < 2e-5, "{isa:?} {heads:?} {rows:?} {rule:?}: {}", difference(rule));
            }
        }
    }
}
