//! An index whose commits append to a log answers like one built from scratch, opened anew, followed live, or merged.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use corpora::{HashEmbed, Pairs, apply, canonical, changes_of, document, document_of, numbered, open, write};
use proptest::prelude::*;
use waymark_index::{
    BuildOptions, Changes, CommitOptions, Condition, Contents, Document, Extract, Index, IndexError, LiveIndex, Mode,
    OpenOptions, Query, Ranking, Triple, commit, repair, restore_snapshot, snapshots,
};

fn appending() -> CommitOptions {
    CommitOptions { append_from: 0, threads: 1, journal: false, ..CommitOptions::default() }
}

const WORDS: &[&str] =
    &["river", "rivers", "city", "old city", "city old", "museum", "painter", "Émile", "1889", "a b", "?"];

fn some_document() -> impl Strategy<Value = Document> {
    document_of(WORDS, 0.6)
}

fn some_changes() -> impl Strategy<Value = Changes> {
    changes_of(some_document())
}

/// Asserts that both indexes answer alike, to the bit, except for the snapshot number.
fn assert_alike(living: &Index, scratch: &Index, told: &str) {
    assert_eq!(living.manifest().graph, scratch.manifest().graph, "{told}");
    assert_eq!(living.manifest().passages, scratch.manifest().passages, "{told}");
    let documents = living.documents(None, 100).unwrap().unwrap();
    assert_eq!(documents, scratch.documents(None, 100).unwrap().unwrap(), "{told}");
    for document in &documents {
        let number = |index: &Index| index.number(&document.id).unwrap().unwrap();
        let triples = |index: &Index| index.graph().map(|graph| graph.triples(number(index)).unwrap());
        assert_eq!(triples(living), triples(scratch), "{told}");
        assert_eq!(living.vector(number(living)), scratch.vector(number(scratch)), "{told}");
        assert_eq!(living.passage(&document.id).unwrap(), scratch.passage(&document.id).unwrap());
    }
    assert_eq!(living.modes(), scratch.modes(), "{told}");
    let noted: Condition =
        serde_json::from_value(serde_json::json!({"key": "note", "type": "eq", "value": "river"})).unwrap();
    let only = [None, Some(Arc::new(noted))];
    for text in ["old river", "painter of the city", "1889 Émile river museum city", "none of these", "?"] {
        for (&mode, only) in living.modes().iter().flat_map(|mode| only.iter().map(move |only| (mode, only))) {
            for ranking in [Ranking::Bm25, Ranking::Dense, Ranking::Fused] {
                let query = Query::new(text, mode, 4).ranking(ranking);
                let query = Query { explain: true, scaled: true, only: only.clone(), ..query };
                let mut found = living.search(&query).unwrap();
                found.snapshot = scratch.manifest().snapshot;
                assert_eq!(found, scratch.search(&query).unwrap(), "{told}: {query:?}");
            }
        }
    }
}

fn opened(dir: &Path, walk_below: usize) -> Index {
    let options = OpenOptions { walk_below, ..OpenOptions::default() };
    Index::open_with(dir, Arc::new(HashEmbed::default()), &options).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn after_any_changes_it_is_as_if_built_from_scratch(
        first in prop::collection::btree_map(0..9_u8, some_document(), 1..6),
        rounds in prop::collection::vec(some_changes(), 1..7),
        extract in prop::option::weighted(0.5, any::<bool>()),
        merge_after in 0..8_usize,
        walk_below in prop_oneof![Just(0_usize), Just(1000)],
    ) {
        let extract = extract.map(|reads_corpus| Arc::new(Pairs { reads_corpus }) as Arc<dyn Extract>);
        let rename = |(id, document)| Document { id: format!("d{id}"), ..document };
        let mut documents: Vec<Document> = first.into_iter().map(rename).collect();
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("living");
        let scratch = temp.path().join("scratch");
        let building = BuildOptions { extract: extract.clone(), threads: 1, journal: false, ..corpora::replacing() };
        let committing = CommitOptions { extract, ..appending() };
        write(&dir, documents.clone(), &building).unwrap();
        let options = OpenOptions { walk_below, ..OpenOptions::default() };
        let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), options.clone()).unwrap();
        let watching = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), options).unwrap();
        for (round, changes) in rounds.into_iter().enumerate() {
            let before = documents.clone();
            apply(&mut documents, &changes);
            let done = live.commit(changes, &committing, &());
            if documents.is_empty() {
                prop_assert!(matches!(done, Err(IndexError::Emptied { .. })), "{:?}", done);
                documents = before;
                continue;
            }
            done.unwrap();
            if round == merge_after {
                live.merge(&committing, None).unwrap();
            }
            if round % 2 == 0 {
                watching.refresh().unwrap();
            }
        }
        watching.refresh().unwrap();
        write(&scratch, documents.clone(), &building).unwrap();
        let scratch = opened(&scratch, walk_below);
        assert_alike(&live.current(), &scratch, "live");
        assert_alike(&watching.current(), &scratch, "followed");
        assert_alike(&opened(&dir, walk_below), &scratch, "opened");
        let exported = Contents::open(&dir).unwrap().documents(true).collect::<Result<Vec<_>, _>>().unwrap();
        prop_assert_eq!(exported.len(), documents.len());
        live.merge(&committing, None).unwrap();
        assert_alike(&live.current(), &scratch, "merged");
        let merged = opened(&dir, walk_below);
        prop_assert!(merged.manifest().delta.is_none());
        prop_assert!(canonical(&merged) == canonical(&scratch), "the files differ");
    }
}

