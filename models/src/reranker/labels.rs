//! Number of labels of a sequence classifier.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::ModelError;
use crate::encoder::parse;

/// Number of labels where the configuration states none (`PretrainedConfig` of transformers).
const DEFAULT_LABELS: usize = 2;

/// Part of `config.json` about the head.
#[derive(Deserialize)]
struct LabelFile {
    architectures: Option<Vec<String>>,
    num_labels: Option<usize>,
    id2label: Option<HashMap<String, IgnoredAny>>,
}

/// Checks that the model in `dir` is a sequence classifier of one label.
pub(super) fn check(dir: &Path) -> Result<(), ModelError> {
    let path = dir.join("config.json");
    let file: LabelFile = parse(&path)?;
    let unsupported = |what: String| Err(ModelError::Unsupported { path: path.clone(), what });
    let classifies = |name: &String| name.ends_with("ForSequenceClassification");
    if let Some(names) = file.architectures.filter(|names| !names.iter().any(classifies)) {
        let names = names.join(", ");
        return unsupported(format!(
            "architectures {names:?}: a reranker is a …ForSequenceClassification of one label"
        ));
    }
    let (field, labels) = match (file.num_labels, file.id2label) {
        // transformers derives the number from the names if both are given.
        (_, Some(labels)) => ("id2label", labels.len()),
        (Some(labels), None) => ("num_labels", labels),
        (None, None) => ("num_labels", DEFAULT_LABELS),
    };
    if labels == 1 { Ok(()) } else { unsupported(format!("{field} of {labels} labels: a reranker has one")) }
}
