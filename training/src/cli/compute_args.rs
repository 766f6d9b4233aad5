//! Device, memory limit and threads of a training command, and the base model it loads.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use waymark_models::checkpoint::Checkpoint;
use waymark_models::gradient::{Learner, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_runtime::config::{Device, Size};
use waymark_runtime::{assembly, fingerprint};

use super::dry_run;
use super::gpu_plan::{GpuPlan, MemoryRequest, QueriedGpu};
use super::host_args::HostArgs;
use crate::hash;
use crate::policy_writer;
use crate::recipe::Recipe;

/// Device, memory limit and threads of the learner. None of them changes a result, except that a GPU rounds
/// differently.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ComputeArgs {
    /// Training device: `cpu`, or `cuda` or `cuda:N` for NVIDIA GPU N. A GPU trains only adapters, with the base model
    /// in bf16 whatever the recipe's arithmetic. Its results differ by rounding, so it must be named: `auto` means the
    /// CPU.
    #[arg(long, env = "WAYMARK_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    device: Device,

    /// Memory limit, for example `6GiB`. On the CPU it bounds a pass: layers whose activations do not fit are
    /// recomputed in the backward pass; without a limit all activations are kept. A GPU recomputes all of them, and the
    /// limit covers everything on it: weights, adapter, the longest pass, and the rollout engine if it shares the GPU.
    /// With `--dry-run` and a limit, no GPU is queried.
    #[arg(long, env = "WAYMARK_TRAIN_MEMORY", value_name = "SIZE")]
    memory: Option<Size>,

    #[command(flatten)]
    pub(super) host_args: HostArgs,
}

impl ComputeArgs {
    /// Returns `true` if training runs on the GPU that `other` names.
    pub(super) fn shares_gpu(&self, other: Device) -> bool {
        // The rollout device `auto` resolves to the first GPU.
        matches!((self.device, other), (Device::Cuda(0), Device::Auto))
            || self.device == other && self.device != Device::Cpu
    }

    /// GPU that trains. `None` on the CPU.
    pub(super) fn gpu(&self) -> Option<Device> {
        Some(self.device).filter(|device| matches!(device, Device::Cuda(_)))
    }

    /// Loads the trainable parameters of the recipe's base model, on a GPU within a memory plan for `request`. `None`
    /// after a dry run that queries no GPU: it prints its plan and loads nothing.
    pub(super) fn load(
        &self,
        recipe: &Recipe,
        request: &MemoryRequest,
        team: Arc<Team>,
        dry_run: bool,
    ) -> anyhow::Result<Option<LoadedLearner>> {
        let base_checkpoint = BaseCheckpoint::new(recipe, &self.host_args)?;
        let gpu_plan = self.plan(&base_checkpoint, recipe, request, dry_run)?;
        if let Some(gpu_plan) = gpu_plan.as_ref().filter(|gpu_plan| dry_run && gpu_plan.is_unqueried()) {
            dry_run::unqueried_gpu(recipe, base_checkpoint.checkpoint.weights.config(), gpu_plan)?;
            return Ok(None);
        }
        let (learner, base) = self.learner(base_checkpoint, recipe, team, gpu_plan.as_ref())?;
        Ok(Some(LoadedLearner { learner, base, gpu_plan }))
    }

    /// Plans the memory of `request` on the training GPU. `None` on the CPU. A dry run with `--memory` queries no GPU.
    fn plan(
        &self,
        base_checkpoint: &BaseCheckpoint,
        recipe: &Recipe,
        request: &MemoryRequest,
        dry_run: bool,
    ) -> anyhow::Result<Option<GpuPlan>> {
        let Device::Cuda(ordinal) = self.device else { return Ok(None) };
        let limit = self.memory.map(|size| size.0);
        let named = || format!("--device {}", self.device);
        let seen = if dry_run && limit.is_some() { None } else { Some(query_gpu(ordinal).with_context(named)?) };
        let config = base_checkpoint.checkpoint.weights.config();
        GpuPlan::new(config, &recipe.tune(), request, seen, limit).with_context(named).map(Some)
    }

    /// Loads the trainable parameters of the base model, on a GPU within the plan `gpu_plan`.
    fn learner(
        &self,
        base_checkpoint: BaseCheckpoint,
        recipe: &Recipe,
        team: Arc<Team>,
        gpu_plan: Option<&GpuPlan>,
    ) -> anyhow::Result<(Learner, BaseIdentity)> {
        let BaseCheckpoint { checkpoint, path } = base_checkpoint;
        let weights = &checkpoint.weights;
        let tune = recipe.tune();
        let mut learner = match self.device {
            Device::Cuda(ordinal) => {
                load_on_gpu(weights, ordinal, &tune, gpu_plan.map(|gpu_plan| gpu_plan.need.tokens))?
            }
            Device::Cpu | Device::Auto => Learner::load_with(weights, team, &tune, recipe.arithmetic)?,
        };
        // The limit covers the whole GPU, so the shares of cuBLAS and the rollout engine are subtracted for the
        // learner.
        let other = gpu_plan.map_or(0, |gpu_plan| gpu_plan.need.bytes() - gpu_plan.need.learner());
        let own = |limit: usize| limit.saturating_sub(other);
        learner.set_limit(self.memory.map(|size| own(size.0)));
        Ok((learner, BaseIdentity::new(checkpoint, path)?))
    }
}