/// Folder with an index over `count` passages.
fn index(count: usize) -> (tempfile::TempDir, std::path::PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    write(&dir, numbered(count, "first"), &BuildOptions::default()).unwrap();
    (temp, dir)
}

/// The scan of codes beside the vector graph finds what a scan of all vectors finds.
#[test]
fn documents_changed_beside_the_vector_graph_are_found_as_by_a_scan() {
    let (_temp, dir) = index(60);
    let open = |exact_below| {
        let options = OpenOptions { exact_below, ..OpenOptions::default() };
        LiveIndex::open(&dir, Arc::new(HashEmbed::default()), options).unwrap()
    };
    let live = open(0);
    let edition = |range: std::ops::Range<usize>, name| numbered(range.end, name).into_iter().skip(range.start);
    let removed = ["p3", "p61", "p7"].map(str::to_owned);
    for changes in [
        Changes::upsert(edition(60..90, "first")),
        Changes::upsert(edition(10..14, "second").chain(edition(70..75, "second"))),
        Changes { delete: removed.to_vec(), ..Changes::upsert(edition(72..74, "third")) },
    ] {
        live.commit(changes, &appending(), &()).unwrap();
        let scanned = open(usize::MAX);
        for i in (0..90).step_by(3) {
            let text = format!("number{i} of the second edition");
            let query = Query::new(text, Mode::Passage, 12).ranking(Ranking::Dense);
            let found = live.current().search(&query).unwrap();
            assert_eq!(found, scanned.current().search(&query).unwrap());
            assert!(found.hits.iter().all(|hit| live.current().passage(&hit.passage.id).unwrap().is_some()));
        }
    }
}

fn add(dir: &Path, id: &str, options: &CommitOptions) -> u64 {
    let changes = Changes::upsert([document(id, id, &format!("the text of {id}"))]);
    commit(dir, &HashEmbed::default(), changes, options, &()).unwrap().manifest.snapshot
}

#[test]
fn a_commit_writes_what_it_changes() {
    let (_temp, dir) = index(400);
    let size = |dir: &Path| corpora::files(dir).iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>();
    let before = size(&dir);
    let base: Vec<_> = corpora::files(&dir.join("snapshot-1"));
    add(&dir, "new", &appending());
    assert!(size(&dir) < before + 4096, "{} bytes after {before}", size(&dir));
    assert_eq!(corpora::files(&dir.join("snapshot-1")), base);
    let found = open(&dir).unwrap().search(&Query::new("text of new", Mode::Passage, 1)).unwrap();
    assert_eq!(found.hits[0].passage.id, "new");
}

