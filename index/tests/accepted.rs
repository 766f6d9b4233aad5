//! A change that was accepted before its commit is committed once, wherever a process ends.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use corpora::{HashEmbed, document, small_index};
use waymark_index::{
    Changes, CommitOptions, CommitReport, IndexError, LiveIndex, OpenOptions, PendingChange, PendingChanges, commit,
    restore_snapshot,
};

/// Commits that append to the log, and commits that write the index anew.
const APPEND_FROM: [u64; 2] = [0, u64::MAX];

fn options(append_from: u64) -> CommitOptions {
    CommitOptions { append_from, threads: 1, journal: false, ..CommitOptions::default() }
}

fn open(dir: &Path) -> LiveIndex {
    LiveIndex::open(dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap()
}

/// Change of the document `x`.
fn edition(name: &str) -> Changes {
    Changes::upsert([document("x", "", &format!("the {name} text"))])
}

fn accept(dir: &Path, id: &str, changes: Changes) {
    let (pending, _) = PendingChanges::open(dir).unwrap();
    pending.add(&PendingChange { id: id.to_owned(), owner: None, changes }).unwrap();
}

/// Commits all accepted changes together. Their files stay, as if the process were killed before it removes them.
fn resume(live: &LiveIndex, options: &CommitOptions) -> Vec<Result<CommitReport, IndexError>> {
    let (_, left) = PendingChanges::open(live.dir()).unwrap();
    let changes = left.into_iter().map(|(file, change)| (change.changes, Some(file))).collect();
    live.commit_accepted(changes, options, &()).unwrap()
}

fn remove_all(dir: &Path) {
    let (pending, left) = PendingChanges::open(dir).unwrap();
    left.iter().for_each(|(file, _)| pending.remove(file));
}

fn text(live: &LiveIndex) -> String {
    live.current().passage("x").unwrap().unwrap().text
}

#[test]
fn a_committed_change_does_not_undo_later_ones() {
    for append_from in APPEND_FROM {
        for later in 0..3 {
            let options = options(append_from);
            let (_temp, dir) = small_index(3);
            accept(&dir, "commit-1", edition("first"));
            let report = resume(&open(&dir), &options).remove(0).unwrap();
            assert_eq!((report.published, report.added), (true, 1));
            for number in 0..later {
                let changes = edition(&format!("later{number}"));
                commit(&dir, &HashEmbed::default(), changes, &options, &()).unwrap();
            }
            let live = open(&dir);
            let before = text(&live);
            for _ in 0..2 {
                let report = resume(&live, &options).remove(0).unwrap();
                assert_eq!((report.published, report.added, report.replaced), (false, 0, 0));
            }
            assert_eq!(text(&live), before, "{later} later changes");
        }
    }
}

#[test]
fn a_committed_change_is_not_made_again_after_a_merge_or_a_restore() {
    let options = CommitOptions { keep: 3, ..options(0) };
    let (_temp, dir) = small_index(3);
    let before = commit(&dir, &HashEmbed::default(), edition("old"), &options, &()).unwrap().manifest.snapshot;
    accept(&dir, "commit-1", edition("first"));
    let live = open(&dir);
    assert!(resume(&live, &options)[0].as_ref().unwrap().published);
    assert!(live.merge(&options, None).unwrap());
    restore_snapshot(&dir, before, 3).unwrap();
    assert!(!resume(&live, &options)[0].as_ref().unwrap().published);
    assert_eq!(text(&live), "the old text");
}

/// Two processes may find the same accepted change.
#[test]
fn a_change_that_another_process_has_finished_is_not_made_again() {
    let options = options(0);
    let (_temp, dir) = small_index(3);
    accept(&dir, "commit-1", edition("first"));
    let (file, change) = PendingChanges::open(&dir).unwrap().1.remove(0);
    let other = open(&dir);
    assert!(resume(&other, &options)[0].as_ref().unwrap().published);
    remove_all(&dir);
    // The next commit forgets the change, since its file is gone.
    other.commit(edition("later"), &options, &()).unwrap();
    other.commit(edition("latest"), &options, &()).unwrap();
    let live = open(&dir);
    let taken = live.commit_accepted(vec![(change.changes, Some(file))], &options, &()).unwrap().remove(0).unwrap_err();
    assert!(matches!(taken, IndexError::Taken { id } if id == "commit-1"));
    assert_eq!(text(&live), "the latest text");
}

#[test]
fn a_change_whose_commit_was_not_published_is_made() {
    for append_from in APPEND_FROM {
        let options = options(append_from);
        let (_temp, dir) = small_index(3);
        accept(&dir, "commit-1", edition("first"));
        let live = open(&dir);
        // Ends the commit after it has announced its changes, and before its manifest is there.
        let part = dir.join("manifest.json.part");
        fs::create_dir(&part).unwrap();
        let left = PendingChanges::open(&dir).unwrap().1.remove(0);
        let failed = live.commit_accepted(vec![(left.1.changes, Some(left.0))], &options, &());
        assert!(failed.unwrap_err().to_string().contains("manifest.json.part"));
        assert!(dir.join("pending/finished.json").exists());
        fs::remove_dir(&part).unwrap();
        // Where commits append, this one gets the number that was announced, and a manifest with the same content.
        let report = commit(&dir, &HashEmbed::default(), edition("other"), &options, &()).unwrap();
        assert!(report.published);
        assert!(resume(&live, &options)[0].as_ref().unwrap().published);
        assert_eq!(text(&live), "the first text");
    }
}

#[test]
fn a_change_without_effect_does_not_undo_later_ones() {
    let options = options(0);
    let (_temp, dir) = small_index(3);
    let live = open(&dir);
    live.commit(edition("first"), &options, &()).unwrap();
    accept(&dir, "commit-1", edition("first"));
    assert!(!resume(&live, &options)[0].as_ref().unwrap().published);
    live.commit(edition("second"), &options, &()).unwrap();
    assert!(!resume(&live, &options)[0].as_ref().unwrap().published);
    assert_eq!(text(&live), "the second text");
}

#[test]
fn a_refused_change_is_not_recorded_as_committed() {
    let options = options(0);
    let (_temp, dir) = small_index(3);
    let live = open(&dir);
    accept(&dir, "commit-1", edition("first"));
    accept(&dir, "commit-2", Changes::upsert([document("y", "", " ")]));
    for published in [true, false] {
        let reports = resume(&live, &options);
        assert_eq!(reports[0].as_ref().unwrap().published, published);
        assert!(matches!(&reports[1], Err(IndexError::BadChange { id, .. }) if id == "y"), "{:?}", reports[1]);
    }
}

#[test]
fn a_record_ends_with_the_files_of_its_changes() {
    let options = options(0);
    let (_temp, dir) = small_index(3);
    let live = open(&dir);
    let record = dir.join("pending/finished.json");
    live.commit(edition("old"), &options, &()).unwrap();
    assert!(!dir.join("pending").exists(), "nothing was accepted");
    accept(&dir, "commit-1", edition("first"));
    resume(&live, &options);
    remove_all(&dir);
    // The file has the same name as the one before, so that only its ID tells it apart.
    accept(&dir, "commit-2", edition("second"));
    assert!(resume(&live, &options)[0].as_ref().unwrap().published);
    assert_eq!(text(&live), "the second text");
    assert!(record.exists());
    remove_all(&dir);
    live.commit(edition("third"), &options, &()).unwrap();
    assert!(!record.exists());
    // A damaged record costs no commit.
    fs::write(&record, "{").unwrap();
    accept(&dir, "commit-3", edition("fourth"));
    assert!(resume(&live, &options)[0].as_ref().unwrap().published);
    assert!(!resume(&live, &options)[0].as_ref().unwrap().published);
}
