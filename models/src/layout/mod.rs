//! Layouts of model files: which of them are served, and how the others are converted.
//!
//! `foreign`: layouts that are refused with the command that converts them · `quantized`: quantized Hugging Face
//! checkpoints · `gguf_parts`: GGUF files in several parts · `generation_defaults`: sampling parameters that a checkpoint
//! recommends

mod foreign;
mod generation_defaults;
pub(crate) mod gguf_parts;
mod quantized;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::ModelError;
use crate::weights::ShardIndex;
pub use foreign::ForeignLayout;
pub use generation_defaults::GenerationDefaults;

/// Layout of a file or a directory, recognized by the names of its files and the kind of quantization in `config.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelLayout {
    /// GGUF file.
    Gguf(PathBuf),
    /// Directory with `config.json` and safetensors. Also recognized by a `.safetensors` file in it.
    HuggingFace(PathBuf),
    /// PEFT adapter: `adapter_config.json` and safetensors.
    Adapter(PathBuf),
    /// Layout that must be converted first.
    Foreign(ForeignLayout),
    /// Layout of another kind.
    Unknown,
}

impl ModelLayout {
    /// Recognizes the layout of the file or directory at `path`.
    pub fn of(path: &Path) -> ModelLayout {
        let ends = |end: &str| path.extension().is_some_and(|extension| extension == end);
        if path.is_file() {
            return match ends("safetensors") {
                true => ModelLayout::hugging_face(path.parent().unwrap_or(Path::new(""))),
                false if ends("gguf") => ModelLayout::Gguf(path.to_owned()),
                false => foreign::of_file(path).map_or(ModelLayout::Unknown, ModelLayout::Foreign),
            };
        }
        let names = names(path);
        let has = |name: &str| names.contains(name);
        if has("config.json") && (has("model.safetensors") || has(ShardIndex::FILE)) {
            return ModelLayout::hugging_face(path);
        }
        if has("adapter_config.json") && has("adapter_model.safetensors") {
            return ModelLayout::Adapter(path.to_owned());
        }
        let files: Vec<&String> = names.iter().filter(|name| name.ends_with(".gguf")).collect();
        if let [file] = files.as_slice() {
            return ModelLayout::Gguf(path.join(file));
        }
        foreign::of_folder(path, &names).map_or(ModelLayout::Unknown, ModelLayout::Foreign)
    }

    /// Layout of the checkpoint in `dir`, which must be converted if it is quantized.
    fn hugging_face(dir: &Path) -> ModelLayout {
        match quantized::of(dir) {
            Some(foreign) => ModelLayout::Foreign(foreign),
            None => ModelLayout::HuggingFace(dir.to_owned()),
        }
    }

    /// Returns `true` if the layout holds the weights of a whole model, even if they must be converted first.
    pub fn holds_model(&self) -> bool {
        match self {
            ModelLayout::Gguf(_) | ModelLayout::HuggingFace(_) => true,
            ModelLayout::Foreign(foreign) => !foreign.adapter,
            ModelLayout::Adapter(_) | ModelLayout::Unknown => false,
        }
    }

    /// Refuses a base model at `path` in a layout that must be converted first.
    ///
    /// # Errors
    /// [`ModelError::Layout`] with the name of the layout and the command.
    pub fn check(path: &Path) -> Result<(), ModelError> {
        let refuse = |layout: String, remedy: String| Err(ModelError::Layout { path: path.to_owned(), layout, remedy });
        match ModelLayout::of(path) {
            ModelLayout::Foreign(ForeignLayout { name, remedy, .. }) => refuse(name, remedy),
            ModelLayout::Adapter(_) => {
                let base = adapter_base(path).map_or_else(String::new, |base| format!(" for {base}"));
                let remedy = format!(
                    "serve it with its base model: put a policy.toml with `name` and `protocol` beside it and use `waymark serve \
                     --policy {}`",
                    path.display()
                );
                refuse(format!("a PEFT adapter{base}, not a base model"), remedy)
            }
            ModelLayout::Gguf(_) | ModelLayout::HuggingFace(_) | ModelLayout::Unknown => Ok(()),
        }
    }
}

/// Returns the names of the files of weights at `path`, sorted: a file's own, or those of a directory.
pub fn weight_files(path: &Path) -> Vec<String> {
    if path.is_file() {
        return path.file_name().map(|name| name.to_string_lossy().into_owned()).into_iter().collect();
    }
    let names = names(path);
    if !names.contains("model.safetensors")
        && let Ok(Some(index)) = ShardIndex::read(path)
    {
        return index.files().into_iter().map(str::to_owned).collect();
    }
    let served = |name: &String| name == "model.safetensors" || name.ends_with(".gguf");
    names.into_iter().filter(served).collect()
}

