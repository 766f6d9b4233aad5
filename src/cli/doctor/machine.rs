//! Checks of the machine: CPU, GPU, memory and open files.

use waymark_models::kernel::{computes_bf16, instruction_set};
use waymark_runtime::MachineMemory;
use waymark_runtime::config::{Device, DeviceConfig, cores};

use super::DoctorCheck;
use crate::config::ServeConfig;
use crate::server::file_limit;

/// Memory in addition to the KV cache that a server of the default model takes, in bytes.
const BASE_MEMORY: u64 = 1 << 30;

/// Names the instruction set of the kernels.
pub(super) fn cpu() -> DoctorCheck {
    let isa = instruction_set();
    let bf16 = if computes_bf16() { ", bf16 products (--arithmetic bf16 is faster)" } else { "" };
    let detail = format!("{} cores, {isa} kernels{bf16}", cores());
    match isa {
        "portable" => {
            DoctorCheck::warning("CPU", format!("{detail}: those of AVX2, AVX-512 and NEON are several times faster"))
        }
        _ => DoctorCheck::good("CPU", detail),
    }
}

/// Looks for the GPU that the flags name.
pub(super) fn gpu(device: DeviceConfig) -> DoctorCheck {
    let (ordinal, required) = match device.device {
        Device::Cpu => return DoctorCheck::good("GPU", "not asked for (--device cpu)"),
        Device::Auto => (0, false),
        Device::Cuda(ordinal) => (ordinal, true),
    };
    match gpu_found(ordinal) {
        Ok(found) => DoctorCheck::good("GPU", found),
        Err(reason) if required => DoctorCheck::failure("GPU", reason),
        // A program built with CUDA was meant for a GPU.
        Err(reason) if cfg!(feature = "cuda") => DoctorCheck::warning("GPU", format!("{reason}; the CPU computes")),
        Err(reason) => DoctorCheck::good("GPU", format!("{reason}; the CPU computes")),
    }
}

/// Describes GPU `ordinal`.
///
/// # Errors
/// Says which library or GPU is missing.
#[cfg(feature = "cuda")]
fn gpu_found(ordinal: usize) -> Result<String, String> {
    let (info, free) = waymark_models::cuda::Gpu::query(ordinal).map_err(|error| error.to_string())?;
    let (major, minor) = info.capability;
    Ok(format!("{}, compute capability {major}.{minor}, {} free", info.name, gibibytes(free as u64)))
}

#[cfg(not(feature = "cuda"))]
fn gpu_found(_: usize) -> Result<String, String> {
    Err("this program was built without CUDA".to_owned())
}

/// Compares the memory that is free with the KV cache that the server would have in it.
pub(super) fn memory(config: &ServeConfig) -> DoctorCheck {
    match MachineMemory::read() {
        Some(memory) => compared(memory.available, config),
        None => DoctorCheck::good("memory", "unknown on this system"),
    }
}

fn compared(available: u64, config: &ServeConfig) -> DoctorCheck {
    let detail = format!("{} available", gibibytes(available));
    if !holds_kv(config) {
        return DoctorCheck::good("memory", format!("{detail}, no KV cache in it"));
    }
    let kv_bytes = config.model.kv_bytes as u64;
    let detail = format!("{detail}, {} for the KV cache", gibibytes(kv_bytes));
    if available < kv_bytes && config.model.kv_reserve {
        return DoctorCheck::failure("memory", format!("{detail}: lower --kv-bytes"));
    }
    // Without --kv-reserve, the server starts and allocates blocks as it uses them.
    if available < kv_bytes {
        let detail = format!("{detail}: it may run out of memory under load; lower --kv-bytes");
        return DoctorCheck::warning("memory", detail);
    }
    if available < kv_bytes.saturating_add(BASE_MEMORY) {
        return DoctorCheck::warning("memory", format!("{detail}: little is left for weights; lower --kv-bytes"));
    }
    DoctorCheck::good("memory", detail)
}

/// Returns `true` if the server has its KV cache in the memory of this machine.
fn holds_kv(config: &ServeConfig) -> bool {
    let device = config.model.device;
    let on_gpu = match device.device {
        Device::Cpu => false,
        Device::Auto => !device.needs_cpu() && gpu_found(0).is_ok(),
        Device::Cuda(_) => true,
    };
    config.fleet.is_none() && config.model.weights.is_some() && !on_gpu
}

/// Compares the limit of open files with `most` connections.
pub(super) fn open_files(most: usize) -> DoctorCheck {
    let fitting = file_limit::fitting_connections(most);
    if fitting < most {
        let detail = format!(
            "the limit permits {fitting} connections, fewer than --max-connections {most}: raise it (`ulimit -n`, or \
             LimitNOFILE of a systemd unit)"
        );
        return DoctorCheck::warning("files", detail);
    }
    DoctorCheck::good("files", format!("the limit permits {most} connections"))
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::CheckOutcome;
    use super::*;
    use crate::config::ServeArgs;

    /// Compares `available` bytes with the KV cache of a server with these flags.
    fn with(available: u64, kv_bytes: usize, flags: &[&str]) -> DoctorCheck {
        #[derive(clap::Parser)]
        struct DoctorCli {
            #[command(flatten)]
            serve: ServeArgs,
        }
        let flags = [&["doctor"][..], flags].concat();
        let mut config = <DoctorCli as clap::Parser>::parse_from(flags).serve.resolve().unwrap();
        config.model.kv_bytes = kv_bytes;
        compared(available, &config)
    }

    #[test]
    fn memory_is_compared_with_what_the_flags_ask_for() {
        for (available, kv, reserve, outcome) in [
            (8 << 30, 1 << 30, true, CheckOutcome::Good),
            (3 << 30, 5 << 29, true, CheckOutcome::Warning),
            (1 << 30, 2 << 30, true, CheckOutcome::Failure),
            (8 << 30, usize::MAX, true, CheckOutcome::Failure),
            (1 << 30, 2 << 30, false, CheckOutcome::Warning),
        ] {
            let flags = ["--device", "cpu", "--kv-reserve"];
            let flags = if reserve { &flags[..] } else { &flags[..2] };
            assert_eq!(with(available, kv, flags).outcome, outcome, "{available} {kv} {reserve}");
        }
        let detail = with(8 << 30, 1 << 30, &["--device", "cpu"]).detail;
        assert_eq!(detail, "8.0 GiB available, 1.0 GiB for the KV cache");
    }

    #[test]
    fn a_server_without_a_kv_cache_of_its_own_needs_no_memory_for_it() {
        for flags in [
            &["--mock"][..],
            &["--device", "cuda"],
            &["--engine", "vllm=http://127.0.0.1:8000", "--model", "smollm2-135m-instruct"],
        ] {
            assert_eq!(with(1 << 28, 1 << 30, flags).outcome, CheckOutcome::Good, "{flags:?}");
        }
    }
}
