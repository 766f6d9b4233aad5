//! Passages excluded from an episode's search results.
//!
//! Each search asks for as many additional passages as are excluded, and removes the excluded ones from its result
//! before any other code sees it: the observation, the events, the record and the citations all follow from the rest,
//! which is ranked from 1 again.
//!
//! **Triples** name at most ten passages that state them. Excluded passages are not named, and a triple whose named
//! passages are all excluded is removed as well, so that fewer triples than requested may remain. In the mode `kag`, a
//! remaining triple keeps its words, which are those of the first passage that states it, excluded or not.
//!
//! **Limits.** The search itself runs over the whole index. Phrases and facts that occur in excluded passages only are
//! part of the graph walk, and the ranks and masses in a hit's path are those of that search. The modes `hybrid` and
//! `kag` build their lists as deep as the request asks for; here these lists are deeper, which may change the order of
//! other passages. In the mode `kag`, triples that only excluded passages state take places of the list, so that fewer
//! results than requested may remain, although there are others. A fact of the hypergraph that an excluded and another
//! passage state stays, but the other passage may not be among the hits.

use std::collections::HashSet;

use waymark_index::{Evidence, Mode, Query, SearchOptions, TripleHit};

use super::AgentError;
use super::continued_episode::ContinuedEpisode;

/// Maximum number of passages that an episode may exclude.
pub const MAX_WITHOUT: usize = 64;

/// Number of additional facts that a search of the hypergraph requests per excluded passage.
const FACTS: usize = 32;

/// IDs of the excluded passages; empty for most episodes.
#[derive(Debug, Clone, Default)]
pub struct ExcludedPassages(HashSet<String>);

impl ExcludedPassages {
    /// Excludes the passages with these IDs. Unknown IDs have no effect.
    ///
    /// # Errors
    /// [`AgentError::Option`] when there are more than [`MAX_WITHOUT`].
    pub fn new(ids: &[String]) -> Result<ExcludedPassages, AgentError> {
        let ids: HashSet<String> = ids.iter().cloned().collect();
        if ids.len() > MAX_WITHOUT {
            return Err(AgentError::Option { field: "without", reason: "must have at most 64 passages" });
        }
        Ok(ExcludedPassages(ids))
    }

    /// Checks that an earlier episode, whose evidence is in the prompt of the one that continues it, found none of these
    /// passages.
    ///
    /// # Errors
    /// [`AgentError::SearchOption`] when it found one.
    pub(super) fn check_continued(&self, earlier: &ContinuedEpisode) -> Result<(), AgentError> {
        let hits = earlier.evidence.iter().flat_map(|found| &found.hits).map(|hit| &hit.passage.id);
        let triples = earlier.evidence.iter().flat_map(|found| &found.triples).flat_map(|triple| &triple.passages);
        let Some(passage) = hits.chain(triples).find(|id| self.0.contains(*id)) else { return Ok(()) };
        let reason = format!(
            "the passage {passage:?} is in the prompt, which continues the episode {:?}: exclude it in a replay of that one",
            earlier.id
        );
        Err(AgentError::SearchOption { field: "without".to_owned(), reason })
    }

    /// Increases the requested number of results by the number that may be removed.
    pub fn widen(&self, wanted: Query) -> Query {
        let more = self.0.len();
        // The facts of a hypergraph come in groups around a few entities, most of them from the same passages.
        let facts = if wanted.mode == Mode::Hypergraph { more * FACTS } else { more };
        Query { k: wanted.k + more, triples: wanted.triples + facts, ..wanted }
    }

    /// Removes the excluded passages from the result of a [widened](Self::widen) search, and truncates the rest to what
    /// `wanted` asks for. The search's explanation is dropped, because it mentions excluded passages too.
    pub fn narrow(&self, found: Evidence, wanted: &SearchOptions) -> Evidence {
        if self.0.is_empty() {
            return found;
        }
        let Evidence { snapshot, mode, mut hits, mut triples, .. } = found;
        hits.retain(|hit| !self.0.contains(&hit.passage.id));
        triples.retain_mut(|triple| self.leaves(triple));
        if mode == Mode::Kag {
            // In this mode passages and triples share one ranking, and `k` counts both.
            let mut ranks: Vec<usize> = hits.iter().map(|hit| hit.rank).collect();
            ranks.extend(triples.iter().map(|triple| triple.rank));
            ranks.sort_unstable();
            let place = |rank: usize| ranks.partition_point(|&other| other < rank) + 1;
            hits.iter_mut().for_each(|hit| hit.rank = place(hit.rank));
            triples.iter_mut().for_each(|triple| triple.rank = place(triple.rank));
            // Ranks are consecutive over both lists, so this keeps the best `k` of them together.
            hits.retain(|hit| hit.rank <= wanted.k());
            triples.retain(|triple| triple.rank <= wanted.k());
        } else {
            triples.truncate(wanted.triples());
            if mode == Mode::Hypergraph {
                // The additional facts bring passages of their own, which a search without exclusions would not find.
                let stating: HashSet<&str> =
                    triples.iter().filter_map(|fact| fact.passages.first()).map(String::as_str).collect();
                hits.retain(|hit| stating.contains(hit.passage.id.as_str()));
            }
            hits.truncate(wanted.k());
            hits.iter_mut().zip(1..).for_each(|(hit, rank)| hit.rank = rank);
            triples.iter_mut().zip(1..).for_each(|(triple, rank)| triple.rank = rank);
        }
        Evidence { triples, ..Evidence::of(snapshot, mode, hits) }
    }

