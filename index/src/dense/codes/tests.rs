#![allow(clippy::unwrap_used, clippy::expect_used)]
use proptest::prelude::*;

use super::super::kernel::dot;
use super::super::vectors::VectorWriter;
use super::*;
use crate::scored::{Scored, best};

fn write(rows: &[Vec<f32>], dims: usize) -> (tempfile::TempDir, VectorFile, Codes) {
    let dir = tempfile::tempdir().unwrap();
    let flat = dir.path().join("vectors");
    let path = dir.path().join("codes");
    let mut writer = VectorWriter::create(&flat).unwrap();
    rows.iter().for_each(|row| writer.add(row).unwrap());
    writer.finish().unwrap();
    let vectors = VectorFile::open(&flat, rows.len(), dims).unwrap();
    Codes::write(&vectors, &path).unwrap();
    let codes = Codes::open(&path, rows.len(), dims).unwrap();
    (dir, vectors, codes)
}

fn every_product(rows: &[Vec<f32>], query: &[f32], k: usize) -> Extremes {
    let scored = rows.iter().zip(0..).map(|(row, number)| Scored { number, score: dot(query, row) });
    let all = best(scored.collect(), rows.len());
    let largest = all[0].score;
    let least = all[all.len() - 1].score;
    Extremes { best: all.into_iter().take(k).collect(), least, largest }
}

fn rows() -> impl Strategy<Value = (Vec<Vec<f32>>, Vec<f32>)> {
    (1_usize..70).prop_flat_map(|dims| {
        let wide = prop_oneof![4 => -1.0_f32..1.0, 1 => Just(0.0), 1 => -1e-6_f32..1e-6, 1 => -30.0_f32..30.0];
        let vector = prop::collection::vec(wide, dims);
        // Nearly equal rows, so that bounds overlap and ties occur.
        let near = (vector.clone(), prop::collection::vec(-1e-4_f32..1e-4, 0..40)).prop_map(|(base, shifts)| {
            let shift = |by: f32| base.iter().map(|x| x + by).collect::<Vec<_>>();
            shifts.into_iter().map(shift).chain([base.clone(), base.clone()]).collect::<Vec<_>>()
        });
        let apart = prop::collection::vec(vector.clone(), 1..60);
        (prop_oneof![near, apart], vector)
    })
}

proptest! {
    #[test]
    fn finds_what_computing_every_product_finds((rows, query) in rows(), k in 0_usize..12) {
        let (_dir, vectors, codes) = write(&rows, query.len());
        prop_assert_eq!(codes.extremes(&vectors, &query, k, &|_| false).unwrap(), every_product(&rows, &query, k));
    }

    #[test]
    fn products_lie_within_the_bounds((rows, query) in rows()) {
        let coded = CodedQuery::of(&query);
        let rounding = (query.len() + 64) as f64 * f64::from(f32::EPSILON);
        let mut codes = vec![0_i8; stride(query.len())];
        for vector in &rows {
            let row = encode(vector, &mut codes);
            let whole: i64 = codes.iter().zip(coded.halves.high.iter().zip(&coded.halves.low))
                .map(|(&c, (&high, &low))| i64::from(c) * (128 * (i64::from(high) - 64) + i64::from(low))).sum();
            let value = f64::from(row.scale) * coded.step * whole as f64;
            let off = (f64::from(dot(&query, vector)) - value).abs();
            prop_assert!(off <= coded.slack(&row, rounding), "{off} of {}", coded.slack(&row, rounding));
        }
    }
}

#[test]
fn few_vectors_are_read_among_many() {
    let random = |seed: u64| {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let vector: Vec<f32> = (0..384).map(|_| next() + next() + next()).collect();
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        vector.into_iter().map(|x| x / length).collect::<Vec<_>>()
    };
    let coded = CodedQuery::of(&random(1));
    let mut codes = vec![0; 384];
    let slack = coded.slack(&encode(&random(2), &mut codes), 0.0);
    assert!(slack < 0.01, "the bounds are {slack} wide, so that too many vectors would have to be read");
}

#[test]
fn a_file_of_another_size_is_refused_and_no_rows_are_no_answer() {
    let (dir, vectors, codes) = write(&[], 3);
    assert_eq!(codes.extremes(&vectors, &[0.0; 3], 5, &|_| false), None);
    let error = Codes::open(&dir.path().join("codes"), 1, 3).unwrap_err().to_string();
    assert!(error.contains("codes") && error.contains("damaged"), "{error}");
}
