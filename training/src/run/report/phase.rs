//! The phases of a run: what it did from which step to which.

use super::super::Row;
use super::figure::is_evaluation;

/// A phase of training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The phases in their order. Evaluations are none: they go on beside.
pub(super) fn phases(rows: &[Row]) -> Vec<Phase> {
    let mut phases: Vec<Phase> = Vec::new();
    for row in rows.iter().filter(|row| !is_evaluation(row)) {
        match phases.last_mut() {
            Some(last) if last.name == row.phase => last.to = row.step,
            _ => phases.push(Phase { name: row.phase.clone(), from: row.step, to: row.step }),
        }
    }
    phases
}