/// Returns the base model that the adapter in `dir` names.
pub fn adapter_base(dir: &Path) -> Option<String> {
    let config: Value = serde_json::from_slice(&std::fs::read(dir.join("adapter_config.json")).ok()?).ok()?;
    config["base_model_name_or_path"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Names of the entries of a directory. Empty if it cannot be read.
fn names(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        dir
    }

    #[test]
    fn what_is_served_is_recognized() {
        let whole = folder(&[("config.json", "{}"), ("model.safetensors", ""), ("policy.toml", "")]);
        assert_eq!(ModelLayout::of(whole.path()), ModelLayout::HuggingFace(whole.path().to_owned()));
        assert_eq!(weight_files(whole.path()), ["model.safetensors"]);
        let map =
            r#"{"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-1.safetensors"}}"#;
        let sharded = folder(&[("config.json", "{}"), ("model.safetensors.index.json", map)]);
        assert!(ModelLayout::of(sharded.path()).holds_model());
        assert_eq!(weight_files(sharded.path()), ["model-1.safetensors", "model-2.safetensors"]);
        let both = folder(&[("model.safetensors", ""), ("model.safetensors.index.json", map)]);
        assert_eq!(weight_files(both.path()), ["model.safetensors"]);
        let gguf = folder(&[("a.gguf", "")]);
        assert_eq!(ModelLayout::of(gguf.path()), ModelLayout::Gguf(gguf.path().join("a.gguf")));
        let described = folder(&[("a.gguf", ""), ("config.json", "{}")]);
        assert_eq!(ModelLayout::of(described.path()), ModelLayout::Gguf(described.path().join("a.gguf")));
        let converted = folder(&[("a.gguf", ""), ("config.json", "{}"), ("model.safetensors", "")]);
        assert_eq!(ModelLayout::of(converted.path()), ModelLayout::HuggingFace(converted.path().to_owned()));
        let config = r#"{"base_model_name_or_path": "org/base"}"#;
        let adapter = folder(&[("adapter_config.json", config), ("adapter_model.safetensors", "")]);
        assert_eq!(ModelLayout::of(adapter.path()), ModelLayout::Adapter(adapter.path().to_owned()));
        let refused = ModelLayout::check(adapter.path()).unwrap_err().to_string();
        assert!(refused.contains("adapter for org/base") && refused.contains("waymark serve --policy"), "{refused}");
        for dir in [&whole, &sharded, &gguf, &described, &converted] {
            ModelLayout::check(dir.path()).unwrap();
        }
    }

    #[test]
    fn what_is_not_served_is_refused_by_name_with_the_command_that_converts_it() {
        let quantized = |method: &str| format!(r#"{{"quantization_config": {{"quant_method": "{method}"}}}}"#);
        let gptq = quantized("gptq");
        let fp8 = quantized("fp8");
        for (files, words) in [
            (vec![("actor/model_world_size_2_rank_0.pt", "")], ["verl", "verl.model_merger merge"]),
            (vec![("model_world_size_2_rank_1.pt", "")], ["verl", "--local_dir"]),
            (vec![("latest", "global_step9"), ("zero_to_fp32.py", "")], ["DeepSpeed", "zero_to_fp32.py"]),
            (vec![(".metadata", ""), ("__0_0.distcp", "")], ["FSDP", "accelerate merge-weights"]),
            (vec![("config.json", "{}"), ("pytorch_model.bin", "")], ["pytorch_model.bin", "safe_serialization=True"]),
            (vec![("adapter_config.json", "{}"), ("adapter_model.bin", "")], ["adapter_model.bin", "PeftModel"]),
            (vec![("config.json", gptq.as_str()), ("model.safetensors", "")], ["GPTQ", "convert_hf_to_gguf.py"]),
            (vec![("config.json", fp8.as_str()), ("model.safetensors", "")], ["FP8", "convert_hf_to_gguf.py"]),
            (vec![("a.gguf", ""), ("b.gguf", "")], ["several GGUF files", "--model"]),
            (vec![("consolidated.00.pth", ""), ("params.json", "")], ["Meta", "convert_llama_weights_to_hf"]),
        ] {
            let dir = folder(&files);
            let refused = ModelLayout::check(dir.path()).unwrap_err().to_string();
            for word in words {
                assert!(refused.contains(word), "{files:?}: {refused}");
            }
            let file = dir.path().join("model.safetensors");
            if file.exists() {
                let refused = ModelLayout::check(&file).unwrap_err().to_string();
                assert!(refused.contains(words[0]), "{files:?}: {refused}");
            }
        }
        ModelLayout::check(folder(&[("README.md", "")]).path()).unwrap();
    }
}
