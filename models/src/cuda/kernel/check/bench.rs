//! Common parts of the checks: uploads, downloads and comparisons.

use std::cell::Cell;

use bytemuck::{AnyBitPattern, NoUninit};

use super::random::CheckRng;
use super::synchronous::SynchronousDevice;
use super::{CheckDevice, CheckError, KernelFinding};
use crate::cuda::kernel::{CudaKernel, DeviceSlice};

/// Number of guard values after each output.
const GUARD: usize = 64;

pub(super) struct CheckBench<'a> {
    pub(super) device: SynchronousDevice<'a>,
    pub(super) random: CheckRng,
    findings: &'a mut Vec<KernelFinding>,
    /// Set when a guard was found overwritten since the last finding.
    spilled: Cell<bool>,
}

impl<'a> CheckBench<'a> {
    /// Creates a bench that appends to `findings` immediately, so they survive an error of a later check.
    pub(super) fn new(device: &'a dyn CheckDevice, seed: u64, findings: &'a mut Vec<KernelFinding>) -> Self {
        Self { device: SynchronousDevice::new(device), random: CheckRng(seed), findings, spilled: Cell::new(false) }
    }

    /// Uploads `values`, followed by a guard.
    pub(super) fn put<T: NoUninit>(&self, values: &[T]) -> Result<DeviceSlice<T>, CheckError> {
        let mut bytes = bytemuck::cast_slice(values).to_vec();
        bytes.resize(bytes.len() + GUARD * size_of::<T>(), 0xff);
        let address = self.device.upload(&bytes)?;
        // SAFETY: allocated until the bench clears it; each check uploads valid indices.
        Ok(unsafe { DeviceSlice::new(address, values.len()) })
    }

    /// Uploads a buffer of NaN (for integers, of the maximum), followed by a guard.
    pub(super) fn poisoned<T: NoUninit>(&self, len: usize) -> Result<DeviceSlice<T>, CheckError> {
        let bytes = vec![0xff; (len + GUARD) * size_of::<T>()];
        let address = self.device.upload(&bytes)?;
        // SAFETY: as above.
        Ok(unsafe { DeviceSlice::new(address, len) })
    }

    /// Allocates a buffer of NaN (for integers, of the maximum) without filling it on the host, followed by a guard.
    pub(super) fn reserved<T: NoUninit>(&self, len: usize) -> Result<DeviceSlice<T>, CheckError> {
        let address = self.device.reserve((len + GUARD) * size_of::<T>())?;
        // SAFETY: as above.
        Ok(unsafe { DeviceSlice::new(address, len) })
    }

    /// Overwrites the values from index `first` on.
    pub(super) fn write<T: NoUninit>(&self, to: &DeviceSlice<T>, first: usize, values: &[T]) -> Result<(), CheckError> {
        assert!(first + values.len() <= to.len(), "values {first}..{} exceed {}", first + values.len(), to.len());
        self.device.write(to.address() + (first * size_of::<T>()) as u64, bytemuck::cast_slice(values))
    }

    /// Downloads a buffer. An overwritten guard is reported with the next finding, which knows the kernel and the case.
    pub(super) fn get<T: AnyBitPattern + NoUninit>(&self, slice: &DeviceSlice<T>) -> Result<Vec<T>, CheckError> {
        let mut values = vec![T::zeroed(); slice.len() + GUARD];
        let bytes = bytemuck::cast_slice_mut(&mut values);
        self.device.download(slice.address(), bytes)?;
        if bytes[slice.len() * size_of::<T>()..].iter().any(|&byte| byte != 0xff) {
            self.spilled.set(true);
        }
        values.truncate(slice.len());
        Ok(values)
    }

    /// Records the relative distance of `found` from `wanted`.
    pub(super) fn compare(&mut self, kernel: CudaKernel, case: &str, found: &[f64], wanted: &[f64], bound: f64) {
        let error = if found.len() == wanted.len() { distance(found, wanted) } else { f64::INFINITY };
        self.note(kernel, case, error, bound);
    }

    /// Records a condition that either holds or fails.
    pub(super) fn demand(&mut self, kernel: CudaKernel, case: &str, holds: bool) {
        self.note(kernel, case, if holds { 0.0 } else { f64::INFINITY }, f64::MIN_POSITIVE);
    }

    pub(super) fn note(&mut self, kernel: CudaKernel, case: &str, error: f64, bound: f64) {
        if self.spilled.take() {
            let case = format!("{case}: behind the buffer");
            self.findings.push(KernelFinding { kernel, case, error: f64::INFINITY, bound });
        }
        self.findings.push(KernelFinding { kernel, case: case.to_owned(), error, bound });
    }

    /// Runs `check` and frees its device memory, even after an error.
    pub(super) fn run(&mut self, check: impl FnOnce(&mut Self) -> Result<(), CheckError>) -> Result<(), CheckError> {
        let checked = check(self);
        checked.and(self.clear())
    }

    /// Frees the device memory between checks.
    pub(super) fn clear(&self) -> Result<(), CheckError> {
        self.spilled.set(false);
        self.device.release()
    }
}

/// Relative distance ‖found − wanted‖ / ‖wanted‖, or ‖found‖ when `wanted` is zero.
fn distance(found: &[f64], wanted: &[f64]) -> f64 {
    let off: f64 = found.iter().zip(wanted).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = wanted.iter().map(|x| x * x).sum();
    if norm > 0.0 { (off / norm).sqrt() } else { off.sqrt() }
}
