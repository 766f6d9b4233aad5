//! GPU memory plan of a training run: the memory that each part needs, and a check that it fits.

use std::io::{self, Write};

use anyhow::Context;
use waymark_agent::Policy;
use waymark_models::cuda::learner::{self, EngineMemory, PassLimits, RolloutLoad, TrainingMemory};
use waymark_models::cuda::plan::gib;
use waymark_models::decoder::DecoderConfig;
use waymark_models::gradient::Tune;
use waymark_runtime::config::ModelConfig;

/// Number of multiprocessors assumed when no GPU is queried: that of an H200. A GPU with more of them needs a few MiB
/// more for the engine.
const PROCESSORS: u32 = 132;

/// Settings of a run that determine its memory.
#[derive(Debug, Clone)]
pub(super) struct MemoryRequest {
    /// Section of the recipe, for error messages.
    pub(super) section: &'static str,
    /// Maximum number of tokens in a pass.
    pub(super) pack_tokens: usize,
    /// Maximum number of tokens in a sequence. The model's context may lower it.
    pub(super) longest: usize,
    /// Rollout engine that shares the GPU with the learner. `None` if rollouts run elsewhere or there are none.
    pub(super) rollout_engine: Option<RolloutEngine>,
}

/// Rollout engine on the GPU that trains.
#[derive(Debug, Clone)]
pub(super) struct RolloutEngine {
    pub(super) model: ModelConfig,
    /// Size of the KV cache in bytes. `None` lets the plan choose.
    pub(super) kv: Option<usize>,
}

/// Properties of a GPU that was queried.
#[derive(Debug, Clone)]
pub(super) struct QueriedGpu {
    pub(super) name: String,
    /// Free memory in bytes.
    pub(super) free: usize,
    /// Number of multiprocessors.
    pub(super) processors: u32,
}

/// Memory plan that fits into the available GPU memory.
#[derive(Debug, Clone)]
pub(super) struct GpuPlan {
    pub(super) need: TrainingMemory,
    /// Memory that the plan may use, in bytes.
    usable: usize,
    /// Name of the GPU. `None` if no GPU was queried.
    gpu: Option<String>,
}

impl GpuPlan {
    /// Plans the memory of `request` within the free memory of the GPU `queried` and within `limit`, whichever is smaller.
    ///
    /// # Errors
    /// If the run does not fit; the message names the missing memory and settings that would fit.
    pub(super) fn new(
        config: &DecoderConfig,
        tune: &Tune,
        request: &MemoryRequest,
        queried: Option<QueriedGpu>,
        limit: Option<usize>,
    ) -> anyhow::Result<Self> {
        let longest = request.longest.min(config.context);
        let rollouts = request.rollout_engine.as_ref().map(|rollout_engine| RolloutLoad {
            // A rollout engine's steps are requested, so that they do not depend on its device.
            limits: rollout_engine.model.steps(rollout_engine.model.cpu_step(), config.context),
            multiprocessors: queried.as_ref().map_or(PROCESSORS, |queried| queried.processors),
            longest,
            kv: rollout_engine.kv,
        });
        let free = queried.as_ref().map(|queried| learner::usable(queried.free, rollouts.is_some()));
        let usable = free.into_iter().chain(limit).min().unwrap_or(usize::MAX);
        let passes = PassLimits { tokens: request.pack_tokens, longest };
        let need = TrainingMemory::plan(config, tune, passes, rollouts.as_ref(), usable)
            .with_context(|| request.settings(longest))?;
        Ok(Self { need, usable, gpu: queried.map(|queried| queried.name) })
    }

    /// Returns `true` if no GPU was queried.
    pub(super) fn is_unqueried(&self) -> bool {
        self.gpu.is_none()
    }

    /// Returns `true` if the plan includes a rollout engine on the same GPU.
    pub(super) fn has_engine(&self) -> bool {
        self.need.engine.is_some()
    }

    /// Writes the plan, one line per part.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { need, usable, gpu } = self;
        let of = gpu.as_deref().unwrap_or("--memory");
        writeln!(out, "memory     {} of GPU memory, {} available ({of}):", gib(need.bytes()), gib(*usable))?;
        writeln!(out, "           {} for the frozen weights", gib(need.weights))?;
        writeln!(out, "           {} for the adapter and its gradients", gib(need.adapter))?;
        writeln!(out, "           {} for passes of {} tokens, without shared prefixes", gib(need.pass), need.tokens)?;
        writeln!(out, "           {} for cuBLAS", gib(need.cublas))?;
        if let Some(engine) = &need.engine {
            let EngineMemory { plan, adapters } = engine;
            writeln!(out, "           {} for the weights of the rollout engine", gib(plan.weights))?;
            writeln!(out, "           {} for its workspace", gib(plan.workspace))?;
            writeln!(out, "           {} for its loaded adapters", gib(*adapters))?;
            let tokens = engine.kv() / plan.kv_bytes_per_token();
            writeln!(out, "           {} for its KV cache of {tokens} tokens", gib(engine.kv()))?;
        }
        let host = 4 * size_of::<f32>() * need.values;
        writeln!(
            out,
            "           and {} of host memory for parameters, gradients and both optimizer moments",
            gib(host)
        )
    }
}

