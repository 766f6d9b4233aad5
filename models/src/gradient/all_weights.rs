//! Export and import of all weights of a learner.

use super::{Learner, Tune};
use crate::ModelError;
use crate::decoder::tensor::view;
use crate::weights::Weights;

impl Learner {
    /// Copies the current values of all weights, in `f32`.
    ///
    /// # Errors
    /// [`ModelError::Input`] when an adapter is trained.
    pub fn weights(&self) -> Result<Weights, ModelError> {
        self.learns_all()?;
        let tensors = self.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.shape.clone()));
        Weights::in_memory(self.config().clone(), tensors, self.values().to_vec())
    }

    /// Loads all weights from a checkpoint of the same shape.
    ///
    /// # Errors
    /// [`ModelError::Input`] when an adapter is trained, [`ModelError::Tensor`] when a tensor is missing or has
    /// another shape.
    pub fn load_weights(&mut self, weights: &Weights) -> Result<(), ModelError> {
        self.learns_all()?;
        let mut values = Vec::with_capacity(self.values().len());
        for parameter in &self.parameters {
            values.extend(view(weights, &parameter.name, &parameter.shape)?.to_f32()?);
        }
        self.set_values(&values)
    }

    fn learns_all(&self) -> Result<(), ModelError> {
        match &self.tune {
            Tune::Full => Ok(()),
            Tune::Lora(_) => Err(ModelError::Input("an adapter is trained: expected all weights".to_owned())),
        }
    }
}
