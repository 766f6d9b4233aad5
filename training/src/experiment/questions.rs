//! Checks of an experiment's question files, whose mistakes would otherwise show after hours of training.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use waymark_runtime::evaluate::Question;

use super::endpoint::Metric;
use super::error::ExperimentError;
use super::file::Experiment;
use crate::question_file::{self, QuestionFile};

/// Use of the training questions by a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuestionUse {
    /// Field of the recipe with the number of validation questions per file.
    pub(super) field: &'static str,
    /// Number of validation questions per file.
    pub(super) validation: usize,
    /// If `true`, the rewards pay for refusals, so that questions with withheld passages are used.
    pub(super) refusals: bool,
    /// If `true`, each file needs a question with known supporting passages.
    pub(super) support: bool,
}

/// Splits the training questions as the trainer of a stage does.
///
/// # Errors
/// The reason why the trainer would refuse the questions.
pub(super) fn check_training(experiment: &Experiment, needed: QuestionUse) -> Result<(), String> {
    let paths: Vec<PathBuf> = experiment.training.iter().map(|set| set.questions.clone()).collect();
    let validation: Vec<PathBuf> = experiment.training.iter().filter_map(|set| set.validation.clone()).collect();
    let files = QuestionFile::open_all(&paths)
        .and_then(|files| question_file::split(files, &validation, needed.field, needed.validation))
        .and_then(|files| if needed.refusals { Ok(files) } else { question_file::answerable(files) })
        .map_err(|error| format!("{error:#}"))?;
    match files.iter().find(|file| needed.support && !file.may_be_supported()) {
        None => Ok(()),
        Some(file) => Err(format!(
            "{}: the recipe uses supporting passages, but no question lists all of its own: give `supporting`",
            file.path.display()
        )),
    }
}

/// Refuses endpoints whose metric is undefined for all questions of a set, as far as the questions tell.
///
/// # Errors
/// [`ExperimentError`] with the field of the file `path` and the set.
pub(super) fn check_endpoints(experiment: &Experiment, path: &Path) -> Result<(), ExperimentError> {
    let refuse = |field: String, reason: String| ExperimentError::Field { path: path.to_owned(), field, reason };
    let mut sets: BTreeMap<&str, Vec<Question>> = BTreeMap::new();
    for (at, set) in experiment.evaluation.iter().enumerate() {
        let questions = Question::read(&set.questions);
        let field = || format!("evaluation[{at}].questions");
        let questions = questions.map_err(|error| refuse(field(), error.to_string()))?;
        if questions.is_empty() {
            return Err(refuse(field(), format!("{} has no questions", set.questions.display())));
        }
        sets.insert(&set.name, questions);
    }
    for (at, endpoint) in experiment.endpoint.iter().enumerate() {
        let metric = endpoint.metric;
        for set in experiment.sets_of(endpoint) {
            let questions = sets.get(set).map(Vec::as_slice).unwrap_or_default();
            if let Some(reason) = metric.undefined_on(questions) {
                let reason = format!("{metric} is undefined on the set {set}: {reason}");
                return Err(refuse(format!("endpoint[{at}].metric"), reason));
            }
            if metric == Metric::FalseAnswers && questions.iter().all(|question| question.without.is_empty()) {
                let field = format!("endpoint[{at}].metric");
                tracing::warn!(field, set, "the set withholds no passages: false answers need a search that misses");
            }
        }
    }
    Ok(())
}
