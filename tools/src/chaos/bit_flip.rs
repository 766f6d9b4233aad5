//! Flipped bits in the files of the served index, found by the server's scrub and repaired from a copy.
//!
//! Bits are flipped only while no merge is near, so a run shows that nothing else publishes a base snapshot while a
//! file is damaged. Merges and commits that read a damaged file are tested in `index/tests/segments.rs`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use waymark_index::{IndexError, MANIFEST, Manifest, RepairReport, repair};

use crate::http_client::fetch;
use crate::invariant::Invariant;
use crate::ledger::Ledger;
use crate::run_shared::{Disturbance, RunShared};

/// Timeout of each wait: for the report of the damage, for the lock of the index, and for readiness after the repair.
/// Scrubs are a second apart.
const NOTICED: Duration = Duration::from_secs(30);

/// Time from the report of the damage to the repair, while clients go on.
const DAMAGED: Duration = Duration::from_secs(2);

/// Length in bytes of a block of a file; each block has its own checksum.
const BLOCK: u64 = 1 << 20;

/// Number of changes in the log from which a merge is near. A merge replaces the damaged file, which is correct if the
/// merge read the file before the bit flipped.
const NEAR_MERGE: u64 = 600;

/// A flipped bit.
#[derive(Debug, Clone)]
struct FlippedBit {
    /// Path of the file, relative to the index.
    file: String,
    place: u64,
    /// Number of the base snapshot that the file belongs to.
    base: u64,
}

impl FlippedBit {
    /// Returns the part of the server's message that names the damaged block.
    fn block(&self) -> String {
        let block = self.place / BLOCK;
        format!("block {block} (bytes {} to", block * BLOCK)
    }
}

/// Flips a bit while the server runs, waits until the server names it, repairs it, and waits until the server is ready.
pub(crate) async fn disturb(shared: &RunShared, ledger: &Ledger, index: &Path, copy: &Path, rng: &mut ChaCha8Rng) {
    let dir = index.to_owned();
    let choice: (u64, u64, u8) = (rng.random(), rng.random(), rng.random_range(0..8));
    shared.begin(Disturbance::Damaged);
    let target = copy.to_owned();
    let flipped = spawn_blocking(move || copy_and_flip(&dir, &target, &Manifest::read(&dir)?, choice)).await;
    let bit = match flipped.map_err(anyhow::Error::from).and_then(|flipped| flipped) {
        Ok(Some(bit)) => bit,
        Ok(None) => {
            shared.tally.count("bit flips given up, near a merge", 1);
            return shared.finish(Disturbance::Damaged);
        }
        Err(error) => {
            // Nothing was checked, so the run must not pass for one that was.
            shared.tally.broken(Invariant::Damage, &format!("no bit was flipped: {error:#}"));
            return shared.finish(Disturbance::Damaged);
        }
    };
    shared.tally.count("bit flips", 1);
    let named = wait_for(shared, 503, |body| body.contains(&bit.file) && body.contains(&bit.block())).await;
    if named.is_err() && base(index) != Some(bit.base) {
        // A merge had verified the file before the bit was flipped, and replaced it.
        shared.tally.count("bit flips in files that were just replaced", 1);
        return shared.finish(Disturbance::Damaged);
    }
    shared.tally.check(Invariant::Damage, named.map_err(|seen| format!("{bit:?} was not named: {seen}")));
    sleep(DAMAGED).await;
    let kept = base(index) == Some(bit.base);
    let published = || format!("{bit:?}: another base snapshot was published while it was damaged");
    shared.tally.check(Invariant::Laundering, kept.then_some(()).ok_or_else(published));
    let repaired = repair_from(index, copy).await;
    let repaired = repaired.and_then(|report| {
        let right = report.replaced.iter().all(|(file, range)| *file == bit.file && range.contains(&bit.place));
        if right && report.replaced.len() == 1 { Ok(()) } else { Err(format!("{bit:?}: repaired {report:?}")) }
    });
    shared.tally.check(Invariant::Damage, repaired);
    let ready = wait_for(shared, 200, |_| true).await;
    shared.tally.check(Invariant::Damage, ready.map_err(|seen| format!("{bit:?}: not ready after the repair: {seen}")));
    shared.finish(Disturbance::Damaged);
    ledger.verify(shared, "a repair").await;
}

