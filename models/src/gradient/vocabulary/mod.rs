//! Vocabulary part of a loss: logits, log-probabilities, entropies and their gradients, a few targets at a time.
//!
//! With p the distribution and H its entropy,
//! `d logits = slope.logprob · (onehot - p) - slope.entropy · p ∘ (ln p + H)`. A distillation term adds
//! `weight · (q - towards)` to the gradients of its tokens' logits, with q the softmax of these logits alone. Logits
//! exist for `ROWS` targets at a time, and their gradients only for one tile of the vocabulary, from which both matrix
//! multiplications read immediately. A soft limit of the logits multiplies their gradient by `1 - tanh²`.

mod backward;
mod distribution;
#[cfg(test)]
mod test;

use super::{Likeliest, Objective, Score, Slope};
use crate::kernel::isa::Isa;
use crate::kernel::team::Team;
use crate::kernel::{Packed, matmul, soft_cap};

/// Number of targets whose logits exist at once: as many as share one pass over the weights in the matrix
/// multiplication.
const ROWS: usize = 96;

/// Packed vocabulary projection.
#[derive(Debug, Clone, Copy)]
pub struct VocabularyHead<'a> {
    /// Weights, shape (vocabulary, hidden).
    pub weights: &'a Packed,
    /// If `true`, the backward pass rounds slopes and weights to bf16. Always `false` if the projection is
    /// trained.
    pub rounded: bool,
    /// Soft limit `c` of the logits, which become `c · tanh(logit / c)`. `None` leaves them unlimited.
    pub cap: Option<f32>,
}

/// Computes the logits of `rows` rows.
fn project(team: &Team, weights: &Packed, cap: Option<f32>, hidden: &[f32], rows: usize, logits: &mut [f32]) {
    matmul(team, hidden, rows, weights, logits);
    if let Some(cap) = cap {
        team.rows(logits, weights.out(), 1, &|_, share| soft_cap(share, cap));
    }
}

/// Scores of all targets with IDs `ids`; `hidden` holds their rows after the final norm, shape (targets, hidden).
///
/// # Panics
/// If `hidden` does not have its shape, or an ID is not below the vocabulary size.
pub fn score(team: &Team, weights: &Packed, cap: Option<f32>, hidden: &[f32], ids: &[u32]) -> Vec<Score> {
    check(weights, hidden, ids);
    let mut scores = Vec::with_capacity(ids.len());
    let mut logits = vec![0.0; ROWS.min(ids.len()) * weights.out()];
    for (ids, hidden) in ids.chunks(ROWS).zip(hidden.chunks(ROWS * weights.inn())) {
        let rows = rows(Isa::best(), team, (weights, cap), hidden, ids, &mut logits[..ids.len() * weights.out()]);
        scores.extend(rows.iter().map(|row| row.score));
    }
    scores
}

/// The `count` most probable tokens at all targets; `hidden` holds their rows as for [`score`].
///
/// # Panics
/// If `hidden` is not a whole number of rows.
pub fn likeliest(team: &Team, weights: &Packed, cap: Option<f32>, hidden: &[f32], count: usize) -> Vec<Likeliest> {
    let vocabulary = weights.out();
    let width = weights.inn();
    assert!(hidden.len().is_multiple_of(width), "{} hidden values in rows of {width}", hidden.len());
    let mut all = vec![Likeliest::default(); hidden.len() / width];
    let mut logits = vec![0.0; ROWS.min(all.len()) * vocabulary];
    for (found, hidden) in all.chunks_mut(ROWS).zip(hidden.chunks(ROWS * width)) {
        let logits = &mut logits[..found.len() * vocabulary];
        project(team, weights, cap, hidden, found.len(), logits);
        let logits = &*logits;
        team.rows(found, 1, 1, &|first, found| {
            for (found, logits) in found.iter_mut().zip(logits[first * vocabulary..].chunks_exact(vocabulary)) {
                *found = Likeliest::of(logits, count);
            }
        });
    }
    all
}

