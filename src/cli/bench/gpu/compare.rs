//! Two ways of computing the same sequences: where their greedy texts part, and how far their probabilities are apart.

use anyhow::ensure;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use waymark_models::{BLOCK, ForwardBatch, Logits, Want};

use super::report::Agreement;
use crate::engine::{Backend, BackendError};

/// Sequences in blocks of their own, computed step by step on one backend.
pub(super) struct Bed<'a> {
    backend: &'a mut dyn Backend,
    /// Blocks of one sequence.
    blocks: usize,
    /// The block the first sequence begins at.
    first: usize,
    batch: ForwardBatch,
    pub(super) logits: Logits,
}

impl<'a> Bed<'a> {
    /// For sequences of at most `tokens` tokens, from block `first` on.
    pub(super) fn new(backend: &'a mut dyn Backend, tokens: usize, first: usize) -> Self {
        Self { backend, blocks: tokens.div_ceil(BLOCK), first, batch: ForwardBatch::new(), logits: Logits::new() }
    }

    /// Computes whole sequences, none of which is there yet, in steps of at most `tokens` tokens.
    pub(super) fn fill(&mut self, sequences: &[Vec<u32>], tokens: usize) -> Result<(), BackendError> {
        self.batch.clear();
        for (index, ids) in sequences.iter().enumerate() {
            let mut start = 0;
            while start < ids.len() {
                if self.batch.tokens().len() == tokens {
                    self.backend.forward(&self.batch, &mut self.logits)?;
                    self.batch.clear();
                }
                let end = ids.len().min(start + tokens - self.batch.tokens().len());
                let table = self.table(index, end);
                self.batch.push(&ids[start..end], start, &table, None, Want::Nothing);
                start = end;
            }
        }
        self.backend.forward(&self.batch, &mut self.logits)
    }

    /// The blocks of a sequence's first `tokens` tokens.
    fn table(&self, index: usize, tokens: usize) -> Vec<u32> {
        let first = (self.first + index * self.blocks) as u32;
        (first..).take(tokens.div_ceil(BLOCK)).collect()
    }

    /// Computes the last `new` tokens of each of `sequences`, whose others are there already; the logits after each.
    pub(super) fn step(&mut self, sequences: &[Vec<u32>], new: &[usize]) -> Result<(), BackendError> {
        self.batch.clear();
        for (index, (ids, new)) in sequences.iter().zip(new).enumerate() {
            let table = self.table(index, ids.len());
            let start = ids.len() - new;
            self.batch.push(&ids[start..], start, &table, None, Want::Last);
        }
        self.backend.forward(&self.batch, &mut self.logits)
    }
}

/// Prompts of random tokens, of `from` to three times as many.
pub(super) fn prompts(count: usize, from: usize, vocab: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut prompt = |_| {
        let len = random.random_range(from..=3 * from);
        (0..len).map(|_| random.random_range(0..vocab as u32)).collect()
    };
    (0..count).map(&mut prompt).collect()
}

/// Decodes greedily on `reference` and follows on `other` with the same tokens, so that every position can be compared.
/// `bound` is what the mean difference of log-probabilities may be.
pub(super) fn follow(
    what: &str,
    reference: &mut dyn Backend,
    other: &mut dyn Backend,
    prompts: &[Vec<u32>],
    tokens: usize,
    bound: f64,
) -> anyhow::Result<Agreement> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + tokens;
    let needed = prompts.len() * longest.div_ceil(BLOCK);
    for backend in [&*reference, &*other] {
        let blocks = backend.spec().blocks;
        ensure!(blocks >= needed, "{what}: {needed} KV blocks are needed, there are {blocks}");
    }
    let (mut own, mut theirs) = (Bed::new(reference, longest, 0), Bed::new(other, longest, 0));
    let mut sequences = prompts.to_vec();
    let mut new: Vec<usize> = prompts.iter().map(Vec::len).collect();
    let mut parted = vec![None; prompts.len()];
    let mut tally = Tally::default();
    for position in 0..tokens {
        own.step(&sequences, &new)?;
        theirs.step(&sequences, &new)?;
        for (row, ids) in sequences.iter_mut().enumerate() {
            let (a, b) = (own.logits.row(row), theirs.logits.row(row));
            let token = argmax(a);
            tally.add(log_probability(a, token), log_probability(b, token));
            if argmax(b) != token {
                parted[row].get_or_insert(position);
            }
            ids.push(token as u32);
        }
        new.fill(1);
    }
    Ok(tally.agreement(what, &parted, bound))
}

