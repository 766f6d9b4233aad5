//! What makes rollouts: an engine, on a device and with memory of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use waymark::agent::Runtime;
use waymark::cli::assembly;
use waymark::config::{Device, DeviceConfig, ModelConfig, Size};
use waymark_models::Arithmetic;
use waymark_models::cuda::plan::gib;
use waymark_models::kernel::Team;

use super::card::{Guest, Planned};
use super::host::Host;
use super::machine::Machine;
use crate::recipe::Recipe;

/// Memory for the KV cache on the processor, in bytes, where nothing is said.
const KV: usize = 4 << 30;

/// What makes the rollouts.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Rolling {
    /// Memory for the KV cache of the rollouts, such as `4GiB`, which it is when not given. On a card it is by default
    /// whatever is left; on one that learns as well, what all rollouts of the recipe take that run at the same time.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE")]
    kv_bytes: Option<Size>,

    /// What makes the rollouts: `cpu`, `cuda`, `cuda:N`, or `auto`. While all weights are learnt it is the processor: a
    /// card takes an adapter between two steps, but not new weights.
    #[arg(long, env = "WAYMARK_ROLLOUT_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    rollout_device: Device,
}

impl Rolling {
    /// Memory for the KV of the rollouts on the processor, in bytes.
    pub(super) fn kv_bytes(&self) -> usize {
        self.kv_bytes.map_or(KV, |size| size.0)
    }

    /// What makes the rollouts of a recipe.
    ///
    /// # Errors
    /// For a card where all weights are learnt.
    pub(super) fn device(&self, recipe: &Recipe) -> anyhow::Result<DeviceConfig> {
        rolls_on(self.rollout_device, recipe)
    }

    /// What makes rollouts of which nothing is learnt.
    pub(super) fn served(&self) -> DeviceConfig {
        DeviceConfig::of(self.rollout_device)
    }

    /// What such rollouts take, in words.
    pub(super) fn memory(&self) -> String {
        match (self.rollout_device, self.kv_bytes) {
            (Device::Cuda(_), None) => "the card's".to_owned(),
            _ => format!("the weights, and {} for the KV", gib(self.kv_bytes())),
        }
    }

    /// The engine that makes so many rollouts at the same time, where the card that learns makes them too.
    pub(super) fn guest(
        &self,
        recipe: &Recipe,
        concurrent: usize,
        device: DeviceConfig,
        machine: &Machine,
    ) -> Option<Guest> {
        let kv = self.kv_bytes.map(|size| size.0);
        machine
            .is_also(device.device)
            .then(|| Guest { model: self.model(recipe, concurrent, device, &machine.host), kv })
    }

    /// The engine that makes the rollouts, so many at the same time; on a card that learns in the memory that was planned
    /// for it.
    pub(super) fn engine(
        &self,
        recipe: &Recipe,
        concurrent: usize,
        team: &Arc<Team>,
        mut device: DeviceConfig,
        (host, planned): (&Host, Option<&Planned>),
    ) -> anyhow::Result<Runtime> {
        if let Some(engine) = planned.and_then(|planned| planned.need.engine) {
            device.share = 1.0;
            device.blocks = Some(engine.plan.blocks);
        }
        let model = ModelConfig { threads: team.threads(), ..self.model(recipe, concurrent, device, host) };
        Ok(assembly::runtime(&model, Arc::clone(team), None)?.0)
    }

    /// What the engine computes with.
    fn model(&self, recipe: &Recipe, concurrent: usize, device: DeviceConfig, host: &Host) -> ModelConfig {
        // The learner's, so that both say the same; a card computes in bf16 whatever is asked.
        let rounded = Some(recipe.arithmetic).filter(|arithmetic| *arithmetic != Arithmetic::F32);
        ModelConfig {
            mock_step: Duration::ZERO,
            weights: Some(recipe.base.clone()),
            cache: host.cache.clone(),
            device: device.with(rounded),
            threads: host.threads,
            kv_bytes: self.kv_bytes(),
            kv_reserve: false,
            max_batch: concurrent,
            step_tokens: 512.max(concurrent),
            max_waiting: concurrent,
            context: None,
        }
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
