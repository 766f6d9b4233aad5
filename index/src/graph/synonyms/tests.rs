#![allow(clippy::unwrap_used, clippy::expect_used)]
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::dense::{VectorWriter, dot};

/// Stream of numbers from -1 to 1.
fn numbers(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Vector of a text, near that of every other text with the same first word, so that many are synonyms.
fn vector(text: &str, dims: usize, spread: f32) -> Vec<f32> {
    let seed = |text: &str| text.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(131).wrapping_add(u64::from(byte)));
    let mut shared = numbers(seed(text.split(' ').next().unwrap()));
    let mut own = numbers(seed(text));
    let row: Vec<f32> = (0..dims).map(|_| shared() + spread * own()).collect();
    let length = dot(&row, &row).sqrt();
    row.into_iter().map(|x| x / length).collect()
}

/// Vectors in memory.
#[derive(Debug)]
pub(super) struct Rows(pub(super) Vec<Vec<f32>>);

impl VectorRows for Rows {
    fn dims(&self) -> usize {
        self.0[0].len()
    }

    fn row(&self, number: u32) -> Option<&[f32]> {
        self.0.get(number as usize).map(Vec::as_slice)
    }
}

fn unit(row: Vec<f32>) -> Vec<f32> {
    let length = dot(&row, &row).sqrt();
    row.into_iter().map(|x| x / length).collect()
}

/// Unit vectors in all directions.
pub(super) fn scattered(count: usize, dims: usize, seed: u64) -> Rows {
    let mut next = numbers(seed);
    Rows((0..count).map(|_| unit((0..dims).map(|_| next()).collect())).collect())
}

/// Unit vectors around a few others, and around a mean of all, as those of language models are.
pub(super) fn clustered(count: usize, dims: usize, seed: u64) -> Rows {
    let centers = scattered(12, dims, seed).0;
    let own = scattered(count, dims, seed + 1).0;
    let near = |(place, own): (usize, Vec<f32>)| {
        let spread = 0.2 + 0.1 * (place % 9) as f32;
        unit(
            own.iter().zip(&centers[place % 12]).zip(&centers[0]).map(|((x, y), z)| spread * x + y + 0.3 * z).collect(),
        )
    };
    Rows(own.into_iter().enumerate().map(near).collect())
}

struct Phrases {
    _dir: tempfile::TempDir,
    table: StringTable,
    vectors: VectorFile,
}

fn phrases(texts: &[String], dims: usize, spread: f32) -> Phrases {
    let dir = tempfile::tempdir().unwrap();
    let path = |name| dir.path().join(name);
    StringTable::write(&path("phrases"), texts.iter().map(String::as_str)).unwrap();
    let mut writer = VectorWriter::create(&path("vectors")).unwrap();
    texts.iter().for_each(|text| writer.add(&vector(text, dims, spread)).unwrap());
    writer.finish().unwrap();
    let vectors = VectorFile::open(&path("vectors"), texts.len(), dims).unwrap();
    Phrases { table: StringTable::open(&path("phrases")).unwrap(), vectors, _dir: dir }
}

/// Definition of synonyms, applied pair by pair.
fn naive(phrases: &Phrases) -> Neighbors {
    let text = |number| phrases.table.get(number);
    let count = phrases.table.len() as u32;
    let row = |number| phrases.vectors.row(number).unwrap();
    Neighbors::of((0..count).map(|from| {
        let mut others: Vec<_> = (0..count).map(|to| (to, dot(row(from), row(to)))).collect();
        others.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut list = Vec::new();
        for (to, score) in others {
            if score < 0.8 || list.len() > 100 || !has_synonyms(text(from)) {
                break;
            }
            if to != from && !text(to).is_empty() {
                list.push((to, score));
            }
        }
        list
    }))
}

