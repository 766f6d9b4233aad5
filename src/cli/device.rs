//! From a loaded checkpoint to something that computes with it.

use std::sync::Arc;

use anyhow::ensure;
use waymark_models::Arithmetic;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;

use crate::config::{Device, DeviceConfig, ModelConfig};
use crate::engine::{Backend, CpuBackend, KvBudget};

/// A backend over the weights of `checkpoint`, on the device that `config` names.
///
/// # Errors
/// When a card was named that cannot be used or does not compute so, or the model does not fit.
pub fn backend(config: &ModelConfig, checkpoint: &Checkpoint, team: Arc<Team>) -> anyhow::Result<Box<dyn Backend>> {
    let own = checkpoint.weights.config().context;
    if let Some(context) = config.context {
        ensure!(context <= own, "--context {context}: {} was made for {own} tokens at most", checkpoint.name);
    }
    check(config.device)?;
    match config.device.device {
        Device::Cpu => processor(config, checkpoint, team),
        Device::Cuda(ordinal) => card(config, checkpoint, ordinal, team),
        Device::Auto if config.device.arithmetic == Some(Arithmetic::F32) => {
            tracing::info!("--arithmetic f32: no card computes in it; computing on the processor");
            processor(config, checkpoint, team)
        }
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

/// Refuses an arithmetic that the named device does not have.
fn check(config: DeviceConfig) -> anyhow::Result<()> {
    if let (Device::Cuda(_), Some(Arithmetic::F32)) = (config.device, config.arithmetic) {
        anyhow::bail!("--arithmetic f32: a card computes in bf16; leave it out, or take --device cpu");
    }
    Ok(())
}

/// Whose rounding the numbers have: each gives other ones.
#[derive(Debug, Clone, Copy)]
enum Rounding {
    Exact = 0,
    Brain = 1,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a card has it"))]
    Card = 2,
}

/// Identifies the weights as they are computed with: answers tell the roundings apart by their fingerprint.
fn generation(checkpoint: &Checkpoint, rounding: Rounding) -> u64 {
    checkpoint.weights.generation() ^ rounding as u64
}

fn processor(config: &ModelConfig, checkpoint: &Checkpoint, team: Arc<Team>) -> anyhow::Result<Box<dyn Backend>> {
    let arithmetic = config.device.arithmetic.unwrap_or_default();
    let decoder = Decoder::load_with(&checkpoint.weights, team, arithmetic)?;
    let rounding = match arithmetic {
        Arithmetic::F32 => Rounding::Exact,
        Arithmetic::Bf16 => Rounding::Brain,
    };
    let generation = generation(checkpoint, rounding);
    let backend = CpuBackend::new(decoder, &checkpoint.name, generation, KvBudget::Bytes(config.kv_bytes))?;
    let backend = if config.kv_reserve { backend.with_reserved_kv() } else { backend };
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
    use waymark_models::cuda::plan::gib;
    use waymark_models::cuda::{CudaDecoder, CudaOptions, Source};

    use crate::engine::CudaBackend;

    let begun = Instant::now();
    let limits = config.steps(checkpoint.weights.config().context);
    let DeviceConfig { share, blocks, graphs, step_limit: limit, .. } = config.device;
    let options = CudaOptions { ordinal, limits, share, blocks, graphs, limit };
    let mut decoder = CudaDecoder::load(Source::Checkpoint(&checkpoint.weights), &options)?;
    decoder.warm_up()?;
    let (card, plan) = (decoder.card(), decoder.plan());
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
    Ok(Box::new(CudaBackend::new(decoder, &checkpoint.name, generation(checkpoint, Rounding::Card), team)))
}

#[cfg(not(feature = "cuda"))]
fn card(_: &ModelConfig, _: &Checkpoint, _: usize, _: Arc<Team>) -> anyhow::Result<Box<dyn Backend>> {
    anyhow::bail!("this program was built without CUDA: build it with --features cuda, or take --device cpu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_not_asked_for_plain_floats() {
        let check = |device, arithmetic| check(DeviceConfig::of(device).with(arithmetic));
        let refused = check(Device::Cuda(1), Some(Arithmetic::F32));
        assert!(refused.is_err_and(|error| error.to_string().starts_with("--arithmetic f32: a card computes in bf16")));
        for arithmetic in [None, Some(Arithmetic::Bf16)] {
            assert!(check(Device::Cuda(0), arithmetic).is_ok(), "{arithmetic:?}");
        }
        for device in [Device::Auto, Device::Cpu] {
            assert!(check(device, Some(Arithmetic::F32)).is_ok(), "{device}");
        }
    }
}