/// Loads the recipe's trainable parameters on the CPU, for commands that compute nothing on a GPU.
pub(super) fn load_on_cpu(recipe: &Recipe, host_args: &HostArgs) -> anyhow::Result<(Learner, BaseIdentity)> {
    let BaseCheckpoint { checkpoint, path } = BaseCheckpoint::new(recipe, host_args)?;
    let learner = Learner::load_with(&checkpoint.weights, host_args.team(), &recipe.tune(), recipe.arithmetic)?;
    Ok((learner, BaseIdentity::new(checkpoint, path)?))
}

/// Queries the GPU `ordinal`.
#[cfg(feature = "cuda")]
fn query_gpu(ordinal: usize) -> anyhow::Result<QueriedGpu> {
    let (info, free) = waymark_models::cuda::Gpu::query(ordinal)?;
    Ok(QueriedGpu { name: info.name, free, processors: info.multiprocessors })
}

#[cfg(not(feature = "cuda"))]
fn query_gpu(_: usize) -> anyhow::Result<QueriedGpu> {
    anyhow::bail!(WITHOUT_CUDA)
}

/// Error of a program without CUDA that is to train on a GPU.
#[cfg(not(feature = "cuda"))]
const WITHOUT_CUDA: &str = "this program was built without CUDA: build it with --features cuda or use cpu";

#[cfg(feature = "cuda")]
fn load_on_gpu(weights: &Weights, ordinal: usize, tune: &Tune, tokens: Option<usize>) -> anyhow::Result<Learner> {
    let started = std::time::Instant::now();
    let learner = Learner::load_on_gpu(weights, ordinal, tune, tokens)
        .with_context(|| format!("--device {}", Device::Cuda(ordinal)))?;
    tracing::info!(
        gpu = ordinal,
        seconds = started.elapsed().as_secs_f64(),
        "training on a GPU with the base model in bf16"
    );
    Ok(learner)
}

#[cfg(not(feature = "cuda"))]
fn load_on_gpu(_: &Weights, _: usize, _: &Tune, _: Option<usize>) -> anyhow::Result<Learner> {
    anyhow::bail!(WITHOUT_CUDA)
}

/// Learner with the parameters of a base model.
pub(super) struct LoadedLearner {
    pub(super) learner: Learner,
    pub(super) base: BaseIdentity,
    /// Memory plan of the training GPU. `None` on the CPU.
    pub(super) gpu_plan: Option<GpuPlan>,
}

/// Base model whose files are open.
#[derive(Debug)]
struct BaseCheckpoint {
    checkpoint: Checkpoint,
    /// Path of the model.
    path: PathBuf,
}

impl BaseCheckpoint {
    fn new(recipe: &Recipe, host_args: &HostArgs) -> anyhow::Result<Self> {
        let (checkpoint, path) = assembly::checkpoint(&recipe.base, host_args.cache.clone())?;
        let flaw = policy_writer::base_model_problem(&path).filter(|_| recipe.adapter.is_none());
        ensure!(flaw.is_none(), flaw.unwrap_or_default());
        Ok(Self { checkpoint, path })
    }
}

/// Facts about the base model that identify a run.
#[derive(Debug)]
pub(super) struct BaseIdentity {
    /// Path of the model.
    pub(super) path: PathBuf,
    /// Name of the model.
    pub(super) name: String,
    /// ID of its content.
    pub(super) id: String,
    /// Hash of its vocabulary.
    pub(super) vocabulary: String,
    /// Token IDs of the text of fingerprints.
    probe: Vec<u32>,
}

impl BaseIdentity {
    fn new(checkpoint: Checkpoint, path: PathBuf) -> anyhow::Result<Self> {
        let Checkpoint { name, weights, tokenizer, .. } = checkpoint;
        let vocabulary = hash::vocabulary(&tokenizer);
        Ok(Self { path, name, id: weights.id(), vocabulary, probe: fingerprint::probe(&tokenizer)? })
    }

    /// Description of the base model for a policy trained from it.
    pub(super) fn policy_base(&self) -> policy_writer::BaseModel<'_> {
        policy_writer::BaseModel { path: &self.path, id: &self.id, probe: &self.probe }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_gpu_is_refused_without_cuda_support() {
        let error = query_gpu(1).unwrap_err().to_string();
        assert!(error.contains("--features cuda"), "{error}");
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn an_unsupported_model_is_refused_before_the_gpu_is_queried() {
        let temp = tempfile::tempdir().unwrap();
        let weights = crate::tiny::weights(temp.path(), 48);
        let error = format!("{:#}", load_on_gpu(&weights, 7, &Tune::Lora(crate::tiny::lora()), None).unwrap_err());
        assert!(error.contains("--device cuda:7") && error.contains("heads of width 16"), "{error}");
    }
}
