//! Pooling: the vector of a text, computed from the vectors of its pieces.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ModelError;
use crate::encoder::{OutputRows, parse};
use crate::kernel::{add, scale};

/// Method of computing the vector of a text from the vectors of its pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooling {
    /// Mean over the pieces.
    Mean,
    /// Vector of the first piece.
    Cls,
    /// Maximum over the pieces, element by element.
    Max,
    /// Vector of the last piece.
    Last,
}

#[derive(Deserialize)]
struct PoolingFile {
    /// Name of the pooling, or a list of names for concatenated results. Saved by sentence-transformers since version
    /// 6.
    pooling_mode: Option<Value>,
    include_prompt: Option<bool>,
    /// Switches of earlier versions: `pooling_mode_cls_token` and others.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Pooling {
    /// Reads the pooling of a sentence-transformers directory. Without `1_Pooling/config.json` it is the mean.
    pub(super) fn read(dir: &Path) -> Result<Pooling, ModelError> {
        let path = dir.join("1_Pooling").join("config.json");
        if !path.exists() {
            return Ok(Pooling::Mean);
        }
        let unsupported = |what: String| ModelError::Unsupported { path: path.clone(), what };
        let file: PoolingFile = parse(&path)?;
        if file.include_prompt == Some(false) {
            return Err(unsupported("include_prompt false: prompts are part of the text here".to_owned()));
        }
        let names = file.names();
        let found: Option<Vec<Pooling>> = names.iter().map(|name| Pooling::of(name)).collect();
        match found.as_deref() {
            Some([]) => Ok(Pooling::Mean),
            Some([one]) => Ok(*one),
            _ => {
                let what = format!("pooling {:?}: expected one of mean, cls, max or lasttoken", names.join(" + "));
                Err(unsupported(what))
            }
        }
    }

    fn of(name: &str) -> Option<Pooling> {
        match name {
            "mean" | "mean_tokens" => Some(Pooling::Mean),
            "cls" | "cls_token" => Some(Pooling::Cls),
            "max" | "max_tokens" => Some(Pooling::Max),
            "lasttoken" => Some(Pooling::Last),
            _ => None,
        }
    }

    /// Name in files of sentence-transformers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Max => "max",
            Pooling::Last => "lasttoken",
        }
    }

    /// Rows that [`pool`](Self::pool) reads.
    pub(super) fn rows(self) -> OutputRows {
        match self {
            Pooling::Cls => OutputRows::First,
            Pooling::Mean | Pooling::Max | Pooling::Last => OutputRows::All,
        }
    }

    /// Computes the vector of a text from the rows of its pieces, `width` numbers each. A mean is not divided by the
    /// number of pieces; see [`Pooling::divide`].
    pub(super) fn pool(self, rows: &[f32], width: usize) -> Vec<f32> {
        let mut rows = rows.chunks_exact(width);
        let first = match self {
            Pooling::Last => rows.next_back(),
            _ => rows.next(),
        };
        let mut pooled = first.map_or_else(|| vec![0.0; width], <[f32]>::to_vec);
        match self {
            Pooling::Mean => rows.for_each(|row| add(&mut pooled, row)),
            Pooling::Max => rows.for_each(|row| pooled.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(*x))),
            Pooling::Cls | Pooling::Last => {}
        }
        pooled
    }

    /// Divides the sum of a mean by the number of pieces. Normalization makes this superfluous.
    pub(super) fn divide(self, pooled: &mut [f32], pieces: usize) {
        if self == Pooling::Mean {
            scale(pooled, 1.0 / pieces.max(1) as f32);
        }
    }
}

impl PoolingFile {
    /// Names of the chosen poolings, without the prefix of the earlier switches.
    fn names(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match &self.pooling_mode {
            Some(Value::Array(names)) => names.iter().map(text).collect(),
            Some(name) => vec![text(name)],
            None => {
                let on = self.others.iter().filter(|(_, value)| **value != Value::Bool(false));
                on.filter_map(|(key, _)| key.strip_prefix("pooling_mode_").map(str::to_owned)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_are_pooled() {
        let rows = [1.0, 5.0, 3.0, -2.0, 2.0, 0.0];
        for (pooling, expected) in [
            (Pooling::Mean, [2.0, 1.0]),
            (Pooling::Cls, [1.0, 5.0]),
            (Pooling::Max, [3.0, 5.0]),
            (Pooling::Last, [2.0, 0.0]),
        ] {
            let mut pooled = pooling.pool(&rows, 2);
            pooling.divide(&mut pooled, 3);
            assert!(pooled.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-6), "{pooling:?}: {pooled:?}");
            assert_eq!(pooling.pool(&[], 2), [0.0, 0.0]);
        }
    }

    #[test]
    fn files_of_every_version_are_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Pooling::read(dir.path()).unwrap(), Pooling::Mean);
        std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        let read = |json: &str| {
            std::fs::write(dir.path().join("1_Pooling/config.json"), json).unwrap();
            Pooling::read(dir.path())
        };
        for (json, expected) in [
            (
                r#"{"word_embedding_dimension": 4, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#,
                Pooling::Cls,
            ),
            (r#"{"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false}"#, Pooling::Mean),
            (r#"{"pooling_mode_max_tokens": true}"#, Pooling::Max),
            (r#"{"pooling_mode_lasttoken": true, "include_prompt": true}"#, Pooling::Last),
            (r#"{"pooling_mode_mean_tokens": false}"#, Pooling::Mean),
            (r#"{"embedding_dimension": 4, "pooling_mode": "cls", "include_prompt": true}"#, Pooling::Cls),
            (r#"{"embedding_dimension": 4, "pooling_mode": ["lasttoken"]}"#, Pooling::Last),
            (r#"{"embedding_dimension": 4}"#, Pooling::Mean),
        ] {
            assert_eq!(read(json).unwrap(), expected, "{json}");
        }
        for (json, named) in [
            (r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#, "cls_token + mean_tokens"),
            (r#"{"pooling_mode": ["mean", "max"]}"#, "mean + max"),
            (r#"{"pooling_mode_weightedmean_tokens": true}"#, "weightedmean_tokens"),
            (r#"{"pooling_mode": "weightedmean"}"#, "weightedmean"),
            (r#"{"pooling_mode": "mean", "include_prompt": false}"#, "include_prompt"),
        ] {
            let error = read(json).unwrap_err();
            assert!(matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains(named), "{error}");
        }
    }
}
