//! Comparison of every kernel with its reference, on a GPU or on the emulator.
//!
//! Inputs are random and depend on a seed. Outputs start as NaN and are followed by a guard. Lengths are ragged, block
//! tables are in random order, and block entries beyond a context are NaN.

mod attention;
mod bench;
mod convert;
mod elementwise;
mod gradient;
mod lora;
mod quantize;
mod random;
mod rotary;
mod sample;
mod sample_adjusted;
mod score;
mod skinny;
mod stress;
mod synchronous;

use bench::CheckBench;
pub use stress::{StressCheck, stress};

use super::{CudaKernel, KernelError, Launch};

/// A device that the checks can run on.
pub trait CheckDevice: Launch {
    /// Allocates memory with this content, aligned to at least 16 bytes, and returns its address.
    ///
    /// # Errors
    /// The driver's error.
    fn upload(&self, bytes: &[u8]) -> Result<u64, String>;

    /// Allocates `bytes` bytes of the value 255, aligned to at least 16 bytes, and returns their address.
    ///
    /// # Errors
    /// The driver's error.
    fn reserve(&self, bytes: usize) -> Result<u64, String>;

    /// Overwrites memory within an earlier allocation, after all launched kernels.
    ///
    /// # Errors
    /// The driver's error, or the error of a launched kernel.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String>;

    /// Waits for all launched kernels.
    ///
    /// # Errors
    /// The error of a launched kernel.
    fn wait(&self) -> Result<(), String>;

    /// Waits for all launched kernels and copies from the device.
    ///
    /// # Errors
    /// The driver's error, or the error of a launched kernel.
    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), String>;

    /// Frees all uploaded memory.
    ///
    /// # Errors
    /// The driver's error.
    fn release(&self) -> Result<(), String>;
}

/// Error that prevents a check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A launch was refused or failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Memory could not be allocated, written or read.
    #[error("{0}")]
    Memory(String),
}

/// Result of one comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelFinding {
    /// Kernel.
    pub kernel: CudaKernel,
    /// Description of the inputs.
    pub case: String,
    /// Relative distance ‖found − wanted‖ / ‖wanted‖; for sampled tokens, the share of wrong ones. NaN when an output
    /// was not written, infinite when a guard was overwritten or a required condition fails.
    pub error: f64,
    /// Exclusive upper bound of the error.
    pub bound: f64,
}

impl KernelFinding {
    /// Returns `true` if the error is below its bound.
    pub fn holds(&self) -> bool {
        self.error < self.bound
    }
}

/// Error bound for results in `bf16`.
const BF16: f64 = 1e-2;

/// Error bound for results in `f32`.
const F32: f64 = 1e-4;

/// Checks every kernel of a module built for heads of width `dim`. Findings are appended immediately, and an error in
/// one check does not stop the others.
///
/// # Errors
/// The first [`CheckError`], when a launch or a copy failed; it names the kernel. A wrong result is not an error: see
/// [`KernelFinding::holds`].
pub fn run(
    device: &dyn CheckDevice,
    dim: usize,
    seed: u64,
    findings: &mut Vec<KernelFinding>,
) -> Result<(), CheckError> {
    let checked = general(device, seed, findings);
    checked.and(heads(device, dim, seed, findings))
}

/// Checks the kernels that do not depend on the head width.
///
/// # Errors
/// The errors of [`run`].
pub fn general(device: &dyn CheckDevice, seed: u64, findings: &mut Vec<KernelFinding>) -> Result<(), CheckError> {
    let checks = [
        elementwise::embed,
        elementwise::norm,
        elementwise::silu_mul,
        convert::check,
        score::check,
        skinny::check,
        skinny::silu_mul,
        skinny::dequantize,
        quantize::check,
        lora::check,
        sample::check,
        sample_adjusted::check,
        gradient::norm,
        gradient::silu_mul,
    ];
    let mut bench = CheckBench::new(device, seed, findings);
    let mut checked = Ok(());
    for check in checks {
        checked = checked.and(bench.run(check));
    }
    checked
}

/// Checks the kernels that were built for heads of width `dim`.
///
/// # Errors
/// The errors of [`run`].
pub fn heads(
    device: &dyn CheckDevice,
    dim: usize,
    seed: u64,
    findings: &mut Vec<KernelFinding>,
) -> Result<(), CheckError> {
    let checks = [rotary::check, attention::decode, attention::prefill, gradient::attention];
    let mut bench = CheckBench::new(device, seed ^ dim as u64, findings);
    let mut checked = Ok(());
    for check in checks {
        checked = checked.and(bench.run(|bench| check(bench, dim)));
    }
    checked
}
