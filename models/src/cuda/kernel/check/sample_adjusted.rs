//! Sampling with masks, penalties and biases, compared with the CPU sampler's changes to the logits.

use super::bench::CheckBench;
use super::sample::{Samples, launch};
use super::{CheckError, F32};
use crate::cuda::kernel::reference::{self, ReferenceOutcome};
use crate::cuda::kernel::{Adjustment, CudaKernel, SampleKind, SampleRow, SampleStatus};
use crate::sampler::{AdjustedToken, LogitAdjustment, Penalties, SampleError, TokenMask};

/// Temperature, top-k, top-p.
const SETTINGS: [(f32, u32, f32); 5] = [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.8, 20, 1.0), (1.0, 0, 0.9), (1.3, 40, 0.8)];

/// Numbers of listed tokens, and shares of allowed ones; without a mask every token is allowed.
const CHANGES: [(usize, Option<f64>); 6] =
    [(40, None), (0, Some(0.5)), (40, Some(0.5)), (3, Some(0.01)), (0, Some(0.0)), (0, None)];

pub(super) fn check(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for vocab in [77, 5003] {
        let logits = bench.random.floats(SETTINGS.len() * CHANGES.len() * vocab, 3.0);
        let mut adjustments = Vec::new();
        let mut rows = Vec::new();
        let mut words = Vec::new();
        for (temperature, top_k, top_p) in SETTINGS {
            for (listed, share) in CHANGES {
                let adjustment = change(bench, vocab, listed, share);
                let draw = bench.random.unit();
                let row = SampleRow { draw, temperature, top_k, top_p, ..SampleRow::default() };
                rows.push(encode(row, &adjustment, vocab, &mut words));
                adjustments.push(adjustment);
            }
        }
        let found = launch(bench, &logits, &rows, &words, vocab)?;
        compare(bench, vocab, &logits, &rows, &adjustments, &found);
        bench.clear()?;
    }
    searched(bench)?;
    overflow(bench)
}

/// Checks a row whose cut lies beyond the list of candidates, so the whole vocabulary is searched, within a mask and
/// with many listed tokens and ties.
fn searched(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    let vocab = 20_011;
    let kept = 9000;
    let mut logits = bench.random.floats(vocab, 1.0);
    logits.iter_mut().for_each(|logit| *logit = (*logit * 2.0).round() / 2.0);
    let adjustment = change(bench, vocab, 1500, Some(0.9));
    let draw = bench.random.unit();
    // Warm enough for most tokens to stay above the floor.
    let row = SampleRow { draw, temperature: 4.0, top_k: kept, top_p: 0.9, min_p: 0.01, ..SampleRow::default() };
    let mut words = Vec::new();
    let row = encode(row, &adjustment, vocab, &mut words);
    let found = launch(bench, &logits, &[row], &words, vocab)?;
    let mut adjusted = logits.clone();
    let left = adjustment.apply(&mut adjusted).map(|max| {
        let floor = max + row.temperature * row.min_p.ln();
        adjusted.iter().filter(|&&logit| logit >= floor).count()
    });
    let crowded = left.is_ok_and(|left| left > kept as usize && left < vocab);
    bench.demand(CudaKernel::SampleScan, "more candidates than the list holds", crowded);
    compare(bench, vocab, &logits, &[row], &[adjustment], &found);
    bench.clear()
}

/// Creates a random adjustment.
fn change(bench: &mut CheckBench<'_>, vocab: usize, listed: usize, share: Option<f64>) -> LogitAdjustment {
    let ids = bench.random.order(vocab);
    let tokens = ids[..listed].iter().map(|&id| AdjustedToken {
        id,
        count: bench.random.below(4) as u32,
        bias: (bench.random.normal() * 4.0) as f32,
    });
    let tokens = tokens.collect();
    let allowed = |share: f64| {
        let ids: Vec<u32> = (0..vocab as u32).filter(|_| bench.random.unit() < share).collect();
        TokenMask::of(&ids, vocab)
    };
    let mask = share.map(allowed);
    LogitAdjustment { penalties: Penalties { repetition: 1.3, frequency: 0.4, presence: 0.2 }, tokens, mask }
}

/// Appends an adjustment to `words` and completes the settings of its row.
fn encode(row: SampleRow, adjustment: &LogitAdjustment, vocab: usize, words: &mut Vec<u32>) -> SampleRow {
    let mask = words.len() as u32;
    let masked = adjustment.mask.as_ref().map(|mask| (0..vocab.div_ceil(32)).map(|at| mask.word(at)));
    let kind = if masked.is_some() { SampleKind::Masked } else { SampleKind::Open };
    words.extend(masked.into_iter().flatten());
    let list = words.len() as u32;
    for token in &adjustment.tokens {
        // The kernel writes the logit as it was given.
        let entry = Adjustment { id: token.id, count: token.count, bias: token.bias, raw: f32::NAN };
        words.extend_from_slice(bytemuck::cast_slice(bytemuck::bytes_of(&entry)));
    }
    let count = adjustment.tokens.len() as u32;
    let Penalties { repetition, frequency, presence } = adjustment.penalties;
    SampleRow { kind: kind as u32, mask, list, count, repetition, frequency, presence, ..row }
}

fn compare(
    bench: &mut CheckBench<'_>,
    vocab: usize,
    logits: &[f32],
    rows: &[SampleRow],
    adjustments: &[LogitAdjustment],
    (ids, logprobs, status): &Samples,
) {
    let mut wrong = 0;
    let mut found = Vec::new();
    let mut wanted = Vec::new();
    for (index, (row, adjustment)) in rows.iter().zip(adjustments).enumerate() {
        let raw = &logits[index * vocab..][..vocab];
        let mut adjusted = raw.to_vec();
        let right = match adjustment.apply(&mut adjusted).map(|_| reference::sample(&adjusted, row)) {
            Ok(ReferenceOutcome::Token(choice)) => status[index] == 0 && choice.near.contains(&ids[index]),
            Ok(_) => false,
            Err(SampleError::NotFinite) => status[index] == 1,
            Err(SampleError::NoCandidate) => status[index] == 2,
        };
        wrong += usize::from(!right);
        if status[index] == 0 && (ids[index] as usize) < vocab {
            found.push(f64::from(logprobs[index]));
            wanted.push(f64::from(raw[ids[index] as usize]) - reference::log_sum(raw));
        }
    }
    let case = format!("masks, penalties and biases, vocabulary of {vocab}");
    bench.note(CudaKernel::SampleScan, &case, wrong as f64 / rows.len() as f64, f64::MIN_POSITIVE);
    bench.compare(CudaKernel::SampleScan, &format!("{case}: log-probabilities"), &found, &wanted, F32);
}

/// Checks a bias that makes a logit infinite.
fn overflow(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    let row = SampleRow { temperature: 1.0, top_p: 1.0, draw: 0.5, ..SampleRow::default() };
    let adjustment = LogitAdjustment {
        penalties: Penalties { repetition: 1.0, frequency: 0.0, presence: 0.0 },
        tokens: vec![AdjustedToken { id: 3, count: 0, bias: f32::MAX }],
        mask: None,
    };
    let mut words = Vec::new();
    let row = encode(row, &adjustment, 50, &mut words);
    let (_, _, status) = launch(bench, &[f32::MAX; 50], &[row], &words, 50)?;
    bench.demand(
        CudaKernel::SampleScan,
        "a bias that overflows",
        SampleStatus::of(status[0]) == SampleStatus::NotFinite,
    );
    bench.clear()
}
