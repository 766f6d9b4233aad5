//! From a loaded checkpoint to something that computes with it.

use std::sync::Arc;

use anyhow::ensure;
use waymark_models::Arithmetic;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;

use crate::config::{Device, ModelConfig};
use crate::engine::{Backend, CpuBackend, KvBudget};

/// A backend over the weights of `checkpoint`, on the device that `config` names.
///
/// # Errors
/// When a card was named that cannot be used, or the model does not fit.
pub fn backend(config: &ModelConfig, checkpoint: &Checkpoint, team: Arc<Team>) -> anyhow::Result<Box<dyn Backend>> {
    let own = checkpoint.weights.config().context;
    if let Some(context) = config.context {
        ensure!(context <= own, "--context {context}: {} was made for {own} tokens at most", checkpoint.name);
    }
    if let (Device::Cuda(_), Some(Arithmetic::F32)) = (config.device.device, config.device.arithmetic) {
        anyhow::bail!("--arithmetic f32: a card computes in bf16; leave it out, or take --device cpu");
    }
    match config.device.device {
        Device::Cpu => processor(config, checkpoint, team),
        Device::Cuda(ordinal) => card(config, checkpoint, ordinal, team),
        // What a card does not compute in is asked of the processor.
        Device::Auto if config.device.arithmetic == Some(Arithmetic::F32) => processor(config, checkpoint, team),
        Device::Auto => match card(config, checkpoint, 0, Arc::clone(&team)) {
            Ok(backend) => Ok(backend),
            Err(error) => {
                if cfg!(feature = "cuda") {
                    tracing::warn!("{error:#}; computing on the processor (--device cpu says so at once)");
                } else {
                    tracing::debug!("{error:#}; computing on the processor");
                }
                processor(config, checkpoint, team)
            }
        },
    }
}

fn processor(config: &ModelConfig, checkpoint: &Checkpoint, team: Arc<Team>) -> anyhow::Result<Box<dyn Backend>> {
    let arithmetic = config.device.arithmetic.unwrap_or_default();
    let decoder = Decoder::load_with(&checkpoint.weights, team, arithmetic)?;
    // Another arithmetic gives other numbers: answers tell the two apart by their fingerprint.
    let generation = checkpoint.weights.generation() ^ u64::from(arithmetic != Arithmetic::F32);
    let backend = CpuBackend::new(decoder, &checkpoint.name, generation, KvBudget::Bytes(config.kv_bytes))?;
    Ok(Box::new(match config.context {
        Some(context) => backend.with_context(context),
        None => backend,
    }))
}

#[cfg(feature = "cuda")]
fn card(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    ordinal: usize,
    team: Arc<Team>,
) -> anyhow::Result<Box<dyn Backend>> {
    use std::time::Instant;

    use waymark_models::BLOCK;
    use waymark_models::cuda::plan::Limits;
    use waymark_models::cuda::{CudaDecoder, CudaOptions, Source};

    use crate::engine::CudaBackend;

    let begun = Instant::now();
    let limits = Limits {
        rows: config.max_batch,
        // A step full of decoding rows still takes one block of somebody's prompt.
        tokens: config.step_tokens.max(config.max_batch + BLOCK),
        context: config.context.unwrap_or(checkpoint.weights.config().context),
    };
    let (share, graphs) = (config.device.share, config.device.graphs);
    let options = CudaOptions { ordinal, limits, share, blocks: None, graphs };
    let mut decoder = CudaDecoder::load(Source::Checkpoint(&checkpoint.weights), &options)?;
    decoder.warm_up()?;
    let (card, plan) = (decoder.card(), decoder.plan());
    let gib = |bytes: usize| format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64);
    tracing::info!(
        card = card.name,
        driver = card.driver,
        weights = gib(plan.weights),
        workspace = gib(plan.workspace),
        kv = gib(plan.blocks * plan.block),
        kv_tokens = plan.blocks * BLOCK,
        seconds = begun.elapsed().as_secs_f64(),
        "computing on a card"
    );
    Ok(Box::new(CudaBackend::new(decoder, &checkpoint.name, checkpoint.weights.generation(), team)))
}

#[cfg(not(feature = "cuda"))]
fn card(_: &ModelConfig, _: &Checkpoint, _: usize, _: Arc<Team>) -> anyhow::Result<Box<dyn Backend>> {
    anyhow::bail!("this program was built without CUDA: build it with --features cuda, or take --device cpu")
}
