//! Comparison of replayed CUDA graphs with plain launches.

use waymark_engine::{Backend, BackendError};
use waymark_models::AdapterSlot;

use super::super::report::Agreement;
use super::harness::SequenceHarness;
use super::prompts;
use super::tally::DifferenceTally;

/// Limits of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepBounds {
    pub(crate) rows: usize,
    pub(crate) tokens: usize,
    pub(crate) context: usize,
    pub(crate) vocab: usize,
}

/// Compares decode steps at and around the edge of every bucket, at several contexts: graphs and plain launches,
/// selected by `set`, must agree bitwise. Rows use `adapters` in turn. Needs blocks for `bounds.rows` sequences of the
/// full context.
pub(crate) fn compare_graphs<B: Backend>(
    backend: &mut B,
    edges: &[usize],
    bounds: StepBounds,
    adapters: &[Option<AdapterSlot>],
    set: impl Fn(&mut B, bool),
) -> Result<Agreement, BackendError> {
    let StepBounds { rows: most, tokens, context, vocab } = bounds;
    let mut tally = DifferenceTally::default();
    let mut parted = Vec::new();
    for (case, edge) in edges.iter().enumerate() {
        for rows in (edge.saturating_sub(1)..=edge + 1).filter(|rows| (1..=most).contains(rows)) {
            // Prompt lengths around a block boundary, and long enough for split attention.
            let start = [1, 15, 16, 130, 500][case % 5].min(context / 2);
            let mut texts = prompts(rows, start, vocab, rows as u64);
            // Leave room for the decoded tokens.
            texts.iter_mut().for_each(|text| text.truncate(context - 4));
            let longest = texts.iter().map(Vec::len).max().unwrap_or(0) + 4;
            SequenceHarness::new(backend, longest, 0).with(adapters).fill(&texts, tokens)?;
            for _ in 0..3 {
                texts.iter_mut().for_each(|text| text.push(rows as u32 % vocab as u32));
                let one = vec![1; rows];
                let mut logits = [true, false].map(|on| (on, Vec::new()));
                for (on, rows) in &mut logits {
                    set(backend, *on);
                    let mut harness = SequenceHarness::new(backend, longest, 0).with(adapters);
                    harness.step(&texts, &one)?;
                    rows.extend_from_slice(harness.logits.as_mut_slice());
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
    let mut what = format!("steps of up to {most} rows{with}, graphs and plain launches, at every bucket's edge");
    let refused = backend.recorded_steps().refused;
    if refused > 0 {
        what += &format!(" ({refused} sizes could not be captured)");
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

    use super::super::faulty::FaultyBackend;
    use super::*;
    use waymark_engine::{BackendSpec, MockBackend};

    /// A mock that panics on steps that a GPU would refuse.
    struct Bounded(MockBackend, StepBounds);

    impl Backend for Bounded {
        fn spec(&self) -> &BackendSpec {
            self.0.spec()
        }

        fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
            let rows = batch.rows().len();
            let tokens = batch.tokens().len();
            assert!(rows > 0 && rows <= self.1.rows && tokens <= self.1.tokens, "{rows} rows of {tokens} tokens");
            let end = batch.rows().iter().map(|row| row.start + row.tokens.len()).max();
            assert!(end <= Some(self.1.context));
            self.0.forward(batch, logits)
        }

        fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
            self.0.copy_block(from, to)
        }

        fn load_adapter(&mut self, _: &Path) -> Result<AdapterSlot, BackendError> {
            Err(BackendError("none".to_owned()))
        }

        fn unload_adapter(&mut self, _: AdapterSlot) {}
    }

    #[test]
    fn edges_are_compared_within_what_a_step_may_be() {
        let bounds = StepBounds { rows: 20, tokens: 1024, context: 1024, vocab: 100 };
        let edges = Buckets::up_to(bounds.rows);
        let blocks = bounds.rows * bounds.context / BLOCK;
        let mut mock = Bounded(MockBackend::random(3, bounds.vocab).with_blocks(blocks), bounds);
        let found = compare_graphs(&mut mock, edges.sizes(), bounds, &[], |_, _| {}).unwrap();
        assert!(found.holds, "{found:?}");
        // At and around 1, 2, 4, 8, 16 and 20, three steps each.
        let rows = [1, 2, 1, 2, 3, 3, 4, 5, 7, 8, 9, 15, 16, 17, 19, 20].iter().sum::<usize>();
        assert_eq!(found.positions, 3 * rows);
    }

    const WIDE: StepBounds = StepBounds { rows: 256, tokens: 1024, context: 64, vocab: 100 };

    /// Compares batches of up to 256 rows on a backend with injected errors.
    fn faulty(wrong: impl Fn(&ForwardBatch, usize, bool) -> bool + Send) -> Agreement {
        let edges = Buckets::up_to(WIDE.rows);
        let adapters = [Some(AdapterSlot(0)), None, Some(AdapterSlot(1))];
        let set = |faulty: &mut FaultyBackend<_>, on| faulty.on = on;
        compare_graphs(&mut FaultyBackend::new(wrong), edges.sizes(), WIDE, &adapters, set).unwrap()
    }

    #[test]
    fn a_recording_that_differs_in_one_bucket_is_found() {
        let right = faulty(|_, _, _| false);
        assert!(right.holds && right.what.contains("256 rows with adapters"), "{right:?}");
        // The bucket of 96, as if its graph had been captured for something else.
        let wrong = faulty(|batch, _, on| on && (65..=96).contains(&batch.rows().len()));
        assert!(!wrong.holds && wrong.diverged > 0 && wrong.positions == right.positions, "{wrong:?}");
        assert!(wrong.diverged <= 3 * (65 + 95 + 96), "no other bucket: {wrong:?}");
    }

    #[test]
    fn the_last_row_of_the_largest_recording_is_compared_as_well() {
        let wrong = faulty(|batch, row, on| on && batch.rows().len() == 256 && row == 255);
        assert!(!wrong.holds && (1..=3).contains(&wrong.diverged), "{wrong:?}");
    }

    #[test]
    fn rows_of_one_adapter_that_are_replayed_as_without_it_are_found() {
        let slot = Some(AdapterSlot(1));
        let wrong = faulty(move |batch, row, on| on && batch.rows()[row].adapter == slot);
        assert!(!wrong.holds && wrong.diverged > 0, "{wrong:?}");
    }
}
