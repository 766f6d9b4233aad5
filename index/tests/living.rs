//! An index after commits answers like one built from scratch, and repeats no work.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use corpora::{
    HashEmbed, Pairs, apply, canonical, changes_of, document, document_of, files, numbered, open, small_index, write,
};
use proptest::prelude::*;
use waymark_index::openie::Builtin;
use waymark_index::{
    BuildOptions, BuildPhase, BuildProgress, Changes, CommitOptions, CommitReport, Corpus, Document, Embed, EmbedError,
    Extract, Index, IndexError, LiveIndex, LiveState, Mode, OpenOptions, Query, Ranking, Triple, build, commit,
};

fn changed(dir: &Path, changes: Changes) -> CommitReport {
    commit(dir, &HashEmbed::default(), changes, &CommitOptions::default(), &()).unwrap()
}

const WORDS: &[&str] = &["river", "rivers", "city", "old city", "museum", "painter", "Émile", "1889"];

fn some_document() -> impl Strategy<Value = Document> {
    document_of(WORDS, 0.4)
}

fn some_changes() -> impl Strategy<Value = Changes> {
    changes_of(some_document())
}

/// Documents with repeated triples removed.
fn said_once(documents: &[Document]) -> Vec<Document> {
    let once = |triples: &Vec<Triple>| -> Vec<Triple> {
        let first = |&place: &usize| triples.iter().position(|triple| *triple == triples[place]) == Some(place);
        (0..triples.len()).filter(first).map(|place| triples[place].clone()).collect()
    };
    let document = |document: &Document| Document { triples: document.triples.as_ref().map(once), ..document.clone() };
    documents.iter().map(document).collect()
}

