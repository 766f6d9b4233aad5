//! Changes committed together have the same effect as one after the other, in one snapshot.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::path::Path;
use std::sync::Arc;

use corpora::{HashEmbed, document, numbered, open, small_index};
use waymark_index::{
    BuildOptions, Changes, CommitOptions, CommitReport, Corpus, Document, Extract, IndexError, LiveIndex, OpenOptions,
    Passages, Triple, TripleSink, build,
};

/// Extractor that finds the same triple in every passage.
#[derive(Debug)]
struct Same;

impl Extract for Same {
    fn id(&self) -> String {
        "same".to_owned()
    }

    fn reads_corpus(&self) -> bool {
        false
    }

    fn extract(&self, _: &dyn Passages, numbers: &[u32], sink: &mut TripleSink<'_>) -> Result<(), IndexError> {
        for &number in numbers {
            sink(number, vec![Triple::new("every passage", "is", "the same")])?;
        }
        Ok(())
    }
}

fn live(dir: &Path) -> LiveIndex {
    LiveIndex::open(dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap()
}

fn together(live: &LiveIndex, changes: Vec<Changes>) -> Result<Vec<Result<CommitReport, IndexError>>, IndexError> {
    live.commit_together(changes, &CommitOptions::default(), &())
}

/// Counts of a report, without the snapshot.
fn counts(report: &CommitReport) -> ([u64; 5], bool, Vec<String>) {
    let CommitReport { added, replaced, unchanged, removed, cut, .. } = *report;
    ([added, replaced, unchanged, removed, cut], report.published, report.absent.clone())
}

#[test]
fn they_come_to_what_they_come_to_one_after_the_other() {
    let (_first, first) = small_index(6);
    let (_second, second) = small_index(6);
    let new = |id: &str| document(id, "New", &format!("a new text about {id}"));
    let changes = || {
        vec![
            Changes { delete: vec!["p1".to_owned(), "nobody".to_owned()], ..Changes::upsert([new("x"), new("p3")]) },
            Changes::upsert([numbered(6, "first").remove(0)]),
            Changes::delete(["p4".to_owned()]),
            Changes::upsert([new("y")]),
        ]
    };
    let first = live(&first);
    let second = live(&second);
    let made: Vec<_> = together(&first, changes()).unwrap().into_iter().map(Result::unwrap).collect();
    let one_by_one = |changes| second.commit(changes, &CommitOptions::default(), &()).unwrap();
    let alone: Vec<_> = changes().into_iter().map(one_by_one).collect();
    assert_eq!(made.iter().map(counts).collect::<Vec<_>>(), alone.iter().map(counts).collect::<Vec<_>>());
    assert_eq!(counts(&made[0]), ([1, 1, 0, 1, 0], true, vec!["nobody".to_owned()]));
    assert_eq!(counts(&made[1]), ([0, 0, 1, 0, 0], false, Vec::new()));
    for report in &made {
        assert_eq!((report.manifest.snapshot, report.manifest.passages), (2, 6), "all are told where they are");
    }
    assert_eq!(second.current().manifest().snapshot, 4);
    let documents = |live: &LiveIndex| live.current().documents(None, 100).unwrap().unwrap();
    assert_eq!(documents(&first), documents(&second));
}

#[test]
fn what_is_wrong_with_one_is_told_in_its_place() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let options = BuildOptions { extract: Some(Arc::new(Same)), ..BuildOptions::default() };
    build(Corpus::from_documents("test", numbered(3, "first")), &HashEmbed::default(), &dir, &options, &()).unwrap();
    let live = live(&dir);
    let stated = |id: &str| Document {
        triples: Some(vec![Triple::new("a river", "flows by", id)]),
        ..document(id, "", "a text that brings its triples")
    };
    let changes = vec![
        Changes::upsert([stated("x")]),
        Changes::upsert([document("y", "", "a text that brings none")]),
        Changes::upsert([document("z", "", " ")]),
        Changes::delete(["p0".to_owned()]),
    ];
    let made = together(&live, changes).unwrap();
    assert!(matches!(&made[1], Err(IndexError::NoTriples { id, .. }) if id == "y"), "{:?}", made[1]);
    assert!(matches!(&made[2], Err(IndexError::BadChange { id, .. }) if id == "z"), "{:?}", made[2]);
    assert_eq!(made[0].as_ref().unwrap().added, 1);
    assert_eq!(made[3].as_ref().unwrap().removed, 1);
    let ids: Vec<_> = live.current().documents(None, 9).unwrap().unwrap().into_iter().map(|one| one.id).collect();
    assert_eq!((ids.join(" ").as_str(), live.current().manifest().snapshot), ("p1 p2 x", 2));
}

#[test]
fn the_change_that_would_leave_no_document_is_refused_as_it_comes() {
    let gone = |ids: &[&str]| Changes::delete(ids.iter().map(|&id| id.to_owned()));
    let new = || Changes::upsert([document("x", "", "a new text")]);
    for (changes, made) in [
        (vec![gone(&["p0", "p1"]), new()], vec![false, true]),
        (vec![new(), gone(&["p0", "p1"])], vec![true, true]),
        (vec![gone(&["p0"]), gone(&["p1"]), new()], vec![true, false, true]),
        (vec![gone(&["p0"]), gone(&["p1"])], vec![true, false]),
        (vec![gone(&["p0", "p1"]), gone(&["nobody"])], vec![false, true]),
    ] {
        let (_first, first) = small_index(2);
        let (_second, second) = small_index(2);
        let first = live(&first);
        let second = live(&second);
        let told = together(&first, changes.clone()).unwrap();
        let one_by_one = |changes| second.commit(changes, &CommitOptions::default(), &());
        let alone: Vec<_> = changes.into_iter().map(one_by_one).collect();
        for told in [told, alone] {
            assert_eq!(told.iter().map(Result::is_ok).collect::<Vec<_>>(), made);
            let refused: Vec<_> = told.into_iter().filter_map(Result::err).collect();
            assert!(refused.iter().all(|error| matches!(error, IndexError::Emptied { .. })), "{refused:?}");
        }
        let documents = |live: &LiveIndex| live.current().documents(None, 9).unwrap().unwrap();
        assert_eq!(documents(&first), documents(&second));
    }
}

#[test]
fn what_cannot_be_told_apart_is_not_made_together() {
    let (_temp, dir) = small_index(2);
    let live = live(&dir);
    let new = || Changes::upsert([document("x", "", "a text")]);
    let gone = |id: &str| Changes::delete([id.to_owned()]);
    for (changes, words) in [
        (vec![new(), gone("p0"), new()], "two concurrent changes"),
        (vec![new(), gone("x")], "two concurrent changes"),
        (vec![new(), Changes { mirror: true, ..gone("p0") }], "alone"),
        (vec![Changes { chunked: vec![("p".to_owned(), 1)], ..Changes::default() }, new()], "alone"),
    ] {
        let error = together(&live, changes).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(together(&live, Vec::new()).unwrap().is_empty());
    assert_eq!(open(&dir).unwrap().manifest().snapshot, 1);
    // A single change may be of any kind.
    let mirrored = together(&live, vec![Changes { mirror: true, ..new() }]).unwrap().remove(0).unwrap();
    assert_eq!((mirrored.added, mirrored.removed, mirrored.manifest.passages), (1, 2, 1));
}
