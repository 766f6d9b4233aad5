//! Comparison of greedy text on two backends.

use anyhow::ensure;
use waymark_engine::Backend;
use waymark_models::{AdapterSlot, BLOCK};

use super::super::report::Agreement;
use super::harness::SequenceHarness;
use super::tally::{DifferenceTally, argmax};

/// One side of a comparison.
pub(crate) struct TextSide<'a> {
    /// Backend that computes.
    pub(crate) backend: &'a mut dyn Backend,
    /// Adapters that the rows use in turn; empty for none.
    pub(crate) adapters: &'a [Option<AdapterSlot>],
}

impl<'a> TextSide<'a> {
    /// Creates a side without adapters.
    pub(crate) fn plain(backend: &'a mut dyn Backend) -> Self {
        Self { backend, adapters: &[] }
    }
}

/// Decodes greedily on `reference` and feeds the same tokens to `other`, so every position is comparable. `bound`
/// limits the mean difference of log-probabilities.
pub(crate) fn compare_greedy<'a>(
    what: &str,
    reference: TextSide<'a>,
    other: TextSide<'a>,
    prompts: &[Vec<u32>],
    tokens: usize,
    bound: f64,
) -> anyhow::Result<Agreement> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + tokens;
    let needed = prompts.len() * longest.div_ceil(BLOCK);
    for blocks in [reference.backend.spec().blocks, other.backend.spec().blocks] {
        ensure!(blocks >= needed, "{what}: {needed} KV blocks are required, a backend has {blocks}");
    }
    let harness =
        |TextSide { backend, adapters }: TextSide<'a>| SequenceHarness::new(backend, longest, 0).with(adapters);
    let mut own = harness(reference);
    let mut theirs = harness(other);
    let mut sequences = prompts.to_vec();
    let mut new: Vec<usize> = prompts.iter().map(Vec::len).collect();
    let mut parted = vec![None; prompts.len()];
    let mut tally = DifferenceTally::default();
    for position in 0..tokens {
        own.step(&sequences, &new)?;
        theirs.step(&sequences, &new)?;
        for (row, ids) in sequences.iter_mut().enumerate() {
            let a = own.logits.row(row);
            let b = theirs.logits.row(row);
            let token = argmax(a);
            tally.compare(row, a, b);
            if argmax(b) != token {
                parted[row].get_or_insert(position);
            }
            ids.push(token as u32);
        }
        new.fill(1);
    }
    Ok(tally.agreement(what, &parted, bound))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::faulty::mock;
    use super::super::prompts;
    use super::*;

    #[test]
    fn the_same_backend_agrees_with_itself_and_another_does_not() {
        let prompts = prompts(5, 10, 100, 1);
        assert!(prompts.iter().all(|prompt| (10..=30).contains(&prompt.len())));
        let beside = |seed: u64, bound: f64| {
            let mut own = mock(1);
            let mut theirs = mock(seed);
            compare_greedy("beside", TextSide::plain(&mut own), TextSide::plain(&mut theirs), &prompts, 12, bound)
                .unwrap()
        };
        let same = beside(1, 0.0);
        assert_eq!((same.positions, same.diverged, same.first, same.largest), (60, 0, None, 0.0));
        assert!(same.holds);
        let other = beside(2, 0.01);
        assert!(!other.holds && other.diverged == 5 && other.mean > 1.0, "{other:?}");
    }
}
