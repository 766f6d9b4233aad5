//! Checks of the machine: CPU, GPU, memory and open files.

use waymark_models::kernel::{computes_bf16, instruction_set};
use waymark_runtime::MachineMemory;
use waymark_runtime::config::{Device, DeviceConfig, cores};

use super::DoctorCheck;
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

/// Compares the memory that is free with the KV cache of `kv_bytes` bytes.
pub(super) fn memory(kv_bytes: usize) -> DoctorCheck {
    match MachineMemory::read() {
        Some(memory) => compared(memory.available, kv_bytes as u64),
        None => DoctorCheck::good("memory", "unknown on this system"),
    }
}

fn compared(available: u64, kv_bytes: u64) -> DoctorCheck {
    let kv = gibibytes(kv_bytes);
    let detail = format!("{} available, {kv} for the KV cache", gibibytes(available));
    if available < kv_bytes {
        return DoctorCheck::failure("memory", format!("{detail}: lower --kv-bytes"));
    }
    if available < kv_bytes.saturating_add(BASE_MEMORY) {
        return DoctorCheck::warning("memory", format!("{detail}: little is left for weights; lower --kv-bytes"));
    }
    DoctorCheck::good("memory", detail)
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
    use super::super::CheckOutcome;
    use super::*;

    #[test]
    fn memory_is_compared_with_what_the_flags_ask_for() {
        for (available, kv, outcome) in [
            (8 << 30, 1 << 30, CheckOutcome::Good),
            (3 << 30, 5 << 29, CheckOutcome::Warning),
            (1 << 30, 2 << 30, CheckOutcome::Failure),
            (8 << 30, u64::MAX, CheckOutcome::Failure),
        ] {
            assert_eq!(compared(available, kv).outcome, outcome, "{available} {kv}");
        }
        assert_eq!(compared(8 << 30, 1 << 30).detail, "8.0 GiB available, 1.0 GiB for the KV cache");
    }
}