    /// Removes excluded passages from a triple. Returns `false` if none of its named passages remains.
    fn leaves(&self, triple: &mut TripleHit) -> bool {
        let named = !triple.passages.is_empty();
        triple.passages.retain(|id| !self.0.contains(id));
        !named || !triple.passages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::subsequence;
    use waymark_index::{Hit, HitPath, Passage};

    fn absence(ids: &[&str]) -> ExcludedPassages {
        ExcludedPassages::new(&ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn hit((id, rank): (&str, usize)) -> Hit {
        let passage = Passage { id: id.into(), title: String::new(), text: String::new() };
        Hit { rank, score: 1.0 / rank as f32, passage, metadata: None, path: HitPath::default() }
    }

    fn triple((rank, passages): (usize, &[&str])) -> TripleHit {
        let passages = passages.iter().map(|&id| id.to_owned()).collect();
        let [subject, relation, object] = ["a", "is", "b"].map(str::to_owned);
        TripleHit { rank, score: 1.0, subject, relation, object, passages }
    }

    fn found(mode: Mode, hits: &[(&str, usize)], triples: &[(usize, &[&str])]) -> Evidence {
        let hits = hits.iter().copied().map(hit).collect();
        Evidence { triples: triples.iter().copied().map(triple).collect(), ..Evidence::of(1, mode, hits) }
    }

    fn wants(k: usize, triples: usize) -> SearchOptions {
        SearchOptions { k: Some(k), triples: Some(triples), ..SearchOptions::default() }
    }

    fn ranked(evidence: &Evidence) -> Vec<(&str, usize)> {
        evidence.hits.iter().map(|hit| (hit.passage.id.as_str(), hit.rank)).collect()
    }

    #[test]
    fn triples_go_with_the_last_passage_that_states_them() {
        let evidence = found(
            Mode::Triples,
            &[("p", 1), ("q", 2), ("r", 3)],
            &[(1, &["p"]), (2, &["p", "q"]), (3, &[]), (4, &["r"]), (5, &["q"])],
        );
        let left = absence(&["p"]).narrow(evidence, &wants(2, 3));
        assert_eq!(ranked(&left), [("q", 1), ("r", 2)]);
        let triples: Vec<_> = left.triples.iter().map(|triple| (triple.rank, triple.passages.join(" "))).collect();
        assert_eq!(triples, [(1, "q".to_owned()), (2, String::new()), (3, "r".to_owned())]);
    }

    #[test]
    fn passages_of_facts_beyond_those_requested_are_removed() {
        let of_a: &[&str] = &["a"];
        let mut facts: Vec<(usize, &[&str])> = (1..=10).map(|rank| (rank, of_a)).collect();
        facts.push((11, &["b"]));
        facts.push((12, &["c"]));
        let evidence = found(Mode::Hypergraph, &[("a", 1), ("b", 2), ("c", 3)], &facts);
        let left = absence(&["zzz"]).narrow(evidence.clone(), &wants(3, 10));
        assert_eq!((ranked(&left), left.triples.len()), (vec![("a", 1)], 10));
        let left = absence(&["a"]).narrow(evidence, &wants(3, 10));
        assert_eq!((ranked(&left), left.triples.len()), (vec![("b", 1), ("c", 2)], 2));
    }

    #[test]
    fn where_both_have_one_order_they_keep_it() {
        let evidence = found(Mode::Kag, &[("p", 1), ("q", 3), ("r", 5)], &[(2, &["p", "q"]), (4, &["p"]), (6, &["r"])]);
        let left = absence(&["p"]).narrow(evidence.clone(), &wants(3, 9));
        let places = |left: &Evidence| left.triples.iter().map(|triple| triple.rank).collect::<Vec<_>>();
        assert_eq!((ranked(&left), places(&left)), (vec![("q", 2), ("r", 3)], vec![1]));
        let left = absence(&["p"]).narrow(evidence, &wants(4, 9));
        assert_eq!((ranked(&left), places(&left)), (vec![("q", 2), ("r", 3)], vec![1, 4]));
    }

    #[test]
    fn where_nothing_is_left_out_nothing_is_touched() {
        let odd = found(Mode::Passage, &[("p", 7), ("q", 7), ("p", 1)], &[]);
        assert_eq!(absence(&[]).narrow(odd.clone(), &wants(1, 0)), odd);
        let query = Query::new("x", Mode::Passage, 3);
        assert_eq!(absence(&[]).widen(query.clone()), query);
    }

    #[test]
    fn an_id_counts_once_and_many_are_refused() {
        let wanted = absence(&["p", "q", "p"]).widen(Query { triples: 5, ..Query::new("x", Mode::Triples, 3) });
        assert_eq!((wanted.k, wanted.triples), (5, 7));
        let many: Vec<String> = (0..=MAX_WITHOUT).map(|id| id.to_string()).collect();
        assert!(ExcludedPassages::new(&many[1..]).is_ok());
        assert!(ExcludedPassages::new(&many).unwrap_err().to_string().starts_with("without:"));
    }

    proptest! {
        /// If lists are deep enough, the result is that of an index without the passages: the others in their order.
        #[test]
        fn what_is_left_is_the_best_of_the_others(
            out in subsequence(vec!["0", "1", "2", "3", "4", "5", "x", "y"], 0..8),
            k in 1..7usize,
        ) {
            let all = [("0", 1), ("1", 2), ("2", 3), ("3", 4), ("4", 5), ("5", 6)];
            let absence = absence(&out);
            let wanted = absence.widen(Query::new("x", Mode::Passage, k)).k;
            let evidence = found(Mode::Passage, &all[..wanted.min(all.len())], &[]);
            let left = absence.narrow(evidence, &wants(k, 0));
            let others = all.iter().map(|(id, _)| *id).filter(|id| !out.contains(id));
            prop_assert_eq!(ranked(&left), others.take(k).zip(1usize..).collect::<Vec<_>>());
        }
    }
}
