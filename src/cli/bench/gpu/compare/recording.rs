//! Steps that are replayed, and the same steps launched piece by piece.

use waymark_models::AdapterSlot;

use super::super::report::Agreement;
use super::bed::Bed;
use super::prompts;
use super::tally::Tally;
use crate::engine::{Backend, BackendError};

/// What steps may be at most.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli::bench::gpu) struct Bounds {
    pub(in crate::cli::bench::gpu) rows: usize,
    pub(in crate::cli::bench::gpu) tokens: usize,
    pub(in crate::cli::bench::gpu) context: usize,
    pub(in crate::cli::bench::gpu) vocab: usize,
}

/// Decode steps at every bucket's edge and beside it, at growing contexts: replayed and launched, as `set` says, which must
/// be the same to the last bit. Rows have `adapters` in turn. Needs blocks for `bounds.rows` sequences of the whole context.
pub(in crate::cli::bench::gpu) fn graphs<B: Backend>(
    backend: &mut B,
    edges: &[usize],
    bounds: Bounds,
    adapters: &[Option<AdapterSlot>],
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
            Bed::new(backend, longest, 0).with(adapters).fill(&texts, tokens)?;
            for _ in 0..3 {
                texts.iter_mut().for_each(|text| text.push(rows as u32 % vocab as u32));
                let one = vec![1; rows];
                let mut logits = [true, false].map(|on| (on, Vec::new()));
                for (on, rows) in &mut logits {
                    set(backend, *on);
                    let mut bed = Bed::new(backend, longest, 0).with(adapters);
                    bed.step(&texts, &one)?;
                    rows.extend_from_slice(bed.logits.as_mut_slice());
                }
                set(backend, true);
                let [(_, replayed), (_, launched)] = logits;
                for (row, (a, b)) in replayed.chunks(vocab).zip(launched.chunks(vocab)).enumerate() {
                    tally.compare(row, a, b);
                    parted.push((a != b).then_some(texts[0].len()));
                }
            }
        }
    }
    let with = if adapters.is_empty() { "" } else { " with adapters" };
    let mut what = format!("steps of up to {most} rows{with}, replayed and launched, at every bucket's edge");
    let refused = backend.graphs().refused;
    if refused > 0 {
        what += &format!(" ({refused} sizes could not be recorded)");
    }
    let mut agreement = tally.agreement(&what, &parted, 0.0);
    agreement.holds &= agreement.diverged == 0;
    Ok(agreement)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use waymark_models::cuda::bucket::Buckets;
    use waymark_models::{BLOCK, ForwardBatch, Logits};

    use super::super::planted::Planted;
    use super::*;
    use crate::engine::{BackendSpec, MockBackend};

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
        let found = graphs(&mut mock, edges.sizes(), bounds, &[], |_, _| {}).unwrap();
        assert!(found.holds, "{found:?}");
        // Beside and at 1, 2, 4, 8, 16 and 20, three steps each.
        let rows = [1, 2, 1, 2, 3, 3, 4, 5, 7, 8, 9, 15, 16, 17, 19, 20].iter().sum::<usize>();
        assert_eq!(found.positions, 3 * rows);
    }

    const WIDE: Bounds = Bounds { rows: 256, tokens: 1024, context: 64, vocab: 100 };

    /// Compares all batches up to 256 rows on mocks of which one says something else where it is told to.
    fn planted(wrong: impl Fn(&ForwardBatch, usize, bool) -> bool + Send) -> Agreement {
        let edges = Buckets::up_to(WIDE.rows);
        let adapters = [Some(AdapterSlot(0)), None, Some(AdapterSlot(1))];
        let set = |planted: &mut Planted<_>, on| planted.on = on;
        graphs(&mut Planted::new(wrong), edges.sizes(), WIDE, &adapters, set).unwrap()
    }

    #[test]
    fn a_recording_that_differs_in_one_bucket_is_found() {
        let right = planted(|_, _, _| false);
        assert!(right.holds && right.what.contains("256 rows with adapters"), "{right:?}");
        // The bucket of 96, as if its recording had been made for something else.
        let wrong = planted(|batch, _, on| on && (65..=96).contains(&batch.rows().len()));
        assert!(!wrong.holds && wrong.diverged > 0 && wrong.positions == right.positions, "{wrong:?}");
        assert!(wrong.diverged <= 3 * (65 + 95 + 96), "no other bucket: {wrong:?}");
    }

    #[test]
    fn the_last_row_of_the_largest_recording_is_compared_as_well() {
        let wrong = planted(|batch, row, on| on && batch.rows().len() == 256 && row == 255);
        assert!(!wrong.holds && (1..=3).contains(&wrong.diverged), "{wrong:?}");
    }

    #[test]
    fn rows_of_one_adapter_that_are_replayed_as_without_it_are_found() {
        let slot = Some(AdapterSlot(1));
        let wrong = planted(move |batch, row, on| on && batch.rows()[row].adapter == slot);
        assert!(!wrong.holds && wrong.diverged > 0, "{wrong:?}");
    }
}
