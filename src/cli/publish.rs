//! `waymark index push` and `pull`: snapshots of an index on an object store.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use waymark_runtime::config::{local_index, seconds};
use waymark_runtime::snapshots::{
    PullReport, PushOptions, PushReport, RemoteIndex, Replica, SnapshotError, SnapshotLocation, push,
};

use super::build_bars::mebibytes;

/// Default polling interval for a directory or an object store that is followed, in seconds.
const DEFAULT_INTERVAL: f64 = 1.0;

/// Publishes the current snapshot of an index on an object store, for `waymark serve --index s3://…` and `index pull`.
///
/// Only parts that the last publication lacks are sent. The publication is one conditional write: if another directory
/// has published since, it is refused. Credentials, region and endpoint of S3 come from `AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT` and the like; `http://` needs `AWS_ALLOW_HTTP=true`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index push corpus.index s3://bucket/corpus
  waymark index push corpus.index s3://bucket/corpus --follow
  waymark index push corpus.index file:///mnt/shared/corpus")]
pub(crate) struct PushArgs {
    /// Directory of the index.
    #[arg(value_parser = local_index())]
    dir: PathBuf,

    /// Location of the snapshots: `s3://BUCKET/PREFIX`, `file:///FOLDER` or a folder.
    #[arg(value_name = "DESTINATION")]
    destination: SnapshotLocation,

    /// Number of publications to keep there, the new one included.
    #[arg(long, value_name = "N", default_value_t = 8)]
    keep: usize,

    /// Replace what another directory has published.
    #[arg(long)]
    replace: bool,

    /// Publish every later snapshot too, until the command is stopped. It may run alongside the server that changes
    /// the index.
    #[arg(long)]
    follow: bool,

    /// Seconds between two checks of the directory with `--follow`.
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_INTERVAL, value_parser = seconds)]
    interval: f64,
}

/// Fetches the newest published snapshot of an index.
///
/// A directory that was pulled before gets only what has changed. A server that has the directory open searches the new
/// snapshot at once. Files that are missing or were cut are fetched again. An index that was built or changed in the
/// directory is an error, unless `--replace` is given.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  waymark index pull s3://bucket/corpus corpus.index")]
pub(crate) struct PullArgs {
    /// Location of the snapshots: `s3://BUCKET/PREFIX`, `file:///FOLDER` or a folder.
    #[arg(value_name = "SOURCE")]
    source: SnapshotLocation,

    /// Directory of the index.
    dir: PathBuf,

    /// Replace an index that was built or changed in the directory, and repair one that is damaged: all of its files
    /// are compared with those published.
    #[arg(long)]
    replace: bool,
}

impl PushArgs {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let remote = RemoteIndex::open(&self.destination)?;
        let mut options = PushOptions { keep: self.keep, replace: self.replace };
        let started = Instant::now();
        self.tell(&push(&self.dir, &remote, options).await?, started)?;
        // From here on another writer is an error again.
        options.replace = false;
        let interval = Duration::from_secs_f64(self.interval.max(0.05));
        if !self.follow {
            return Ok(());
        }
        loop {
            tokio::time::sleep(interval).await;
            let started = Instant::now();
            match push(&self.dir, &remote, options).await {
                Ok(report) if report.published => self.tell(&report, started)?,
                Ok(_) => {}
                Err(error @ SnapshotError::OtherWriter { .. }) => return Err(error.into()),
                // The network comes back, and the snapshot is still there then.
                Err(error) => tracing::warn!(%error, "cannot publish the snapshot yet"),
            }
        }
    }

    fn tell(&self, report: &PushReport, started: Instant) -> io::Result<()> {
        let PushReport { number, snapshot, published, parts, bytes } = report;
        let place = &self.destination;
        let mut out = io::stdout().lock();
        if !published {
            return writeln!(out, "{place}: snapshot {snapshot} is there already, publication {number}");
        }
        let seconds = started.elapsed().as_secs_f64();
        let sent = mebibytes(*bytes);
        writeln!(
            out,
            "{place}: snapshot {snapshot}, publication {number}: {parts} parts, {bytes} bytes ({sent}) sent in {seconds:.2} s"
        )
    }
}

impl PullArgs {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let started = Instant::now();
        let remote = RemoteIndex::open(&self.source)?;
        let mut replica = Replica::open(&self.dir, remote)?.replacing(self.replace).comparing(self.replace);
        let report = replica.refresh().await?;
        let mut out = io::stdout().lock();
        let dir = self.dir.display();
        let Some(PullReport { number, snapshot, parts, bytes }) = report else {
            writeln!(out, "{dir}: holds the newest snapshot already")?;
            return Ok(());
        };
        let seconds = started.elapsed().as_secs_f64();
        let fetched = mebibytes(bytes);
        writeln!(
            out,
            "{dir}: snapshot {snapshot}, publication {number}: {parts} parts, {bytes} bytes ({fetched}) fetched in {seconds:.2} s"
        )?;
        Ok(())
    }
}