/// Each row by itself and among all: its prompt, then `steps` decode steps after the tokens that are likeliest among all.
pub(super) fn alone<B: Backend>(
    backend: &mut B,
    texts: &[Vec<u32>],
    steps: usize,
    bound: f64,
) -> Result<Agreement, BackendError> {
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0) + steps;
    let mut sequences = texts.to_vec();
    let mut new: Vec<usize> = texts.iter().map(Vec::len).collect();
    let mut rows = vec![Vec::new(); texts.len()];
    let mut together = Bed::new(backend, longest, 0);
    for _ in 0..=steps {
        together.step(&sequences, &new)?;
        for (index, (ids, found)) in sequences.iter_mut().zip(&mut rows).enumerate() {
            let logits = together.logits.row(index).to_vec();
            ids.push(argmax(&logits) as u32);
            found.push(logits);
        }
        new.fill(1);
    }
    // In the blocks behind those of all.
    let first = texts.len() * longest.div_ceil(BLOCK);
    let (mut tally, mut parted) = (Tally::default(), Vec::new());
    for ((ids, text), found) in sequences.iter().zip(texts).zip(&rows) {
        let (mut bed, mut parts) = (Bed::new(backend, longest, first), None);
        for (step, among) in found.iter().enumerate() {
            let new = if step == 0 { text.len() } else { 1 };
            bed.step(&[ids[..text.len() + step].to_vec()], &[new])?;
            let row = bed.logits.row(0);
            tally.rows(row, among);
            if argmax(row) != argmax(among) {
                parts.get_or_insert(step);
            }
        }
        parted.push(parts);
    }
    Ok(tally.agreement("a row alone and among all, its prompt and decode steps", &parted, bound))
}

/// What steps may be at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) rows: usize,
    pub(super) tokens: usize,
    pub(super) context: usize,
    pub(super) vocab: usize,
}

/// Decode steps at every bucket's edge and beside it, at growing contexts: replayed and launched, as `set` says, which must
/// be the same to the last bit. Needs blocks for `bounds.rows` sequences of the whole context.
pub(super) fn graphs<B: Backend>(
    backend: &mut B,
    edges: &[usize],
    bounds: Bounds,
    set: impl Fn(&mut B, bool),
) -> Result<Agreement, BackendError> {
    let Bounds { rows: most, tokens, context, vocab } = bounds;
    let (mut tally, mut parted) = (Tally::default(), Vec::new());
    for (case, edge) in edges.iter().enumerate() {
        for rows in (edge.saturating_sub(1)..=edge + 1).filter(|rows| (1..=most).contains(rows)) {
            let start = [1, 15, 16, 130, 500][case % 5].min(context / 2);
            let mut texts = prompts(rows, start, vocab, rows as u64);
            texts.iter_mut().for_each(|text| text.truncate(context - 4));
            let longest = texts.iter().map(Vec::len).max().unwrap_or(0) + 4;
            Bed::new(backend, longest, 0).fill(&texts, tokens)?;
            for _ in 0..3 {
                texts.iter_mut().for_each(|text| text.push(rows as u32 % vocab as u32));
                let one = vec![1; rows];
                let mut logits = [true, false].map(|on| (on, Vec::new()));
                for (on, rows) in &mut logits {
                    set(backend, *on);
                    let mut bed = Bed::new(backend, longest, 0);
                    bed.step(&texts, &one)?;
                    rows.extend_from_slice(bed.logits.as_mut_slice());
                }
                set(backend, true);
                let [(_, replayed), (_, launched)] = logits;
                for (a, b) in replayed.chunks(vocab).zip(launched.chunks(vocab)) {
                    tally.rows(a, b);
                    parted.push((a != b).then_some(texts[0].len()));
                }
            }
        }
    }
    let mut agreement = tally.agreement("steps replayed and launched, at every bucket's edge", &parted, 0.0);
    agreement.holds &= agreement.diverged == 0;
    Ok(agreement)
}

/// Differences of log-probabilities.
#[derive(Debug, Default)]
pub(super) struct Tally {
    count: usize,
    sum: f64,
    largest: f64,
    broken: bool,
}

impl Tally {
    pub(super) fn add(&mut self, a: f64, b: f64) {
        let off = (a - b).abs();
        self.broken |= !off.is_finite();
        (self.count, self.sum, self.largest) = (self.count + 1, self.sum + off, self.largest.max(off));
    }

    /// Compares whole rows of logits as distributions.
    pub(super) fn rows(&mut self, a: &[f32], b: &[f32]) {
        let token = argmax(a);
        self.add(log_probability(a, token), log_probability(b, token));
    }

    pub(super) fn agreement(self, what: &str, parted: &[Option<usize>], bound: f64) -> Agreement {
        let mean = self.sum / self.count.max(1) as f64;
        Agreement {
            what: what.to_owned(),
            positions: self.count,
            diverged: parted.iter().flatten().count(),
            first: parted.iter().flatten().min().copied(),
            mean,
            largest: self.largest,
            holds: mean <= bound && !self.broken && self.count > 0,
        }
    }
}

