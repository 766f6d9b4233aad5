//! Sampling by sorting the whole vocabulary.

use super::super::SampleRow;

/// A sampled token, and the tokens that are equally correct up to rounding.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceChoice {
    /// Id of the token.
    pub id: u32,
    /// Ids sampled when sums are off by one part in a hundred thousand.
    pub near: Vec<u32>,
}

/// Outcome of sampling a row.
#[derive(Debug, Clone, PartialEq)]
pub enum ReferenceOutcome {
    /// A sampled token.
    Token(ReferenceChoice),
    /// A logit is NaN or positive infinity.
    NotFinite,
    /// All logits are minus infinity.
    NoCandidate,
}

/// Computes `ln Σ exp(logit)`.
pub fn log_sum(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(max) + logits.iter().map(|&logit| f64::from(logit - max).exp()).sum::<f64>().ln()
}

/// Samples a token: temperature, min-p, top-k, top-p, then a walk by id.
pub fn sample(logits: &[f32], row: &SampleRow) -> ReferenceOutcome {
    if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return ReferenceOutcome::NotFinite;
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return ReferenceOutcome::NoCandidate;
    }
    if row.temperature < 1e-5 {
        let id = logits.iter().position(|&logit| logit == max).unwrap_or(0) as u32;
        return ReferenceOutcome::Token(ReferenceChoice { id, near: vec![id] });
    }
    // Scaled logits determine order and cutoffs, so they are rounded as in the sampler.
    let scale = 1.0 / row.temperature;
    let scaled = (0..).zip(logits).map(|(id, &logit)| (id, (logit - max) * scale));
    let floor = if row.min_p > 0.0 { row.min_p.ln() } else { f32::NEG_INFINITY };
    let mut kept: Vec<(u32, f32)> = scaled.filter(|&(_, x)| x >= floor && x > f32::NEG_INFINITY).collect();
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if row.top_k > 0 {
        kept.truncate(row.top_k as usize);
    }
    let mut ids = Vec::new();
    for nudge in [0.0, -1e-5, 1e-5] {
        let mut list = kept.clone();
        if row.top_p < 1.0 {
            list.truncate(shortest(&kept, f64::from(row.top_p) * (1.0 + nudge)));
        }
        ids.extend([0.0, -1e-5, 1e-5].map(|shift| walk(&mut list, row.draw + shift)));
    }
    ReferenceOutcome::Token(ReferenceChoice { id: ids[0], near: ids })
}

/// Returns the number of best tokens that together have this share of the weight.
fn shortest(kept: &[(u32, f32)], share: f64) -> usize {
    let wanted = share * weight(kept);
    let mut sum = 0.0;
    let reaches = |&(_, x): &(u32, f32)| {
        sum += f64::from(x).exp();
        sum >= wanted
    };
    kept.iter().position(reaches).map_or(kept.len(), |last| last + 1)
}

fn walk(list: &mut [(u32, f32)], draw: f64) -> u32 {
    list.sort_by_key(|&(id, _)| id);
    let mut left = draw * weight(list);
    for &(id, x) in list.iter() {
        let weight = f64::from(x).exp();
        if left < weight {
            return id;
        }
        left -= weight;
    }
    list.last().map_or(0, |&(id, _)| id)
}

fn weight(list: &[(u32, f32)]) -> f64 {
    list.iter().map(|&(_, x)| f64::from(x).exp()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sampler::{SampleError, Sampler, SamplingParams};

    /// Logits with small differences, so many tokens are kept, some of them tied.
    fn logits(vocab: usize, seed: usize) -> Vec<f32> {
        (0..vocab).map(|id| ((id * 7919 + seed * 104_729) % 613) as f32 * 0.02).collect()
    }

    #[test]
    fn it_chooses_as_the_sampler_does() {
        for (seed, (temperature, top_k, top_p, min_p)) in [
            (0.0, 0, 1.0, 0.0),
            (1.0, 0, 1.0, 0.0),
            (0.6, 20, 0.95, 0.0),
            (1.0, 40, 1.0, 0.0),
            (1.0, 0, 0.8, 0.0),
            (1.5, 0, 0.9, 0.05),
            (0.9, 7, 0.5, 0.3),
            (1.0, 0, 1.0, 0.2),
        ]
        .into_iter()
        .enumerate()
        {
            let params =
                SamplingParams { temperature, top_k, top_p, min_p, seed: seed as u64, ..SamplingParams::default() };
            let mut sampler = Sampler::new(params);
            for step in 0..200 {
                let logits = logits(997, seed * 200 + step);
                let pick = sampler.pick_adjusted(&[], &[], None, logits.len()).unwrap();
                let temperature = pick.temperature;
                let top_k = pick.top_k;
                let row = SampleRow {
                    draw: pick.draw,
                    temperature,
                    top_p: pick.top_p,
                    min_p: pick.min_p,
                    top_k,
                    kind: 1,
                    ..SampleRow::default()
                };
                let chosen = sampler.sample(&logits, &[], None).unwrap();
                let ReferenceOutcome::Token(choice) = sample(&logits, &row) else { panic!("no token") };
                assert!(choice.near.contains(&chosen.id), "{row:?}: {} instead of {choice:?}", chosen.id);
                let wanted = f64::from(logits[chosen.id as usize]) - log_sum(&logits);
                assert!((f64::from(chosen.logprob) - wanted).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn broken_logits_are_broken_for_both() {
        let row = SampleRow { temperature: 1.0, top_p: 1.0, kind: 1, ..SampleRow::default() };
        let mut sampler = Sampler::new(SamplingParams::default());
        for (logits, verdict, error) in [
            ([0.0, f32::NAN], ReferenceOutcome::NotFinite, SampleError::NotFinite),
            ([f32::INFINITY, 0.0], ReferenceOutcome::NotFinite, SampleError::NotFinite),
            ([f32::NEG_INFINITY; 2], ReferenceOutcome::NoCandidate, SampleError::NoCandidate),
        ] {
            assert_eq!(sample(&logits, &row), verdict);
            assert_eq!(sampler.sample(&logits, &[], None), Err(error));
        }
    }
}