/// Asserts that both indexes answer alike, except for the snapshot number.
fn assert_same(living: &Index, scratch: &Index) {
    assert!(canonical(living) == canonical(scratch), "the files differ");
    assert_eq!(living.manifest().graph, scratch.manifest().graph);
    assert_eq!(living.documents(None, 100).unwrap(), scratch.documents(None, 100).unwrap());
    for number in 0..living.manifest().passages as u32 {
        let triples = |index: &Index| index.graph().map(|graph| graph.triples(number).unwrap());
        assert_eq!(triples(living), triples(scratch));
    }
    assert_eq!(living.modes(), scratch.modes());
    for text in ["old river", "painter of the city", "1889 Émile", "none of these"] {
        for &mode in living.modes() {
            for ranking in [Ranking::Bm25, Ranking::Dense, Ranking::Fused] {
                let query = Query::new(text, mode, 4).ranking(ranking);
                let mut found = living.search(&query).unwrap();
                found.snapshot = scratch.manifest().snapshot;
                assert_eq!(found, scratch.search(&query).unwrap(), "{query:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn after_any_changes_it_is_as_if_built_from_scratch(
        first in prop::collection::btree_map(0..9_u8, some_document(), 1..6),
        rounds in prop::collection::vec(some_changes(), 1..5),
        extract in prop::option::weighted(0.7, any::<bool>()),
    ) {
        let extract = extract.map(|reads_corpus| Arc::new(Pairs { reads_corpus }) as Arc<dyn Extract>);
        let rename = |(id, document)| Document { id: format!("d{id}"), ..document };
        let mut documents: Vec<Document> = first.into_iter().map(rename).collect();
        let temp = tempfile::tempdir().unwrap();
        let living = temp.path().join("living");
        let scratch = temp.path().join("scratch");
        let building = BuildOptions { extract: extract.clone(), threads: 1, journal: false, ..corpora::replacing() };
        let committing = CommitOptions { extract, threads: 1, journal: false, ..CommitOptions::default() };
        write(&living, documents.clone(), &building).unwrap();
        for changes in rounds {
            let before = documents.clone();
            apply(&mut documents, &changes);
            let done = commit(&living, &HashEmbed::default(), changes, &committing, &());
            if documents.is_empty() {
                prop_assert!(matches!(done, Err(IndexError::Emptied { .. })), "{:?}", done);
                documents = before;
                continue;
            }
            prop_assert_eq!(done.unwrap().published, said_once(&documents) != said_once(&before));
        }
        write(&scratch, documents, &building).unwrap();
        assert_same(&open(&living).unwrap(), &open(&scratch).unwrap());
    }
}

#[test]
fn a_report_says_what_was_done() {
    let (_temp, dir) = small_index(5);
    let mut second = numbered(7, "second");
    second[0] = numbered(1, "first").remove(0);
    let mut changes = Changes::upsert(second.into_iter().filter(|document| document.id != "p3"));
    // IDs that are given twice count once.
    changes.delete = ["p3", "nobody", "p3", "nobody"].map(str::to_owned).to_vec();
    let report = changed(&dir, changes);
    assert_eq!((report.added, report.replaced, report.unchanged, report.removed), (2, 3, 1, 1));
    assert_eq!((report.absent, report.published), (vec!["nobody".to_owned()], true));
    assert_eq!((report.manifest.snapshot, report.manifest.passages), (2, 6));
    let ids = |index: &Index| -> Vec<String> {
        index.documents(None, 10).unwrap().unwrap().into_iter().map(|document| document.id).collect()
    };
    let index = open(&dir).unwrap();
    assert_eq!(ids(&index), ["p0", "p1", "p2", "p4", "p5", "p6"]);
    assert_eq!(index.documents(Some("p4"), 1).unwrap().unwrap()[0].id, "p5");
    assert_eq!(index.documents(Some("p3"), 1).unwrap(), None);
}

#[test]
fn changes_that_come_to_nothing_publish_nothing() {
    let (_temp, dir) = small_index(5);
    let before = files(&dir);
    for changes in [Changes::default(), Changes::delete(["nobody".to_owned()]), Changes::upsert(numbered(3, "first"))] {
        let report = changed(&dir, changes);
        assert_eq!((report.published, report.manifest.snapshot), (false, 1));
    }
    assert_eq!(files(&dir), before);

    // Repeated triples are stored once, and adding the repetitions again is no change.
    let said = Triple::new("Title0", "tells of", "topic0");
    let twice =
        || Changes::upsert([Document { triples: Some(vec![said.clone(); 2]), ..numbered(1, "first").remove(0) }]);
    assert!(changed(&dir, twice()).published);
    let again = changed(&dir, twice());
    assert_eq!((again.published, again.unchanged), (false, 1));
}

#[test]
fn what_cannot_be_removed_stops_no_change() {
    let (_temp, dir) = small_index(5);
    // Removing this as a folder fails, as on a network file system while somebody reads a file in it.
    fs::write(dir.join("snapshot-7"), "").unwrap();
    for (id, snapshot) in [("new", 8), ("newer", 9)] {
        let report = changed(&dir, Changes::upsert([document(id, "New", &format!("a {id} text"))]));
        assert_eq!((report.published, report.manifest.snapshot), (true, snapshot));
        assert!(!dir.join(".embeddings").exists(), "the journal goes all the same");
    }
    assert!(!dir.join("snapshot-1").exists() && !dir.join("snapshot-8").exists(), "what can go goes");
}

#[test]
fn changes_that_make_no_sense_are_refused_whole() {
    let (temp, dir) = small_index(5);
    let before = files(&dir);
    let ids = |range: std::ops::Range<usize>| range.map(|i| format!("p{i}"));
    let both = Changes { delete: vec!["x".to_owned()], ..Changes::upsert([document("x", "", "text")]) };
    for (changes, words) in [
        (Changes::upsert([document("x", "", "a"), document("x", "", "b")]), "twice"),
        (Changes::upsert([document("", "", "a")]), "id is empty"),
        (Changes::upsert([document("x", "title", " \n")]), "text is empty"),
        (both, "both added and removed"),
        (Changes::delete(ids(0..5)), "without a document"),
    ] {
        let done = commit(&dir, &HashEmbed::default(), changes, &CommitOptions::default(), &());
        let error = done.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(files(&dir), before);
    let absent = temp.path().join("absent");
    let done = commit(&absent, &HashEmbed::default(), Changes::default(), &CommitOptions::default(), &());
    assert!(matches!(done, Err(IndexError::NoIndex { .. })) && !absent.exists());
    let other = HashEmbed { id: "other", dims: 64 };
    let done = commit(&dir, &other, Changes::default(), &CommitOptions::default(), &());
    assert!(matches!(done, Err(IndexError::Embedder { .. })));
}

#[test]
fn documents_without_triples_need_somebody_to_ask() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let extract = Arc::new(Pairs { reads_corpus: false });
    write(&dir, numbered(3, "first"), &BuildOptions { extract: Some(extract.clone()), ..BuildOptions::default() })
        .unwrap();
    let plain = Changes::upsert([document("x", "X", "one two three")]);
    let refused = commit(&dir, &HashEmbed::default(), plain.clone(), &CommitOptions::default(), &()).unwrap_err();
    assert!(
        matches!(&refused, IndexError::NoTriples { id, extractor } if id == "x" && extractor == "pairs"),
        "{refused}"
    );

    let triples = |index: &Index, number| index.graph().unwrap().triples(number).unwrap();
    let first = triples(&open(&dir).unwrap(), 0);
    let given =
        Document { triples: Some(vec![Triple::new("X", "is", "given")]), ..document("x", "X", "one two three") };
    let report = changed(&dir, Changes::upsert([given]));
    assert_eq!(report.manifest.graph.unwrap().source, "corpus and pairs");
    let options = CommitOptions { bare: true, ..CommitOptions::default() };
    commit(&dir, &HashEmbed::default(), plain.clone(), &options, &()).unwrap();
    assert_eq!(triples(&open(&dir).unwrap(), 3), []);
    changed(&dir, Changes::delete(["x".to_owned()]));
    let options = CommitOptions { extract: Some(extract), ..CommitOptions::default() };
    let report = commit(&dir, &HashEmbed::default(), plain, &options, &()).unwrap();
    let index = open(&dir).unwrap();
    assert_eq!((triples(&index, 0), triples(&index, 3).len()), (first, 2));
    assert_eq!(report.manifest.graph.unwrap().source, "pairs");
}

#[test]
fn a_document_whose_text_stays_needs_nobody_to_ask() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let extract = Arc::new(Pairs { reads_corpus: false });
    write(&dir, numbered(3, "first"), &BuildOptions { extract: Some(extract), ..BuildOptions::default() }).unwrap();
    let triples = |index: &Index| index.graph().unwrap().triples(1).unwrap();
    let before = triples(&open(&dir).unwrap());
    let metadata = Some([("note".to_owned(), "new".into())].into_iter().collect());
    let noted = Document { metadata, ..numbered(3, "first").remove(1) };
    let report = changed(&dir, Changes::upsert([noted.clone()]));
    assert_eq!((report.replaced, report.published), (1, true));
    let index = open(&dir).unwrap();
    assert_eq!(index.passage("p1").unwrap(), Some(noted.clone()));
    assert!(!before.is_empty() && triples(&index) == before);
    // Another text has to be extracted.
    let other = Changes::upsert([Document { text: "another text".to_owned(), ..noted }]);
    let refused = commit(&dir, &HashEmbed::default(), other, &CommitOptions::default(), &()).unwrap_err();
    assert!(matches!(&refused, IndexError::NoTriples { id, .. } if id == "p1"), "{refused}");
}

#[test]
fn the_built_in_extractor_is_asked_beside_another_source() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let scratch = temp.path().join("scratch");
    let asking = |extract: Arc<dyn Extract>| CommitOptions { extract: Some(extract), ..CommitOptions::default() };
    let builtin = || BuildOptions { extract: Some(Arc::new(Builtin)), ..BuildOptions::default() };
    let film = document("film", "El Tonto (film)", "El Tonto is a 2019 comedy film. The film was released in 2023.");
    let given =
        Document { triples: Some(vec![Triple::new("It", "is", "given")]), ..document("given", "Given", "A text.") };
    let paired = document("paired", "Paired", "one two three");
    let album = document("album", "El Tonto (album)", "El Tonto is a 1990 studio album.");
    let triples = |dir: &Path, number| open(dir).unwrap().graph().unwrap().triples(number).unwrap();
    let source = |report: CommitReport| report.manifest.graph.unwrap().source;
    write(&dir, vec![film.clone()], &builtin()).unwrap();

    // An extractor that was not asked is not named.
    let pairs = || asking(Arc::new(Pairs { reads_corpus: false }));
    let report = commit(&dir, &HashEmbed::default(), Changes::upsert([given.clone()]), &pairs(), &()).unwrap();
    assert_eq!(source(report), "corpus and builtin");
    let report = commit(&dir, &HashEmbed::default(), Changes::upsert([paired.clone()]), &pairs(), &()).unwrap();
    assert_eq!(source(report), "corpus and builtin and pairs");
    let alone = triples(&dir, 0);
    let imported = triples(&dir, 2);
    assert_eq!(imported.len(), 2);

    // Another film or album of that name makes the first one use its whole title, so it is extracted again.
    assert_eq!(source(changed(&dir, Changes::upsert([album.clone()]))), "corpus and builtin and pairs");
    write(&scratch, vec![film, given, paired, album], &builtin()).unwrap();
    // Passage 2 has the triples of another extractor, which the built index lacks.
    for number in [0, 1, 3] {
        assert_eq!(triples(&dir, number), triples(&scratch, number));
    }
    assert_ne!(triples(&dir, 0), alone);
    assert_eq!(triples(&dir, 2), imported, "what another source says of a passage stays");
    // The film is extracted again when the album is removed.
    let album = Changes::delete(["album".to_owned()]);
    commit(&dir, &HashEmbed::default(), album, &asking(Arc::new(Builtin)), &()).unwrap();
    assert_eq!((triples(&dir, 0), triples(&dir, 2)), (alone, imported));
}

/// Embedder that remembers every text.
#[derive(Debug, Default)]
struct Noting(Mutex<Vec<String>>);

impl Noting {
    fn take(&self) -> Vec<String> {
        let mut texts = std::mem::take(&mut *self.0.lock().unwrap());
        texts.sort();
        texts
    }
}

impl Embed for Noting {
    fn id(&self) -> &str {
        "hash-64"
    }

    fn dims(&self) -> usize {
        64
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.0.lock().unwrap().extend(texts.iter().map(|text| (*text).to_owned()));
        HashEmbed::default().embed(texts)
    }
}

#[test]
fn only_new_texts_are_embedded() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let embed = Noting::default();
    let triple = |object| Some(vec![Triple::new("Seine", "flows through", object)]);
    let mut documents = vec![
        Document { triples: triple("Paris"), ..document("a", "Seine", "the first text") },
        Document { triples: None, ..document("b", "Seine", "the first text") },
    ];
    let corpus = |documents: &Vec<Document>| Corpus::from_documents("test", documents.clone());
    build(corpus(&documents), &embed, &dir, &BuildOptions::default(), &()).unwrap();
    // Both passages have the same text, which is embedded once.
    assert_eq!(embed.take(), ["('seine', 'flows through', 'paris')", "Seine\nthe first text", "paris", "seine"]);

    let new = Document { triples: triple("Rouen"), ..document("c", "Rouen", "a new text") };
    documents.push(new.clone());
    let changes = Changes { delete: vec!["b".to_owned()], ..Changes::upsert([new]) };
    commit(&dir, &embed, changes, &CommitOptions::default(), &()).unwrap();
    assert_eq!(embed.take(), ["('seine', 'flows through', 'rouen')", "Rouen\na new text", "rouen"]);

    // A build that replaces the index reuses its vectors.
    build(corpus(&documents), &embed, &dir, &corpora::replacing(), &()).unwrap();
    assert_eq!(embed.take(), [""; 0]);
}

