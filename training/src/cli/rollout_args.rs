//! Device and KV memory of the engine that generates rollouts.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use waymark_agent::Runtime;
use waymark_models::Arithmetic;
use waymark_models::cuda::plan::gib;
use waymark_models::kernel::Team;
use waymark_runtime::assembly;
use waymark_runtime::config::{Device, DeviceConfig, GpuKvSize, ModelConfig, Size};

use super::compute_args::ComputeArgs;
use super::gpu_plan::{GpuPlan, RolloutEngine};
use super::host_args::HostArgs;
use crate::recipe::Recipe;

/// Default size of the KV cache on the CPU, in bytes.
const KV: usize = 4 << 30;

/// Device and memory of the rollout engine.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RolloutArgs {
    /// Memory for the KV cache of the rollouts, for example `4GiB`. The default is 4 GiB on the CPU and the remaining
    /// memory on a GPU. On a GPU that also trains, it is what the concurrent rollouts of the recipe need.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE")]
    kv_bytes: Option<Size>,

    /// Device for rollouts: `cpu`, `cuda`, `cuda:N` or `auto`. Training of all weights requires the CPU: that an
    /// engine on a GPU takes new weights between two steps was tested in the emulator only.
    #[arg(long, env = "WAYMARK_ROLLOUT_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    rollout_device: Device,
}

impl RolloutArgs {
    /// Size of the KV cache on the CPU, in bytes.
    fn kv_bytes(&self) -> usize {
        self.kv_bytes.map_or(KV, |size| size.0)
    }

    /// Size of the KV cache, as text.
    pub(super) fn kv_memory(&self) -> String {
        match (self.rollout_device, self.kv_bytes) {
            (Device::Cuda(_), None) => "all remaining memory of its GPU".to_owned(),
            _ => gib(self.kv_bytes()),
        }
    }

    /// Device for the rollouts of a training run.
    ///
    /// # Errors
    /// If the device is a GPU and all weights are trained.
    pub(super) fn device(&self, recipe: &Recipe) -> anyhow::Result<DeviceConfig> {
        rolls_on(self.rollout_device, recipe)
    }

    /// Device for rollouts without training.
    pub(super) fn device_without_training(&self) -> DeviceConfig {
        DeviceConfig::of(self.rollout_device)
    }

    /// Memory of rollouts without training, in words.
    pub(super) fn memory(&self) -> String {
        match (self.rollout_device, self.kv_bytes) {
            (Device::Cuda(_), None) => "all remaining GPU memory".to_owned(),
            _ => format!("the weights, and {} for the KV cache", self.kv_memory()),
        }
    }

    /// Rollout engine with `concurrent` sequences, if it shares the GPU with the learner; otherwise `None`.
    pub(super) fn shared_engine(
        &self,
        recipe: &Recipe,
        concurrent: usize,
        device: DeviceConfig,
        compute_args: &ComputeArgs,
    ) -> Option<RolloutEngine> {
        let kv = self.kv_bytes.map(|size| size.0);
        compute_args
            .shares_gpu(device.device)
            .then(|| RolloutEngine { model: self.model(recipe, concurrent, device, &compute_args.host_args), kv })
    }

    /// Starts the rollout engine with `concurrent` sequences. If it shares the GPU with the learner, it stays within
    /// the memory of the plan.
    pub(super) fn engine(
        &self,
        recipe: &Recipe,
        concurrent: usize,
        team: &Arc<Team>,
        mut device: DeviceConfig,
        host_args: &HostArgs,
        gpu_plan: Option<&GpuPlan>,
    ) -> anyhow::Result<Runtime> {
        if let Some(engine) = gpu_plan.and_then(|gpu_plan| gpu_plan.need.engine) {
            // The plan has divided the memory already, so the engine takes all that it is given.
            device.share = 1.0;
            device.gpu_kv = GpuKvSize::Blocks(engine.plan.blocks);
        } else if let Some(Size(bytes)) = self.kv_bytes {
            device.gpu_kv = GpuKvSize::Bytes(bytes);
        }
        let model = ModelConfig { threads: team.threads(), ..self.model(recipe, concurrent, device, host_args) };
        Ok(assembly::runtime(&model, Arc::clone(team), None)?.0)
    }

    /// Model configuration of the engine.
    fn model(&self, recipe: &Recipe, concurrent: usize, device: DeviceConfig, host_args: &HostArgs) -> ModelConfig {
        // The engine uses the learner's arithmetic, so that both compute the same probabilities. A GPU always computes
        // in bf16, and asking for f32 by name would select the CPU.
        let rounded = Some(recipe.arithmetic).filter(|arithmetic| *arithmetic != Arithmetic::F32);
        ModelConfig {
            mock_step: Duration::ZERO,
            weights: Some(recipe.base.clone()),
            cache: host_args.cache.clone(),
            device: DeviceConfig { exact: true, ..device.with(rounded) },
            threads: host_args.threads,
            kv_bytes: self.kv_bytes(),
            kv_reserve: false,
            max_batch: Some(concurrent),
            // Each sequence of a full batch decodes one token per step.
            step_tokens: Some(512.max(concurrent)),
            lookup: 0,
            // No more episodes than this run at a time, so the queue never rejects one.
            max_waiting: concurrent,
            context: None,
        }
    }
}

/// Resolves the rollout device, and fails for a GPU if all weights are trained.
fn rolls_on(device: Device, recipe: &Recipe) -> anyhow::Result<DeviceConfig> {
    let whole = recipe.adapter.is_none();
    ensure!(
        !(whole && matches!(device, Device::Cuda(_))),
        "--rollout-device {device}: the recipe learns all weights, which was tested on the GPU emulator only: \
         use cpu or add an [adapter] section to the recipe"
    );
    Ok(DeviceConfig::of(if whole { Device::Cpu } else { device }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tiny;

    #[test]
    fn a_gpu_rolls_out_only_adapters() {
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
