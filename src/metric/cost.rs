//! What retrieval costs.

use serde::{Deserialize, Serialize};
use waymark_index::{Manifest, Mode};

/// A search, as far as its price depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Searched {
    /// How it was made.
    pub mode: Mode,
    /// Passages that it brought.
    pub passages: usize,
    /// Seconds that it took.
    pub seconds: f64,
    /// Whether it was taken from an earlier search of the episode.
    pub cached: bool,
}

/// How searches are priced: what the efficiency reward is computed from, and what evaluation reports.
///
/// RouteRAG measures the wall time of each search (§3.2.1 of its paper), on servers where one takes a good part of a
/// second. Here a search runs in the process of the policy and takes milliseconds, less than the noise that the decoder
/// beside it makes on the same cores; and a reward that depends on the load of the machine cannot be repeated. So the
/// default is a model of the work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// Seconds.
    WallTime,
    /// The work that a search takes, whatever the machine does meanwhile.
    Model(Prices),
}

/// Prices of the work of a search, in units of one dense search for no passage at all.
///
/// The defaults are rounded from measured times of searches one at a time (`waymark eval retrieval`, popqa and
/// musique_dev): dense 4.8 and 7.7 ms, most of it the embedding of the query, which all modes need; graph 9.3 and 13.9 ms;
/// hybrid 14.4 and 14.2 ms. The walk of a graph search sweeps over every node of the graph, so its part grows with the
/// index. Each passage costs reading, and then context of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Embedding the query and ranking passages by it.
    pub passage: f64,
    /// The same for facts, and what does not depend on the size of the graph.
    pub graph: f64,
    /// Both with one embedding, and the fusion.
    pub hybrid: f64,
    /// Each passage that is shown.
    pub shown: f64,
    /// A thousand nodes that the walk touches.
    pub kilonode: f64,
    /// Nodes of the graph that is walked over, phrases and passages; 0 where they are left out of the price. See
    /// [`Cost::over`].
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
    /// The same prices for searches of this index: where no number of nodes is named, those of its graph are counted,
    /// phrases and passages. A walk of an index too large to be walked over whole touches fewer, and pays for all.
    #[must_use]
    pub fn over(self, index: &Manifest) -> Cost {
        match (self, &index.graph) {
            (Cost::Model(prices), Some(graph)) if prices.nodes == 0 => {
                Cost::Model(Prices { nodes: graph.phrases + index.passages, ..prices })
            }
            _ => self,
        }
    }

    /// The price of one search. Reusing an earlier one costs what it shows; the clock says what it says.
    pub fn of(&self, searched: &Searched) -> f64 {
        match self {
            Cost::WallTime => searched.seconds,
            Cost::Model(prices) => prices.of(searched),
        }
    }
}

impl Prices {
    fn of(&self, searched: &Searched) -> f64 {
        let shown = self.shown * searched.passages as f64;
        if searched.cached {
            return shown;
        }
        let walk = self.kilonode * self.nodes as f64 / 1000.0;
        shown
            + match searched.mode {
                Mode::Passage => self.passage,
                Mode::Hybrid => self.hybrid + walk,
                // Two of the other modes walk as well, and rank the triples that they have scored anyway; the third looks at
                // every phrase for each name that it is asked about, and is priced alike.
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
        let price = |mode| cost.of(&Searched { mode, passages: 3, seconds: 0.5, cached: false });
        assert!(price(Mode::Passage) < price(Mode::Graph) && price(Mode::Graph) < price(Mode::Hybrid));
        assert!((price(Mode::Passage) - 1.15).abs() < 1e-12);
        let large = Cost::Model(Prices { nodes: 100_000, ..Prices::default() });
        let graph = Searched { mode: Mode::Graph, passages: 0, seconds: 0.5, cached: false };
        assert!((large.of(&graph) - 2.3).abs() < 1e-12);
        assert_eq!(large.of(&Searched { cached: true, ..graph }), 0.0);
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
