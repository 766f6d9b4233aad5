//! Every kernel against its reference, on whatever launches it: a card, or the emulator in this crate's tests.
//!
//! Inputs are fresh for each seed; outputs begin as NaN and are followed by a guard; lengths are ragged and block tables in
//! random order; what lies in blocks beyond a context is NaN.

mod attention;
mod bench;
mod convert;
mod elementwise;
mod gradient;
mod lora;
mod random;
mod rotary;
mod sample;
mod score;
mod witness;

use bench::Bench;

use super::{Kernel, KernelError, Launch};

/// A card, or something like one, as the checks need it.
pub trait Card: Launch {
    /// Fresh memory that holds these bytes, aligned to at least 16; its address.
    ///
    /// # Errors
    /// What the driver said.
    fn upload(&self, bytes: &[u8]) -> Result<u64, String>;

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// What went wrong in it.
    fn wait(&self) -> Result<(), String>;

    /// Waits for everything that was launched, and reads.
    ///
    /// # Errors
    /// What the driver said; or what went wrong in the launches before.
    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), String>;

    /// Frees all that was uploaded.
    ///
    /// # Errors
    /// What the driver said.
    fn release(&self) -> Result<(), String>;
}

/// Why something could not be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A launch was refused, or failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Memory could not be had, written or read.
    #[error("{0}")]
    Memory(String),
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Which kernel.
    pub kernel: Kernel,
    /// On what.
    pub case: String,
    /// ‖found − wanted‖ / ‖wanted‖; for choices, the share that was wrong. NaN where something was not written, infinite
    /// where something was that should not be.
    pub error: f64,
    /// What it must be below.
    pub bound: f64,
}

impl Finding {
    /// True when the kernel is right, as far as this goes.
    pub fn holds(&self) -> bool {
        self.error < self.bound
    }
}

/// Bound for results in `bf16`.
const BF16: f64 = 1e-2;

/// Bound for results in `f32`.
const F32: f64 = 1e-4;

/// Checks every kernel of a module built for heads of width `dim`. What is found goes to `findings` at once, and a check that
/// fails keeps none of the others from being tried.
///
/// # Errors
/// The first [`CheckError`], when a launch or a copy failed; it names the kernel. A wrong result is no error here: see
/// [`Finding::holds`].
pub fn run(card: &dyn Card, dim: usize, seed: u64, findings: &mut Vec<Finding>) -> Result<(), CheckError> {
    let checked = general(card, seed, findings);
    checked.and(heads(card, dim, seed, findings))
}

/// Checks the kernels that do not depend on the width of heads.
///
/// # Errors
/// As [`run`].
pub fn general(card: &dyn Card, seed: u64, findings: &mut Vec<Finding>) -> Result<(), CheckError> {
    let checks = [
        elementwise::embed,
        elementwise::norm,
        elementwise::silu_mul,
        convert::check,
        score::check,
        lora::check,
        sample::check,
        gradient::norm,
        gradient::silu_mul,
    ];
    let (mut bench, mut checked) = (Bench::new(card, seed, findings), Ok(()));
    for check in checks {
        checked = checked.and(bench.run(check));
    }
    checked
}

/// Checks the kernels that were built for heads of width `dim`.
///
/// # Errors
/// As [`run`].
pub fn heads(card: &dyn Card, dim: usize, seed: u64, findings: &mut Vec<Finding>) -> Result<(), CheckError> {
    let checks = [rotary::check, attention::decode, attention::prefill, gradient::attention];
    let (mut bench, mut checked) = (Bench::new(card, seed ^ dim as u64, findings), Ok(()));
    for check in checks {
        checked = checked.and(bench.run(|bench| check(bench, dim)));
    }
    checked
}
