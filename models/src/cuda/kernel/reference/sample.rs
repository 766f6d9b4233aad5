//! Sampling, by sorting the whole vocabulary.

use super::super::SampleRow;

/// The token a draw falls on, and what else it might have been for all that rounding knows.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Its id.
    pub id: u32,
    /// Ids on which the draw falls when sums are off by one part in a hundred thousand.
    pub near: Vec<u32>,
}

/// What becomes of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// A token.
    Token(Choice),
    /// A logit is NaN or positive infinity.
    NotFinite,
    /// Nothing to choose from.
    NoCandidate,
}

/// `ln Σ exp(logit)`.
pub fn log_sum(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(max) + logits.iter().map(|&logit| f64::from(logit - max).exp()).sum::<f64>().ln()
}

/// Temperature, min-p, top-k, top-p, then a walk by id.
pub fn sample(logits: &[f32], row: &SampleRow) -> Verdict {
    if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return Verdict::NotFinite;
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Verdict::NoCandidate;
    }
    if row.temperature < 1e-5 {
        let id = logits.iter().position(|&logit| logit == max).unwrap_or(0) as u32;
        return Verdict::Token(Choice { id, near: vec![id] });
    }
    // The scaled logits decide about order and bounds: they are rounded as the sampler rounds them.
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
    Verdict::Token(Choice { id: ids[0], near: ids })
}

/// How many of the best have this share of the weight.
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