#[test]
fn searches_keep_the_snapshot_they_began_in() {
    let (_temp, dir) = small_index(5);
    let live = Arc::new(LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap());
    let text =
        |index: &Index| index.search(&Query::new("number1", Mode::Passage, 1)).unwrap().hits[0].passage.text.clone();
    let held = live.current();
    let report = live.commit(Changes::upsert(numbered(5, "second")), &CommitOptions::default(), &()).unwrap();
    assert_eq!((report.replaced, live.current().manifest().snapshot), (5, 2));
    assert!(text(&held).contains("first") && text(&live.current()).contains("second"));
    assert!(!live.refresh().unwrap());

    // Another process commits.
    changed(&dir, Changes::delete(["p0".to_owned()]));
    assert_eq!(live.current().manifest().passages, 5);
    assert!(live.refresh().unwrap() && !live.refresh().unwrap());
    assert_eq!((live.current().manifest().passages, live.current().manifest().snapshot), (4, 3));
    assert!(text(&held).contains("first"), "whoever has a snapshot open keeps it");

    // A commit also starts from the newest snapshot, even one that its index has not opened yet.
    changed(&dir, Changes::delete(["p2".to_owned()]));
    let report = live.commit(Changes::delete(["p3".to_owned()]), &CommitOptions::default(), &()).unwrap();
    assert_eq!((report.manifest.passages, report.manifest.snapshot), (2, 5));
}

