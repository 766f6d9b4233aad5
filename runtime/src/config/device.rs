//! Flags for the device.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use waymark_models::Arithmetic;
use waymark_models::cuda::plan::WeightFormat;
use waymark_models::decoder::KvKind;

/// Default timeout of a GPU step, in seconds: far above any expected step, even on a shared GPU.
const STEP_TIMEOUT: f64 = 30.0;

/// Flags for the device.
#[derive(Debug, Clone, clap::Args)]
pub struct DeviceArgs {
    /// Device: `cpu`, `cuda` or `cuda:N` for NVIDIA GPU N, or `auto`, which takes the first usable GPU and otherwise
    /// the CPU.
    #[arg(long, env = "WAYMARK_DEVICE", value_name = "DEVICE", default_value = "auto")]
    pub device: Device,

    /// Share of GPU memory to use, above 0 and at most 1, for weights, workspace and KV cache. Adapters take memory beyond
    /// it. `--kv-bytes` applies to the CPU only.
    #[arg(long, env = "WAYMARK_GPU_MEMORY", value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub gpu_memory: f64,

    /// Arithmetic of matrix multiplications with the layers' weights: `f32`, or `bf16` with sums in f32, which halves
    /// prefill time on CPUs with AVX512-BF16. With `bf16` the layers take 16 bits per weight whatever the checkpoint's
    /// format, so decoding a few sequences of a quantized model may be slower. `int16` multiplies quantized weights
    /// with activations in 16-bit integers. The default on the CPU is int16 for K-quants, where it is faster, and f32
    /// for all other weights. A GPU always computes in bf16; with `--device auto`, `f32` and `int16` therefore select
    /// the CPU.
    #[arg(long, env = "WAYMARK_ARITHMETIC", value_name = "ARITHMETIC")]
    pub arithmetic: Option<Arithmetic>,

    /// Precision of the KV cache on the CPU: `f32`, the default with the arithmetic `f32`; `f16`, the default with
    /// `int16` and `bf16`, which holds twice as many tokens in `--kv-bytes` and halves what attention reads, at a
    /// relative error of 2⁻¹¹ per value; or `int8`, which holds almost four times as many, at an error of at most 1/220
    /// of the largest value of a head's key or value. A GPU always uses bf16; with `--device auto`, this flag therefore
    /// selects the CPU.
    #[arg(long, env = "WAYMARK_KV", value_name = "PRECISION")]
    pub kv: Option<KvKind>,

    /// Format of the layers' weights on a GPU: `bf16`, or `fp8` (e4m3 with a scale per row), which halves their memory and
    /// what a decode step reads, at a relative error of up to 1/16 per weight. On an H100 or H200 with cublasLt 12.9 or
    /// later, steps of more than 16 tokens round the inputs of these matrices as well. The CPU ignores this flag.
    #[arg(long, env = "WAYMARK_GPU_WEIGHTS", value_name = "FORMAT", default_value_t = WeightFormat::Bf16)]
    pub gpu_weights: WeightFormat,

    /// Launch each kernel of a decode step on its own instead of replaying a CUDA graph.
    #[arg(long, env = "WAYMARK_NO_CUDA_GRAPHS")]
    pub no_cuda_graphs: bool,

    /// Flags for the step timeout.
    #[command(flatten)]
    pub step_timeout: StepArgs,
}

/// Flags for the step timeout of a GPU.
#[derive(Debug, Clone, clap::Args)]
pub struct StepArgs {
    /// Seconds that a GPU step may take before the GPU counts as lost: readiness fails, open requests end with an
    /// error, and the program has to be restarted. Steps take milliseconds, a long prefill a second.
    #[arg(
        long,
        env = "WAYMARK_STEP_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = STEP_TIMEOUT,
        value_parser = seconds
    )]
    pub step_timeout: f64,
}

impl StepArgs {
    /// Timeout of a GPU step.
    pub fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.step_timeout)
    }
}

/// Device that computes the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The first usable GPU, otherwise the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU with this ordinal.
    Cuda(usize),
}

/// Size of the KV cache on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuKvSize {
    /// The memory that weights and workspace leave of the GPU's share.
    Rest,
    /// A number of blocks.
    Blocks(usize),
    /// A number of bytes, as whole blocks.
    Bytes(usize),
}

/// Device and its options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceConfig {
    /// Device that computes the model.
    pub device: Device,
    /// Share of GPU memory to use.
    pub share: f64,
    /// Format of the layers' weights on a GPU.
    pub weights: WeightFormat,
    /// Size of the KV cache on a GPU.
    pub gpu_kv: GpuKvSize,
    /// Enables CUDA graphs for decode steps.
    pub graphs: bool,
    /// Timeout of a GPU step.
    pub step_limit: Duration,
    /// Requested arithmetic. `None` takes the device's default.
    pub arithmetic: Option<Arithmetic>,
    /// If `true`, the defaults on the CPU are f32 for all weights and for the KV cache, as in a learner.
    pub exact: bool,
    /// Requested precision of the KV cache. `None` takes the default of the device and its arithmetic.
    pub kv: Option<KvKind>,
}

impl DeviceConfig {
    /// `device` with default options.
    pub fn of(device: Device) -> Self {
        let step_limit = Duration::from_secs_f64(STEP_TIMEOUT);
        Self {
            device,
            share: 0.9,
            weights: WeightFormat::Bf16,
            gpu_kv: GpuKvSize::Rest,
            graphs: true,
            step_limit,
            arithmetic: None,
            exact: false,
            kv: None,
        }
    }

    /// Returns `true` if an option is requested that only the CPU has.
    pub fn needs_cpu(&self) -> bool {
        // An explicit f32 asks for the reference numbers, which only the CPU computes.
        matches!(self.arithmetic, Some(Arithmetic::F32 | Arithmetic::Int16)) || self.kv.is_some()
    }

    /// Sets the requested arithmetic.
    #[must_use]
    pub fn with(self, arithmetic: Option<Arithmetic>) -> Self {
        Self { arithmetic, ..self }
    }
}

impl DeviceArgs {
    /// Resolves the flags.
    pub fn resolve(self) -> DeviceConfig {
        DeviceConfig {
            device: self.device,
            share: self.gpu_memory,
            weights: self.gpu_weights,
            gpu_kv: GpuKvSize::Rest,
            graphs: !self.no_cuda_graphs,
            step_limit: self.step_timeout.limit(),
            arithmetic: self.arithmetic,
            exact: false,
            kv: self.kv,
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown device `{text}`: expected cpu, cuda, cuda:N or auto");
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(Self::Cuda).ok_or_else(unknown)
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // A zero would declare every GPU lost at its first step.
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.1 to 86400, such as 30".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a share above 0 and at most 1, such as 0.9".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_written() {
        for (text, device) in [("cpu", Device::Cpu), ("auto", Device::Auto), ("cuda:3", Device::Cuda(3))] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            assert!(text.parse::<Device>().is_err_and(|error| error.contains("cuda:N")), "{text}");
        }
        assert!(
            seconds("0").is_err() && seconds("inf").is_err() && seconds("-1").is_err() && seconds("2.5") == Ok(2.5)
        );
        assert!(share("0").is_err() && share("1.5").is_err() && share("nan").is_err() && share("0.5") == Ok(0.5));
    }
}
