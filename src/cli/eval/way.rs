//! A way of searching, as it is named on the command line: `passage:bm25`, `graph`, `graph:hippo_rag`, `hybrid`.

use std::fmt;
use std::str::FromStr;

use waymark_index::{GraphVariant, Mode, Query, Ranking, UnknownName};

use crate::agent::Part;

/// A mode, with the ranking of passages or the variant of the graph search where one was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct Way {
    /// The mode.
    pub(in crate::cli) mode: Mode,
    ranking: Option<Ranking>,
    variant: Option<GraphVariant>,
}

impl Way {
    /// What is measured where nothing is said: every ranking of passages, and the graph's modes where there is a graph.
    pub(in crate::cli) fn defaults(modes: &[Mode]) -> Vec<Way> {
        let passage = [Ranking::Bm25, Ranking::Dense, Ranking::Fused];
        let passage = passage.map(|ranking| Way { mode: Mode::Passage, ranking: Some(ranking), variant: None });
        let others = modes.iter().filter(|&&mode| mode != Mode::Passage);
        passage.into_iter().chain(others.map(|&mode| Way { mode, ranking: None, variant: None })).collect()
    }

    /// Whether what stands first depends on how many passages are asked for: then a list for five is not the beginning
    /// of one for ten.
    pub(super) fn depends_on_k(self) -> bool {
        matches!(self.mode, Mode::Hybrid | Mode::Kag)
    }

    /// A query for `text` in this way.
    pub(in crate::cli) fn query(self, text: &str, k: usize) -> Query {
        let ranking = self.ranking.unwrap_or(self.mode.ranking());
        let graph = self.variant.unwrap_or_default().into();
        Query { ranking, graph, ..Query::new(text, self.mode, k) }
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> Result<Way, String> {
        let (mode, how) = name.split_once(':').map_or((name, None), |(mode, how)| (mode, Some(how)));
        let said = |error: UnknownName| error.to_string();
        let mode = mode.parse::<Mode>().map_err(said)?;
        let mut way = Way { mode, ranking: None, variant: None };
        let Some(how) = how else { return Ok(way) };
        let read = match how.parse::<Ranking>() {
            Ok(ranking) => {
                way.ranking = Some(ranking);
                Part::Ranking
            }
            Err(unknown) if mode == Mode::Passage => return Err(said(unknown)),
            Err(_) => {
                way.variant = Some(how.parse::<GraphVariant>().map_err(said)?);
                Part::Graph
            }
        };
        // What is not read would be measured under a name that is not its own.
        read.unread(mode).map_or(Ok(way), |reason| Err(format!("{how} {reason}")))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode)?;
        match (self.ranking, self.variant) {
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
            assert_eq!(name.parse::<Way>().unwrap().to_string(), name);
        }
        let query = |name: &str| name.parse::<Way>().unwrap().query("x", 7);
        assert_eq!((query("passage").ranking, query("hybrid").ranking), (Ranking::Fused, Ranking::Dense));
        assert_eq!((query("hybrid:fused").ranking, query("graph").k), (Ranking::Fused, 7));
        assert_eq!(query("graph:graph_r1").graph, GraphVariant::GraphR1.into());
        for name in ["", "psychic", "passage:graph_r1", "graph:psychic", "passage:"] {
            assert!(name.parse::<Way>().is_err(), "{name}");
        }
        for name in ["graph:bm25", "triples:dense", "kag:fused", "kag:hippo_rag"] {
            assert!(name.parse::<Way>().unwrap_err().contains("is not read in the mode"), "{name}");
        }
    }

    #[test]
    fn without_a_graph_only_passages_are_measured() {
        let names = |modes: &[Mode]| Way::defaults(modes).iter().map(Way::to_string).collect::<Vec<_>>();
        assert_eq!(names(&[Mode::Passage]), ["passage:bm25", "passage:dense", "passage:fused"]);
        assert_eq!(names(&Mode::ALL)[3..], ["graph", "hybrid", "triples", "kag"]);
    }
}
