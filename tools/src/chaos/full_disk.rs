//! A disk of the index that is full for some seconds.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::http_client::fetch;
use crate::invariant::Invariant;
use crate::ledger::Ledger;
use crate::run_shared::{Disturbance, RunShared};

/// Longest time until changes succeed again.
const RECOVERED: Duration = Duration::from_secs(30);

/// Fills the disk for some seconds, and checks that a change fails then and succeeds afterwards.
pub(crate) async fn disturb(shared: &RunShared, ledger: &Ledger, disk: &Path, rng: &mut ChaCha8Rng) {
    let filler = disk.join("filler");
    shared.begin(Disturbance::FullDisk);
    let end = Instant::now() + Duration::from_millis(rng.random_range(2000..5000));
    let mut refused = None;
    while Instant::now() < end {
        // Merges and failed commits free some room again.
        let path = filler.clone();
        let _ = spawn_blocking(move || fill(&path)).await;
        refused = Some(change(shared).await);
        sleep(Duration::from_millis(200)).await;
    }
    let refused = match refused {
        Some(Ok((500..=599, _))) => Ok(()),
        other => Err(format!("on a full disk a change got {other:?}")),
    };
    shared.tally.check(Invariant::FullDisk, refused);
    let _ = fs::remove_file(&filler);
    let deadline = Instant::now() + RECOVERED;
    let mut made = change(shared).await;
    while !matches!(made, Ok((200, _))) && Instant::now() < deadline {
        sleep(Duration::from_millis(100)).await;
        made = change(shared).await;
    }
    let again =
        matches!(made, Ok((200, _))).then_some(()).ok_or_else(|| format!("with room again a change got {made:?}"));
    shared.tally.check(Invariant::FullDisk, again);
    shared.finish(Disturbance::FullDisk);
    shared.tally.count("times the disk was full", 1);
    ledger.verify(shared, "a full disk").await;
}

/// Writes a file until the disk is full.
fn fill(path: &Path) -> std::io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    for size in [1 << 20, 1 << 12] {
        let block = vec![0; size];
        while file.write_all(&block).is_ok() {}
    }
    file.sync_all()
}

/// Writes a document that no other task writes.
async fn change(shared: &RunShared) -> std::io::Result<(u16, String)> {
    // Long enough that no slack of the last block holds it, and new each time, so there is something to write.
    let text = format!("{} {}", uuid::Uuid::now_v7(), "full ".repeat(4000));
    let body = json!({"documents": [{"id": "full", "title": "Full", "text": text}]});
    fetch(&shared.operator(), "POST", "/v1/documents", &body.to_string()).await
}
