//! Rows by themselves and among many.

use waymark_models::BLOCK;

use super::super::report::Agreement;
use super::bed::Bed;
use super::tally::{Tally, argmax};
use crate::engine::{Backend, BackendError};

/// Each row by itself and among all: its prompt, then `steps` decode steps after the tokens that are likeliest among all.
/// All prompts are computed in one step.
pub(in crate::cli::bench::gpu) fn alone<B: Backend>(
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
    for (index, ((ids, text), found)) in sequences.iter().zip(texts).zip(&rows).enumerate() {
        let (mut bed, mut parts) = (Bed::new(backend, longest, first), None);
        for (step, among) in found.iter().enumerate() {
            let new = if step == 0 { text.len() } else { 1 };
            bed.step(&[ids[..text.len() + step].to_vec()], &[new])?;
            let row = bed.logits.row(0);
            tally.compare(index, row, among);
            if argmax(row) != argmax(among) {
                parts.get_or_insert(step);
            }
        }
        parted.push(parts);
    }
    let what = format!("a row alone and among {}, its prompt and decode steps", texts.len());
    Ok(tally.agreement(&what, &parted, bound))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::planted::{Planted, mock};
    use super::super::prompts;
    use super::*;

    #[test]
    fn rows_are_compared_through_their_decode_steps() {
        let texts = prompts(6, 10, 100, 3);
        let same = alone(&mut mock(1), &texts, 4, 0.0).unwrap();
        assert_eq!((same.positions, same.diverged, same.largest), (6 * 5, 0, 0.0));
        assert!(same.holds);
        let mut lonely = Planted::new(|batch, _, _| batch.rows().len() == 1 && batch.tokens().len() == 1);
        let other = alone(&mut lonely, &texts, 4, 0.01).unwrap();
        assert!(!other.holds && other.first == Some(1), "{other:?}");
    }

    #[test]
    fn the_last_row_of_a_full_batch_is_compared_as_well() {
        let texts = prompts(256, 4, 100, 4);
        let same = alone(&mut mock(1), &texts, 2, 0.0).unwrap();
        assert!(same.holds && same.positions == 256 * 3, "{same:?}");
        let mut full = Planted::new(|batch, row, _| batch.rows().len() == 256 && row == 255);
        let other = alone(&mut full, &texts, 2, 0.05).unwrap();
        assert!(!other.holds && other.diverged == 1 && other.mean < 0.05, "{other:?}");
    }
}
