//! Golden tests of the metrics, against vectors produced by the reference programs.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/outside/mod.rs"]
mod outside;

use serde::Deserialize;

use super::{Overlap, contains, exact_match, f1, normalize, r1_searcher};

#[derive(Deserialize)]
struct Case {
    prediction: String,
    golds: Vec<String>,
    normalize_squad_pred: String,
    normalize_squad_golds: Vec<String>,
    hipporag_em: f64,
    hipporag_f1: f64,
    searchr1_em_check: u8,
    searchr1_subem_check: u8,
    graphr1_em: f64,
    graphr1_f1: f64,
    normalize_r1searcher_pred: String,
    normalize_r1searcher_golds: Vec<String>,
    graphragr1_em: bool,
    graphragr1_f1_precision_recall: [f64; 3],
    graphragr1_cover_em_1: bool,
}

#[test]
fn em_f1() {
    for case in &outside::cases::<Case>("em_f1", "cases") {
        let Case { prediction, golds, .. } = case;
        let what = format!("{prediction:?} {golds:?}");
        let all = |normalize: fn(&str) -> String| golds.iter().map(|gold| normalize(gold)).collect::<Vec<_>>();
        assert_eq!(normalize(prediction), case.normalize_squad_pred, "{what}");
        assert_eq!(all(normalize), case.normalize_squad_golds, "{what}");
        let em = f64::from(u8::from(exact_match(prediction, golds)));
        assert_eq!([em; 3], [case.hipporag_em, case.graphr1_em, f64::from(case.searchr1_em_check)], "{what}");
        assert_eq!(u8::from(contains(prediction, golds)), case.searchr1_subem_check, "{what}");
        for expected in [case.hipporag_f1, case.graphr1_f1] {
            assert!((f1(prediction, golds) - expected).abs() < 1e-9, "{what}");
        }
        assert_eq!(r1_searcher::normalize(prediction), case.normalize_r1searcher_pred, "{what}");
        assert_eq!(all(r1_searcher::normalize), case.normalize_r1searcher_golds, "{what}");
        searcher_metrics(case, &what);
    }
}

fn searcher_metrics(case: &Case, what: &str) {
    let any = |holds: fn(&str, &str) -> bool| case.golds.iter().any(|gold| holds(&case.prediction, gold));
    assert_eq!(any(r1_searcher::exact_match), case.graphragr1_em, "{what}");
    assert_eq!(any(r1_searcher::covers_words), case.graphragr1_cover_em_1, "{what}: all words");
    // The reference takes the first of several equal overlaps, and `max_by` the last.
    let overlaps = case.golds.iter().rev().map(|gold| r1_searcher::overlap(&case.prediction, gold));
    let best = overlaps.max_by(|a, b| a.f1.total_cmp(&b.f1)).unwrap_or_default();
    let Overlap { f1, precision, recall } = best;
    for (value, expected) in [f1, precision, recall].into_iter().zip(case.graphragr1_f1_precision_recall) {
        assert!((value - expected).abs() < 1e-9, "{what}: {best:?}");
    }
}
