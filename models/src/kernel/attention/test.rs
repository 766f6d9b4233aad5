#![allow(clippy::unwrap_used)]

use bytemuck::Pod;
use half::f16;

use super::stored::store_token;
use super::*;
use crate::batch::LogitPositions;
use crate::kernel::lanes::LANES;

/// Deterministic values between -1 and 1.
fn noise(seed: usize) -> impl FnMut() -> f32 {
    let mut state = seed as u64 * 2 + 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Keys and values of one token in one head.
type Pair = [Vec<f32>; 2];

/// A pool filled with NaN except for the keys and values of some sequences.
struct Cache<S> {
    heads: HeadLayout,
    pool: Vec<S>,
    /// Keys and values before they were stored, per slot and head.
    given: Vec<Pair>,
    /// Keys and values as they are stored.
    kept: Vec<Pair>,
}

impl<S: Stored + Pod> Cache<S> {
    fn new(heads: HeadLayout, blocks: usize) -> Self {
        let mut pool = vec![S::default(); blocks * heads.block_len::<S>()];
        // NaN in `f32` and in `f16`, and so in the scales of bytes.
        bytemuck::cast_slice_mut::<S, u8>(&mut pool).fill(0xff);
        let pairs = vec![Pair::default(); blocks * BLOCK * heads.kv];
        Self { heads, pool, given: pairs.clone(), kept: pairs }
    }

    /// Index of a pair.
    fn place(&self, table: &[u32], position: usize, head: usize) -> usize {
        (table[position / BLOCK] as usize * BLOCK + position % BLOCK) * self.heads.kv + head
    }

    fn fill(&mut self, table: &[u32], tokens: usize, mut noise: impl FnMut() -> f32) {
        let width = self.heads.kv * self.heads.dim;
        for position in 0..tokens {
            let keys: Vec<f32> = (0..width).map(|_| 3.0 * noise()).collect();
            let values: Vec<f32> = (0..width).map(|_| noise()).collect();
            for head in 0..self.heads.kv {
                let own = head * self.heads.dim..(head + 1) * self.heads.dim;
                let place = self.place(table, position, head);
                self.given[place] = [keys[own.clone()].to_vec(), values[own.clone()].to_vec()];
                self.kept[place] = [kept::<S>(&keys[own.clone()]), kept::<S>(&values[own])];
            }
            let block = table[position / BLOCK] as usize * self.heads.block_len::<S>();
            let to = &mut self.pool[block..block + self.heads.block_len::<S>()];
            // SAFETY: a block of all heads.
            unsafe { store_token(position % BLOCK, &keys, &values, self.heads.dim, to.as_mut_ptr()) };
        }
    }

    /// Attention over `pairs` by the definition.
    fn naive(
        &self,
        pairs: &[Pair],
        table: &[u32],
        position: usize,
        head: usize,
        query: &[f32],
        rule: ScoreRule,
    ) -> Vec<f64> {
        let kv = head / self.heads.group();
        let score = |t: usize| -> f64 {
            let key = &pairs[self.place(table, t, kv)][0];
            let score = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
            let score = score * f64::from(rule.scale);
            rule.cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let first = rule.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let scores: Vec<f64> = (first..=position).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let value = |d: usize, t| f64::from(pairs[self.place(table, t, kv)][1][d]);
        (0..self.heads.dim)
            .map(|d| weights.iter().zip(first..).map(|(w, t)| w * value(d, t)).sum::<f64>() / total)
            .collect()
    }

    /// Largest possible error of a row by rounding keys and values. A softmax weight changes by a factor of at most
    /// e^(2ε) if no score changes by more than ε.
    fn rounding(&self, table: &[u32], position: usize, head: usize, query: &[f32], rule: ScoreRule) -> f64 {
        let kv = head / self.heads.group();
        let queries: f32 = query.iter().map(|value| value.abs()).sum();
        let mut score = 0.0f32;
        let mut value = 0.0f32;
        let mut largest = 0.0f32;
        for t in 0..=position {
            let [key, own] = &self.given[self.place(table, t, kv)];
            // Half a step, and at the largest value the rounding of the scale.
            score = score.max(0.57 * S::step(S::scale(key)) * queries * rule.scale);
            value = value.max(0.57 * S::step(S::scale(own)));
            largest = own.iter().fold(largest, |largest, value| largest.max(value.abs()));
        }
        f64::from(value) + (2.0 * f64::from(score)).exp_m1() * f64::from(largest)
    }
}

/// Values as they are read after they were stored.
fn kept<S: Stored>(values: &[f32]) -> Vec<f32> {
    let step = S::step(S::scale(values));
    let read = |part: &[f32]| {
        let stored: [S; LANES] = std::array::from_fn(|lane| S::keep(part[lane] * step.recip()));
        // SAFETY: sixteen values; an array needs no instruction set.
        unsafe { S::load::<[f32; LANES]>(stored.as_ptr()) }.map(|value| value * step)
    };
    values.chunks_exact(LANES).flat_map(read).collect()
}

/// Largest differences of attention: from the definition over the stored values, and from the definition over the given
/// ones as a share of what rounding allows.
#[derive(Debug, Default)]
struct Differences {
    stored: f64,
    given: f64,
}

fn largest(found: &[f32], expected: &[f64]) -> f64 {
    let differences = expected.iter().zip(found).map(|(a, b)| (a - f64::from(*b)).abs());
    differences.fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { d.max(most) })
}

/// Differences for rows of (tokens in the cache, new tokens).
fn differences<S: Stored + Pod>(isa: Isa, heads: HeadLayout, rows: &[(usize, usize)], rule: ScoreRule) -> Differences {
    let mut noise = noise(heads.dim + rows.len());
    let mut batch = ForwardBatch::new();
    let blocks: usize = rows.iter().map(|(start, new)| (start + new).div_ceil(BLOCK)).sum();
    let mut cache = Cache::<S>::new(heads, blocks);
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
    let mut most = Differences::default();
    for row in batch.rows() {
        for (offset, token) in row.tokens.clone().enumerate() {
            for head in 0..heads.query {
                let query = &queries[token * stride + head * heads.dim..][..heads.dim];
                let table = batch.table(row);
                let position = row.start + offset;
                let found = &out[token * width + head * heads.dim..][..heads.dim];
                let expected = |pairs: &[Pair]| cache.naive(pairs, table, position, head, query, rule);
                most.stored = most.stored.max(largest(found, &expected(&cache.kept)));
                if S::SCALES > 0 {
                    let bound = 2e-5 + cache.rounding(table, position, head, query, rule);
                    most.given = most.given.max(largest(found, &expected(&cache.given)) / bound);
                }
            }
        }
    }
    most
}

fn agrees<S: Stored + Pod>(isa: Isa, heads: HeadLayout) {
    for rows in
        [&[(0, 1)][..], &[(15, 1), (16, 1), (17, 1), (300, 1)], &[(0, 40), (127, 3), (128, 1), (5, 60), (250, 17)]]
    {
        let plain = ScoreRule::plain(heads.dim);
        // Windows do not depend on the type.
        let windows = if size_of::<S>() == size_of::<f32>() { &[1, 20, 130, 200][..] } else { &[20] };
        let windows = windows.iter().map(|&window| ScoreRule { window: Some(window), ..plain });
        let capped = ScoreRule { scale: 0.3 * plain.scale, window: Some(33), cap: Some(1.5) };
        for rule in [plain, capped].into_iter().chain(windows) {
            let most = differences::<S>(isa, heads, rows, rule);
            assert!(most.stored < 2e-5 && most.given < 1.0, "{isa:?} {heads:?} {rows:?} {rule:?}: {most:?}");
            assert_eq!(most.given > 0.0, S::SCALES > 0, "values are rounded where they have scales");
        }
    }
}

#[test]
fn agrees_with_the_definition_on_every_instruction_set() {
    let shapes =
        [(3, 1, 64), (9, 3, 64), (14, 2, 64), (4, 4, 32), (4, 2, 128), (5, 1, 48), (2, 1, 16), (4, 2, 80), (2, 1, 96)];
    for isa in Isa::available() {
        for (query, kv, dim) in shapes {
            let heads = HeadLayout { query, kv, dim };
            agrees::<f32>(isa, heads);
            agrees::<f16>(isa, heads);
            agrees::<i8>(isa, heads);
        }
    }
}

/// Attention of the last positions of rows of (all tokens, new tokens), whose tables begin with the 17 blocks of one prompt, in
/// bits; all rows in one batch, or each in a batch of its own.
fn bits<S: Stored + Pod>(
    isa: Isa,
    heads: HeadLayout,
    rows: &[(usize, usize)],
    rule: ScoreRule,
    together: bool,
) -> Vec<u32> {
    let common = 17;
    let mut next = common as u32;
    let tables: Vec<Vec<u32>> = rows
        .iter()
        .map(|(end, _)| {
            let own = end.div_ceil(BLOCK) - common;
            next += own as u32;
            (0..common as u32).chain(next - own as u32..next).collect()
        })
        .collect();
    let mut cache = Cache::<S>::new(heads, next as usize);
    for (row, (table, &(end, _))) in tables.iter().zip(rows).enumerate() {
        cache.fill(table, end, noise(1000 + row));
    }
    let width = heads.query * heads.dim;
    let mut noise = noise(7);
    let tokens = |rows: &[(usize, usize)]| rows.iter().map(|(_, new)| new).sum::<usize>();
    let queries: Vec<f32> = (0..tokens(rows) * width).map(|_| 4.0 * noise()).collect();
    // More threads would leave fewer queries to each item.
    let team = Team::new(1);
    let mut attention = Attention::new(heads, team.threads());
    attention.isa = isa;
    let mut run = |range: Range<usize>| {
        let mut batch = ForwardBatch::new();
        for (&(end, new), table) in rows[range.clone()].iter().zip(&tables[range.clone()]) {
            batch.push(&vec![0; new], end - new, table, None, LogitPositions::Last);
        }
        attention.plan(&batch);
        let members = |item: &AttentionItem| attention.plan.members(item).iter().any(|member| member.queries > 1);
        let shares = attention.plan.items().iter().any(|item| item.shared > 0 && members(item));
        assert_eq!(shares, range.len() > 1, "blocks are attended together by rows of several queries");
        let own = Queries { data: &queries[tokens(&rows[..range.start]) * width..], stride: width };
        let mut out = vec![f32::NAN; tokens(&rows[range]) * width];
        attention.run(&team, &batch, &cache.pool, own, rule, &mut out);
        out
    };
    let out = if together { run(0..rows.len()) } else { (0..rows.len()).flat_map(|row| run(row..row + 1)).collect() };
    out.into_iter().map(f32::to_bits).collect()
}

#[test]
fn rows_with_a_common_prompt_have_the_same_bits_as_alone() {
    let rows = [(300, 1), (290, 3), (281, 5), (513, 2), (290, 1), (400, 4), (273, 1)];
    for isa in Isa::available() {
        for (query, kv, dim) in [(9, 3, 64), (8, 1, 128), (2, 2, 16)] {
            let heads = HeadLayout { query, kv, dim };
            let plain = ScoreRule::plain(dim);
            for rule in [plain, ScoreRule { window: Some(150), ..plain }, ScoreRule { cap: Some(1.5), ..plain }] {
                for bits in [bits::<f32>, bits::<i8>] {
                    let bits = |together| bits(isa, heads, &rows, rule, together);
                    assert_eq!(bits(true), bits(false), "{isa:?} {heads:?} {rule:?}");
                }
            }
        }
    }
}