#[test]
fn kept_snapshots_are_listed_searched_and_restored() {
    let (_temp, dir) = index(20);
    let options = CommitOptions { keep: 3, ..appending() };
    let numbers: Vec<u64> = (0..5).map(|i| add(&dir, &format!("new{i}"), &options)).collect();
    let listed = || snapshots(&dir).unwrap().into_iter().map(|s| (s.number, s.passages, s.current)).collect::<Vec<_>>();
    assert_eq!(
        listed(),
        [(numbers[4], 25, true), (numbers[3], 24, false), (numbers[2], 23, false), (numbers[1], 22, false)]
    );
    let at = |number| Index::open_snapshot(&dir, number, Arc::new(HashEmbed::default()), &OpenOptions::default());
    assert!(at(numbers[2]).unwrap().passage("new2").unwrap().is_some());
    assert!(at(numbers[2]).unwrap().passage("new3").unwrap().is_none());
    assert!(matches!(at(numbers[0]), Err(IndexError::NoSnapshot { .. })));

    let restored = restore_snapshot(&dir, numbers[2], 3).unwrap();
    assert_eq!((restored.passages, restored.snapshot), (23, numbers[4] + 1));
    let later = add(&dir, "later", &options);
    assert!(open(&dir).unwrap().passage("new3").unwrap().is_none());
    // Commits after a restore overwrite nothing that newer kept snapshots need.
    assert!(at(numbers[4]).unwrap().passage("new4").unwrap().is_some());
    restore_snapshot(&dir, numbers[4], 3).unwrap();
    let index = open(&dir).unwrap();
    assert!(index.passage("new4").unwrap().is_some() && index.passage("later").unwrap().is_none());
    assert!(listed().iter().any(|(number, _, _)| *number == later));
    // A merge keeps them too; afterwards fewer are kept, and their files go.
    let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    assert!(live.merge(&options, None).unwrap());
    assert!(at(later).unwrap().passage("later").unwrap().is_some());
    add(&dir, "last", &CommitOptions { keep: 0, ..options });
    assert_eq!(listed().len(), 1);
    add(&dir, "really last", &appending());
    assert!(!dir.join("snapshot-1").exists(), "what no manifest names goes");
}

#[test]
fn a_kept_manifest_that_cannot_be_read_loses_no_file_of_its_snapshot() {
    let (_temp, dir) = index(20);
    let keeping = |keep| CommitOptions { keep, ..appending() };
    let old = add(&dir, "old", &keeping(1));
    // Writes a new base, so that only the kept manifest names the first base and its log.
    add(&dir, "new", &CommitOptions { append_from: u64::MAX, ..keeping(1) });
    let path = dir.join(format!("history/manifest-{old}.json"));
    let manifest = fs::read(&path).unwrap();
    fs::write(&path, &manifest[..manifest.len() / 2]).unwrap();
    add(&dir, "later", &keeping(2));
    fs::write(&path, manifest).unwrap();
    restore_snapshot(&dir, old, 3).unwrap();
    let index = open(&dir).unwrap();
    assert!(index.passage("old").unwrap().is_some() && index.passage("new").unwrap().is_none());
    // Once the manifest is no longer kept, the files go.
    add(&dir, "last", &CommitOptions { append_from: u64::MAX, ..keeping(1) });
    let base = dir.join("snapshot-1");
    assert!(base.exists(), "the restored snapshot is kept");
    fs::write(dir.join(format!("history/manifest-{old}.json")), "{").unwrap();
    add(&dir, "really last", &keeping(0));
    assert!(!base.exists());
}

#[test]
fn a_kept_manifest_of_another_index_gives_way_to_the_own_one_of_its_number() {
    let (_temp, dir) = index(20);
    let (_temp, other) = index(30);
    let options = CommitOptions { keep: 3, ..appending() };
    let number = add(&dir, "own", &options);
    assert_eq!(add(&other, "foreign", &options), number);
    let own = fs::read(dir.join("manifest.json")).unwrap();
    let kept = dir.join(format!("history/manifest-{number}.json"));
    // As after a pull that has replaced an index with a history.
    fs::copy(other.join("manifest.json"), &kept).unwrap();
    add(&dir, "later", &options);
    assert!(fs::read(&kept).unwrap() == own, "the kept manifest is not that of the snapshot");
    restore_snapshot(&dir, number, 3).unwrap();
    let index = open(&dir).unwrap();
    assert!(index.passage("own").unwrap().is_some() && index.passage("later").unwrap().is_none());
}

#[test]
fn after_a_pull_the_replaced_snapshot_is_kept_below_larger_numbers_of_another_index() {
    for keep in [1, 3] {
        let (_temp, dir) = index(20);
        let (_temp, other) = index(30);
        let options = CommitOptions { keep, ..appending() };
        let number = add(&dir, "own", &options);
        // As after a pull that has replaced an index with a history.
        fs::copy(other.join("manifest.json"), dir.join("history/manifest-99.json")).unwrap();
        assert_eq!(add(&dir, "later", &options), 100);
        assert!(snapshots(&dir).unwrap().iter().any(|snapshot| snapshot.number == number));
        assert_eq!(restore_snapshot(&dir, number, keep).unwrap().snapshot, 101);
        let index = open(&dir).unwrap();
        assert!(index.passage("own").unwrap().is_some() && index.passage("later").unwrap().is_none());
    }
}

