//! Phases of a run with their ranges of steps.

use super::super::MetricsRow;
use super::figure::is_evaluation;

/// Phase of training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunPhase {
    pub(super) name: String,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// Lists the phases in order. Evaluations run alongside and are not phases.
pub(super) fn phases(rows: &[MetricsRow]) -> Vec<RunPhase> {
    let mut phases: Vec<RunPhase> = Vec::new();
    for row in rows.iter().filter(|row| !is_evaluation(row)) {
        match phases.last_mut() {
            Some(last) if last.name == row.phase => last.to = row.step,
            _ => phases.push(RunPhase { name: row.phase.clone(), from: row.step, to: row.step }),
        }
    }
    phases
}