/// Scores targets like [`score`], asks the objective for the slope of each target in order, and overwrites
/// `dhidden` with ∂loss/∂hidden. With `grad`, of shape (vocabulary, hidden), also adds the gradient of the
/// projection, `d logitsᵀ · hidden`.
///
/// # Panics
/// If a slice does not have its shape, or an ID, including those of distillation terms, is not below the vocabulary
/// size.
pub fn learn(
    team: &Team,
    head: VocabularyHead<'_>,
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
    head: VocabularyHead<'_>,
    hidden: &[f32],
    ids: &[u32],
    objective: &mut dyn Objective,
    dhidden: &mut [f32],
    mut grad: Option<&mut [f32]>,
) {
    let vocabulary = head.weights.out();
    let width = head.weights.inn();
    check(head.weights, hidden, ids);
    assert!(dhidden.len() == hidden.len(), "{} gradients of {} hidden values", dhidden.len(), hidden.len());
    let mut logits = vec![0.0; ROWS.min(ids.len()) * vocabulary];
    let chunks = ids.chunks(ROWS).zip(hidden.chunks(ROWS * width)).zip(dhidden.chunks_mut(ROWS * width));
    for (index, ((ids, hidden), dhidden)) in chunks.enumerate() {
        let logits = &mut logits[..ids.len() * vocabulary];
        let mut rows = rows(isa, team, (head.weights, head.cap), hidden, ids, logits);
        for (offset, row) in rows.iter_mut().enumerate() {
            let target = index * ROWS + offset;
            row.slope = objective.slope(target, row.score);
            row.distillation_slopes =
                distillation_slopes(objective, target, &logits[offset * vocabulary..][..vocabulary]);
        }
        backward::run(isa, team, head, (&rows, logits), hidden, dhidden, grad.as_deref_mut());
    }
}

/// Slopes of the distillation term's logits, by ID. Reports the divergence to the objective.
fn distillation_slopes(objective: &mut dyn Objective, target: usize, logits: &[f32]) -> Vec<(usize, f32)> {
    let Some(term) = objective.distillation(target) else { return Vec::new() };
    let (nats, slopes) = term.towards.divergence(logits);
    let ids = term.towards.ids().iter().map(|&id| id as usize);
    let mut distillation_slopes: Vec<(usize, f32)> =
        ids.zip(slopes.into_iter().map(|slope| term.weight * slope)).collect();
    distillation_slopes.sort_unstable_by_key(|&(id, _)| id);
    objective.report_divergence(target, nats);
    distillation_slopes
}

fn check(weights: &Packed, hidden: &[f32], ids: &[u32]) {
    let vocabulary = weights.out();
    let width = weights.inn();
    assert!(hidden.len() == ids.len() * width, "{} hidden values for {} targets of {width}", hidden.len(), ids.len());
    let wrong = ids.iter().find(|&&id| id as usize >= vocabulary);
    assert!(wrong.is_none(), "target {} of a vocabulary of {vocabulary}", wrong.unwrap_or(&0));
}

/// Number of values in the working memory of [`learn`] for `targets` targets: a few rows of logits, and partial
/// sums for their hidden states.
pub(super) fn workspace_len(vocabulary: usize, width: usize, targets: usize) -> usize {
    let rows = ROWS.min(targets);
    rows * vocabulary + backward::workspace_len(vocabulary, width, rows)
}

/// Logit statistics and slopes of one target.
#[derive(Debug, Default)]
struct TargetRow {
    id: usize,
    score: Score,
    /// Logarithm of the softmax denominator.
    normalizer: f32,
    slope: Slope,
    /// Additional slopes of a distillation term, by ID. Empty if there is no term.
    distillation_slopes: Vec<(usize, f32)>,
}

/// Computes the logits of some targets and their statistics.
fn rows(
    isa: Isa,
    team: &Team,
    (weights, cap): (&Packed, Option<f32>),
    hidden: &[f32],
    ids: &[u32],
    logits: &mut [f32],
) -> Vec<TargetRow> {
    project(team, weights, cap, hidden, ids.len(), logits);
    let mut rows: Vec<_> = ids.iter().map(|&id| TargetRow { id: id as usize, ..TargetRow::default() }).collect();
    team.rows(&mut rows, 1, 1, &|first, rows| {
        for (row, logits) in rows.iter_mut().zip(logits[first * weights.out()..].chunks_exact(weights.out())) {
            let (normalizer, entropy) = distribution::normalize(isa, logits);
            row.normalizer = normalizer as f32;
            row.score.logprob = (f64::from(logits[row.id]) - normalizer) as f32;
            row.score.entropy = entropy as f32;
        }
    });
    rows
}