#[test]
fn a_change_that_is_too_large_for_the_log_is_written_with_the_index() {
    let (_temp, dir) = index(20);
    let options = CommitOptions { append_up_to: 1000, ..appending() };
    add(&dir, "small", &options);
    assert!(open(&dir).unwrap().manifest().delta.is_some());
    let large = document("large", "Large", &"word ".repeat(200));
    let report = commit(&dir, &HashEmbed::default(), Changes::upsert([large]), &options, &()).unwrap();
    assert!(report.manifest.delta.is_none());
    let index = open(&dir).unwrap();
    assert!(["small", "large"].iter().all(|id| index.passage(id).unwrap().is_some()));
}

#[test]
fn commits_made_during_a_merge_are_carried_over() {
    let (_temp, dir) = index(300);
    let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    let mut number = 0;
    let mut one_more = |live: &LiveIndex| {
        let id = format!("n{number}");
        let triples = vec![Triple::new(id.as_str(), "follows", format!("n{}", number / 2))];
        let new = Document { triples: Some(triples), ..document(&id, &id, &format!("text {id}")) };
        number += 1;
        live.commit(Changes::upsert([new]), &appending(), &()).unwrap();
        number
    };
    // The first commit with triples gives the index its graph, which needs a new base snapshot.
    let mut added = 0;
    while added < 20 {
        added = one_more(&live);
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    let added = std::thread::scope(|scope| {
        let merging = scope.spawn(|| {
            let merged = live.merge(&appending(), None);
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            merged
        });
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            added = one_more(&live);
        }
        assert!(merging.join().unwrap().unwrap());
        added
    });
    for index in [&*live.current(), &open(&dir).unwrap()] {
        assert_eq!(index.manifest().passages, 300 + added as u64);
        assert!((0..added).all(|i| index.passage(&format!("n{i}")).unwrap().is_some()));
        let facts = index.manifest().graph.as_ref().unwrap().facts;
        assert_eq!(facts, added as u64);
    }
}

