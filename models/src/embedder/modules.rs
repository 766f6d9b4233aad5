//! Modules of a sentence-transformers directory.

use std::path::Path;

use serde::Deserialize;

use crate::ModelError;
use crate::encoder::parse;

/// Name of the file that lists the modules.
pub(super) const MODULES: &str = "modules.json";

#[derive(Deserialize)]
struct ModuleEntry {
    /// Python class path, such as `sentence_transformers.models.Pooling`.
    #[serde(rename = "type")]
    class: String,
}

/// Checks that the modules after the encoder are the supported ones, pooling and normalization, and returns `true` if
/// there is a normalization. Without `modules.json`, a directory with `1_Pooling` is taken for an incomplete copy of a
/// model that normalizes. A directory without it is taken for a plain checkpoint, to which sentence-transformers adds
/// only mean pooling.
pub(super) fn normalizes(dir: &Path) -> Result<bool, ModelError> {
    let path = dir.join(MODULES);
    if !path.exists() {
        return Ok(dir.join("1_Pooling").exists());
    }
    let modules: Vec<ModuleEntry> = parse(&path)?;
    let normalizes = modules.iter().any(|module| module.class.rsplit('.').next() == Some("Normalize"));
    let known = |class: &str| matches!(class.rsplit('.').next(), Some("Transformer" | "Pooling" | "Normalize"));
    match modules.into_iter().find(|module| !known(&module.class)) {
        Some(module) => {
            let what = format!("module {:?}: expected Transformer, Pooling or Normalize", module.class);
            Err(ModelError::Unsupported { path, what })
        }
        None => Ok(normalizes),
    }
}
