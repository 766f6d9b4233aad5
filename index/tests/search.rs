//! Search results over a whole index.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::sync::Arc;
use std::time::{Duration, Instant};

use corpora::{Failing, HashEmbed, document, numbered, open, small_index, write};
use waymark_index::{
    BuildOptions, Document, Evidence, Hit, Index, IndexError, InvalidOption, Mode, OpenOptions, Query, Ranking, Triple,
    TripleHit,
};

fn query(text: &str, k: usize) -> Query {
    Query::new(text, Mode::Passage, k)
}

#[test]
fn a_passage_is_found_by_its_words_and_its_vector() {
    let (_temp, dir) = small_index(50);
    let index = open(&dir).unwrap();
    let evidence = index.search(&query("Title7 passage number7 of the first edition", 3)).unwrap();
    assert_eq!((evidence.snapshot, evidence.mode, evidence.hits.len()), (1, Mode::Passage, 3));
    let first = &evidence.hits[0];
    assert_eq!((first.rank, first.passage.id.as_str(), first.passage.title.as_str()), (1, "p7", "Title7"));
    assert_eq!((first.path.bm25.unwrap().rank, first.path.dense.unwrap().rank), (1, 1));
    assert!((f64::from(first.score) - 2.0 / 61.0).abs() < 1e-7);
}

#[test]
fn every_ranking_says_how_each_hit_was_found() {
    // More passages than a list is deep.
    let (_temp, dir) = small_index(300);
    let index = open(&dir).unwrap();
    let search = |ranking| {
        let hits = index.search(&query("topic1 number8", 50).ranking(ranking)).unwrap().hits;
        assert_eq!(hits.len(), 50, "{ranking:?}");
        hits
    };
    for hit in search(Ranking::Bm25) {
        assert_eq!((hit.path.bm25.unwrap().rank, hit.path.dense), (hit.rank, None));
        assert_eq!(hit.path.bm25.unwrap().score, hit.score);
    }
    for hit in search(Ranking::Dense) {
        assert_eq!((hit.path.dense.unwrap().rank, hit.path.bm25), (hit.rank, None));
        assert!((-1.0..=1.0).contains(&hit.score));
    }
    for hit in search(Ranking::Fused) {
        let part = |place: Option<waymark_index::HitRank>| place.map_or(0.0, |place| 1.0 / (60.0 + place.rank as f64));
        let expected = part(hit.path.bm25) + part(hit.path.dense);
        assert!((f64::from(hit.score) - expected).abs() < 1e-7);
        for place in [hit.path.bm25, hit.path.dense].into_iter().flatten() {
            assert!(place.rank <= 100, "lists are 100 deep");
        }
    }
}

#[test]
fn scaled_scores_lie_between_those_of_the_farthest_and_the_nearest_passage() {
    let (_temp, dir) = small_index(50);
    for exact_below in [0, usize::MAX] {
        let options = OpenOptions { exact_below, ..OpenOptions::default() };
        let index = Index::open_with(&dir, Arc::new(HashEmbed::default()), &options).unwrap();
        let dense = query("topic1 number8", 50).ranking(Ranking::Dense);
        let plain = index.search(&dense).unwrap().hits;
        let scaled = index.search(&Query { scaled: true, ..dense.clone() }).unwrap().hits;
        assert_eq!((plain.len(), scaled[0].score, scaled[49].score), (50, 1.0, 0.0));
        let high = plain[0].score;
        let low = plain[49].score;
        for (plain, scaled) in plain.iter().zip(&scaled) {
            assert_eq!(plain.passage, scaled.passage);
            assert!(((plain.score - low) / (high - low) - scaled.score).abs() < 1e-6);
        }
        let fused = Query { scaled: true, ..query("topic1", 3) };
        assert!(index.search(&fused).unwrap().hits[0].score < 0.04, "fused scores stay sums of reciprocal ranks");
    }
    let (_temp, dir) = small_index(1);
    let only = Query { scaled: true, ..query("topic1", 1).ranking(Ranking::Dense) };
    assert_eq!(open(&dir).unwrap().search(&only).unwrap().hits[0].score, 1.0);
}

#[test]
fn bm25_needs_no_embedder_to_work() {
    let (_temp, dir) = small_index(10);
    let index = Index::open(&dir, Arc::new(Failing("the device is gone"))).unwrap();
    assert_eq!(index.search(&query("number3", 1).ranking(Ranking::Bm25)).unwrap().hits[0].passage.id, "p3");
    let error = index.search(&query("number3", 1)).unwrap_err().to_string();
    assert!(error.contains("the query") && error.contains("the device is gone"), "{error}");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let (_temp, dir) = small_index(10);
    let index = open(&dir).unwrap();
    assert!(matches!(index.search(&query("x", 0)), Err(IndexError::BadQuery(InvalidOption { name: "k", .. }))));
    for (mode, name) in [(Mode::Graph, "`graph`"), (Mode::Hybrid, "`hybrid`")] {
        let error = index.search(&Query::new("x", mode, 3)).unwrap_err();
        assert!(matches!(error, IndexError::Unsupported { .. }) && error.to_string().contains(name), "{error}");
        assert!(!index.modes().contains(&mode));
    }
}

