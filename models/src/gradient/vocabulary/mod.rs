//! The vocabulary's part of a loss: logits, log-probabilities, entropies and their gradients, a few targets at a time.
//!
//! With p the distribution and H its entropy, `d logits = slope.logprob · (onehot - p) - slope.entropy · p ∘ (ln p + H)`;
//! and where a target is drawn to a distribution over a few tokens, `weight · (q - towards)` on these besides, with q the
//! softmax of their logits alone.
//! Logits exist for `ROWS` targets at once, their gradients only for a tile of these, from which both products that
//! need them are taken at once.

mod backward;
mod distribution;
#[cfg(test)]
mod test;

use super::{Likeliest, Objective, Score, Slope};
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

/// The `count` most probable tokens at all targets, of which `hidden` has the rows as for [`score`].
///
/// # Panics
/// If `hidden` is not a whole number of rows.
pub fn likeliest(team: &Team, weights: &Packed, hidden: &[f32], count: usize) -> Vec<Likeliest> {
    let (vocabulary, width) = (weights.out(), weights.inn());
    assert!(hidden.len().is_multiple_of(width), "{} hidden values in rows of {width}", hidden.len());
    let mut all = vec![Likeliest::default(); hidden.len() / width];
    let mut logits = vec![0.0; ROWS.min(all.len()) * vocabulary];
    for (found, hidden) in all.chunks_mut(ROWS).zip(hidden.chunks(ROWS * width)) {
        let logits = &mut logits[..found.len() * vocabulary];
        matmul(team, hidden, found.len(), weights, logits);
        let logits = &*logits;
        team.rows(found, 1, 1, &|first, found| {
            for (found, logits) in found.iter_mut().zip(logits[first * vocabulary..].chunks_exact(vocabulary)) {
                *found = Likeliest::of(logits, count);
            }
        });
    }
    all
}

/// As [`score`], but asks the objective for the slope of each target, in order, and gives ∂loss/∂hidden to `dhidden`,
/// which it overwrites. With `grad`, of shape (vocabulary, hidden), the head learns too: `d logitsᵀ · hidden` is added
/// to it.
///
/// # Panics
/// If a slice does not have its shape, or an id, also one that a target is drawn to, is not below the vocabulary.
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
            let target = index * ROWS + offset;
            row.slope = objective.slope(target, row.score);
            row.drawn = drawn(objective, target, &logits[offset * vocabulary..][..vocabulary]);
        }
        backward::run(isa, team, head.transposed, (&rows, logits), hidden, dhidden, grad.as_deref_mut());
    }
}

/// The slopes of the logits of the tokens that a target is drawn to, by id; the objective gets to know how far it is.
fn drawn(objective: &mut dyn Objective, target: usize, logits: &[f32]) -> Vec<(usize, f32)> {
    let Some(pull) = objective.pull(target) else { return Vec::new() };
    let (nats, slopes) = pull.towards.divergence(logits);
    let ids = pull.towards.ids().iter().map(|&id| id as usize);
    let mut drawn: Vec<(usize, f32)> = ids.zip(slopes.into_iter().map(|slope| pull.weight * slope)).collect();
    drawn.sort_unstable_by_key(|&(id, _)| id);
    objective.apart(target, nats);
    drawn
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
#[derive(Debug, Default)]
struct Row {
    id: usize,
    score: Score,
    /// Logarithm of the softmax's denominator.
    normaliser: f32,
    slope: Slope,
    /// Slopes of a few logits besides, by id; none where the target is drawn to nothing.
    drawn: Vec<(usize, f32)>,
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