#[test]
fn a_commit_is_searched_when_it_returns_while_another_thread_follows_the_index() {
    let (_temp, dir) = index(300);
    let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    let add = |i: usize| {
        let id = format!("n{i}");
        let triples = vec![Triple::new(id.as_str(), "follows", "a river")];
        let new = Document { triples: Some(triples), ..document(&id, &id, &format!("text {id}")) };
        let report = live.commit(Changes::upsert([new]), &appending(), &());
        report.map(|report| (report.manifest.snapshot, live.current().manifest().snapshot))
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    let searched = std::thread::scope(|scope| {
        let following = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                live.refresh().unwrap();
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        let searched: Result<Vec<(u64, u64)>, IndexError> = (0..20).map(add).collect();
        // Set before the results are looked at, so that the other thread ends after a failure, too.
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        following.join().unwrap();
        searched.unwrap()
    });
    assert!(searched.iter().all(|(published, current)| published == current), "{searched:?}");
    assert!(!live.refresh().unwrap());
    assert_eq!(live.current().manifest().passages, 320);
}

#[test]
fn damage_gets_no_fresh_checksum() {
    for name in ["vectors.bin", "graph/triples.bin"] {
        let (_temp, dir) = index(300);
        let given = Some(vec![Triple::new("a city", "has", "a river")]);
        let with = |id: &str| Changes::upsert([Document { triples: given.clone(), ..document(id, id, "text") }]);
        commit(&dir, &HashEmbed::default(), with("a"), &appending(), &()).unwrap();
        let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
        let path = dir.join("snapshot-2").join(name);
        let mut bytes = fs::read(&path).unwrap();
        let place = bytes.len() / 3;
        bytes[place] ^= 1;
        // In place, as a failing disk does it.
        fs::write(&path, bytes).unwrap();
        live.commit(with("b"), &appending(), &()).unwrap();
        let manifest = fs::read(dir.join("manifest.json")).unwrap();
        let error = live.merge(&appending(), None).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        let error = live.commit(with("c"), &CommitOptions { append_from: 9999, ..appending() }, &()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(fs::read(dir.join("manifest.json")).unwrap(), manifest, "nothing was published");
    }
}

fn copy(from: &Path, to: &Path) {
    for file in corpora::files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn what_is_mapped_gets_no_fresh_checksum_after_a_repair() {
    for merged in [false, true] {
        let (temp, dir) = index(300);
        add(&dir, "new", &appending());
        let replica = temp.path().join("replica");
        copy(&dir, &replica);
        let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
        let text = |index: &Index| index.passage("p0").unwrap().unwrap().text;
        let whole = text(&live.current());
        let path = dir.join("snapshot-1/passages.bin");
        let mut bytes = fs::read(&path).unwrap();
        let place = bytes.windows(whole.len()).position(|part| part == whole.as_bytes()).unwrap();
        bytes[place] = b'?';
        // In place, as a failing disk does it.
        fs::write(&path, bytes).unwrap();
        assert_eq!(repair(&dir, &replica).unwrap().replaced.len(), 1);
        assert_ne!(text(&live.current()), whole);
        if merged {
            assert!(live.merge(&appending(), None).unwrap());
        } else {
            let changes = Changes::upsert([document("newer", "newer", "the text of newer")]);
            live.commit(changes, &CommitOptions { append_from: 9999, ..appending() }, &()).unwrap();
        }
        assert!(live.current().manifest().delta.is_none());
        assert_eq!((text(&live.current()), text(&open(&dir).unwrap())), (whole.clone(), whole));
    }
}

#[test]
fn a_scrub_names_the_damage_and_a_copy_repairs_it() {
    let (temp, dir) = index(300);
    add(&dir, "new", &appending());
    let replica = temp.path().join("replica");
    copy(&dir, &replica);
    let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    assert_eq!((live.scrub(u64::MAX), live.state().damaged), (None, false));
    let flip = |name: &str| {
        let mut bytes = fs::read(dir.join(name)).unwrap();
        let place = bytes.len() - 9;
        bytes[place] ^= 16;
        fs::write(dir.join(name), bytes).unwrap();
    };
    let log = live.current().manifest().delta.as_ref().unwrap().log.clone();
    for name in ["snapshot-1/vectors.bin", log.as_str(), "snapshot-1/passages.bin"] {
        flip(name);
        let damage = live.scrub(u64::MAX).unwrap();
        assert!(damage.contains(name) && live.state().damaged, "{damage}");
        // A copy that is damaged in the same place repairs nothing.
        fs::rename(replica.join(name), temp.path().join("good")).unwrap();
        fs::copy(dir.join(name), replica.join(name)).unwrap();
        repair(&dir, &replica).unwrap_err();
        fs::rename(temp.path().join("good"), replica.join(name)).unwrap();
        let report = repair(&dir, &replica).unwrap();
        assert_eq!(report.replaced.len(), 1, "{report:?}");
        let before = live.current();
        assert_eq!((live.scrub(u64::MAX), live.state().damaged), (None, false));
        assert!(!Arc::ptr_eq(&before, &live.current()), "the damaged files are still searched");
        open(&dir).unwrap();
    }
}

#[test]
fn a_copy_that_is_a_commit_behind_repairs_its_part_of_the_log() {
    let (temp, dir) = index(9);
    add(&dir, "first", &appending());
    let backup = temp.path().join("backup");
    copy(&dir, &backup);
    add(&dir, "second", &appending());
    let log = dir.join(&open(&dir).unwrap().manifest().delta.as_ref().unwrap().log);
    let whole = fs::read(&log).unwrap();
    let flip = |place: usize| {
        let mut bytes = whole.clone();
        bytes[place] ^= 16;
        fs::write(&log, bytes).unwrap();
    };
    // The copy does not have the second record.
    flip(whole.len() - 9);
    let error = repair(&dir, &backup).unwrap_err().to_string();
    assert!(error.contains(log.to_str().unwrap()), "{error}");
    flip(20);
    assert!(open(&dir).is_err());
    assert_eq!(repair(&dir, &backup).unwrap().replaced.len(), 1);
    assert!(fs::read(&log).unwrap() == whole);
    let repaired = open(&dir).unwrap();
    for id in ["first", "second"] {
        assert!(repaired.number(id).unwrap().is_some(), "{id}");
    }
}
