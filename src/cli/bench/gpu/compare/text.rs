//! Greedy text on two backends.

use anyhow::ensure;
use waymark_models::{AdapterSlot, BLOCK};

use super::super::report::Agreement;
use super::bed::Bed;
use super::tally::{Tally, argmax};
use crate::engine::Backend;

/// One side of a comparison.
pub(in crate::cli::bench::gpu) struct Side<'a> {
    /// What computes.
    pub(in crate::cli::bench::gpu) backend: &'a mut dyn Backend,
    /// The adapters its rows have in turn; empty for none.
    pub(in crate::cli::bench::gpu) adapters: &'a [Option<AdapterSlot>],
}

impl<'a> Side<'a> {
    /// Rows without adapters.
    pub(in crate::cli::bench::gpu) fn plain(backend: &'a mut dyn Backend) -> Self {
        Self { backend, adapters: &[] }
    }
}

/// Decodes greedily on `reference` and follows on `other` with the same tokens, so that every position can be compared.
/// `bound` is what the mean difference of log-probabilities may be.
pub(in crate::cli::bench::gpu) fn follow<'a>(
    what: &str,
    reference: Side<'a>,
    other: Side<'a>,
    prompts: &[Vec<u32>],
    tokens: usize,
    bound: f64,
) -> anyhow::Result<Agreement> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + tokens;
    let needed = prompts.len() * longest.div_ceil(BLOCK);
    for blocks in [reference.backend.spec().blocks, other.backend.spec().blocks] {
        ensure!(blocks >= needed, "{what}: {needed} KV blocks are needed, there are {blocks}");
    }
    let bed = |Side { backend, adapters }: Side<'a>| Bed::new(backend, longest, 0).with(adapters);
    let (mut own, mut theirs) = (bed(reference), bed(other));
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
    use super::super::planted::mock;
    use super::super::prompts;
    use super::*;

    #[test]
    fn the_same_backend_agrees_with_itself_and_another_does_not() {
        let prompts = prompts(5, 10, 100, 1);
        assert!(prompts.iter().all(|prompt| (10..=30).contains(&prompt.len())));
        let beside = |seed: u64, bound: f64| {
            let (mut own, mut theirs) = (mock(1), mock(seed));
            follow("beside", Side::plain(&mut own), Side::plain(&mut theirs), &prompts, 12, bound).unwrap()
        };
        let same = beside(1, 0.0);
        assert_eq!((same.positions, same.diverged, same.first, same.largest), (60, 0, None, 0.0));
        assert!(same.holds);
        let other = beside(2, 0.01);
        assert!(!other.holds && other.diverged == 5 && other.mean > 1.0, "{other:?}");
    }
}
