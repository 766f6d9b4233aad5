//! What makes the rollouts of training: an engine, on a device and with memory of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use waymark::agent::Runtime;
use waymark::cli::assembly;
use waymark::config::{Device, DeviceConfig, ModelConfig, Size};
use waymark_models::Arithmetic;
use waymark_models::kernel::Team;

use super::machine::Machine;
use crate::recipe::Recipe;

/// The share of a card's memory for what learns and rolls out on it together, between passes; the rest is for the passes.
const SHARED: f64 = 0.5;

/// What makes the rollouts.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Rolling {
    /// Memory for the KV cache of the rollouts, such as `4GiB`.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE", default_value = "4GiB")]
    kv_bytes: Size,

    /// What makes the rollouts: `cpu`, `cuda`, `cuda:N`, or `auto`. Where all weights are learnt it is the processor: a card
    /// takes an adapter between two steps, but not new weights.
    #[arg(long, env = "WAYMARK_ROLLOUT_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    rollout_device: Device,
}

impl Rolling {
    /// Memory for the KV of the rollouts, in bytes.
    pub(super) fn kv_bytes(&self) -> usize {
        self.kv_bytes.0
    }

    /// What makes the rollouts of a recipe.
    ///
    /// # Errors
    /// For a card where all weights are learnt.
    pub(super) fn device(&self, recipe: &Recipe) -> anyhow::Result<DeviceConfig> {
        rolls_on(self.rollout_device, recipe)
    }

    /// The engine that makes the rollouts, so many at the same time.
    pub(super) fn engine(
        &self,
        recipe: &Recipe,
        concurrent: usize,
        team: &Arc<Team>,
        device: DeviceConfig,
        machine: &Machine,
    ) -> anyhow::Result<Runtime> {
        // The learner's, so that both say the same; a card computes in bf16 whatever is asked.
        let rounded = Some(recipe.arithmetic).filter(|arithmetic| *arithmetic != Arithmetic::F32);
        let mut device = device.with(rounded);
        // A card that learns may be the same one.
        if machine.is_also(device.device) {
            device.share = SHARED;
        }
        let model = ModelConfig {
            mock_step: Duration::ZERO,
            weights: Some(recipe.base.clone()),
            cache: machine.cache.clone(),
            device,
            threads: team.threads(),
            kv_bytes: self.kv_bytes.0,
            kv_reserve: false,
            max_batch: concurrent,
            step_tokens: 512.max(concurrent),
            max_waiting: concurrent,
            context: None,
        };
        Ok(assembly::runtime(&model, Arc::clone(team), None)?.0)
    }
}

/// Refuses a card where all weights are learnt.
fn rolls_on(device: Device, recipe: &Recipe) -> anyhow::Result<DeviceConfig> {
    let whole = recipe.adapter.is_none();
    ensure!(
        !(whole && matches!(device, Device::Cuda(_))),
        "--rollout-device {device}: the recipe learns all weights, which a card does not take between two steps: take \
         cpu, or give the recipe an [adapter]"
    );
    Ok(DeviceConfig::of(if whole { Device::Cpu } else { device }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tiny;

    #[test]
    fn a_card_rolls_out_adapters_alone() {
        let temp = tempfile::tempdir().unwrap();
        let adapter = tiny::recipe(temp.path());
        let whole = Recipe { adapter: None, ..adapter.clone() };
        for device in [Device::Cpu, Device::Auto, Device::Cuda(1)] {
            assert_eq!(rolls_on(device, &adapter).unwrap().device, device);
        }
        for device in [Device::Cpu, Device::Auto] {
            assert_eq!(rolls_on(device, &whole).unwrap().device, Device::Cpu);
        }
        let error = rolls_on(Device::Cuda(1), &whole).unwrap_err().to_string();
        assert!(error.contains("--rollout-device cuda:1") && error.contains("all weights"), "{error}");
    }
}
