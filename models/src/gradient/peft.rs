//! Adapters on disk, in the layout that PEFT saves and [`crate::adapter`] serves.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Learner, Lora, Parameter, Tune};
use crate::ModelError;
use crate::adapter::AdapterSource;
use crate::folder::FolderDraft;

/// Settings file of an adapter.
const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// Additional file that may exist in the directory and is preserved.
const README: &str = "README.md";

/// Precision in which an adapter's values are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// The precision of training.
    #[default]
    F32,
    /// IEEE 754 half precision: 11 significant bits, up to 65504.
    F16,
    /// bfloat16: 8 significant bits, the range of `f32`.
    Bf16,
}

impl Learner {
    /// Saves the adapter like [`save_adapter_as`](Self::save_adapter_as), in `f32`.
    ///
    /// # Errors
    /// The same as for [`save_adapter_as`](Self::save_adapter_as).
    pub fn save_adapter(&self, dir: &Path, base: &str) -> Result<(), ModelError> {
        self.save_adapter_as(dir, base, Precision::F32)
    }

    /// Saves the adapter as a PEFT directory: `adapter_config.json`, naming `base` as its base model, and
    /// `adapter_model.safetensors`. The directory is built next to `dir`, synced to disk, and then replaces `dir`;
    /// see [`FolderDraft`]. A `README.md` is preserved.
    ///
    /// # Errors
    /// [`ModelError::Input`] when all weights are trained, when `dir` holds files of other names, or when a value
    /// is not finite in this precision; [`ModelError::Io`] naming the file that cannot be written.
    pub fn save_adapter_as(&self, dir: &Path, base: &str, precision: Precision) -> Result<(), ModelError> {
        let config = format!("{:#}\n", config(self.lora()?, base));
        let tensors = self.tensors(precision)?;
        let draft = FolderDraft::begin(dir)?;
        // Checked after `begin`, which may have restored the directory from a crash.
        let readme = own(dir)?;
        for (name, bytes) in [(CONFIG, config.as_bytes()), (TENSORS, tensors.as_slice())] {
            let path = draft.part().join(name);
            fs::write(&path, bytes).map_err(ModelError::io("write", &path))?;
        }
        if readme {
            let path = draft.part().join(README);
            fs::copy(dir.join(README), &path).map_err(ModelError::io("write", &path))?;
        }
        draft.finish()
    }

    /// Content of the tensor file.
    fn tensors(&self, precision: Precision) -> Result<Vec<u8>, ModelError> {
        let mut rounded = Vec::with_capacity(self.parameters.len());
        for Parameter { name, shape, range } in &self.parameters {
            let values = &self.values()[range.clone()];
            let (kind, bytes) = round(values, precision).map_err(|value| {
                let remedy = if value.is_finite() { "save it in f32" } else { "train the adapter again" };
                ModelError::Input(format!("{name}: {value} is not a finite number in {precision:?}; {remedy}"))
            })?;
            rounded.push((name.as_str(), kind, shape.clone(), bytes));
        }
        let views: Result<Vec<_>, _> = rounded
            .iter()
            .map(|(name, kind, shape, bytes)| TensorView::new(*kind, shape.clone(), bytes).map(|view| (*name, view)))
            .collect();
        // `transformers` refuses safetensors files whose metadata does not name a framework.
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let tensors = views.and_then(|views| serialize(views, Some(format)));
        tensors.map_err(|error| ModelError::Input(format!("adapter: {error}")))
    }

    /// Loads the values of a saved adapter of the same rank, scale and modules.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the adapters differ in these, and the errors of loading an adapter for serving.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<(), ModelError> {
        let lora = self.lora()?;
        let (file, bytes) = AdapterSource::open(dir)?;
        let rank = file.settings.rank;
        let scale = file.settings.scale;
        // Alpha may be written with another rounding; only a scale that changes results is refused.
        if rank != lora.rank || (scale - lora.scale()).abs() > 1e-6 * scale.abs() {
            let own_rank = lora.rank;
            let own_scale = lora.scale();
            return Err(ModelError::Input(format!(
                "{}: an adapter of rank {rank} and scale {scale}: expected {own_rank} and {own_scale}",
                file.path.display()
            )));
        }
        let tensors = file.tensors(&bytes)?;
        if let Some(name) =
            tensors.names().into_iter().find(|name| self.parameters.iter().all(|own| own.name != **name))
        {
            return Err(ModelError::Input(format!(
                "{}: tensor {name} is not a trained parameter",
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
            Tune::Full => Err(ModelError::Input("all weights are trained: there is no adapter".to_owned())),
        }
    }
}

fn config(lora: &Lora, base: &str) -> Value {
    // PEFT writes a whole alpha as an integer.
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

/// Converts values to the bytes of a precision. The error is the first value that is not finite in that precision.
fn round(values: &[f32], precision: Precision) -> Result<(Dtype, Cow<'_, [u8]>), f32> {
    fn narrow<const N: usize>(values: &[f32], one: impl Fn(f32) -> [u8; N]) -> Cow<'_, [u8]> {
        Cow::Owned(values.iter().flat_map(|&value| one(value)).collect())
    }
    let lost = |&&value: &&f32| match precision {
        Precision::F32 => !value.is_finite(),
        Precision::F16 => !f16::from_f32(value).is_finite(),
        Precision::Bf16 => !bf16::from_f32(value).is_finite(),
    };
    if let Some(value) = values.iter().find(lost) {
        return Err(*value);
    }
    Ok(match precision {
        Precision::F32 => (Dtype::F32, Cow::Borrowed(bytemuck::cast_slice(values))),
        Precision::F16 => (Dtype::F16, narrow(values, |value| f16::from_f32(value).to_le_bytes())),
        Precision::Bf16 => (Dtype::BF16, narrow(values, |value| bf16::from_f32(value).to_le_bytes())),
    })
}

/// Returns `true` if `dir` has a [`README`] to preserve.
///
/// # Errors
/// [`ModelError::Input`] when the directory holds any other file that does not belong to an adapter, because it
/// would be lost.
fn own(dir: &Path) -> Result<bool, ModelError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.map_err(ModelError::io("read", dir))?,
    };
    let mut readme = false;
    for entry in entries {
        let name = entry.map_err(ModelError::io("read", dir))?.file_name();
        readme |= name == README;
        if ![CONFIG, TENSORS, README].iter().any(|own| name == *own) {
            let dir = dir.display();
            let name = name.display();
            return Err(ModelError::Input(format!(
                "{dir} holds {name}, which does not belong to an adapter and would be lost: choose another directory"
            )));
        }
    }
    Ok(readme)
}
