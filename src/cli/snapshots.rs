//! `waymark index snapshots`, `restore` and `repair`: earlier snapshots, and damaged files.

use std::io::{self, Write};
use std::path::PathBuf;

use indicatif::HumanDuration;
use waymark_index::{repair, restore_snapshot, snapshots};
use waymark_runtime::config::local_index;

/// Lists the current snapshot of an index and the earlier ones that are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotsArgs {
    /// Directory of the index.
    #[arg(value_parser = local_index())]
    dir: PathBuf,
}

/// Publishes the documents of a kept snapshot again, as a new snapshot.
///
/// The snapshot that was current is kept, so a restore can be undone. A server that has the index open searches the
/// restored documents from then on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index snapshots corpus.index
  waymark index restore corpus.index --snapshot 41")]
pub(crate) struct RestoreArgs {
    /// Directory of the index.
    #[arg(value_parser = local_index())]
    dir: PathBuf,

    /// Number of the snapshot to restore, from `waymark index snapshots`.
    #[arg(long, value_name = "NUMBER")]
    snapshot: u64,
}

/// Replaces damaged blocks of an index with those of an undamaged copy.
///
/// The copy may be a replica or a backup, as long as it holds the same files. One that is some commits behind repairs
/// its part of the log of changes. A server that has the index open begins to read the repaired files within ten
/// seconds, and then searches them. Without a copy, build the index again from its corpus.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  waymark index repair corpus.index --from backup/corpus.index")]
pub(crate) struct RepairArgs {
    /// Directory of the damaged index.
    #[arg(value_parser = local_index())]
    dir: PathBuf,

    /// Directory of the copy.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
}

impl SnapshotsArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        for snapshot in snapshots(&self.dir)? {
            // A clock that was set back since would give a negative age.
            let age = snapshot.published.and_then(|time| time.elapsed().ok());
            let age = age.map_or_else(String::new, |age| format!("  published {} ago", HumanDuration(age)));
            let current = if snapshot.current { "  current" } else { "" };
            writeln!(out, "{}  {} passages{age}{current}", snapshot.number, snapshot.passages)?;
        }
        Ok(())
    }
}

impl RestoreArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let keep = snapshots(&self.dir)?.len();
        let manifest = restore_snapshot(&self.dir, self.snapshot, keep)?;
        let mut out = io::stdout().lock();
        writeln!(out, "{}: {} passages, snapshot {}", self.dir.display(), manifest.passages, manifest.snapshot)?;
        Ok(())
    }
}

impl RepairArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let report = repair(&self.dir, &self.from)?;
        let mut out = io::stdout().lock();
        for (file, range) in &report.replaced {
            writeln!(out, "{file}: bytes {} to {} replaced", range.start, range.end)?;
        }
        writeln!(out, "{} files read, {} parts replaced", report.files, report.replaced.len())?;
        Ok(())
    }
}
