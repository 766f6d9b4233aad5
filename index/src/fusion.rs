//! Reciprocal rank fusion: merges ranked lists by rank alone.
//!
//! Cormack, Clarke and Büttcher, SIGIR 2009: `score(d) = Σ 1 / (k + rank(d))` over the lists that contain `d`, with
//! ranks from 1. RouteRAG and RAG-Gym's environment use k = 60; EVO-RAG, which takes its retriever from RAG-Gym, states
//! none.

use std::collections::HashMap;
use std::hash::Hash;

/// Constant `k` of the formula, as in every system here that publishes one.
pub const RRF_K: f64 = 60.0;

/// Depth of the lists to fuse into `k` results: twice as deep, as in RouteRAG.
pub fn depth(k: usize) -> usize {
    k.saturating_mul(2)
}

/// Depth of the BM25 and dense lists to fuse into `k` results: at least a hundred, as in RAG-Gym
/// (`RetrievalSystem.retrieve`), whose fusion EVO-RAG uses.
pub fn depth_of_rankings(k: usize) -> usize {
    depth(k).max(100)
}

/// List to fuse, best first. Fusion needs only ranks, so the list has no scores.
#[derive(Debug, Clone, Copy)]
pub struct RankedList<'a, T> {
    /// Items of the list, each at most once.
    pub items: &'a [T],
    /// Factor of this list's contributions; 1 in plain fusion.
    pub weight: f64,
}

impl<'a, T> RankedList<'a, T> {
    /// List with weight 1.
    pub fn new(items: &'a [T]) -> RankedList<'a, T> {
        RankedList { items, weight: 1.0 }
    }
}

/// Fuses `lists` by `Σ weight / (k + rank)`, best first.
///
/// Ties keep the order in which items first appear, starting with the first list. The same lists always give the same
/// result, which equals RAG-Gym's.
pub fn reciprocal_rank<T: Copy + Eq + Hash>(lists: &[RankedList<'_, T>], k: f64) -> Vec<(T, f64)> {
    let mut fused: Vec<(T, f64)> = Vec::new();
    let mut places: HashMap<T, usize> = HashMap::new();
    for list in lists {
        for (&item, rank) in list.items.iter().zip(1_u32..) {
            let place = *places.entry(item).or_insert(fused.len());
            if place == fused.len() {
                fused.push((item, 0.0));
            }
            fused[place].1 += list.weight / (k + f64::from(rank));
        }
    }
    // A stable sort keeps ties in the order of first appearance.
    fused.sort_by(|a, b| b.1.total_cmp(&a.1));
    fused
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::golden::cases;

    #[derive(Deserialize)]
    struct Case {
        list1: Vec<(String, f64)>,
        list2: Vec<(String, f64)>,
        k: usize,
        rrf_k: f64,
        ids: Vec<String>,
        scores: Vec<f64>,
    }

    fn sorted(list: &[(String, f64)]) -> Vec<&str> {
        let mut list: Vec<_> = list.iter().collect();
        list.sort_by(|a, b| b.1.total_cmp(&a.1));
        list.iter().map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn agrees_with_rag_gym() {
        for case in cases::<Case>("rrf_raggym", "cases") {
            let first = sorted(&case.list1);
            let second = sorted(&case.list2);
            let mut fused = reciprocal_rank(&[RankedList::new(&first), RankedList::new(&second)], case.rrf_k);
            fused.truncate(case.k);
            assert_eq!(fused.iter().map(|(id, _)| *id).collect::<Vec<_>>(), case.ids);
            assert_eq!(fused.len(), case.scores.len());
            for ((id, score), expected) in fused.iter().zip(&case.scores) {
                // The golden scores are rounded to twelve places.
                assert!((score - expected).abs() < 1e-12, "{id}: {score} against {expected}");
            }
        }
    }

    #[test]
    fn a_weight_moves_a_list_forward() {
        let first = ["a", "b"];
        let second = ["b", "c"];
        let fuse = |weight| {
            let lists = [RankedList { items: &first[..1], weight: 1.0 }, RankedList { items: &second[1..], weight }];
            reciprocal_rank(&lists, RRF_K)
        };
        assert_eq!(fuse(1.0)[0].0, "a");
        assert_eq!(fuse(2.0)[0].0, "c");
        assert_eq!(fuse(2.0)[0].1, 2.0 / 61.0);
    }

    fn list() -> impl Strategy<Value = Vec<u8>> {
        Just((0..12).collect::<Vec<u8>>())
            .prop_shuffle()
            .prop_flat_map(|all| (0..=all.len()).prop_map(move |n| all[..n].to_vec()))
    }

    proptest! {
        #[test]
        fn order_and_scores_follow_the_formula(lists in prop::collection::vec(list(), 0..4)) {
            let ranked: Vec<_> = lists.iter().map(|list| RankedList::new(list)).collect();
            let fused = reciprocal_rank(&ranked, RRF_K);
            let mut first_seen: Vec<u8> = Vec::new();
            lists.iter().flatten().for_each(|item| if !first_seen.contains(item) { first_seen.push(*item) });
            prop_assert_eq!(fused.len(), first_seen.len());
            for (item, score) in &fused {
                let expected: f64 = lists.iter().filter_map(|list| list.iter().position(|other| other == item))
                    .map(|place| 1.0 / (RRF_K + 1.0 + place as f64)).sum();
                prop_assert!((score - expected).abs() < 1e-15);
            }
            let seen_at = |item| first_seen.iter().position(|other| *other == item);
            for pair in fused.windows(2) {
                prop_assert!(pair[0].1 > pair[1].1 || (pair[0].1 == pair[1].1 && seen_at(pair[0].0) < seen_at(pair[1].0)));
            }
        }

        #[test]
        fn a_better_place_never_lowers_an_item(list in list(), other in list(), at in 1_usize..12) {
            prop_assume!(at < list.len());
            let place = |list: &[u8], item: u8| {
                reciprocal_rank(&[RankedList::new(list), RankedList::new(&other)], RRF_K).iter().position(|(i, _)| *i == item)
            };
            let mut better = list.clone();
            better.swap(at, at - 1);
            prop_assert!(place(&better, list[at]) <= place(&list, list[at]));
        }
    }
}