/// The highest logit's id, the lowest such id on ties.
fn argmax(logits: &[f32]) -> usize {
    let better = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (0..logits.len()).fold(0, better)
}

/// A token's log-probability.
fn log_probability(logits: &[f32], id: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    f64::from(logits[id] - max) - sum.ln()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use waymark_models::AdapterSlot;
    use waymark_models::cuda::bucket::Buckets;

    use super::*;
    use crate::engine::BackendSpec;
    use crate::engine::mock::MockBackend;

    fn mock(seed: u64) -> MockBackend {
        MockBackend::random(seed, 100).with_confidence(4.0)
    }

    #[test]
    fn the_same_backend_agrees_with_itself_and_another_does_not() {
        let prompts = prompts(5, 10, 100, 1);
        assert!(prompts.iter().all(|prompt| (10..=30).contains(&prompt.len())));
        let same = follow("same", &mut mock(1), &mut mock(1), &prompts, 12, 0.0).unwrap();
        assert_eq!((same.positions, same.diverged, same.first, same.largest), (60, 0, None, 0.0));
        assert!(same.holds);
        let other = follow("other", &mut mock(1), &mut mock(2), &prompts, 12, 0.01).unwrap();
        assert!(!other.holds && other.diverged == 5 && other.mean > 1.0, "{other:?}");
    }

    /// Refuses steps that a card would refuse.
    struct Bounded(MockBackend, Bounds);

    impl Backend for Bounded {
        fn spec(&self) -> &BackendSpec {
            self.0.spec()
        }

        fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
            let (rows, tokens) = (batch.rows().len(), batch.tokens().len());
            assert!(rows > 0 && rows <= self.1.rows && tokens <= self.1.tokens, "{rows} rows of {tokens} tokens");
            let end = batch.rows().iter().map(|row| row.start + row.tokens.len()).max();
            assert!(end <= Some(self.1.context));
            self.0.forward(batch, logits)
        }

        fn load_adapter(&mut self, _: &Path) -> Result<AdapterSlot, BackendError> {
            Err(BackendError("none".to_owned()))
        }

        fn unload_adapter(&mut self, _: AdapterSlot) {}
    }

    #[test]
    fn edges_are_compared_within_what_a_step_may_be() {
        let bounds = Bounds { rows: 20, tokens: 1024, context: 1024, vocab: 100 };
        let edges = Buckets::up_to(bounds.rows);
        let blocks = bounds.rows * bounds.context / BLOCK;
        let mut mock = Bounded(MockBackend::random(3, bounds.vocab).with_blocks(blocks), bounds);
        let found = graphs(&mut mock, edges.sizes(), bounds, |_, _| {}).unwrap();
        assert!(found.holds, "{found:?}");
        // Beside and at 1, 2, 4, 8, 16 and 20, three steps each.
        let rows = [1, 2, 1, 2, 3, 3, 4, 5, 7, 8, 9, 15, 16, 17, 19, 20].iter().sum::<usize>();
        assert_eq!(found.positions, 3 * rows);
    }

    /// Says something else where a step decodes one row.
    struct Lonely(MockBackend, MockBackend);

    impl Backend for Lonely {
        fn spec(&self) -> &BackendSpec {
            self.0.spec()
        }

        fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
            let other = batch.rows().len() == 1 && batch.tokens().len() == 1;
            // Both have all tokens.
            self.1.forward(batch, logits)?;
            if other { Ok(()) } else { self.0.forward(batch, logits) }
        }

        fn load_adapter(&mut self, _: &Path) -> Result<AdapterSlot, BackendError> {
            Err(BackendError("none".to_owned()))
        }

        fn unload_adapter(&mut self, _: AdapterSlot) {}
    }

    #[test]
    fn rows_are_compared_through_their_decode_steps() {
        let texts = prompts(6, 10, 100, 3);
        let same = alone(&mut mock(1), &texts, 4, 0.0).unwrap();
        assert_eq!((same.positions, same.diverged, same.largest), (6 * 5, 0, 0.0));
        assert!(same.holds);
        let other = alone(&mut Lonely(mock(1), mock(2)), &texts, 4, 0.01).unwrap();
        assert!(!other.holds && other.first == Some(1), "{other:?}");
    }

    #[test]
    fn what_is_no_number_never_holds() {
        let mut tally = Tally::default();
        tally.add(f64::NAN, 0.0);
        assert!(!tally.agreement("", &[], 1.0).holds);
        assert!(!Tally::default().agreement("", &[], 1.0).holds, "nothing was compared");
    }
}
