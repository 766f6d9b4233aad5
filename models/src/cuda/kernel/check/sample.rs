//! Sampling: tokens compared with a sorted reference, log-probabilities, and invalid rows.

use super::bench::CheckBench;
use super::{CheckError, F32};
use crate::cuda::kernel::reference::{self, ReferenceOutcome};
use crate::cuda::kernel::{CudaKernel, SampleKind, SampleRow, SampleStatus, SampleTokens};

/// Temperature, top-k, top-p, min-p.
pub(super) const SETTINGS: [(f32, u32, f32, f32); 14] = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 50, 1.0, 0.0),
    (0.8, 50, 0.9, 0.0),
    (1.0, 0, 0.9, 0.0),
    (1.0, 0, 0.1, 0.0),
    (1.0, 0, 0.9999, 0.0),
    (0.6, 20, 0.95, 0.05),
    (1.3, 0, 1.0, 0.1),
    (1.0, 0, 0.5, 0.02),
    (2.0, 9000, 0.99, 0.0),
    (1.0, 1_000_000, 1.0, 0.0),
];

/// Settings of the rows with a large vocabulary, which take longest: nothing cut, top-p, all filters, and a top-k with
/// top-p beyond the list of candidates.
const LARGE: [usize; 4] = [1, 6, 9, 12];

pub(super) fn check(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    // A single token; a small vocabulary; coarse logits with many ties; nearly flat logits; a larger vocabulary.
    for (vocab, deviation, step) in
        [(1, 1.0, 0.0), (77, 2.0, 0.0), (3001, 2.0, 0.5), (12_345, 0.05, 0.0), (20_011, 3.0, 0.0)]
    {
        check_vocabulary(bench, vocab, deviation, step, &SETTINGS)?;
    }
    // The vocabulary of Qwen models, with more equal logits than the list of candidates holds.
    check_vocabulary(bench, 151_936, 2.0, 0.5, &LARGE.map(|index| SETTINGS[index]))?;
    broken(bench)
}

pub(super) fn check_vocabulary(
    bench: &mut CheckBench<'_>,
    vocab: usize,
    deviation: f64,
    step: f32,
    settings: &[(f32, u32, f32, f32)],
) -> Result<(), CheckError> {
    let row = |&(temperature, top_k, top_p, min_p): &(f32, u32, f32, f32)| SampleRow {
        draw: bench.random.unit(),
        temperature,
        top_p,
        min_p,
        top_k,
        kind: SampleKind::Open as u32,
        ..SampleRow::default()
    };
    let rows: Vec<SampleRow> = settings.iter().map(row).collect();
    let mut logits = bench.random.floats(rows.len() * vocab, deviation);
    if step > 0.0 {
        logits.iter_mut().for_each(|logit| *logit = (*logit / step).round() * step);
    }
    // Tokens with probability zero.
    logits.iter_mut().step_by(7).skip(1).for_each(|logit| *logit = f32::NEG_INFINITY);
    if vocab == 1 {
        logits.fill(0.5);
    }
    compare(bench, &format!("vocabulary of {vocab}, deviation {deviation}, steps of {step}"), &logits, &rows, vocab)?;
    bench.clear()
}

fn compare(
    bench: &mut CheckBench<'_>,
    case: &str,
    logits: &[f32],
    rows: &[SampleRow],
    vocab: usize,
) -> Result<(), CheckError> {
    let (ids, logprobs, status) = launch(bench, logits, rows, &[], vocab)?;
    let mut wrong = 0;
    let mut found = Vec::new();
    let mut wanted = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let logits = &logits[index * vocab..][..vocab];
        let right = match reference::sample(logits, row) {
            ReferenceOutcome::Token(choice) => status[index] == 0 && choice.near.contains(&ids[index]),
            ReferenceOutcome::NotFinite => status[index] == 1,
            ReferenceOutcome::NoCandidate => status[index] == 2,
        };
        wrong += usize::from(!right);
        if status[index] == 0 && (ids[index] as usize) < vocab {
            found.push(f64::from(logprobs[index]));
            wanted.push(f64::from(logits[ids[index] as usize]) - reference::log_sum(logits));
        }
    }
    bench.note(CudaKernel::SampleChoose, case, wrong as f64 / rows.len() as f64, f64::MIN_POSITIVE);
    bench.compare(CudaKernel::SampleChoose, &format!("{case}: log-probabilities"), &found, &wanted, F32);
    Ok(())
}

/// Checks rows with NaN, with infinities, without candidates, and padding.
fn broken(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    let vocab = 1500;
    let row = SampleRow { draw: 0.5, temperature: 1.0, top_p: 0.9, kind: 1, ..SampleRow::default() };
    let rows = [row, row, row, SampleRow { kind: 0, ..row }, row];
    let mut logits = bench.random.floats(rows.len() * vocab, 1.0);
    logits[vocab - 1] = f32::NAN;
    logits[vocab + 700] = f32::INFINITY;
    logits[2 * vocab..3 * vocab].fill(f32::NEG_INFINITY);
    let (ids, _, status) = launch(bench, &logits, &rows, &[], vocab)?;
    let verdicts = [SampleStatus::NotFinite, SampleStatus::NotFinite, SampleStatus::NoCandidate];
    let named = status.iter().zip(verdicts).all(|(&status, verdict)| SampleStatus::of(status) == verdict);
    bench.demand(CudaKernel::SampleChoose, "broken rows", named && ids[..3] == [0; 3]);
    bench.demand(CudaKernel::SampleChoose, "padding", ids[3] == u32::MAX && status[3] == u32::MAX);
    bench.demand(CudaKernel::SampleChoose, "a row beside broken ones", status[4] == 0);
    bench.clear()
}

/// Ids, log-probabilities and status of all rows.
pub(super) type Samples = (Vec<u32>, Vec<f32>, Vec<u32>);

pub(super) fn launch(
    bench: &CheckBench<'_>,
    logits: &[f32],
    rows: &[SampleRow],
    adjustments: &[u32],
    vocab: usize,
) -> Result<Samples, CheckError> {
    let ids = bench.poisoned::<u32>(rows.len())?;
    let status = bench.poisoned::<u32>(rows.len())?;
    let logprobs = bench.poisoned::<f32>(rows.len())?;
    SampleTokens {
        logits: bench.put(logits)?,
        settings: bench.put(rows)?,
        adjustments: bench.put(adjustments)?,
        adjusted: adjustments.len(),
        scratch: bench.poisoned(rows.len() * SampleTokens::SCRATCH)?,
        ids,
        logprobs,
        status,
        rows: rows.len() as u32,
        vocab: vocab as u32,
    }
    .launch(&bench.device)?;
    Ok((bench.get(&ids)?, bench.get(&logprobs)?, bench.get(&status)?))
}
