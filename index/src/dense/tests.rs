#![allow(clippy::unwrap_used, clippy::expect_used)]
use std::path::{Path, PathBuf};

use super::*;
use crate::embed::fake::HashEmbed;
use crate::embed::{QueryContext, embed_unit};

const DIMS: usize = 48;

fn write(rows: &[Vec<f32>]) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let flat = dir.path().join("vectors.bin");
    let graph = dir.path().join("graph.usearch");
    let mut writer = VectorWriter::create(&flat).unwrap();
    rows.iter().for_each(|row| writer.add(row).unwrap());
    writer.finish().unwrap();
    let vectors = VectorFile::open(&flat, rows.len(), DIMS).unwrap();
    link(&vectors, files(&graph, &graph.with_extension("keys")), None, 2, &|_| ()).unwrap();
    (dir, flat, graph)
}

fn files<'a>(graph: &'a Path, keys: &'a Path) -> GraphFiles<'a> {
    GraphFiles { graph, keys }
}

fn random_rows(count: usize, salt: &str) -> Vec<Vec<f32>> {
    let texts: Vec<_> = (0..count).map(|i| format!("{salt}{i} shared{}", i % 7)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    embed_unit(&HashEmbed::new(DIMS), "", &texts, QueryContext::default()).unwrap()
}

fn open(flat: &Path, graph: &Path, count: usize, slots: usize, exact_below: usize) -> DenseIndex {
    let keys = graph.with_extension("keys");
    let files = files(graph, &keys);
    let options = OpenOptions { concurrency: slots, exact_below, ..OpenOptions::default() };
    DenseIndex::open(VectorFile::open(flat, count, DIMS).unwrap(), files, &options).unwrap()
}

/// Options for one search at a time.
fn alone() -> OpenOptions {
    OpenOptions { concurrency: 1, ..OpenOptions::default() }
}

#[test]
fn the_dot_product_is_that_of_double_precision() {
    for length in [0, 1, 31, 32, 33, 384] {
        let a: Vec<f32> = (0..length).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<f32> = (0..length).map(|i| (i as f32 * 0.11).cos()).collect();
        let exact: f64 = a.iter().zip(&b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        assert!((f64::from(kernel::dot(&a, &b)) - exact).abs() < 1e-4);
    }
}

#[test]
fn the_scan_is_exact_and_orders_ties_by_number() {
    let mut rows = random_rows(50, "p");
    rows[40] = rows[10].clone();
    let (_dir, flat, graph) = write(&rows);
    let dense = open(&flat, &graph, 50, 1, usize::MAX);
    let found = dense.search(&rows[10], 50, None, None).unwrap();
    assert_eq!((found[0].number, found[1].number), (10, 40));
    assert!((found[0].score - 1.0).abs() < 1e-6);
    assert_eq!(found.len(), 50);
    assert!(found.windows(2).all(|pair| pair[0].score >= pair[1].score));
    assert!(dense.search(&rows[0], 500, None, None).unwrap().len() == 50);
}

#[test]
fn the_graph_finds_what_the_scan_finds() {
    let rows = random_rows(3000, "p");
    let queries = random_rows(50, "q");
    let (_dir, flat, graph) = write(&rows);
    let exact = open(&flat, &graph, 3000, 1, usize::MAX);
    let approximate = open(&flat, &graph, 3000, 4, 0);
    let mut same = 0;
    for query in &queries {
        let (truth, found) =
            (exact.search(query, 10, None, None).unwrap(), approximate.search(query, 10, None, None).unwrap());
        same += found.iter().filter(|hit| truth.contains(hit)).count();
    }
    assert!(same >= 490, "recall@10 is {same} of 500");
}

#[test]
fn more_searchers_than_slots_wait_and_agree_with_one() {
    let rows = random_rows(500, "p");
    let queries = random_rows(8, "q");
    let (_dir, flat, graph) = write(&rows);
    let dense = open(&flat, &graph, 500, 2, 0);
    let serial: Vec<_> = queries.iter().map(|query| dense.search(query, 5, None, None).unwrap()).collect();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                for (query, expected) in queries.iter().zip(&serial) {
                    assert_eq!(&dense.search(query, 5, None, None).unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn a_deadline_ends_the_wait_for_a_slot() {
    let rows = random_rows(20, "p");
    let (_dir, flat, graph) = write(&rows);
    let hnsw = hnsw::Hnsw::open(files(&graph, &graph.with_extension("keys")), 20, DIMS, &alone()).unwrap();
    let vectors = VectorFile::open(&flat, 20, DIMS).unwrap();
    let soon = Instant::now() + std::time::Duration::from_millis(2);
    let held = hnsw.hold();
    assert!(matches!(hnsw.nearest(&vectors, &rows[0], 1, Some(soon), None), Err(IndexError::Deadline { .. })));
    drop(held);
    assert_eq!(hnsw.nearest(&vectors, &rows[0], 1, None, None).unwrap()[0].number, 0);
}

#[test]
fn files_of_another_size_are_refused() {
    let (_dir, flat, graph) = write(&random_rows(20, "p"));
    let error = VectorFile::open(&flat, 21, DIMS).unwrap_err().to_string();
    assert!(error.contains("vectors.bin") && error.contains("21 vectors"), "{error}");
    let keys = graph.with_extension("keys");
    let opened = |count| hnsw::Hnsw::open(files(&graph, &keys), count, DIMS, &alone()).unwrap_err().to_string();
    let error = opened(21);
    assert!(error.contains("graph.keys") && error.contains("21 passages"), "{error}");
    node_passages::NodePassages::identity(21).write(&keys).unwrap();
    let error = opened(21);
    assert!(error.contains("graph.usearch") && error.contains("20 vectors"), "{error}");
    node_passages::NodePassages::identity(20).write(&keys).unwrap();
    std::fs::write(&graph, b"not a graph").unwrap();
    let error = opened(20);
    assert!(error.contains("graph.usearch") && error.contains("damaged"), "{error}");
}

#[test]
fn a_graph_that_grew_and_lost_finds_what_the_scan_finds() {
    let all = random_rows(1400, "p");
    let queries = random_rows(50, "q");
    let (_dir, mut flat, mut graph) = write(&all[..1000]);
    // For each place, the index of its vector in `all`.
    let mut places: Vec<usize> = (0..1000).collect();
    for round in 0..4 {
        let kept: Vec<usize> = places.iter().copied().filter(|&row| row % 23 != round).collect();
        let mut next = kept.clone();
        next.extend(1000 + 100 * round..1100 + 100 * round);
        let moved: Vec<Option<u32>> =
            places.iter().map(|row| kept.iter().position(|other| other == row).map(|place| place as u32)).collect();
        let new_flat = flat.with_extension(format!("{round}"));
        let mut writer = VectorWriter::create(&new_flat).unwrap();
        next.iter().for_each(|&row| writer.add(&all[row]).unwrap());
        writer.finish().unwrap();
        let new_graph = graph.with_file_name(format!("graph{round}.usearch"));
        let new_keys = new_graph.with_extension("keys");
        let keys = graph.with_extension("keys");
        let earlier = PreviousGraph { files: files(&graph, &keys), moved: &moved };
        let vectors = VectorFile::open(&new_flat, next.len(), DIMS).unwrap();
        link(&vectors, files(&new_graph, &new_keys), Some(earlier), 1, &|_| ()).unwrap();
        assert!(
            node_passages::NodePassages::open(&new_keys, next.len()).unwrap().gone() > 0,
            "the earlier graph was gone on from"
        );
        (flat, graph, places) = (new_flat, new_graph, next);
    }
    let count = places.len();
    let exact = open(&flat, &graph, count, 1, usize::MAX);
    let approximate = open(&flat, &graph, count, 4, 0);
    let found = |dense: &DenseIndex, query: &Vec<f32>| dense.search(query, 10, None, None).unwrap();
    let same: usize = queries
        .iter()
        .map(|query| found(&approximate, query).iter().filter(|hit| found(&exact, query).contains(hit)).count())
        .sum();
    assert!(same >= 490, "recall@10 is {same} of 500");
}

#[test]
fn among_some_passages_as_many_are_found_as_there_are() {
    let rows = random_rows(1500, "p");
    let (_dir, flat, graph) = write(&rows);
    let exact = open(&flat, &graph, 1500, 1, usize::MAX);
    let approximate = open(&flat, &graph, 1500, 1, 0);
    let mut same = 0;
    for query in &random_rows(20, "q") {
        let all = exact.search(query, 1500, None, None).unwrap();
        for every in [2, 10, 300] {
            let mut allowed = AllowedPassages::none(1500);
            (0..1500).step_by(every).for_each(|number| allowed.insert(number));
            let expected: Vec<_> = all.iter().copied().filter(|hit| allowed.contains(hit.number)).take(10).collect();
            assert_eq!(exact.search(query, 10, None, Some(&allowed)).unwrap(), expected);
            let found = approximate.search(query, 10, None, Some(&allowed)).unwrap();
            assert_eq!(found.len(), expected.len());
            assert!(found.iter().all(|hit| allowed.contains(hit.number)));
            same += found.iter().filter(|hit| expected.contains(hit)).count();
        }
    }
    assert!(same >= 490, "{same} of 500 are found over the graph");
}

#[test]
fn a_small_graph_is_the_same_whoever_builds_it() {
    let rows = random_rows(1500, "p");
    let (_first, _, once) = write(&rows);
    let (_second, _, again) = write(&rows);
    assert!(std::fs::read(once).unwrap() == std::fs::read(again).unwrap(), "two builds differ");
}
