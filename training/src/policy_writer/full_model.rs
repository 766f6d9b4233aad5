//! Fully trained models, written as a checkpoint directory that serves and trains like any other.

use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use waymark_models::gradient::Learner;

use crate::TrainError;
use crate::run::RunError;

/// Files to copy from the base model: configuration, tokenizer and license.
const COPIED_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
];

/// Returns the reason why `base` cannot be the base model of full training, if there is one. The output copies the
/// base model's configuration and tokenizer files, so `base` must contain them.
pub fn base_model_problem(base: &Path) -> Option<String> {
    let whole = base.join("config.json").is_file() && base.join("tokenizer.json").is_file();
    let path = base.display();
    (!whole).then(|| {
        format!(
            "{path}: training all weights needs a directory with config.json, safetensors and tokenizer.json: \
             choose such a base model or add an [adapter] to the recipe"
        )
    })
}

/// Writes the learner's values and the files copied from `base` into the new directory `dir`.
pub(super) fn write(dir: &Path, learner: &Learner, base: &Path) -> Result<(), TrainError> {
    fs::create_dir_all(dir).map_err(RunError::io("create", dir))?;
    for from in COPIED_FILES.iter().map(|name| base.join(name)).filter(|from| from.is_file()) {
        let name = from.file_name().unwrap_or_default();
        fs::copy(&from, dir.join(name)).map_err(RunError::io("copy", &from))?;
    }
    let config = dir.join("config.json");
    let text = fs::read(&config).map_err(RunError::io("read", &config))?;
    // The base model may be stored in bf16, but training wrote f32.
    fs::write(&config, in_f32(&text)).map_err(RunError::io("write", &config))?;
    let bytes: &[u8] = bytemuck::cast_slice(learner.values());
    let path = dir.join("model.safetensors");
    let refuse =
        |error: safetensors::SafeTensorError| RunError::Checkpoint { path: path.clone(), reason: error.to_string() };
    let views = learner.parameters().iter().map(|parameter| {
        let range = parameter.range.start * size_of::<f32>()..parameter.range.end * size_of::<f32>();
        let view = TensorView::new(Dtype::F32, parameter.shape.clone(), &bytes[range])?;
        Ok((parameter.name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(refuse)?;
    // Readers of transformers expect the format in the metadata.
    let format = [("format".to_owned(), "pt".to_owned())].into();
    let file = safetensors::serialize(views, Some(format)).map_err(refuse)?;
    Ok(fs::write(&path, file).map_err(RunError::io("write", &path))?)
}

/// Sets the data type in a model configuration to `float32`, the type of the new weights. A configuration that cannot
/// be parsed stays as it is.
fn in_f32(text: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(mut config)) = serde_json::from_slice(text) else { return text.to_vec() };
    for name in ["torch_dtype", "dtype"] {
        if let Some(form) = config.get_mut(name) {
            *form = "float32".into();
        }
    }
    serde_json::to_vec_pretty(&config).unwrap_or_else(|_| text.to_vec())
}
