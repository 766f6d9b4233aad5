//! Backends for a loaded checkpoint.

use std::sync::Arc;

use anyhow::ensure;
use waymark_engine::{Backend, CpuBackend, KvBudget};
use waymark_models::Arithmetic;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::cuda::plan::WeightFormat;
use waymark_models::decoder::{Decoder, KvKind};
use waymark_models::kernel::Team;

use crate::config::{Device, DeviceConfig, ModelConfig, StepSize};

/// Creates a backend over the weights of `checkpoint`, on the device that `config` names. Returns the size of its steps
/// with it.
///
/// # Errors
/// If the requested GPU cannot be used or does not support the arithmetic, or the model does not fit.
pub fn backend(config: &ModelConfig, checkpoint: &Checkpoint, team: Arc<Team>) -> anyhow::Result<SizedBackend> {
    let own = checkpoint.weights.config().context;
    if let Some(context) = config.context {
        ensure!(context <= own, "--context {context} exceeds the context length of {}, {own} tokens", checkpoint.name);
    }
    check(config.device)?;
    match config.device.device {
        Device::Cpu => cpu_backend(config, checkpoint, team),
        Device::Cuda(ordinal) => gpu_backend(config, checkpoint, ordinal, team),
        Device::Auto if config.device.needs_cpu() => {
            tracing::info!("this --arithmetic or --kv is not available on a GPU; computing on the CPU");
            cpu_backend(config, checkpoint, team)
        }
        Device::Auto => match gpu_backend(config, checkpoint, 0, Arc::clone(&team)) {
            Ok(backend) => Ok(backend),
            Err(error) => {
                // A program built with CUDA was meant for a GPU; in other builds its absence is not worth a warning.
                if cfg!(feature = "cuda") {
                    tracing::warn!("{error:#}; computing on the CPU (--device cpu silences this warning)");
                } else {
                    tracing::debug!("{error:#}; computing on the CPU");
                }
                cpu_backend(config, checkpoint, team)
            }
        },
    }
}

/// A backend and the size of its steps.
pub type SizedBackend = (Box<dyn Backend>, StepSize);

/// Refuses an arithmetic or a KV precision that the named device does not support.
fn check(config: DeviceConfig) -> anyhow::Result<()> {
    if let (Device::Cuda(_), Some(arithmetic @ (Arithmetic::F32 | Arithmetic::Int16))) =
        (config.device, config.arithmetic)
    {
        anyhow::bail!("--arithmetic {arithmetic}: a GPU computes in bf16; omit the flag or use --device cpu");
    }
    if let (Device::Cuda(_), Some(kind)) = (config.device, config.kv) {
        anyhow::bail!("--kv {kind}: a GPU has its KV cache in bf16; omit the flag or use --device cpu");
    }
    Ok(())
}

/// Rounding of computed numbers. Results of different variants differ.
#[derive(Debug, Clone, Copy)]
enum Rounding {
    Cpu(Arithmetic, KvKind),
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU has it"))]
    Gpu(WeightFormat),
}

impl Rounding {
    /// Returns a number that is different for each rounding.
    fn number(self) -> u64 {
        match self {
            Rounding::Cpu(arithmetic, kv) => {
                let arithmetic = match arithmetic {
                    Arithmetic::F32 => 0,
                    Arithmetic::Bf16 => 1,
                    Arithmetic::Int16 => 3,
                };
                let kv = match kv {
                    KvKind::F32 => 0,
                    KvKind::F16 => 1,
                    KvKind::Int8 => 2,
                };
                arithmetic | kv << 2
            }
            Rounding::Gpu(WeightFormat::Bf16) => 2,
            Rounding::Gpu(WeightFormat::Fp8) => 2 | 1 << 4,
        }
    }
}

/// Returns a number that identifies the weights together with their rounding.
fn generation(checkpoint: &Checkpoint, rounding: Rounding) -> u64 {
    // Prefix caches and fingerprints must not mix keys and values of different rounding.
    checkpoint.weights.generation() ^ rounding.number()
}

fn cpu_backend(config: &ModelConfig, checkpoint: &Checkpoint, team: Arc<Team>) -> anyhow::Result<SizedBackend> {
    let suited = if config.device.exact { Arithmetic::F32 } else { Arithmetic::suited_to(&checkpoint.weights) };
    let arithmetic = config.device.arithmetic.unwrap_or(suited);
    let decoder = Decoder::load_with(&checkpoint.weights, team, arithmetic)?;
    let kind =
        config.device.kv.unwrap_or(if config.device.exact { KvKind::F32 } else { KvKind::suited_to(arithmetic) });
    tracing::info!(%arithmetic, kv = %kind, "computing on the CPU");
    let generation = generation(checkpoint, Rounding::Cpu(arithmetic, kind));
    let budget = KvBudget::Bytes(config.kv_bytes);
    let backend = CpuBackend::with_kv(decoder, &checkpoint.name, generation, budget, kind)?;
    let backend = if config.kv_reserve { backend.with_reserved_kv() } else { backend };
    let backend = match config.context {
        Some(context) => backend.with_context(context),
        None => backend,
    };
    Ok((Box::new(backend), config.cpu_step()))
}

