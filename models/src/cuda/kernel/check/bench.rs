//! What every check does: memory in, memory out, a comparison.

use std::cell::Cell;

use bytemuck::{AnyBitPattern, NoUninit};

use super::random::Random;
use super::witness::Witness;
use super::{Card, CheckError, Finding};
use crate::cuda::kernel::{Kernel, Span};

/// Values behind each output that nobody may write.
const GUARD: usize = 64;

pub(super) struct Bench<'a> {
    pub(super) card: Witness<'a>,
    pub(super) random: Random,
    findings: &'a mut Vec<Finding>,
    /// Whether something was written behind what was read since the last finding.
    spilled: Cell<bool>,
}

impl<'a> Bench<'a> {
    /// What is found goes to `findings` at once: it is there when a later check fails.
    pub(super) fn new(card: &'a dyn Card, seed: u64, findings: &'a mut Vec<Finding>) -> Self {
        Self { card: Witness::new(card), random: Random(seed), findings, spilled: Cell::new(false) }
    }

    /// Device memory that holds `values`, and a guard.
    pub(super) fn put<T: NoUninit>(&self, values: &[T]) -> Result<Span<T>, CheckError> {
        let mut bytes = bytemuck::cast_slice(values).to_vec();
        bytes.resize(bytes.len() + GUARD * size_of::<T>(), 0xff);
        let address = self.card.upload(&bytes)?;
        // SAFETY: memory of the card until the bench is finished; what indices name is each check's business.
        Ok(unsafe { Span::new(address, values.len()) })
    }

    /// Device memory of which every value is NaN (or the highest number), and a guard.
    pub(super) fn poisoned<T: NoUninit>(&self, len: usize) -> Result<Span<T>, CheckError> {
        let bytes = vec![0xff; (len + GUARD) * size_of::<T>()];
        let address = self.card.upload(&bytes)?;
        // SAFETY: as above.
        Ok(unsafe { Span::new(address, len) })
    }

    /// What is there now. What is behind it and should not be is told with the next finding, which knows of which kernel
    /// and on what.
    pub(super) fn get<T: AnyBitPattern + NoUninit>(&self, span: &Span<T>) -> Result<Vec<T>, CheckError> {
        let mut values = vec![T::zeroed(); span.len() + GUARD];
        let bytes = bytemuck::cast_slice_mut(&mut values);
        self.card.download(span.address(), bytes)?;
        if bytes[span.len() * size_of::<T>()..].iter().any(|&byte| byte != 0xff) {
            self.spilled.set(true);
        }
        values.truncate(span.len());
        Ok(values)
    }

    /// Notes how far `found` is from `wanted`.
    pub(super) fn compare(&mut self, kernel: Kernel, case: &str, found: &[f64], wanted: &[f64], bound: f64) {
        let error = if found.len() == wanted.len() { distance(found, wanted) } else { f64::INFINITY };
        self.note(kernel, case, error, bound);
    }

    /// Notes whether something holds that is not a matter of degree.
    pub(super) fn demand(&mut self, kernel: Kernel, case: &str, holds: bool) {
        self.note(kernel, case, if holds { 0.0 } else { f64::INFINITY }, f64::MIN_POSITIVE);
    }

    pub(super) fn note(&mut self, kernel: Kernel, case: &str, error: f64, bound: f64) {
        if self.spilled.take() {
            let case = format!("{case}: behind the buffer");
            self.findings.push(Finding { kernel, case, error: f64::INFINITY, bound });
        }
        self.findings.push(Finding { kernel, case: case.to_owned(), error, bound });
    }

    /// Runs `check` and frees what it left on the card, whatever became of it.
    pub(super) fn run(&mut self, check: impl FnOnce(&mut Self) -> Result<(), CheckError>) -> Result<(), CheckError> {
        let checked = check(self);
        checked.and(self.clear())
    }

    /// Frees the card's memory between checks.
    pub(super) fn clear(&self) -> Result<(), CheckError> {
        self.spilled.set(false);
        self.card.release()
    }
}

/// ‖found − wanted‖ / ‖wanted‖; where nothing is wanted, ‖found‖.
fn distance(found: &[f64], wanted: &[f64]) -> f64 {
    let off: f64 = found.iter().zip(wanted).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = wanted.iter().map(|x| x * x).sum();
    if norm > 0.0 { (off / norm).sqrt() } else { off.sqrt() }
}