#[test]
fn a_watched_index_follows_other_processes() {
    let (_temp, dir) = small_index(5);
    let live = Arc::new(LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap());
    live.watch(std::time::Duration::from_millis(5)).unwrap();
    // A snapshot that cannot be opened must not prevent searches.
    let manifest = fs::read(dir.join("manifest.json")).unwrap();
    fs::write(dir.join("manifest.json"), "{").unwrap();
    let until = |condition: &dyn Fn() -> bool| {
        let started = std::time::Instant::now();
        while !condition() {
            assert!(started.elapsed() < std::time::Duration::from_secs(60), "{:?}", live.state());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let is_stale = |stale| live.state() == LiveState { snapshot: 1, passages: 5, stale, damaged: false };
    until(&|| is_stale(true));
    fs::write(dir.join("manifest.json"), manifest).unwrap();
    until(&|| is_stale(false));
    changed(&dir, Changes::delete(["p0".to_owned()]));
    until(&|| live.current().manifest().snapshot == 2);
}

#[test]
fn an_index_that_was_built_anew_in_the_same_place_is_noticed() {
    let (_temp, dir) = small_index(5);
    let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    let again = |edition: &str| {
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(write(&dir, numbered(6, edition), &BuildOptions::default()).unwrap().manifest.snapshot, 1);
    };
    again("second");
    assert!(live.refresh().unwrap() && !live.refresh().unwrap());
    assert_eq!(live.current().manifest().passages, 6);

    // A commit starts from the present index, not from an earlier one.
    again("third");
    let report = live.commit(Changes::delete(["p0".to_owned()]), &CommitOptions::default(), &()).unwrap();
    assert_eq!((report.manifest.snapshot, report.manifest.passages), (2, 5));
    let documents = live.current().documents(None, 10).unwrap().unwrap();
    assert!(documents.iter().all(|document| document.text.contains("third")), "{documents:?}");
}

#[test]
fn an_index_that_is_built_anew_under_a_commit_is_left_alone() {
    struct Moving<'a>(&'a Path, &'a Path);
    impl BuildProgress for Moving<'_> {
        fn update(&self, phase: BuildPhase, _: u64, total: Option<u64>) {
            if (phase, total) == (BuildPhase::Reading, None) && self.0.exists() {
                // Everything except the snapshot under construction and its lock, so only the manifest reveals the
                // replacement.
                fs::remove_dir_all(self.1.join("snapshot-1")).unwrap();
                for name in ["snapshot-1", "manifest.json"] {
                    fs::rename(self.0.join(name), self.1.join(name)).unwrap();
                }
                fs::remove_dir_all(self.0).unwrap();
            }
        }
    }
    let (temp, dir) = small_index(5);
    let other = temp.path().join("other");
    write(&other, numbered(5, "second"), &BuildOptions::default()).unwrap();
    let changes = Changes::delete(["p0".to_owned()]);
    let done = commit(&dir, &HashEmbed::default(), changes, &CommitOptions::default(), &Moving(&other, &dir));
    assert!(matches!(done, Err(IndexError::Replaced { .. })), "{done:?}");
    let documents = open(&dir).unwrap().documents(None, 10).unwrap().unwrap();
    assert!(documents.len() == 5 && documents.iter().all(|document| document.text.contains("second")));
}

#[test]
fn what_was_published_is_reported_even_if_it_cannot_be_opened() {
    struct Removing<'a>(&'a Path);
    impl BuildProgress for Removing<'_> {
        fn update(&self, phase: BuildPhase, done: u64, total: Option<u64>) {
            if phase == BuildPhase::Publishing && Some(done) == total {
                fs::rename(self.0.join("snapshot-2"), self.0.join("away")).unwrap();
            }
        }
    }
    let (_temp, dir) = small_index(5);
    let live = LiveIndex::open(&dir, Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    let changes = Changes::delete(["p0".to_owned()]);
    let report = live.commit(changes, &CommitOptions::default(), &Removing(&dir)).unwrap();
    assert!(report.published && report.manifest.snapshot == 2);
    assert_eq!(live.state(), LiveState { snapshot: 1, passages: 5, stale: true, damaged: false });
    live.refresh().unwrap_err();
    assert!(live.state().stale);
    fs::rename(dir.join("away"), dir.join("snapshot-2")).unwrap();
    assert!(live.refresh().unwrap());
    assert_eq!(live.state(), LiveState { snapshot: 2, passages: 4, stale: false, damaged: false });
}
