//! Fingerprint of the weights of a trained policy, used to check engines on other machines.

use std::path::Path;

use waymark_models::gradient::{Learner, ScoredModel};
use waymark_runtime::fingerprint;

use super::BaseModel;
use crate::TrainError;
use crate::pack::{TrainingSequence, pack};

/// Writes the fingerprint of the learner's values into the policy in `dir`, which holds the same values. Up to the
/// rounding of the engine, `waymark policy fingerprint` measures the same one.
///
/// # Errors
/// If the learner cannot score the text of the fingerprint, or `policy.toml` cannot be written.
pub fn add_fingerprint(dir: &Path, learner: &mut Learner, base: BaseModel<'_>) -> Result<(), TrainError> {
    let learned = vec![true; base.probe.len()];
    let packed = pack(&[TrainingSequence { tokens: base.probe, learned: &learned }]);
    let scores = learner.score(&packed.pack, ScoredModel::Adapted)?;
    let logprobs = scores.iter().map(|score| score.logprob).collect();
    let written = fingerprint::of_scores(base.probe.to_vec(), logprobs)
        .and_then(|fingerprint| fingerprint::write(&dir.join("policy.toml"), &fingerprint));
    written.map_err(|error| TrainError::Fingerprint { dir: dir.to_owned(), reason: format!("{error:#}") })
}

/// Writes the fingerprint of a new policy like [`add_fingerprint`]. A failure is only logged, with the command that
/// measures the fingerprint later, because the policy is usable without one and its training may have taken hours.
pub fn add_fingerprint_if_possible(dir: &Path, learner: &mut Learner, base: BaseModel<'_>) {
    if let Err(error) = add_fingerprint(dir, learner, base) {
        tracing::warn!(
            %error,
            "the policy {0} is written, but without a fingerprint: run `waymark policy fingerprint {0}`",
            dir.display()
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_agent::{LoadedBase, Policy};
    use waymark_models::tokenizer::Tokenizer;

    use super::*;
    use crate::policy_writer::{TrainingRecord, write};
    use crate::tiny;

    /// Size of the vocabulary of bytes, with control tokens.
    const VOCAB: usize = 259;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_engine_measures_the_fingerprint_that_training_wrote_and_another_one_for_other_weights() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), VOCAB);
        let probe = fingerprint::probe(&Tokenizer::bytes()).unwrap();
        let base = BaseModel { path: temp.path(), id: "00ff", probe: &probe };
        let loaded = LoadedBase { id: Some(base.id.to_owned()), ..LoadedBase::default() };
        let mut learner = tiny::learner(&weights);
        let recipe = tiny::recipe(temp.path());
        let runtime = tiny::engine(&weights);
        let mut found = Vec::new();
        for (name, change) in [("trained", 0.0), ("changed", 0.3)] {
            tiny::nudge(&mut learner);
            learner.change(|values, _| values.iter_mut().for_each(|value| *value += change));
            let dir = temp.path().join(name);
            write(&dir, &learner, &recipe, &TrainingRecord::default(), base).unwrap();
            assert!(Policy::open(&dir).unwrap().fingerprint.is_none());
            add_fingerprint(&dir, &mut learner, base).unwrap();
            let policy = Policy::load(&dir, &runtime.engine, &loaded).await.unwrap();
            let measured = fingerprint::measure(&runtime, &policy).await.unwrap();
            let written = policy.fingerprint.clone().unwrap();
            assert_eq!(written.ids, measured.ids);
            assert_eq!(written.compare(&measured.logprobs), Ok(()));
            found.push((written, measured));
        }
        // Neither policy passes for the other.
        assert!(found[0].0.compare(&found[1].1.logprobs).is_err());
        assert!(found[1].0.compare(&found[0].1.logprobs).is_err());
    }

    #[test]
    fn a_policy_that_cannot_be_written_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let mut learner = tiny::learner(&tiny::weights(temp.path(), 48));
        let base = BaseModel { path: temp.path(), id: "00ff", probe: &[1, 2, 3] };
        let absent = temp.path().join("absent");
        let error = add_fingerprint(&absent, &mut learner, base).unwrap_err().to_string();
        assert!(error.contains("absent") && error.contains("has no fingerprint"), "{error}");
        // A failure must not stop the end of a run.
        add_fingerprint_if_possible(&absent, &mut learner, base);
        assert!(!absent.exists());
        let short = BaseModel { probe: &[1, 400], ..base };
        assert!(matches!(add_fingerprint(&absent, &mut learner, short), Err(TrainError::Model(_))));
    }
}
