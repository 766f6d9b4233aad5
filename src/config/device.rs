//! What computes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use waymark_models::Arithmetic;

/// Seconds a step may take on a card where nothing else is said: far more than any should, even where others use the card.
const STEP_TIMEOUT: f64 = 30.0;

/// What computes, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct DeviceArgs {
    /// What computes: `cpu`, `cuda` or `cuda:N` for NVIDIA card N, or `auto`: the first card where one can be used,
    /// otherwise the processor.
    #[arg(long, env = "WAYMARK_DEVICE", value_name = "DEVICE", default_value = "auto")]
    pub device: Device,

    /// Share of the card's memory that may be taken, for weights, workspace and KV cache (`--kv-bytes` is for the
    /// processor); what is left of it is for adapters.
    #[arg(long, env = "WAYMARK_GPU_MEMORY", value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub gpu_memory: f64,

    /// Arithmetic of products with the layers' weights: `f32`, or `bf16` with sums in f32, which halves their time in
    /// prefill on processors with AVX512-BF16. The layers take 16 bits a weight then, whatever the checkpoint's form,
    /// so that decoding few sequences of a quantised model may be slower. Without it f32 on the processor; a card
    /// always takes bf16, so that with `f32` a device of `auto` is the processor.
    #[arg(long, env = "WAYMARK_ARITHMETIC", value_name = "ARITHMETIC")]
    pub arithmetic: Option<Arithmetic>,

    /// Launch each kernel of a decode step by itself on a card, instead of replaying a recorded graph.
    #[arg(long, env = "WAYMARK_NO_CUDA_GRAPHS")]
    pub no_cuda_graphs: bool,

    /// How long a card is waited for.
    #[command(flatten)]
    pub patience: StepArgs,
}

/// How long a card is waited for.
#[derive(Debug, Clone, clap::Args)]
pub struct StepArgs {
    /// Seconds a card may take for one step before it counts as lost: readiness turns red, open requests end with an error,
    /// and the program has to be started again. Steps take milliseconds, a long prefill a second.
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
    /// How long a card may take for a step.
    pub fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.step_timeout)
    }
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// A card where one can be used, otherwise the processor.
    Auto,
    /// The processor.
    Cpu,
    /// The NVIDIA card of this number.
    Cuda(usize),
}

/// What computes, and how a card is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceConfig {
    /// What computes.
    pub device: Device,
    /// Share of the card's memory that may be taken.
    pub share: f64,
    /// KV blocks on a card; as many as fit where not given.
    pub blocks: Option<usize>,
    /// Whether decode steps are recorded and replayed.
    pub graphs: bool,
    /// How long a card may take for a step.
    pub step_limit: Duration,
    /// The arithmetic that was asked for.
    pub arithmetic: Option<Arithmetic>,
}

impl DeviceConfig {
    /// `device`, used as it is by default.
    pub fn of(device: Device) -> Self {
        let step_limit = Duration::from_secs_f64(STEP_TIMEOUT);
        Self { device, share: 0.9, blocks: None, graphs: true, step_limit, arithmetic: None }
    }

    /// With an arithmetic that is asked for.
    #[must_use]
    pub fn with(self, arithmetic: Option<Arithmetic>) -> Self {
        Self { arithmetic, ..self }
    }
}

impl DeviceArgs {
    /// What the flags mean together.
    pub fn resolve(self) -> DeviceConfig {
        DeviceConfig {
            device: self.device,
            share: self.gpu_memory,
            blocks: None,
            graphs: !self.no_cuda_graphs,
            step_limit: self.patience.limit(),
            arithmetic: self.arithmetic,
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown device `{text}`: use cpu, cuda, cuda:N or auto");
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
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds from 0.1 to 86400, such as 30".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("give a share above 0 and at most 1, such as 0.9".to_owned()),
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