#[test]
fn odd_queries_are_answered() {
    let (_temp, dir) = small_index(10);
    let index = open(&dir).unwrap();
    for empty in ["", "  \n\t"] {
        assert!(index.search(&query(empty, 3)).unwrap().hits.is_empty());
    }
    assert_eq!(index.search(&query("number3", usize::MAX)).unwrap().hits.len(), 10);
    let long = "number3 ".repeat(20_000);
    assert_eq!(index.search(&query(&long, 1)).unwrap().hits[0].passage.id, "p3");
    for text in ["\"", "title:(", "AND OR NOT", "\0", "北京 🙂", "]</information>"] {
        assert!(!index.search(&query(text, 3)).unwrap().hits.is_empty(), "dense search finds something for {text:?}");
    }
}

#[test]
fn a_deadline_that_has_passed_ends_the_search() {
    let (_temp, dir) = small_index(10);
    let index = open(&dir).unwrap();
    let past = query("number3", 1).deadline(Instant::now() - Duration::from_millis(1));
    assert!(matches!(index.search(&past), Err(IndexError::Deadline { .. })));
    let future = query("number3", 1).deadline(Instant::now() + Duration::from_secs(60));
    assert_eq!(index.search(&future).unwrap().hits.len(), 1);
}

#[test]
fn documents_are_found_by_id_with_their_metadata() {
    let temp = tempfile::tempdir().unwrap();
    let mut rich = document("b", "T", "text");
    rich.metadata = serde_json::json!({"source": ["s"], "n": 1}).as_object().cloned();
    let documents = vec![document("a", "", "other"), rich.clone()];
    write(temp.path(), documents, &BuildOptions::default()).unwrap();
    let index = open(temp.path()).unwrap();
    assert_eq!(index.passage("b").unwrap(), Some(rich));
    assert_eq!(index.passage("absent").unwrap(), None);
    let info = index.info();
    assert_eq!((info.passages, info.snapshot, info.dims, info.corpus.as_str()), (2, 1, 64, "test"));
    assert_eq!(info.modes, [Mode::Passage]);
    assert!(info.bytes > 0);
}

#[test]
fn many_searches_at_once_agree_with_one_after_the_other() {
    let (_temp, dir) = small_index(300);
    for exact_below in [0, usize::MAX] {
        let options = OpenOptions { concurrency: 3, exact_below, ..OpenOptions::default() };
        let index = Index::open_with(&dir, Arc::new(HashEmbed::default()), &options).unwrap();
        let queries: Vec<_> = (0..24)
            .map(|i| query(&format!("number{} topic{}", i * 11, i % 5), 1 + i % 7))
            .zip([Ranking::Fused, Ranking::Dense, Ranking::Bm25].into_iter().cycle())
            .map(|(query, ranking)| query.ranking(ranking))
            .collect();
        let serial: Vec<_> = queries.iter().map(|query| index.search(query).unwrap()).collect();
        std::thread::scope(|scope| {
            for thread in 0..64 {
                let index = &index;
                let queries = &queries;
                let serial = &serial;
                scope.spawn(move || {
                    for i in (0..queries.len()).map(|i| (i + thread) % queries.len()) {
                        assert_eq!(index.search(&queries[i]).unwrap(), serial[i]);
                    }
                });
            }
        });
    }
}

#[test]
fn what_exceeds_the_bytes_of_a_query_is_left_out_from_the_end_in_every_mode() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let stated = |i: usize| Some(vec![Triple::new(format!("Title{i}"), "tells of", format!("topic{}", i % 3))]);
    let documents = numbered(30, "first").into_iter().enumerate();
    let documents = documents.map(|(i, document)| Document { triples: stated(i), ..document }).collect();
    write(&dir, documents, &BuildOptions::default()).unwrap();
    let index = open(&dir).unwrap();
    for mode in Mode::ALL {
        let ask = |bytes| index.search(&Query::new("Title7 tells of topic1", mode, 12).bytes(bytes)).unwrap();
        let whole = ask(usize::MAX);
        let count = |evidence: &Evidence| evidence.hits.len() + evidence.triples.len();
        let size = |evidence: &Evidence| {
            evidence.hits.iter().map(Hit::bytes).sum::<usize>()
                + evidence.triples.iter().map(TripleHit::bytes).sum::<usize>()
        };
        assert_eq!((whole.left_out, ask(size(&whole)).left_out), (0, 0), "{mode}");
        for bytes in [0, 600, 3_000, size(&whole) - 1] {
            let cut = ask(bytes);
            assert!(cut.left_out > 0 && count(&cut) + cut.left_out == count(&whole), "{mode}: {}", cut.left_out);
            assert!(size(&cut) <= bytes && whole.hits.starts_with(&cut.hits), "{mode}");
            assert!(whole.triples.starts_with(&cut.triples), "{mode}");
        }
    }
}