#[cfg(feature = "cuda")]
fn gpu_backend(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    ordinal: usize,
    team: Arc<Team>,
) -> anyhow::Result<SizedBackend> {
    use std::time::Instant;

    use waymark_models::BLOCK;
    use waymark_models::cuda::plan::gib;

    use waymark_engine::CudaBackend;

    let started = Instant::now();
    let (mut decoder, size) = gpu_decoder(config, checkpoint, ordinal)?;
    // The first launches load kernels and record graphs, which no request should wait for.
    decoder.warm_up()?;
    let gpu = decoder.gpu();
    let plan = decoder.plan();
    tracing::info!(
        gpu = gpu.name,
        driver = gpu.driver,
        weights = gib(plan.weights),
        workspace = gib(plan.workspace),
        kv = gib(plan.blocks * plan.block),
        kv_tokens = plan.blocks * BLOCK,
        max_batch = size.max_batch,
        step_tokens = size.step_tokens,
        seconds = started.elapsed().as_secs_f64(),
        "computing on a GPU"
    );
    let generation = generation(checkpoint, Rounding::Gpu(config.device.weights));
    let backend = CudaBackend::new(decoder, &checkpoint.name, generation, team);
    Ok((Box::new(backend), size))
}

/// Loads the decoder with the largest steps that fit into the GPU's memory.
#[cfg(feature = "cuda")]
fn gpu_decoder(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    ordinal: usize,
) -> anyhow::Result<(waymark_models::cuda::CudaDecoder, StepSize)> {
    use waymark_models::cuda::algorithms::AlgorithmFile;
    use waymark_models::cuda::plan::block_bytes;
    use waymark_models::cuda::{CudaDecoder, CudaError, CudaOptions, WeightSource};

    use crate::cache;
    use crate::config::GpuKvSize;

    let DeviceConfig { share, weights, gpu_kv, graphs, step_limit: limit, .. } = config.device;
    let blocks = match gpu_kv {
        GpuKvSize::Rest => None,
        GpuKvSize::Blocks(blocks) => Some(blocks),
        GpuKvSize::Bytes(bytes) => Some((bytes / block_bytes(checkpoint.weights.config())).max(1)),
    };
    // Without a cache directory algorithms are chosen at each start, which takes seconds.
    let folder = cache::folder(config.cache.clone()).ok();
    let algorithms = folder.map(|folder| AlgorithmFile::new(folder.join("cuda").join("algorithms.json")));
    let mut sizes = config.gpu_steps().into_iter().peekable();
    while let Some(size) = sizes.next() {
        let limits = config.steps(size, checkpoint.weights.config().context);
        let algorithms = algorithms.clone();
        let options = CudaOptions { ordinal, weights, limits, share, blocks, graphs, limit, algorithms };
        match CudaDecoder::load(WeightSource::Checkpoint(&checkpoint.weights), &options) {
            Ok(decoder) => return Ok((decoder, size)),
            // Memory is planned before anything is allocated.
            Err(CudaError::Memory(shortage)) if sizes.peek().is_some() => {
                tracing::info!(max_batch = size.max_batch, step_tokens = size.step_tokens, "{shortage}; trying less");
            }
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::bail!("no size of a step to try")
}

#[cfg(not(feature = "cuda"))]
fn gpu_backend(_: &ModelConfig, _: &Checkpoint, _: usize, _: Arc<Team>) -> anyhow::Result<SizedBackend> {
    anyhow::bail!("this program was built without CUDA: build it with --features cuda, or use --device cpu")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_rounding_has_its_own_number() {
        let mut roundings = vec![Rounding::Gpu(WeightFormat::Bf16), Rounding::Gpu(WeightFormat::Fp8)];
        for arithmetic in [Arithmetic::F32, Arithmetic::Bf16, Arithmetic::Int16] {
            roundings.extend([KvKind::F32, KvKind::F16, KvKind::Int8].map(|kv| Rounding::Cpu(arithmetic, kv)));
        }
        let numbers: HashSet<u64> = roundings.iter().map(|rounding| rounding.number()).collect();
        assert_eq!(numbers.len(), roundings.len());
    }

    #[test]
    fn a_gpu_refuses_f32() {
        let check = |device, arithmetic| check(DeviceConfig::of(device).with(arithmetic));
        for arithmetic in [Arithmetic::F32, Arithmetic::Int16] {
            let error = check(Device::Cuda(1), Some(arithmetic)).map_err(|error| error.to_string());
            let expected = format!("--arithmetic {arithmetic}: a GPU computes in bf16");
            assert!(error.is_err_and(|error| error.starts_with(&expected)));
        }
        for arithmetic in [None, Some(Arithmetic::Bf16)] {
            assert!(check(Device::Cuda(0), arithmetic).is_ok(), "{arithmetic:?}");
        }
        for device in [Device::Auto, Device::Cpu] {
            assert!(check(device, Some(Arithmetic::F32)).is_ok(), "{device}");
        }
    }
}
