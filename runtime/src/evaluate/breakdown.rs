//! Scores by kind of question.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use waymark_index::Mode;

use super::estimate::Estimate;
use super::row::EpisodeRow;

/// Scores of the questions of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindSummary {
    /// Name of the kind.
    pub kind: String,
    /// Exact match.
    pub em: Estimate,
    /// F1 of the answers.
    pub f1: Estimate,
    /// Share of questions whose support was retrieved.
    pub supported: Estimate,
    /// Share of each mode in the first searches of the episodes. Modes that were never first are absent.
    pub first_modes: BTreeMap<String, f64>,
}

impl KindSummary {
    /// Groups rows by kind. Rows without a kind are left out.
    pub fn all<'a>(rows: impl IntoIterator<Item = &'a EpisodeRow>) -> Vec<KindSummary> {
        let mut kinds: BTreeMap<&str, Vec<&EpisodeRow>> = BTreeMap::new();
        for row in rows {
            if let Some(kind) = &row.kind {
                kinds.entry(kind).or_default().push(row);
            }
        }
        kinds.into_iter().map(|(kind, rows)| KindSummary::of(kind, &rows)).collect()
    }

    fn of(kind: &str, rows: &[&EpisodeRow]) -> KindSummary {
        let first: Vec<Mode> = rows.iter().filter_map(|row| row.evidence.first()).map(|found| found.mode).collect();
        let share = |mode: Mode| first.iter().filter(|&&other| other == mode).count() as f64 / first.len() as f64;
        let used = Mode::ALL.into_iter().filter(|mode| first.contains(mode));
        let supported = rows.iter().filter_map(|row| row.supported);
        KindSummary {
            kind: kind.to_owned(),
            em: Estimate::of(rows.iter().map(|row| row.em)),
            f1: Estimate::of(rows.iter().map(|row| row.f1)),
            supported: Estimate::of(supported.map(|holds| f64::from(u8::from(holds)))),
            first_modes: used.map(|mode| (mode.to_string(), share(mode))).collect(),
        }
    }
}
