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
    /// files were repaired, the index is opened again.
    pub fn scrub(&self, bytes_per_second: u64) -> Option<String> {
        let manifest = self.current().manifest().clone();
        let mut damage = self.damage_of(&manifest, bytes_per_second);
        if damage.is_none() && self.damage().is_some() && !self.has_replaced(&manifest) {
            // Repaired files are new files: those that are mapped are still the damaged ones.
            damage = self.reopen().err().map(|error| error.to_string());
        }
        let mut known = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Returns `true` if the current snapshot has another base or another log than `manifest`, whose files may thus have
    /// been removed by right. After a restore the base is the same, and the log is a new one.
    fn has_replaced(&self, manifest: &Manifest) -> bool {
        let current = self.current();
        let now = current.manifest();
        let log = |manifest: &Manifest| manifest.delta.as_ref().map(|delta| delta.log.clone());
        now.base() != manifest.base() || (manifest.delta.is_some() && log(now) != log(manifest))
    }

    /// Starts a thread that scrubs, waits for `pause`, and begins again, until the index is dropped. A damaged index is
    /// read again sooner, to notice a repair. Between scrubs the thread compares the lengths of the files every second,
    /// since a mapped file that shrinks cannot be searched.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn scrub_in_background(self: &Arc<Self>, bytes_per_second: u64, pause: Duration) -> std::io::Result<()> {
        let watched = Arc::downgrade(self);
        let work = move || loop {
            let Some(live) = watched.upgrade() else { break };
            let damaged = live.scrub(bytes_per_second).is_some();
            // Released while waiting, or the index could not be dropped.
            drop(live);
            let end = Instant::now() + if damaged { pause.min(REPAIRED) } else { pause };
            while Instant::now() < end {
                thread::sleep(Duration::from_secs(1).min(pause));
                let Some(live) = watched.upgrade() else { return };
                live.check_lengths();
            }
        };
        thread::Builder::new().name("index-scrub".to_owned()).spawn(work).map(drop)
    }

    fn check_lengths(&self) {
        let manifest = self.current().manifest().clone();
        let Err(error) = manifest.verify(&self.dir, Verification::Sizes) else { return };
        // A snapshot that was replaced meanwhile may have lost its files by right.
        if self.current().manifest().base() == manifest.base() {
            let mut known = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
            if known.is_none() {
                tracing::error!(%error, "the index is damaged");
            }
            *known = Some(error.to_string());
        }
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
    use crate::embed::fake::HashEmbed;
    use crate::{BuildOptions, Changes, CommitOptions, Corpus, Document, OpenOptions, build, restore_snapshot};

    fn document(id: &str) -> Document {
        let text = format!("the text of {id}");
        Document { id: id.to_owned(), title: String::new(), text, triples: None, metadata: None }
    }

    #[test]
    fn a_log_that_a_restore_has_replaced_is_no_damage() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("index");
        let corpus = Corpus::from_documents("test", vec![document("a"), document("b")]);
        build(corpus, &HashEmbed::new(8), &dir, &BuildOptions::default(), &()).unwrap();
        let live = LiveIndex::open(&dir, Arc::new(HashEmbed::new(8)), OpenOptions::default()).unwrap();
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
