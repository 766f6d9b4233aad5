//! The vocabulary's part of a loss: logits, log-probabilities, entropies and their gradients, a few targets at a time.
//!
//! With p the distribution and H its entropy, `d logits = slope.logprob · (onehot - p) - slope.entropy · p ∘ (ln p + H)`.
//! Logits exist for `ROWS` targets at once, their gradients only for a tile of these, from which both products that
//! need them are taken at once.

mod backward;
mod distribution;
#[cfg(test)]
mod test;

use super::{Objective, Score, Slope};
use crate::kernel::isa::Isa;
use crate::kernel::team::Team;
use crate::kernel::{Packed, matmul};

/// Targets whose logits exist at once: as many as share a pass over the head's weights in the matrix product.
const ROWS: usize = 96;

/// The projection to the vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Shape (vocabulary, hidden).
    pub weights: &'a Packed,
    /// The same transposed: see [`Packed::transposed`].
    pub transposed: &'a Packed,
}

/// Scores of all targets, whose ids are `ids`; `hidden` has their rows after the final norm, shape (targets, hidden).
///
/// # Panics
/// If `hidden` does not have its shape, or an id is not below the vocabulary.
pub fn score(team: &Team, weights: &Packed, hidden: &[f32], ids: &[u32]) -> Vec<Score> {
    check(weights, hidden, ids);
    let mut scores = Vec::with_capacity(ids.len());
    let mut logits = vec![0.0; ROWS.min(ids.len()) * weights.out()];
    for (ids, hidden) in ids.chunks(ROWS).zip(hidden.chunks(ROWS * weights.inn())) {
        let rows = rows(Isa::best(), team, weights, hidden, ids, &mut logits[..ids.len() * weights.out()]);
        scores.extend(rows.iter().map(|row| row.score));
    }
    scores
}

/// As [`score`], but asks the objective for the slope of each target, in order, and gives ∂loss/∂hidden to `dhidden`,
/// which it overwrites. With `grad`, of shape (vocabulary, hidden), the head learns too: `d logitsᵀ · hidden` is added
/// to it.
///
/// # Panics
/// If a slice does not have its shape, or an id is not below the vocabulary.
pub fn learn(
    team: &Team,
    head: Head<'_>,
    hidden: &[f32],
    ids: &[u32],
    objective: &mut dyn Objective,
    dhidden: &mut [f32],
    grad: Option<&mut [f32]>,
) {
    learn_with(Isa::best(), team, head, hidden, ids, objective, dhidden, grad);
}

#[allow(clippy::too_many_arguments, reason = "as `learn`, on one instruction set")]
fn learn_with(
    isa: Isa,
    team: &Team,
    head: Head<'_>,
    hidden: &[f32],
    ids: &[u32],
    objective: &mut dyn Objective,
    dhidden: &mut [f32],
    mut grad: Option<&mut [f32]>,
) {
    let (vocabulary, width) = (head.weights.out(), head.weights.inn());
    check(head.weights, hidden, ids);
    let shape = (head.transposed.inn(), head.transposed.out());
    assert!(shape == (vocabulary, width), "a head of shape ({vocabulary}, {width}), transposed one of {shape:?}");
    assert!(dhidden.len() == hidden.len(), "{} gradients of {} hidden values", dhidden.len(), hidden.len());
    let mut logits = vec![0.0; ROWS.min(ids.len()) * vocabulary];
    let chunks = ids.chunks(ROWS).zip(hidden.chunks(ROWS * width)).zip(dhidden.chunks_mut(ROWS * width));
    for (index, ((ids, hidden), dhidden)) in chunks.enumerate() {
        let logits = &mut logits[..ids.len() * vocabulary];
        let mut rows = rows(isa, team, head.weights, hidden, ids, logits);
        for (offset, row) in rows.iter_mut().enumerate() {
            row.slope = objective.slope(index * ROWS + offset, row.score);
        }
        backward::run(isa, team, head.transposed, (&rows, logits), hidden, dhidden, grad.as_deref_mut());
    }
}

fn check(weights: &Packed, hidden: &[f32], ids: &[u32]) {
    let (vocabulary, width) = (weights.out(), weights.inn());
    assert!(hidden.len() == ids.len() * width, "{} hidden values for {} targets of {width}", hidden.len(), ids.len());
    let wrong = ids.iter().find(|&&id| id as usize >= vocabulary);
    assert!(wrong.is_none(), "target {} of a vocabulary of {vocabulary}", wrong.unwrap_or(&0));
}

/// Values that [`learn`] works in for so many targets: a few rows of logits, and the partial sums for their hidden states.
pub(super) fn room(vocabulary: usize, width: usize, targets: usize) -> usize {
    let rows = ROWS.min(targets);
    rows * vocabulary + backward::room(vocabulary, width, rows)
}

/// What one target's logits say, and what is to be done about it.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    id: usize,
    score: Score,
    /// Logarithm of the softmax's denominator.
    normaliser: f32,
    slope: Slope,
}

/// The logits of some targets and what they say.
fn rows(isa: Isa, team: &Team, weights: &Packed, hidden: &[f32], ids: &[u32], logits: &mut [f32]) -> Vec<Row> {
    matmul(team, hidden, ids.len(), weights, logits);
    let mut rows: Vec<_> = ids.iter().map(|&id| Row { id: id as usize, ..Row::default() }).collect();
    team.rows(&mut rows, 1, 1, &|first, rows| {
        for (row, logits) in rows.iter_mut().zip(logits[first * weights.out()..].chunks_exact(weights.out())) {
            let (normaliser, entropy) = distribution::normalise(isa, logits);
            row.normaliser = normaliser as f32;
            row.score.logprob = (f64::from(logits[row.id]) - normaliser) as f32;
            row.score.entropy = entropy as f32;
        }
    });
    rows
}
