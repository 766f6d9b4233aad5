//! All weights of a learner, out to what serves them and in from a checkpoint.

use super::{Learner, Tune};
use crate::ModelError;
use crate::decoder::tensor::view;
use crate::weights::Weights;

impl Learner {
    /// A copy of all weights as they are now, in `f32`.
    ///
    /// # Errors
    /// [`ModelError::Input`] when an adapter is learnt.
    pub fn weights(&self) -> Result<Weights, ModelError> {
        self.learns_all()?;
        let tensors = self.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.shape.clone()));
        Weights::in_memory(self.config().clone(), tensors, self.values().to_vec())
    }

    /// Takes over all weights of a checkpoint of the same shape.
    ///
    /// # Errors
    /// [`ModelError::Input`] when an adapter is learnt, [`ModelError::Tensor`] when a tensor is missing or has another shape.
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
            Tune::Lora(_) => Err(ModelError::Input("an adapter is learnt, not all weights".to_owned())),
        }
    }
}
