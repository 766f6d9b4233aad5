//! Adapters on disk, in the layout PEFT saves and [`crate::adapter`] serves.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

use super::{Learner, Lora, Tune};
use crate::ModelError;
use crate::adapter::Source;

impl Learner {
    /// Saves the adapter as a PEFT directory: `adapter_config.json`, naming `base` as its base model, and
    /// `adapter_model.safetensors`. The directory is built beside `dir`, reaches the disk, and then takes its place.
    ///
    /// # Errors
    /// [`ModelError::Input`] when all weights are learnt, [`ModelError::Io`] naming the file that cannot be written.
    pub fn save_adapter(&self, dir: &Path, base: &str) -> Result<(), ModelError> {
        let lora = self.lora()?;
        let views: Result<Vec<_>, _> = self
            .parameters
            .iter()
            .map(|parameter| {
                let bytes: &[u8] = bytemuck::cast_slice(&self.values()[parameter.range.clone()]);
                TensorView::new(Dtype::F32, parameter.shape.clone(), bytes).map(|view| (parameter.name.as_str(), view))
            })
            .collect();
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let tensors = views.and_then(|views| serialize(views, Some(format)));
        let tensors = tensors.map_err(|error| ModelError::Input(format!("adapter: {error}")))?;
        let config = format!("{:#}\n", config(lora, base));
        replace(dir, &[("adapter_config.json", config.as_bytes()), ("adapter_model.safetensors", &tensors)])
            .map_err(|(path, source)| ModelError::Io { path, source })
    }

    /// Takes over the values of a saved adapter of the same rank, scale and modules.
    ///
    /// # Errors
    /// [`ModelError::Input`] when it is of another kind, and what loading an adapter for serving returns.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<(), ModelError> {
        let lora = self.lora()?;
        let (file, bytes) = Source::open(dir)?;
        let (rank, scale) = (file.settings.rank, file.settings.scale);
        if rank != lora.rank || (scale - lora.scale()).abs() > 1e-6 * scale.abs() {
            let (own_rank, own_scale) = (lora.rank, lora.scale());
            return Err(ModelError::Input(format!(
                "{}: an adapter of rank {rank} and scale {scale}, not {own_rank} and {own_scale}",
                file.path.display()
            )));
        }
        let tensors = file.tensors(&bytes)?;
        if let Some(name) =
            tensors.names().into_iter().find(|name| self.parameters.iter().all(|own| own.name != **name))
        {
            return Err(ModelError::Input(format!(
                "{}: tensor {name} is not among what is learnt",
                file.path.display()
            )));
        }
        let mut values = Vec::with_capacity(self.values().len());
        for parameter in &self.parameters {
            let tensor = tensors.tensor(&parameter.name).ok();
            values.extend(file.values(&parameter.name, tensor.as_ref(), &parameter.shape)?);
        }
        self.set_values(&values)
    }

    fn lora(&self) -> Result<&Lora, ModelError> {
        match &self.tune {
            Tune::Lora(lora) => Ok(lora),
            Tune::Full => Err(ModelError::Input("all weights are learnt, not an adapter".to_owned())),
        }
    }
}

fn config(lora: &Lora, base: &str) -> Value {
    let whole = lora.alpha.fract() == 0.0 && lora.alpha.abs() < 1e9;
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": if whole { json!(lora.alpha as i64) } else { json!(lora.alpha) },
        "lora_dropout": 0.0,
        "target_modules": lora.targets.iter().map(|module| module.name()).collect::<Vec<_>>(),
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "use_rslora": false,
        "use_dora": false,
        "modules_to_save": null,
        "inference_mode": true,
    })
}

/// Puts a directory with these files at `dir`. One that is there already moves aside for the moment between two renames.
fn replace(dir: &Path, files: &[(&str, &[u8])]) -> Result<(), (PathBuf, io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| (path, error)
    };
    let (fresh, old) = (beside(dir, "new"), beside(dir, "old"));
    for left in [&fresh, &old] {
        match fs::remove_dir_all(left) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((left.clone(), error)),
            _ => {}
        }
    }
    fs::create_dir_all(&fresh).map_err(at(&fresh))?;
    for (name, bytes) in files {
        let path = fresh.join(name);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(at(&path))?;
    }
    sync(&fresh).map_err(at(&fresh))?;
    let there = dir.exists();
    if there {
        fs::rename(dir, &old).map_err(at(dir))?;
    }
    fs::rename(&fresh, dir).map_err(at(dir))?;
    if let Some(parent) = dir.parent() {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        sync(parent).map_err(at(parent))?;
    }
    if there { fs::remove_dir_all(&old).map_err(at(&old)) } else { Ok(()) }
}

/// A hidden name next to a directory.
fn beside(dir: &Path, end: &str) -> PathBuf {
    let name = dir.file_name().map_or(Cow::Borrowed("adapter"), |name| name.to_string_lossy());
    dir.with_file_name(format!(".{name}.{end}"))
}

/// Makes a directory's entries reach the disk, where the system can.
fn sync(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
