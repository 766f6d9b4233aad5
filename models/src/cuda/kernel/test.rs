//! The kernels in the emulator against their references.
#![allow(clippy::unwrap_used)]

use super::Kernel;
use super::check::{self, Finding};
use super::emulator::Emulator;
use super::layout::HEAD_DIMS;

/// Orders of blocks and warps to try, each with inputs of its own.
const SEEDS: [u64; 2] = [1, 0x5eed];

/// Fails with all that is wrong; says how wrong the worst is that is right.
fn judge(findings: &[Finding]) {
    assert!(!findings.is_empty());
    let wrong: Vec<_> = findings.iter().filter(|finding| !finding.holds()).collect();
    assert!(wrong.is_empty(), "{} of {} are wrong: {wrong:#?}", wrong.len(), findings.len());
    for &kernel in Kernel::ALL {
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
        judge(&check::general(&emulator, seed).unwrap());
    }
}

#[test]
fn kernels_for_heads_compute_what_they_must() {
    for (dim, seed) in HEAD_DIMS.into_iter().zip(SEEDS.into_iter().cycle()) {
        let Some(emulator) = Emulator::new(dim, seed) else { return };
        judge(&check::heads(&emulator, dim, seed).unwrap());
    }
}

#[cfg(feature = "cuda")]
#[test]
fn kernels_on_a_card_compute_what_they_must() {
    use crate::cuda::{Card, CudaError};

    for (dim, seed) in HEAD_DIMS.into_iter().zip(SEEDS.into_iter().cycle()) {
        match Card::open(0, dim) {
            Ok(card) => judge(&card.check(dim, seed).unwrap()),
            Err(CudaError::Unavailable(reason)) => return eprintln!("skipped: {reason}"),
            Err(error) => panic!("{error}"),
        }
    }
}
