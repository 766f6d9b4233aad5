//! The vocabulary's part of a loss: logits, log-probabilities, entropies and their gradients, a few targets at a time.

use super::{Objective, Score, outer};
use crate::kernel::team::Team;
use crate::kernel::{Packed, matmul};

/// Targets whose logits exist at once.
const ROWS: usize = 96;

/// The projection to the vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Shape (vocabulary, hidden).
    pub weights: &'a Packed,
    /// The same transposed: see [`Packed::transposed`]. Only [`learn`] uses it.
    pub transposed: &'a Packed,
}

/// Scores of all targets, whose ids are `ids`; `hidden` has their rows after the final norm, shape (targets, hidden).
pub fn score(team: &Team, weights: &Packed, hidden: &[f32], ids: &[u32]) -> Vec<Score> {
    let mut scores = Vec::with_capacity(ids.len());
    let mut logits = vec![0.0; ROWS.min(ids.len()) * weights.out()];
    for (ids, hidden) in ids.chunks(ROWS).zip(hidden.chunks(ROWS * weights.inn())) {
        let logits = &mut logits[..ids.len() * weights.out()];
        scores.extend(rows(team, weights, hidden, ids, logits).iter().map(|row| row.score));
    }
    scores
}

/// As [`score`], and gives ∂loss/∂hidden to `dhidden`, which it overwrites. The objective is asked in order.
///
/// With p the distribution and H its entropy, `d logits = slope.logprob · (onehot - p) - slope.entropy · p ∘ (ln p + H)`.
/// With `grad`, of shape (vocabulary, hidden), the head learns too: `d logitsᵀ · hidden` is added to it.
pub fn learn(
    team: &Team,
    head: Head<'_>,
    hidden: &[f32],
    ids: &[u32],
    objective: &mut dyn Objective,
    dhidden: &mut [f32],
    mut grad: Option<&mut [f32]>,
) {
    let (vocabulary, width) = (head.weights.out(), head.weights.inn());
    assert!(hidden.len() == ids.len() * width && dhidden.len() == hidden.len(), "hidden states of the targets");
    let mut logits = vec![0.0; ROWS.min(ids.len()) * vocabulary];
    let chunks = ids.chunks(ROWS).zip(hidden.chunks(ROWS * width)).zip(dhidden.chunks_mut(ROWS * width));
    for (index, ((ids, hidden), dhidden)) in chunks.enumerate() {
        let logits = &mut logits[..ids.len() * vocabulary];
        let rows = rows(team, head.weights, hidden, ids, logits);
        let slopes: Vec<_> =
            rows.iter().enumerate().map(|(row, found)| objective.slope(index * ROWS + row, found.score)).collect();
        team.rows(logits, vocabulary, 1, &|first, part| {
            for (offset, logits) in part.chunks_exact_mut(vocabulary).enumerate() {
                let row = first + offset;
                for logit in logits.iter_mut() {
                    let log = *logit - rows[row].normaliser;
                    let p = log.exp();
                    *logit = -slopes[row].logprob * p - slopes[row].entropy * p * (log + rows[row].score.entropy);
                }
                logits[ids[row] as usize] += slopes[row].logprob;
            }
        });
        matmul(team, logits, ids.len(), head.transposed, dhidden);
        if let Some(grad) = &mut grad {
            outer::add(team, ids.len(), logits, hidden, 1.0, grad);
        }
    }
}

/// What one target's logits say.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    score: Score,
    /// Logarithm of the softmax's denominator.
    normaliser: f32,
}

fn rows(team: &Team, weights: &Packed, hidden: &[f32], ids: &[u32], logits: &mut [f32]) -> Vec<Row> {
    let vocabulary = weights.out();
    matmul(team, hidden, ids.len(), weights, logits);
    let mut rows = vec![Row::default(); ids.len()];
    team.rows(&mut rows, 1, 1, &|first, rows| {
        for (offset, row) in rows.iter_mut().enumerate() {
            let logits = &logits[(first + offset) * vocabulary..][..vocabulary];
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let (mut total, mut weighted) = (0.0, 0.0);
            for logit in logits {
                let weight = f64::from(logit - largest).exp();
                total += weight;
                weighted += weight * f64::from(logit - largest);
            }
            row.normaliser = largest + total.ln() as f32;
            row.score.logprob = logits[ids[first + offset] as usize] - row.normaliser;
            row.score.entropy = (total.ln() - weighted / total) as f32;
        }
    });
    rows
}
