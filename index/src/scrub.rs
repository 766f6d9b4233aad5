//! Scrubbing: reads the files of the current snapshot again and again in the background, to find damage before it is
//! needed.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::delta::log;
use crate::error::IndexError;
use crate::live::LiveIndex;
use crate::manifest::{Manifest, Verification};

/// Longest pause between two scrubs of a damaged index, to notice a repair.
const REPAIRED: Duration = Duration::from_secs(10);

impl LiveIndex {
    /// Description of the damage of the current snapshot: a mapped file that could not be read, or what the last scrub
    /// found. `None` if there is none.
    pub fn damage(&self) -> Option<String> {
        if let Err(error) = self.current().snapshot.check_faults() {
            return Some(error.to_string());
        }
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads all files of the current snapshot, at most about `bytes_per_second`, and remembers whether they are as
    /// they were written. Returns the first damage. A snapshot that is replaced meanwhile counts as whole. Once damaged
    /// files were repaired, the index is opened again, also if their damage was never noticed.
    pub fn scrub(&self, bytes_per_second: u64) -> Option<String> {
        let manifest = self.current().manifest().clone();
        let mut damage = self.damage_of(&manifest, bytes_per_second);
        if damage.is_none() && self.needs_reopening() && !self.has_replaced(&manifest) {
            damage = self.reopen().err().map(|error| error.to_string());
        }
        let mut known = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, because a snapshot that is installed later clears the damage of this one.
        if self.has_replaced(&manifest) {
            return None;
        }
        // Logged once, and not again by every scrub.
        if let Some(damage) = damage.as_ref().filter(|&damage| known.as_ref() != Some(damage)) {
            tracing::error!(damage, "the index is damaged: repair it with `waymark index repair`, or build it again");
        }
        known.clone_from(&damage);
        damage
    }

    /// Reads all files that `manifest` names. Returns the first damage, unless the snapshot was replaced meanwhile.
    fn damage_of(&self, manifest: &Manifest, bytes_per_second: u64) -> Option<String> {
        let error = check(&self.dir, manifest, bytes_per_second).err()?;
        (!self.has_replaced(manifest)).then(|| error.to_string())
    }

    /// Returns `true` if the current or the published snapshot does not need all files of `manifest`, which may thus
    /// have been removed by right. The published one counts even before it is opened here. After a restore the base is
    /// the same, and the log is a new one.
    fn has_replaced(&self, manifest: &Manifest) -> bool {
        let needed = |now: &Manifest| now.keeps_files_of(manifest);
        !needed(self.current().manifest()) || Manifest::read(&self.dir).is_ok_and(|published| !needed(&published))
    }

    /// Returns `true` if the mapped files are damaged, or new files have taken their places, as by a repair.
    fn needs_reopening(&self) -> bool {
        self.damage().is_some() || !self.current().snapshot.maps_files_in(&self.dir)
    }

    /// Starts a thread that scrubs, waits for `pause`, and begins again, until the index is dropped. A damaged index is
    /// read again sooner, to notice a repair. Between scrubs the thread compares the lengths of the files every second,
    /// since a mapped file that shrinks cannot be searched, and looks for repaired files.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn scrub_in_background(self: &Arc<Self>, bytes_per_second: u64, pause: Duration) -> std::io::Result<()> {
        let watched = Arc::downgrade(self);
        let work = move || loop {
            let Some(live) = watched.upgrade() else { break };
            live.scrub(bytes_per_second);
            // Released while waiting, or the index could not be dropped.
            drop(live);
            let scrubbed = Instant::now();
            let mut due = pause;
            while scrubbed.elapsed() < due {
                thread::sleep(Duration::from_secs(1).min(pause));
                let Some(live) = watched.upgrade() else { return };
                live.check_lengths();
                due = if live.needs_reopening() { pause.min(REPAIRED) } else { pause };
            }
        };
        thread::Builder::new().name("index-scrub".to_owned()).spawn(work).map(drop)
    }

    fn check_lengths(&self) {
        let manifest = self.current().manifest().clone();
        let Err(error) = manifest.verify(&self.dir, Verification::Sizes) else { return };
        let mut known = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, because a snapshot that is installed later clears the damage of this one.
        if self.has_replaced(&manifest) {
            return;
        }
        if known.is_none() {
            tracing::error!(%error, "the index is damaged");
        }
        *known = Some(error.to_string());
    }
}