/// Texts in few groups, some of them short or empty.
fn texts() -> impl Strategy<Value = BTreeSet<String>> {
    let long = (0..2_u32, 0..400_u32).prop_map(|(group, own)| format!("group{group} {own}"));
    let text = prop_oneof![30 => long, 1 => "[ab]{1,2}", 1 => Just(String::new())];
    prop::collection::btree_set(text, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_scan_goes_by_the_rule(texts in texts(), spread in 0.3_f32..0.9, threads in 1_usize..4, dims in 1_usize..40) {
        let texts: Vec<String> = texts.into_iter().collect();
        let phrases = phrases(&texts, dims, spread);
        let found = Neighbors::find(&phrases.table, &phrases.vectors, threads, &|_| ()).unwrap();
        prop_assert!(found == naive(&phrases));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn lists_are_renewed_as_if_made_anew(
        texts in texts(), gone in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        new in prop::collection::btree_set("group[0-2] [a-z]{1,3}", 0..30), spread in 0.3_f32..0.7,
    ) {
        let mut now = texts.clone();
        let before: Vec<String> = texts.into_iter().collect();
        for gone in gone.iter().filter(|_| !before.is_empty()) {
            now.remove(gone.get(&before));
        }
        now.extend(new);
        let before = phrases(&before, 24, spread);
        let now = phrases(&now.into_iter().collect::<Vec<_>>(), 24, spread);
        let found = Neighbors::find(&before.table, &before.vectors, 2, &|_| ()).unwrap();
        prop_assert!(renewed(&found, &before, &now) == naive(&now));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn sketches_lose_no_pair(
        count in 1_usize..400, dims in 1_usize..150, seed in 0_u64..1000, close in any::<bool>(),
        later in 0_usize..100, threads in 1_usize..4,
    ) {
        let rows = if close { clustered(count + later, dims, seed) } else { scattered(count + later, dims, seed) };
        // Directions are chosen for the first vectors; the others come later, as those of commits do.
        let mut sketches = Sketches::suited(&rows, count);
        sketches.extend(rows.0.len(), &|place| rows.0[place].as_slice(), threads).unwrap();
        let queries: Vec<u32> = (0..rows.0.len() as u32).step_by(3).collect();
        let usable = |phrase: u32| phrase % 5 != 1;
        let found = all_similar(&rows, &sketches, &queries, &usable, threads).unwrap();
        prop_assert_eq!(found.len(), queries.len());
        for ((query, list), expected) in found.into_iter().zip(&queries) {
            prop_assert_eq!(query, *expected);
            let list: BTreeMap<u32, u32> = list.into_iter().map(|(other, score)| (other, score.to_bits())).collect();
            let others = (0..rows.0.len() as u32).filter(|&other| other != query && usable(other));
            let scored = others.map(|other| (other, dot(&rows.0[query as usize], &rows.0[other as usize])));
            let expected: BTreeMap<u32, u32> =
                scored.filter(|(_, score)| *score >= THRESHOLD).map(|(other, score)| (other, score.to_bits())).collect();
            prop_assert_eq!(list, expected);
        }
    }
}

#[test]
fn clones_of_sketches_keep_theirs() {
    let rows = clustered(2600, 16, 3);
    let mut sketches = Sketches::suited(&rows, 2600);
    let vector = |place: usize| rows.0[place].as_slice();
    sketches.extend(1500, &vector, 2).unwrap();
    let earlier = sketches.clone();
    sketches.extend(2600, &vector, 3).unwrap();
    sketches.extend(2600, &vector, 1).unwrap();
    for (sketches, count) in [(earlier, 1500), (sketches, 2600)] {
        assert_eq!(sketches.len(), count);
        let found = all_similar(&rows, &sketches, &[7], &|_| true, 1).unwrap().remove(0).1;
        let near = |other: &usize| *other != 7 && dot(&rows.0[7], &rows.0[*other]) >= THRESHOLD;
        let mut found: Vec<usize> = found.into_iter().map(|(other, _)| other as usize).collect();
        found.sort_unstable();
        assert_eq!(found, (0..count).filter(near).collect::<Vec<_>>());
    }
}

#[test]
fn full_lists_that_lose_a_phrase_are_made_again() {
    let near = |numbers: std::ops::Range<u32>| numbers.map(|number| format!("group0 {number}"));
    let far = || (0..400).map(|number| format!("other{number} x"));
    let sorted = |texts: Vec<String>| texts.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
    let before = phrases(&sorted(near(100..250).chain(far()).collect()), 24, 0.1);
    let now = phrases(&sorted(near(105..255).chain(far()).collect()), 24, 0.1);
    let found = Neighbors::find(&before.table, &before.vectors, 2, &|_| ()).unwrap();
    assert_eq!(found.len(), 150 * MOST, "every list of the group is full");
    assert!(renewed(&found, &before, &now) == naive(&now));
}

#[test]
fn lists_that_were_found_approximately_are_found_anew_once_all_can_be_scanned() {
    let texts: BTreeSet<String> = (0..=EXACT).map(|number| format!("group{} {number}", number % 40)).collect();
    let before = phrases(&texts.iter().cloned().collect::<Vec<_>>(), 4, 0.3);
    let now = phrases(&texts.into_iter().take(60).collect::<Vec<_>>(), 4, 0.3);
    // As if the approximate search had found nothing among too many phrases.
    let found = Neighbors::of((0..before.table.len()).map(|_| Vec::new()));
    let expected = naive(&now);
    assert!(expected.len() > 0);
    assert!(renewed(&found, &before, &now) == expected);
}

/// Synonyms of a graph without changes since its base snapshot.
struct StoredSynonyms<'a> {
    phrases: &'a StringTable,
    synonyms: &'a Synonyms,
}

impl EarlierSynonyms for StoredSynonyms<'_> {
    fn bound(&self) -> usize {
        self.phrases.len()
    }

    fn in_order(&self) -> Vec<u32> {
        (0..self.phrases.len() as u32).collect()
    }

    fn text(&self, phrase: u32) -> &str {
        self.phrases.get(phrase)
    }

    fn synonyms(&self, phrase: u32) -> (&[u32], &[f32]) {
        self.synonyms.get(phrase)
    }
}

fn renewed(found: &Neighbors, before: &Phrases, now: &Phrases) -> Neighbors {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("synonyms");
    found.write(&path).unwrap();
    let synonyms = Synonyms::open(&path, before.table.len()).unwrap();
    let earlier = StoredSynonyms { phrases: &before.table, synonyms: &synonyms };
    Neighbors::renew(&earlier, &now.table, &now.vectors, 2, &|_| ()).unwrap()
}

/// Measures how many of the true pairs the graph finds, and how many false pairs it returns.
#[test]
fn the_graph_finds_nearly_all_that_the_scan_finds() {
    let texts: BTreeSet<String> = (0..3000).map(|i| format!("group{} {i}", i % 300)).collect();
    let phrases = phrases(&texts.into_iter().collect::<Vec<_>>(), 64, 0.5);
    let all: Vec<u32> = (0..3000).collect();
    let pairs = |found: Vec<(u32, BestNeighbors)>| -> BTreeMap<(u32, u32), f32> {
        let lists = found.into_iter().map(|(from, best)| (from, best.list()));
        lists.flat_map(|(from, list)| list.into_iter().map(move |(to, score)| ((from, to), score))).collect()
    };
    let exact = pairs(scan::nearest(&phrases.vectors, &all, &all, 2, &|_| ()).unwrap());
    let about = pairs(approximate::nearest(&phrases.vectors, &all, &all, 2, &|_| ()).unwrap());
    assert!(exact.len() > 10_000, "{}", exact.len());
    assert!(about.iter().all(|(pair, score)| exact.get(pair) == Some(score)));
    assert!(about.len() * 100 >= exact.len() * 99, "{} of {}", about.len(), exact.len());
}

#[test]
#[ignore = "measures: WAYMARK_PHRASES says how many"]
fn speed() {
    let count: usize = std::env::var("WAYMARK_PHRASES").map_or(20_000, |count| count.parse().unwrap());
    let texts: BTreeSet<String> = (0..count).map(|i| format!("group{} {i}", i % (count / 4))).collect();
    let start = Instant::now();
    let phrases = phrases(&texts.into_iter().collect::<Vec<_>>(), 384, 0.45);
    println!("{count} vectors in {:.1} s", start.elapsed().as_secs_f64());
    let all: Vec<u32> = (0..count as u32).collect();
    let searches = [
        ("exact", scan::nearest as fn(_, &[u32], &[u32], usize, &(dyn Fn(u64) + Sync)) -> _),
        ("approximate", approximate::nearest),
    ];
    for (name, nearest) in searches.into_iter().skip(usize::from(count > 200_000)) {
        let start = Instant::now();
        let found: Vec<(u32, BestNeighbors)> = nearest(&phrases.vectors, &all, &all, 2, &|_| ()).unwrap();
        let pairs: usize = found.into_iter().map(|(_, best)| best.list().len()).sum();
        println!("{name}: {:.2} s, {pairs} pairs", start.elapsed().as_secs_f64());
    }
}
