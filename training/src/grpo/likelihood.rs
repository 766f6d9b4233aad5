//! How probable the learner finds the tokens of trajectories.

use waymark_models::gradient::Learner;

use crate::TrainError;
use crate::pack::{Sequence, pack, passes};

/// For each sequence, a log-probability per token in nats; zeros where nothing is learnt.
pub type Logprobs = Vec<Vec<f32>>;

/// The log-probability of every learnt token of `sequences`. `base` leaves the adapter out, where one is learnt.
///
/// # Errors
/// When the model refuses.
pub fn logprobs(
    learner: &mut Learner,
    sequences: &[Sequence<'_>],
    pack_tokens: usize,
    base: bool,
) -> Result<Logprobs, TrainError> {
    let mut all: Logprobs = sequences.iter().map(|sequence| vec![0.0; sequence.tokens.len()]).collect();
    for pass in passes(learner, sequences, pack_tokens) {
        let first = pass.start;
        let packed = pack(&sequences[pass]);
        let scores = learner.score(&packed.pack, base)?;
        for (place, score) in packed.places.iter().zip(scores) {
            all[first + place.sequence][place.token] = score.logprob;
        }
    }
    Ok(all)
}

/// As [`logprobs`], with other values in place of the learner's own, which it has again afterwards.
///
/// # Errors
/// When the model refuses.
pub fn logprobs_under(
    learner: &mut Learner,
    values: &[f32],
    sequences: &[Sequence<'_>],
    pack_tokens: usize,
) -> Result<Logprobs, TrainError> {
    under(learner, values, |learner| logprobs(learner, sequences, pack_tokens, false))
}

/// What `ask` gets of the learner with other values in place of its own, which it has again afterwards.
pub(crate) fn under<T>(
    learner: &mut Learner,
    values: &[f32],
    ask: impl FnOnce(&mut Learner) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let own = learner.values().to_vec();
    learner.set_values(values)?;
    let found = ask(learner);
    learner.set_values(&own)?;
    found
}