/// Reads all files of a snapshot at a limited rate. Fails with the first damage.
fn check(dir: &Path, manifest: &Manifest, bytes_per_second: u64) -> Result<(), IndexError> {
    manifest.verify(dir, Verification::Sizes)?;
    let started = Instant::now();
    let mut bytes = 0_u64;
    let mut pace = |read: u64| {
        bytes += read;
        let due = Duration::from_secs_f64(bytes as f64 / bytes_per_second.max(1) as f64);
        thread::sleep(due.saturating_sub(started.elapsed()));
    };
    for (name, sum) in &manifest.files {
        let path = dir.join(name);
        if !sum.damaged(&path, &mut pace)?.is_empty() {
            return sum.check(&path, manifest.base());
        }
    }
    if let Some(delta) = &manifest.delta {
        log::read(&dir.join(&delta.log), delta.bytes, manifest.embedder.dims)?;
        pace(delta.bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::corpus::fake::document;
    use crate::embed::fake::HashEmbed;
    use crate::{BuildOptions, Changes, CommitOptions, Corpus, OpenOptions, build, commit, restore_snapshot};

    fn write(dir: &Path, options: &BuildOptions) {
        let corpus = Corpus::from_documents("test", vec![document("a"), document("b")]);
        build(corpus, &HashEmbed::new(8), dir, options, &()).unwrap();
    }

    /// Folder with an index, and the index opened.
    fn opened() -> (tempfile::TempDir, LiveIndex) {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("index");
        write(&dir, &BuildOptions::default());
        let live = LiveIndex::open(&dir, Arc::new(HashEmbed::new(8)), OpenOptions::default()).unwrap();
        (temp, live)
    }

    #[test]
    fn files_that_another_process_has_replaced_are_no_damage() {
        let (_temp, live) = opened();
        let changes = Changes::upsert([document("c")]);
        commit(live.dir(), &HashEmbed::new(8), changes, &CommitOptions::default(), &()).unwrap();
        assert!(!live.dir().join("snapshot-1").exists());
        live.check_lengths();
        assert_eq!(live.damage(), None);
        assert_eq!((live.scrub(u64::MAX), live.damage()), (None, None));
        assert!(live.refresh().unwrap());
    }

    #[test]
    fn another_snapshot_ends_the_damage_of_the_one_that_it_replaces() {
        let (_temp, live) = opened();
        let name = live.current().manifest().files.keys().next().unwrap().clone();
        std::fs::remove_file(live.dir().join(&name)).unwrap();
        live.check_lengths();
        assert!(live.damage().unwrap().contains(&name), "{:?}", live.damage());
        write(live.dir(), &BuildOptions { replace: true, ..BuildOptions::default() });
        assert!(live.refresh().unwrap());
        assert_eq!(live.damage(), None);
    }

    #[cfg(unix)]
    #[test]
    fn repaired_files_are_opened_although_their_damage_was_not_noticed() {
        let (_temp, live) = opened();
        let path = live.dir().join("snapshot-1/passages.bin");
        let bytes = std::fs::read(&path).unwrap();
        let before = live.current();
        crate::folder::replace_file(&path.with_extension("part"), &path, &bytes).unwrap();
        assert!(live.needs_reopening());
        assert_eq!(live.scrub(u64::MAX), None);
        assert!(!live.needs_reopening());
        assert!(!Arc::ptr_eq(&before, &live.current()), "the replaced file is still searched");
    }

    #[test]
    fn a_log_that_a_restore_has_replaced_is_no_damage() {
        let (_temp, live) = opened();
        let dir = live.dir().to_owned();
        let options = CommitOptions { append_from: 0, ..CommitOptions::default() };
        let add = |id| live.commit(Changes::upsert([document(id)]), &options, &()).unwrap().manifest;
        let scrubbed = add("c");
        let log = dir.join(&scrubbed.delta.as_ref().unwrap().log);
        restore_snapshot(&dir, scrubbed.snapshot, 0).unwrap();
        // Keeps nothing, so that the log from before the restore goes.
        let restored = add("d");
        assert_eq!(restored.base(), scrubbed.base());
        assert!(!log.exists());
        assert_eq!(live.damage_of(&scrubbed, u64::MAX), None);
        let log = dir.join(&restored.delta.as_ref().unwrap().log);
        std::fs::remove_file(&log).unwrap();
        let damage = live.damage_of(&restored, u64::MAX).unwrap();
        assert!(damage.contains(log.to_str().unwrap()), "{damage}");
    }
}
