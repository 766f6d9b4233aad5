//! Kernels on the emulator compared with their references.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::ffi::c_void;

use super::check::{self, CheckError, KernelFinding, StressCheck};
use super::emulator::Emulator;
use super::layout::HEAD_DIMS;
use super::{CudaKernel, Geometry, KernelError, Launch};

/// Seeds of the inputs, and of the order in which blocks and warps run.
const SEEDS: [u64; 2] = [1, 0x5eed];

/// Panics with all wrong findings, and prints the largest error of each kernel.
fn judge(findings: &[KernelFinding]) {
    assert!(!findings.is_empty());
    let wrong: Vec<_> = findings.iter().filter(|finding| !finding.holds()).collect();
    assert!(wrong.is_empty(), "{} of {} are wrong: {wrong:#?}", wrong.len(), findings.len());
    for &kernel in CudaKernel::ALL {
        let of = findings.iter().filter(|finding| finding.kernel == kernel);
        if of.clone().next().is_none() {
            continue;
        }
        let worst = of.clone().map(|finding| finding.error).fold(0.0, f64::max);
        println!("{:24}{:3} cases, error up to {worst:.1e}", kernel.name(), of.count());
    }
}

#[test]
fn kernels_compute_what_they_must() {
    for seed in SEEDS {
        let Some(emulator) = Emulator::new(64, seed) else { return };
        let mut findings = Vec::new();
        check::general(&emulator, seed, &mut findings).unwrap();
        judge(&findings);
    }
}

#[test]
fn kernels_for_heads_compute_what_they_must() {
    for (dim, seed) in HEAD_DIMS.into_iter().zip(SEEDS.into_iter().cycle()) {
        let Some(emulator) = Emulator::new(dim, seed) else { return };
        let mut findings = Vec::new();
        check::heads(&emulator, dim, seed, &mut findings).unwrap();
        judge(&findings);
    }
}

#[test]
fn stress_checks_hold_at_small_sizes() {
    let dim = 64;
    let Some(emulator) = Emulator::new(dim, SEEDS[1]) else { return };
    for check in [
        StressCheck::Attention { rows: 3, context: 300, launches: 24 },
        StressCheck::Cache { bytes: 96 << 20 },
        StressCheck::Sampler { vocab: 20_000 },
    ] {
        let mut findings = Vec::new();
        check::stress(&emulator, dim, check, SEEDS[0], &mut findings).unwrap();
        judge(&findings);
    }
}

#[test]
fn a_launch_that_differs_in_one_bit_is_found() {
    let dim = 64;
    let Some(emulator) = Emulator::new(dim, SEEDS[1]) else { return };
    let check = StressCheck::Attention { rows: 2, context: 200, launches: 24 };
    let mut findings = Vec::new();
    // Each launch is downloaded: the tenth of the first twelve differs.
    check::stress(&Faulty::new(&emulator, Fault::Flip), dim, check, SEEDS[0], &mut findings).unwrap();
    let wrong: Vec<_> = findings.iter().filter(|finding| !finding.holds()).collect();
    assert!(matches!(wrong[..], [one] if one.case.ends_with("outputs unlike the first")), "{wrong:?}");
    assert!((wrong[0].error - 1.0 / 12.0).abs() < 1e-9);
}

/// Injected failure.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// A kernel fails, and everything after it.
    Kernel,
    /// A copy fails, and everything after it.
    Copy,
    /// One value is written behind a buffer.
    Spill,
    /// One bit of a result differs.
    Flip,
}

/// An emulator that fails at launch or download number `at`, counted from 1.
struct Faulty<'a> {
    device: &'a Emulator,
    fault: Fault,
    at: usize,
    launches: Cell<usize>,
    downloads: Cell<usize>,
}

impl Launch for Faulty<'_> {
    unsafe fn launch(
        &self,
        kernel: CudaKernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        self.launches.update(|count| count + 1);
        // SAFETY: the caller's promise.
        unsafe { self.device.launch(kernel, geometry, arguments) }
    }
}

impl check::CheckDevice for Faulty<'_> {
    fn upload(&self, bytes: &[u8]) -> Result<u64, String> {
        self.device.upload(bytes)
    }

    fn reserve(&self, bytes: usize) -> Result<u64, String> {
        self.device.reserve(bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.device.write(address, bytes)
    }

    fn wait(&self) -> Result<(), String> {
        let failed = self.fault == Fault::Kernel && self.launches.get() >= self.at;
        if failed { Err("an illegal address".to_owned()) } else { self.device.wait() }
    }

    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        self.wait()?;
        self.device.download(address, bytes)?;
        self.downloads.update(|count| count + 1);
        match self.fault {
            Fault::Copy if self.downloads.get() >= self.at => return Err("an illegal address".to_owned()),
            Fault::Spill if self.downloads.get() == self.at => *bytes.last_mut().unwrap() = 0,
            Fault::Flip if self.downloads.get() == self.at => bytes[0] ^= 1,
            _ => (),
        }
        Ok(())
    }

    fn release(&self) -> Result<(), String> {
        self.device.release()
    }
}

impl<'a> Faulty<'a> {
    /// Fails at the tenth launch: the third case of `silu_mul`, after three of `embed` and four of `rms_norm`.
    fn new(device: &'a Emulator, fault: Fault) -> Self {
        Self { device, fault, at: 10, launches: Cell::new(0), downloads: Cell::new(0) }
    }
}

#[test]
fn a_kernel_that_fails_is_named_and_what_was_found_before_is_kept() {
    let Some(emulator) = Emulator::new(64, SEEDS[0]) else { return };
    for fault in [Fault::Kernel, Fault::Copy] {
        let mut findings = Vec::new();
        let error = check::general(&Faulty::new(&emulator, fault), SEEDS[0], &mut findings).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("silu_mul: an illegal address"), "{said}");
        assert_eq!(matches!(error, CheckError::Kernel(_)), fault == Fault::Kernel);
        assert_eq!(findings.len(), 9, "{findings:#?}");
        assert!(findings.iter().all(KernelFinding::holds), "{findings:#?}");
    }
}

#[test]
fn what_is_written_behind_a_buffer_is_a_finding_like_others() {
    let Some(emulator) = Emulator::new(64, SEEDS[0]) else { return };
    let mut findings = Vec::new();
    check::general(&Faulty::new(&emulator, Fault::Spill), SEEDS[0], &mut findings).unwrap();
    let wrong: Vec<_> = findings.iter().filter(|finding| !finding.holds()).collect();
    assert!(
        matches!(wrong[..], [spill] if spill.kernel == CudaKernel::SiluMul && spill.case.contains("behind")),
        "{wrong:?}"
    );
    assert_eq!(findings.last().unwrap().kernel, CudaKernel::SiluMulBackward, "all the others were checked");
}

#[cfg(feature = "cuda")]
#[test]
fn kernels_on_a_card_compute_what_they_must() {
    use crate::cuda::{CudaError, Gpu};

    for (dim, seed) in HEAD_DIMS.into_iter().zip(SEEDS.into_iter().cycle()) {
        match Gpu::open(0, dim) {
            Ok(gpu) => {
                let mut findings = Vec::new();
                gpu.check(dim, seed, &mut findings).unwrap();
                judge(&findings);
            }
            Err(CudaError::Unavailable(reason)) => return eprintln!("skipped: {reason}"),
            Err(error) => panic!("{error}"),
        }
    }
}
