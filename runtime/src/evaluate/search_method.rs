//! Search methods as named on the command line: `passage:bm25`, `graph`, `graph:hippo_rag`, `hybrid`.

use std::fmt;
use std::str::FromStr;

use waymark_index::{GraphVariant, Mode, Query, Ranking, SearchOptions, UnknownName};

/// A search method: a mode, with the ranking of passages or the variant of the graph search if one was named.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchMethod(SearchOptions);

impl SearchMethod {
    /// Methods measured by default: every ranking of passages, and the graph modes if there is a graph.
    pub fn defaults(modes: &[Mode]) -> Vec<SearchMethod> {
        let method = |mode, ranking| SearchMethod(SearchOptions { mode: Some(mode), ranking, ..Default::default() });
        let passage =
            [Ranking::Bm25, Ranking::Dense, Ranking::Fused].map(|ranking| method(Mode::Passage, Some(ranking)));
        let others = modes.iter().filter(|&&mode| mode != Mode::Passage);
        passage.into_iter().chain(others.map(|&mode| method(mode, None))).collect()
    }

    /// Mode of the searches.
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// Returns `true` if the order of results depends on `k`, so that the first five of ten are not the results for
    /// five.
    pub fn depends_on_k(&self) -> bool {
        // These modes, and the fused ranking, merge two candidate lists, each of which is longer for a larger `k`.
        matches!(self.mode(), Mode::Hybrid | Mode::Kag) || self.query("", 1).ranking == Ranking::Fused
    }

    /// Builds a query for `text` with this method.
    pub fn query(&self, text: &str, k: usize) -> Query {
        Query { k, ..self.0.query(text) }
    }
}

impl FromStr for SearchMethod {
    type Err = String;

    fn from_str(name: &str) -> Result<SearchMethod, String> {
        let (mode, how) = name.split_once(':').map_or((name, None), |(mode, how)| (mode, Some(how)));
        let said = |error: UnknownName| error.to_string();
        let mode = mode.parse::<Mode>().map_err(said)?;
        let mut options = SearchOptions { mode: Some(mode), ..SearchOptions::default() };
        let Some(how) = how else { return Ok(SearchMethod(options)) };
        match how.parse::<Ranking>() {
            Ok(ranking) => options.ranking = Some(ranking),
            Err(unknown) if mode == Mode::Passage => return Err(said(unknown)),
            Err(_) => options.graph = Some(how.parse::<GraphVariant>().map_err(said)?.into()),
        }
        // A part that the mode ignores would give two names to one measurement.
        match options.unused(mode) {
            Some((_, reason)) => Err(format!("{how} {reason}")),
            None => Ok(SearchMethod(options)),
        }
    }
}

impl fmt::Display for SearchMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode())?;
        match (self.0.ranking, self.0.graph.and_then(|graph| graph.variant)) {
            (Some(ranking), _) => write!(f, ":{ranking}"),
            (None, Some(variant)) => write!(f, ":{variant}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_read_and_shown() {
        for name in ["passage", "passage:dense", "passage:bm25", "graph", "graph:hippo_rag", "hybrid:fused", "kag"] {
            assert_eq!(name.parse::<SearchMethod>().unwrap().to_string(), name);
        }
        let query = |name: &str| name.parse::<SearchMethod>().unwrap().query("x", 7);
        assert_eq!((query("passage").ranking, query("hybrid").ranking), (Ranking::Fused, Ranking::Dense));
        assert_eq!((query("hybrid:fused").ranking, query("graph").k), (Ranking::Fused, 7));
        assert_eq!(query("graph:graphrag_r1").graph, GraphVariant::GraphRagR1.into());
        assert_eq!(query("graph:graph_r1").graph, GraphVariant::GraphRagR1.into(), "its earlier name");
        for name in ["", "psychic", "passage:graph_r1", "graph:psychic", "passage:"] {
            assert!(name.parse::<SearchMethod>().is_err(), "{name}");
        }
        for name in ["graph:bm25", "triples:dense", "kag:fused", "kag:hippo_rag"] {
            assert!(name.parse::<SearchMethod>().unwrap_err().contains("is not used in the mode"), "{name}");
        }
    }

    #[test]
    fn merged_lists_depend_on_their_length() {
        for name in ["passage", "passage:fused", "hybrid", "hybrid:dense", "hybrid:waymark", "kag"] {
            assert!(name.parse::<SearchMethod>().unwrap().depends_on_k(), "{name}");
        }
        for name in ["passage:dense", "passage:bm25", "graph", "graph:waymark", "triples", "hypergraph"] {
            assert!(!name.parse::<SearchMethod>().unwrap().depends_on_k(), "{name}");
        }
    }

    #[test]
    fn without_a_graph_only_passages_are_measured() {
        let names =
            |modes: &[Mode]| SearchMethod::defaults(modes).iter().map(SearchMethod::to_string).collect::<Vec<_>>();
        assert_eq!(names(&[Mode::Passage]), ["passage:bm25", "passage:dense", "passage:fused"]);
        assert_eq!(names(&Mode::ALL)[3..], ["graph", "hybrid", "triples", "kag", "hypergraph"]);
    }
}