impl MemoryRequest {
    /// Formats the settings that determine the memory, for error messages.
    fn settings(&self, longest: usize) -> String {
        let Self { section, pack_tokens, rollout_engine, .. } = self;
        let shared = rollout_engine.as_ref().map_or_else(String::new, |rollout_engine| {
            format!(
                ", {section}.concurrent = {} and --kv-bytes on the same GPU",
                rollout_engine.model.cpu_step().max_batch
            )
        });
        format!("{section}.pack_tokens = {pack_tokens}, sequences of up to {longest} tokens{shared}")
    }
}

/// Returns the maximum number of tokens in a trajectory under the policy's budget.
pub(super) fn max_trajectory_tokens(policy: &Policy) -> usize {
    let context = policy.budget.context_tokens;
    // If each turn sees only the end of the sequence, the prompt alone may fill the context, and the trajectory adds as
    // much again.
    if policy.variant.is_training() { context.saturating_mul(2) } else { context }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use waymark_agent::LoopVariant;
    use waymark_models::architecture::Architecture;
    use waymark_models::decoder::RopeScaling;
    use waymark_models::gradient::{Lora, Module};
    use waymark_runtime::config::{Device, DeviceConfig};

    use super::super::compute_args::ComputeArgs;
    use super::super::rollout_args::RolloutArgs;
    use super::*;
    use crate::tiny;

    #[derive(Debug, Parser)]
    struct PlanFlags {
        #[command(flatten)]
        rollout_args: RolloutArgs,
        #[command(flatten)]
        compute_args: ComputeArgs,
    }

    /// Shape of Qwen2.5-3B.
    fn config() -> DecoderConfig {
        DecoderConfig {
            vocab: 151_936,
            hidden: 2048,
            layers: 36,
            heads: 16,
            kv_heads: 2,
            head_dim: 128,
            ffn: 11_008,
            context: 32_768,
            rope_base: 1e6,
            rope_scaling: RopeScaling::None,
            rms_eps: 1e-6,
            tied_embeddings: true,
            architecture: Architecture { qkv_bias: true, ..Architecture::default() },
        }
    }

    fn tune() -> Tune {
        Tune::Lora(Lora { rank: 32, alpha: 64.0, targets: vec![Module::QProj, Module::VProj], seed: 1 })
    }

    /// Run with 32 concurrent rollouts and the given flags.
    fn request(flags: &[&str]) -> MemoryRequest {
        let temp = tempfile::tempdir().unwrap();
        let flags = PlanFlags::parse_from([&["train", "--device", "cuda"][..], flags].concat());
        let device = DeviceConfig::of(Device::Cuda(0));
        let rollout_engine =
            flags.rollout_args.shared_engine(&tiny::recipe(temp.path()), 32, device, &flags.compute_args);
        MemoryRequest { section: "grpo", pack_tokens: 16_384, longest: 4096, rollout_engine }
    }

    const GIB: usize = 1 << 30;

    #[test]
    fn the_memory_plan_lists_every_part() {
        let gpu_plan = GpuPlan::new(&config(), &tune(), &request(&[]), None, Some(80 * GIB)).unwrap();
        assert!(gpu_plan.is_unqueried() && gpu_plan.has_engine());
        let mut text = Vec::new();
        gpu_plan.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in [
            "80.00 GiB available (--memory)",
            "for the frozen weights",
            "for the adapter and its gradients",
            "for passes of 16384 tokens",
            "for the weights of the rollout engine",
            "for its KV cache of 131072 tokens",
            "for parameters, gradients and both optimizer moments",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        let given = GpuPlan::new(&config(), &tune(), &request(&["--kv-bytes", "1GiB"]), None, Some(80 * GIB)).unwrap();
        assert!(given.need.engine.is_some_and(|engine| engine.kv() <= GIB));
    }

    #[test]
    fn a_gpu_keeps_a_reserve_and_respects_the_limit() {
        let alone = MemoryRequest { rollout_engine: None, ..request(&[]) };
        let queried = |free| Some(QueriedGpu { name: "a GPU".into(), free, processors: 132 });
        let plan = |queried, limit| GpuPlan::new(&config(), &tune(), &alone, queried, limit);
        let bytes = plan(None, None).unwrap().need.bytes();
        assert!(plan(queried(bytes + GIB), None).is_ok() && plan(queried(bytes + GIB - 1), None).is_err());
        assert!(
            plan(queried(bytes + GIB), Some(bytes)).is_ok() && plan(queried(bytes + GIB), Some(bytes - 1)).is_err()
        );
    }

    #[test]
    fn the_error_for_too_little_memory_names_settings_and_remedy() {
        let error = format!("{:#}", GpuPlan::new(&config(), &tune(), &request(&[]), None, Some(20 * GIB)).unwrap_err());
        for part in [
            "grpo.pack_tokens = 16384, sequences of up to 4096 tokens, grpo.concurrent = 32 and --kv-bytes",
            "frozen weights 5.",
            "20.00 GiB are usable",
            "would fit",
        ] {
            assert!(error.contains(part), "{part} is missing in {error}");
        }
    }

    #[test]
    fn the_budget_bounds_the_length_of_a_trajectory() {
        let temp = tempfile::tempdir().unwrap();
        let mut policy = tiny::recipe(temp.path()).policy().unwrap();
        assert_eq!(max_trajectory_tokens(&policy), policy.budget.context_tokens);
        policy.variant = LoopVariant::Training;
        assert_eq!(max_trajectory_tokens(&policy), 2 * policy.budget.context_tokens);
    }
}
