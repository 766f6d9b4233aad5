//! Wire type of the result of a change to documents.

use std::time::Instant;

use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::CommitReport;

/// Result of a change.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CommitResponse {
    /// Always `documents.commit`.
    pub object: &'static str,
    /// Snapshot of the index that holds the change. Searches that start later use this snapshot or a newer one.
    pub snapshot: u64,
    /// If `true`, a new snapshot was published. `false` if there was nothing to change.
    pub published: bool,
    /// Number of added documents.
    pub added: u64,
    /// Number of replaced documents.
    pub replaced: u64,
    /// Number of documents that were already in the index, identical in every field.
    pub unchanged: u64,
    /// Number of removed documents.
    pub removed: u64,
    /// Number of documents to remove that were not in the index.
    pub absent: u64,
    /// Number of new documents longer than the embedder reads. Dense search sees only their beginning.
    pub cut: u64,
    /// Number of documents in the index now.
    pub documents: u64,
    /// Duration in milliseconds, including the time spent waiting for other changes.
    pub milliseconds: f64,
}

impl CommitResponse {
    /// Builds the response for a change that was received at `started`.
    pub(super) fn of(report: &CommitReport, started: Instant) -> CommitResponse {
        CommitResponse {
            object: "documents.commit",
            snapshot: report.manifest.snapshot,
            published: report.published,
            added: report.added,
            replaced: report.replaced,
            unchanged: report.unchanged,
            removed: report.removed,
            absent: report.absent.len() as u64,
            cut: report.cut,
            documents: report.manifest.passages,
            milliseconds: started.elapsed().as_secs_f64() * 1e3,
        }
    }
}