/// Copies the index, and flips a bit in it. Returns `None` if a merge replaces the files, or is about to.
fn copy_and_flip(
    dir: &Path,
    copy: &Path,
    manifest: &Manifest,
    choice: (u64, u64, u8),
) -> anyhow::Result<Option<FlippedBit>> {
    if manifest.delta.as_ref().is_some_and(|delta| delta.changes >= NEAR_MERGE) {
        return Ok(None);
    }
    let flipped = copy_index(dir, copy, manifest).and_then(|()| flip(dir, manifest, choice));
    // A merge removes the files that it has replaced, also while they are copied.
    let replaced = base(dir).is_some_and(|base| base != manifest.base());
    if flipped.is_err() && replaced { Ok(None) } else { flipped.map(Some) }
}

/// Copies the manifest and the files that it names, like a backup.
fn copy_index(dir: &Path, copy: &Path, manifest: &Manifest) -> anyhow::Result<()> {
    let _ = fs::remove_dir_all(copy);
    let log = manifest.delta.as_ref().map(|delta| delta.log.as_str());
    for name in manifest.files.keys().map(String::as_str).chain(log).chain([MANIFEST]) {
        let target = copy.join(name);
        fs::create_dir_all(target.parent().unwrap_or(copy))?;
        fs::copy(dir.join(name), target).with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// Flips one bit of one file, in place.
fn flip(dir: &Path, manifest: &Manifest, (file, place, bit): (u64, u64, u8)) -> anyhow::Result<FlippedBit> {
    let files: Vec<_> = manifest.files.iter().filter(|(_, sum)| sum.bytes > 0).collect();
    ensure!(!files.is_empty(), "the index has no files");
    let (name, sum) = files[usize::try_from(file % files.len() as u64)?];
    let place = place % sum.bytes;
    ensure!(base(dir) == Some(manifest.base()), "the base snapshot was replaced");
    let open = OpenOptions::new().read(true).write(true).open(dir.join(name))?;
    let mut byte = [0];
    open.read_exact_at(&mut byte, place)?;
    open.write_all_at(&[byte[0] ^ (1 << bit)], place)?;
    Ok(FlippedBit { file: name.clone(), place, base: manifest.base() })
}

fn base(dir: &Path) -> Option<u64> {
    Manifest::read(dir).ok().map(|manifest| manifest.base())
}

/// Waits until `/ready` answers with `status` and a body that `fits`. Returns the last response if [`NOTICED`] passes
/// first.
async fn wait_for(shared: &RunShared, status: u16, fits: impl Fn(&str) -> bool) -> Result<(), String> {
    let deadline = Instant::now() + NOTICED;
    loop {
        let seen = fetch(&shared.operator(), "GET", "/ready", "").await;
        if matches!(&seen, Ok((found, body)) if *found == status && fits(body)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{seen:?}"));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Repairs the index. Retries while a commit of the server holds the lock.
async fn repair_from(index: &Path, copy: &Path) -> Result<RepairReport, String> {
    let deadline = Instant::now() + NOTICED;
    loop {
        let dir = index.to_owned();
        let from = copy.to_owned();
        let done = spawn_blocking(move || repair(&dir, &from)).await.map_err(|error| error.to_string())?;
        match done {
            Err(IndexError::Locked { .. }) if Instant::now() < deadline => sleep(Duration::from_millis(20)).await,
            other => return other.map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_index::{BuildOptions, Corpus, DeltaInfo, build};
    use waymark_runtime::embedding::Embedding;

    use super::*;
    use crate::server_files::{NoProgress, passage};

    #[test]
    fn only_a_merge_excuses_a_bit_that_was_not_flipped() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("index");
        let copy = root.path().join("copy");
        let build = |replace| {
            let corpus = Corpus::from_documents("few", vec![passage(1, "one"), passage(2, "two")]);
            let options = BuildOptions { replace, ..BuildOptions::default() };
            build(corpus, &Embedding::Mock, &dir, &options, &NoProgress).unwrap().manifest
        };
        let manifest = build(false);
        let attempt = |manifest: &Manifest| copy_and_flip(&dir, &copy, manifest, (3, 5, 0));
        let bit = attempt(&manifest).unwrap().unwrap();
        let byte = |dir: &Path| fs::read(dir.join(&bit.file)).unwrap()[usize::try_from(bit.place).unwrap()];
        assert_eq!(byte(&dir) ^ byte(&copy), 1);
        let mut late = manifest.clone();
        let base = manifest.base();
        let log = String::new();
        late.delta = Some(DeltaInfo { base, passages: 2, graph: None, log, bytes: 0, commits: 1, changes: NEAR_MERGE });
        assert!(attempt(&late).unwrap().is_none(), "a merge is near");
        fs::remove_file(dir.join(&bit.file)).unwrap();
        let error = attempt(&manifest).unwrap_err();
        assert!(format!("{error:#}").contains(&bit.file), "{error:#}");
        build(true);
        assert!(attempt(&manifest).unwrap().is_none(), "another base snapshot has replaced the files");
    }
}
