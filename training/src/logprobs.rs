//! Log-probabilities of tokens under the learner.

use waymark_models::gradient::{Learner, ScoredModel};

use crate::TrainError;
use crate::pack::{TrainingSequence, pack, passes};

/// Log-probability of each token of each sequence, in nats. Tokens that are not targets have 0.
pub type Logprobs = Vec<Vec<f32>>;

/// Computes the log-probability of every target token of `sequences` under `model`.
///
/// # Errors
/// If the model fails.
pub fn logprobs(
    learner: &mut Learner,
    sequences: &[TrainingSequence<'_>],
    pack_tokens: usize,
    model: ScoredModel,
) -> Result<Logprobs, TrainError> {
    let mut all: Logprobs = sequences.iter().map(|sequence| vec![0.0; sequence.tokens.len()]).collect();
    for pass in passes(learner, sequences, pack_tokens) {
        let first = pass.start;
        let packed = pack(&sequences[pass]);
        let scores = learner.score(&packed.pack, model)?;
        for (place, score) in packed.places.iter().zip(scores) {
            all[first + place.sequence][place.token] = score.logprob;
        }
    }
    Ok(all)
}

/// Same as [`logprobs`], but under `values` instead of the learner's own, which are restored afterwards.
///
/// # Errors
/// If the model fails.
pub fn logprobs_under(
    learner: &mut Learner,
    values: &[f32],
    sequences: &[TrainingSequence<'_>],
    pack_tokens: usize,
) -> Result<Logprobs, TrainError> {
    with_values(learner, values, |learner| logprobs(learner, sequences, pack_tokens, ScoredModel::Adapted))
}

/// Calls `ask` on the learner with `values` in place of the learner's own, which are restored afterwards.
pub(crate) fn with_values<T>(
    learner: &mut Learner,
    values: &[f32],
    ask: impl FnOnce(&mut Learner) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let own = learner.values().to_vec();
    learner.set_values(values)?;
    let found = ask(learner);
    // The own values return even if `ask` failed.
    learner.set_values(&own)?;
    found
}
