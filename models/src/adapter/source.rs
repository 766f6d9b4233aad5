//! Files of an adapter.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{SafeTensors, TensorView};

use super::settings::{AdapterSettings, WAY_OUT};
use crate::ModelError;
use crate::weights::decode;

/// Adapter that is being read. Error messages name the path of its tensor file.
pub(crate) struct AdapterSource {
    pub(crate) path: PathBuf,
    pub(crate) settings: AdapterSettings,
}

impl AdapterSource {
    /// Reads the settings of the adapter in `dir` and the bytes of its tensors, for further training.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a setting that training does not support, and the errors of
    /// [`open_served`](Self::open_served).
    pub(crate) fn open(dir: &Path) -> Result<(Self, Vec<u8>), ModelError> {
        let (source, bytes) = Self::open_served(dir)?;
        match &source.settings.untrained {
            Some(setting) => Err(source.unsupported(format!("{setting} in training; {WAY_OUT}"))),
            None => Ok((source, bytes)),
        }
    }

    /// Reads the settings of the adapter in `dir` and the bytes of its tensors.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a setting that would otherwise be ignored, [`ModelError::Corrupt`] for settings
    /// that make no sense, and [`ModelError::Io`] for a file that cannot be read.
    pub(crate) fn open_served(dir: &Path) -> Result<(Self, Vec<u8>), ModelError> {
        let settings = AdapterSettings::read(dir.join("adapter_config.json"))?;
        let path = dir.join("adapter_model.safetensors");
        let bytes = fs::read(&path).map_err(ModelError::io("read", &path))?;
        Ok((Self { path, settings }, bytes))
    }

    /// Parses `bytes` as a safetensors file.
    pub(crate) fn tensors<'a>(&self, bytes: &'a [u8]) -> Result<SafeTensors<'a>, ModelError> {
        SafeTensors::deserialize(bytes).map_err(|error| self.corrupt(format!("not a safetensors file: {error}")))
    }

    pub(crate) fn corrupt(&self, reason: String) -> ModelError {
        ModelError::Corrupt { path: self.path.clone(), reason }
    }

    pub(super) fn unsupported(&self, what: String) -> ModelError {
        ModelError::Unsupported { path: self.path.clone(), what }
    }

    /// Values of a tensor, after checking that the tensor exists, has the expected shape and holds only finite
    /// numbers.
    pub(crate) fn values(
        &self,
        name: &str,
        tensor: Option<&TensorView<'_>>,
        shape: &[usize],
    ) -> Result<Vec<f32>, ModelError> {
        let tensor = tensor.ok_or_else(|| self.corrupt(format!("{name} is missing")))?;
        if tensor.shape() != shape {
            let found = tensor.shape();
            return Err(self.corrupt(format!("{name}: shape {found:?}, expected {shape:?} for this base model")));
        }
        let Some(values) = decode(tensor.dtype(), tensor.data()) else {
            return Err(self.unsupported(format!("{name} of type {:?}", tensor.dtype())));
        };
        // A single NaN would spoil every row that uses the adapter. It is reported here, where the file is known.
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(self.corrupt(format!("{name}: value {at} is {}; train the adapter again", values[at]))),
            None => Ok(values),
        }
    }
}
