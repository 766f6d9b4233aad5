//! Layer normalization of the rows of a pass.

use super::ROW_GRAIN;
use super::config::EncoderConfig;
use super::tensors::EncoderTensors;
use crate::ModelError;
use crate::kernel::{Team, add, layer_norm};

/// Layer normalization.
#[derive(Debug)]
pub(super) struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

impl Norm {
    /// Loads a normalization with a bias.
    pub(super) fn load(source: &EncoderTensors<'_>, name: &str, config: &EncoderConfig) -> Result<Self, ModelError> {
        let part = |part: &str| source.floats(&format!("{name}.{part}"), &[config.hidden]);
        Ok(Norm { weight: part("weight")?, bias: part("bias")?, eps: config.norm_eps })
    }

    /// Loads a normalization that has no bias.
    pub(super) fn without_bias(
        source: &EncoderTensors<'_>,
        name: &str,
        config: &EncoderConfig,
    ) -> Result<Self, ModelError> {
        let weight = source.floats(&format!("{name}.weight"), &[config.hidden])?;
        Ok(Norm { weight, bias: vec![0.0; config.hidden], eps: config.norm_eps })
    }

    /// Adds `bias`, which the preceding matrix multiplication left out, and normalizes.
    pub(super) fn apply(&self, team: &Team, bias: Option<&[f32]>, x: &mut [f32]) {
        team.rows(x, self.weight.len(), ROW_GRAIN, &|_, share| {
            for row in share.chunks_exact_mut(self.weight.len()) {
                if let Some(bias) = bias {
                    add(row, bias);
                }
                layer_norm(row, &self.weight, &self.bias, self.eps);
            }
        });
    }
}
