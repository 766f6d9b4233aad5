//! Comparison of rows alone with the same rows in a batch.

use waymark_engine::{Backend, BackendError};
use waymark_models::BLOCK;

use super::super::report::Agreement;
use super::harness::SequenceHarness;
use super::tally::{DifferenceTally, argmax};

/// Compares each row alone with the same row in a batch: its prompt, then `steps` decode steps along the greedy tokens
/// of the batch. All prompts are computed in one step.
pub(crate) fn compare_batching<B: Backend>(
    backend: &mut B,
    texts: &[Vec<u32>],
    steps: usize,
    bound: f64,
) -> Result<Agreement, BackendError> {
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0) + steps;
    let mut sequences = texts.to_vec();
    let mut new: Vec<usize> = texts.iter().map(Vec::len).collect();
    let mut rows = vec![Vec::new(); texts.len()];
    let mut together = SequenceHarness::new(backend, longest, 0);
    for _ in 0..=steps {
        together.step(&sequences, &new)?;
        for (index, (ids, found)) in sequences.iter_mut().zip(&mut rows).enumerate() {
            let logits = together.logits.row(index).to_vec();
            ids.push(argmax(&logits) as u32);
            found.push(logits);
        }
        new.fill(1);
    }
    // Single rows use blocks after those of the batch.
    let first = texts.len() * longest.div_ceil(BLOCK);
    let mut tally = DifferenceTally::default();
    let mut parted = Vec::new();
    for (index, ((ids, text), found)) in sequences.iter().zip(texts).zip(&rows).enumerate() {
        let mut harness = SequenceHarness::new(backend, longest, first);
        let mut parts = None;
        for (step, among) in found.iter().enumerate() {
            let new = if step == 0 { text.len() } else { 1 };
            harness.step(&[ids[..text.len() + step].to_vec()], &[new])?;
            let row = harness.logits.row(0);
            tally.compare(index, row, among);
            if argmax(row) != argmax(among) {
                parts.get_or_insert(step);
            }
        }
        parted.push(parts);
    }
    let what = format!("a row alone and in a batch of {}, its prompt and decode steps", texts.len());
    Ok(tally.agreement(&what, &parted, bound))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::faulty::{FaultyBackend, mock};
    use super::super::prompts;
    use super::*;

    #[test]
    fn rows_are_compared_through_their_decode_steps() {
        let texts = prompts(6, 10, 100, 3);
        let same = compare_batching(&mut mock(1), &texts, 4, 0.0).unwrap();
        assert_eq!((same.positions, same.diverged, same.largest), (6 * 5, 0, 0.0));
        assert!(same.holds);
        let mut lonely = FaultyBackend::new(|batch, _, _| batch.rows().len() == 1 && batch.tokens().len() == 1);
        let other = compare_batching(&mut lonely, &texts, 4, 0.01).unwrap();
        assert!(!other.holds && other.first == Some(1), "{other:?}");
    }

    #[test]
    fn the_last_row_of_a_full_batch_is_compared_as_well() {
        let texts = prompts(256, 4, 100, 4);
        let same = compare_batching(&mut mock(1), &texts, 2, 0.0).unwrap();
        assert!(same.holds && same.positions == 256 * 3, "{same:?}");
        let mut full = FaultyBackend::new(|batch, row, _| batch.rows().len() == 256 && row == 255);
        let other = compare_batching(&mut full, &texts, 2, 0.05).unwrap();
        assert!(!other.holds && other.diverged == 1 && other.mean < 0.05, "{other:?}");
    }
}
