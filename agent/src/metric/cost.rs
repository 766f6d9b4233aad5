//! Costs of retrieval.

use serde::{Deserialize, Serialize};
use waymark_index::{Manifest, Mode};

/// Properties of a search that determine its price.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PricedSearch {
    /// Retrieval mode.
    pub mode: Mode,
    /// Number of passages returned.
    pub passages: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// If `true`, the result was taken from an earlier search of the episode.
    pub cached: bool,
}

/// Pricing of searches, for the efficiency reward and for evaluation.
///
/// RouteRAG measures the wall time of each search (§3.2.1 of its paper), on servers where one takes a good part of a
/// second. Here a search runs in the policy's process and takes milliseconds, less than the noise of the decoder on the
/// same cores; and a reward that depends on the machine's load cannot be reproduced. So the default is a model of the
/// work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// Wall time in seconds.
    WallTime,
    /// Modeled work of a search, independent of the machine's load.
    Model(Prices),
}

/// Prices of the work of a search. The unit is one dense search that returns no passage.
///
/// The defaults are rounded from measured times of single searches (`waymark eval retrieval`, popqa and musique_dev):
/// dense 4.8 and 7.7 ms, most of it the embedding of the query, which all modes need; graph 9.3 and 13.9 ms; hybrid
/// 14.4 and 14.2 ms. The walk of a graph search is charged for every node of the graph, so its price grows with the
/// index. Each passage costs reading, and then context of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Embedding the query and ranking passages.
    pub passage: f64,
    /// Embedding the query and ranking facts, with everything that does not depend on the size of the graph.
    pub graph: f64,
    /// Both rankings with one embedding, and their fusion.
    pub hybrid: f64,
    /// Each returned passage.
    pub shown: f64,
    /// A thousand nodes of the graph, for the walk.
    pub kilonode: f64,
    /// Number of nodes in the graph, phrases and passages; 0 leaves the walk out of the price. See [`Cost::over`].
    pub nodes: u64,
}

impl Default for Prices {
    fn default() -> Self {
        Prices { passage: 1.0, graph: 1.8, hybrid: 2.2, shown: 0.05, kilonode: 0.005, nodes: 0 }
    }
}

impl Default for Cost {
    fn default() -> Self {
        Cost::Model(Prices::default())
    }
}

impl Cost {
    /// Fills in the number of nodes, phrases and passages, from the graph of this index if none is set. A walk over a
    /// large index may visit only a part of the graph, but is charged for the whole.
    #[must_use]
    pub fn over(self, index: &Manifest) -> Cost {
        match (self, &index.graph) {
            (Cost::Model(prices), Some(graph)) if prices.nodes == 0 => {
                Cost::Model(Prices { nodes: graph.phrases + index.passages, ..prices })
            }
            _ => self,
        }
    }

    /// Returns the price of one search. A reused result costs its passages only; wall time is always the measured time.
    pub fn of(&self, searched: &PricedSearch) -> f64 {
        match self {
            Cost::WallTime => searched.seconds,
            Cost::Model(prices) => prices.of(searched),
        }
    }
}

impl Prices {
    fn of(&self, searched: &PricedSearch) -> f64 {
        let shown = self.shown * searched.passages as f64;
        if searched.cached {
            return shown;
        }
        let walk = self.kilonode * self.nodes as f64 / 1000.0;
        shown
            + match searched.mode {
                Mode::Passage => self.passage,
                Mode::Hybrid => self.hybrid + walk,
                // `Graph` and `Triples` walk the graph; the triples that they rank are already scored. `Kag` and
                // `Hypergraph` compare every phrase with named entities or the query instead, and get the same price.
                _ => self.graph + walk,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_cost_more_than_passages_and_hybrids_most() {
        let cost = Cost::default();
        let price = |mode| cost.of(&PricedSearch { mode, passages: 3, seconds: 0.5, cached: false });
        assert!(price(Mode::Passage) < price(Mode::Graph) && price(Mode::Graph) < price(Mode::Hybrid));
        assert!((price(Mode::Passage) - 1.15).abs() < 1e-12);
        let large = Cost::Model(Prices { nodes: 100_000, ..Prices::default() });
        let graph = PricedSearch { mode: Mode::Graph, passages: 0, seconds: 0.5, cached: false };
        assert!((large.of(&graph) - 2.3).abs() < 1e-12);
        assert_eq!(large.of(&PricedSearch { cached: true, ..graph }), 0.0);
        assert_eq!(Cost::WallTime.of(&graph), 0.5);
    }

    #[test]
    fn it_is_written_by_name() {
        let read = |text: &str| serde_json::from_str::<Cost>(text).ok();
        assert_eq!(read("\"wall_time\""), Some(Cost::WallTime));
        let Some(Cost::Model(prices)) = read(r#"{"model": {"graph": 3.0}}"#) else { panic!("no model") };
        assert_eq!(prices, Prices { graph: 3.0, ..Prices::default() });
    }
}
