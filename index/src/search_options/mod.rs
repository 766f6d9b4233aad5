//! Options of a search, as requests, policies, tools and the command line set them.
//!
//! [`SearchOptions`] is the one list of them. A new option is a field here, with its row in [`SearchOptions::FIELDS`]
//! and its line in [`SearchOptions::or`] and [`SearchOptions::query`]; every route, policy and flag then takes it.

mod embedded;
mod field;
mod graph_overrides;
#[cfg(feature = "openapi")]
mod schema;
mod shared_condition;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::invalid_option::InvalidOption;
use crate::mode::{Mode, Ranking};
use crate::options::{KagOptions, MAX_K, RerankOptions};
use crate::query::{Query, TRIPLES};

pub use embedded::{SearchFields, WithSearch};
pub use field::{SearchField, SearchScope};
pub use graph_overrides::GraphOverrides;

use SearchScope::{Episode, Policy, Recorded, Search, Tool};

/// Options of a search. `None` leaves the choice to the options beneath, or else to [`query`](SearchOptions::query).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct SearchOptions {
    /// Kind of search: `passage` (by words and by meaning), `graph` (over facts that passages share, for questions that
    /// no single passage answers), `hybrid` (both), `triples`, `kag` or `hypergraph` (passages, and single facts from
    /// them). All but `passage` need an index with a graph.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[cfg_attr(feature = "clap", arg(long))]
    pub mode: Option<Mode>,
    /// Number of passages to return; in the mode `kag`, of passages and triples together.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 200))]
    #[cfg_attr(feature = "clap", arg(long, short))]
    pub k: Option<usize>,
    /// Ranking of passages in the modes `passage` and `hybrid`: `fused`, `dense` or `bm25`. The default is `fused` in
    /// the mode `passage`; in the mode `hybrid` it is `fused` with the graph search `waymark`, and `dense` with any
    /// other.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[cfg_attr(feature = "clap", arg(long))]
    pub ranking: Option<Ranking>,
    /// Options of graph search, in the modes `graph`, `hybrid` and `triples`.
    #[serde(default, deserialize_with = "graph_overrides::options")]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub graph: Option<GraphOverrides>,
    /// Number of triples to return in the modes `triples` and `hypergraph`; defaults to 10.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 200))]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Graph search"))]
    pub triples: Option<usize>,
    /// Names of entities that the query is about, for the mode `kag`; at most 8.
    #[cfg_attr(feature = "openapi", schema(max_items = 8))]
    #[cfg_attr(feature = "clap", arg(long = "entity", value_name = "NAME", help_heading = "Graph search"))]
    #[cfg_attr(
        feature = "clap",
        arg(help = "Entity that the query is about, for the mode `kag`; may be given several times")
    )]
    pub entities: Option<Vec<String>>,
    /// Joint ranking of passages and triples in the mode `kag`, as JSON with any of these fields: `{"chunks": 10,
    /// "entities": 5, "triples": 10, "damping": 0.5, "threshold": 0.5, "iterations": 20, "relevance": {"kind":
    /// "sigmoid", "slope": 10, "center": 0.4}}`.
    #[cfg_attr(feature = "clap", arg(long, value_name = "JSON", help_heading = "Graph search"))]
    pub kag: Option<KagOptions>,
    /// If `true`, reorders the best candidates of the modes `passage`, `graph` and `hybrid` by a reranker, which reads
    /// each together with the query. In the mode `kag`, `false` takes relevances from the embedder even if a reranker
    /// is loaded. `true` needs a reranker (`--reranker`).
    // A plain switch would be `Some(false)` where it is not given.
    #[cfg_attr(
        feature = "clap",
        arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")
    )]
    #[cfg_attr(
        feature = "clap",
        arg(help = "Reorder the best candidates by the reranker, which reads each together with the query")
    )]
    pub rerank: Option<bool>,
    /// Number of candidates to rerank, if the search reranks; defaults to 20, and is at least `k`.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 200))]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub rerank_depth: Option<usize>,
    /// Smallest relevance of a reranked passage to return, from 0 to 1. By default passages of any relevance are returned.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    #[cfg_attr(feature = "clap", arg(long, value_name = "RELEVANCE"))]
    pub rerank_cutoff: Option<f32>,
    /// Condition on the metadata of documents; only matching documents are found. Graph search still walks the whole
    /// graph and drops other passages at the end.
    #[serde(default, with = "shared_condition")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Condition>))]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub filters: Option<Arc<Condition>>,
    /// If `true`, explains the results: the facts linked to the query, the phrases where the walk over the graph began,
    /// and the path to each passage.
    #[cfg_attr(feature = "clap", arg(long, action = clap::ArgAction::SetTrue))]
    #[cfg_attr(
        feature = "clap",
        arg(
            help = "Explain the results: the facts linked to the query, the phrases where the walk over the graph began, and the path to each passage"
        )
    )]
    pub explain: Option<bool>,
}

/// Modes that take scores from a reranker.
const WITH_RERANKER: &[Mode] = &[Mode::Passage, Mode::Graph, Mode::Hybrid, Mode::Kag];

/// Modes that walk the graph from linked facts. The walk of [`Mode::Kag`] is another one, over a graph of its own.
const WALKING: &[Mode] = &[Mode::Graph, Mode::Hybrid, Mode::Triples];

/// Builds the row of a field: its name, the modes that use it, and the scopes that may set it.
macro_rules! field {
    ($name:ident, $modes:expr, $scopes:expr) => {
        SearchField {
            name: stringify!($name),
            modes: $modes,
            scopes: $scopes,
            given: |options| options.$name.is_some(),
            clear: |options| options.$name = None,
        }
    };
}

impl SearchOptions {
    /// Default number of passages.
    pub const DEFAULT_K: usize = 5;

    /// All options, in the order in which they are checked.
    pub const FIELDS: [SearchField; 12] = [
        field!(mode, &Mode::ALL, &[Search, Episode, Recorded, Policy, Tool]),
        field!(k, &Mode::ALL, &[Search, Episode, Recorded, Policy, Tool]),
        field!(ranking, &[Mode::Passage, Mode::Hybrid], &[Search, Episode, Recorded, Policy]),
        field!(graph, WALKING, &[Search, Episode, Recorded, Policy]),
        field!(triples, &[Mode::Triples, Mode::Hypergraph], &[Search, Policy]),
        field!(entities, &[Mode::Kag], &[Search]),
        field!(kag, &[Mode::Kag], &[Search, Policy]),
        field!(rerank, WITH_RERANKER, &[Search, Episode, Recorded, Policy]),
        field!(rerank_depth, WITH_RERANKER, &[Search, Episode, Recorded, Policy]),
        field!(rerank_cutoff, &Mode::RERANKED, &[Search, Episode, Recorded, Policy]),
        field!(filters, &Mode::ALL, &[Search, Episode, Recorded, Tool]),
        field!(explain, &Mode::ALL, &[Search]),
    ];

    /// Lays these options over `under`, whose values fill the gaps. Options of the graph search are merged one by one;
    /// those of the mode `kag` replace each other as a whole.
    #[must_use]
    pub fn or(self, under: &SearchOptions) -> SearchOptions {
        SearchOptions {
            mode: self.mode.or(under.mode),
            k: self.k.or(under.k),
            ranking: self.ranking.or(under.ranking),
            graph: self.graph.map(|graph| graph.or(under.graph.unwrap_or_default())).or(under.graph),
            triples: self.triples.or(under.triples),
            entities: self.entities.or_else(|| under.entities.clone()),
            kag: self.kag.or(under.kag),
            rerank: self.rerank.or(under.rerank),
            rerank_depth: self.rerank_depth.or(under.rerank_depth),
            rerank_cutoff: self.rerank_cutoff.or(under.rerank_cutoff),
            filters: self.filters.or_else(|| under.filters.clone()),
            explain: self.explain.or(under.explain),
        }
    }

    /// Builds the query for `text`, with the defaults for what is not set.
    pub fn query(&self, text: impl Into<String>) -> Query {
        let mode = self.mode();
        let graph = self.graph.unwrap_or_default().options();
        Query {
            ranking: self.ranking.unwrap_or(mode.ranking_beside(graph.variant)),
            graph,
            triples: self.triples(),
            entities: self.entities.clone().unwrap_or_default(),
            kag: self.kag.unwrap_or_default(),
            rerank: RerankOptions {
                wanted: self.rerank,
                depth: self.rerank_depth.unwrap_or(RerankOptions::DEPTH),
                cutoff: self.rerank_cutoff,
            },
            only: self.filters.clone(),
            explain: self.explain.unwrap_or(false),
            ..Query::new(text, mode, self.k())
        }
    }

    /// Checks that every value is in the range that requests and policies may use.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn check(&self) -> Result<(), InvalidOption> {
        for (name, count, least, expected) in
            [("k", self.k, 1, "must be from 1 to 200"), ("triples", self.triples, 0, "must be from 0 to 200")]
        {
            if let Some(count) = count
                && !(least..=MAX_K).contains(&count)
            {
                return Err(InvalidOption::new(name, count, expected));
            }
        }
        // The text of a query does not matter to its check.
        self.query("").check()
    }

    /// Mode of the search.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or_default()
    }

    /// Number of passages.
    pub fn k(&self) -> usize {
        self.k.unwrap_or(Self::DEFAULT_K)
    }

    /// Number of triples in [`Mode::Triples`] and [`Mode::Hypergraph`].
    pub fn triples(&self) -> usize {
        self.triples.unwrap_or(TRIPLES)
    }

    /// Iterates over the options that are set.
    pub fn given(&self) -> impl Iterator<Item = SearchField> {
        Self::FIELDS.into_iter().filter(|field| (field.given)(self))
    }

    /// Returns the first option set that a search in `mode` ignores, with the reason, to follow the option's name.
    pub fn unused(&self, mode: Mode) -> Option<(SearchField, String)> {
        self.given().find_map(|field| field.unused_reason(mode).map(|reason| (field, reason)))
    }

    /// Drops the options that a search in `mode` ignores.
    #[must_use]
    pub fn used_in(mut self, mode: Mode) -> SearchOptions {
        for field in Self::FIELDS.iter().filter(|field| field.unused_reason(mode).is_some()) {
            (field.clear)(&mut self);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::condition::Comparison;
    use crate::mode::GraphVariant;
    use crate::options::GraphOptions;

    fn every_option() -> SearchOptions {
        let filters = Condition::Compare { key: "year".into(), test: Comparison::Equal, value: 1901.into() };
        SearchOptions {
            mode: Some(Mode::Kag),
            k: Some(7),
            ranking: Some(Ranking::Bm25),
            graph: Some(GraphOverrides { damping: Some(0.25), ..GraphVariant::HippoRag.into() }),
            triples: Some(3),
            entities: Some(vec!["Faust".into()]),
            kag: Some(KagOptions { chunks: 20, ..KagOptions::default() }),
            rerank: Some(true),
            rerank_depth: Some(40),
            rerank_cutoff: Some(0.25),
            filters: Some(Arc::new(filters)),
            explain: Some(true),
        }
    }

    #[test]
    fn every_field_has_a_row() {
        let all = serde_json::to_value(every_option()).unwrap();
        let names: Vec<&str> = all.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(SearchOptions::FIELDS.map(|field| field.name).to_vec(), names);
        assert_eq!(every_option().given().count(), SearchOptions::FIELDS.len());
        for field in SearchOptions::FIELDS {
            let mut options = every_option();
            (field.clear)(&mut options);
            assert!(options.given().all(|other| other.name != field.name), "{field:?}");
            assert_eq!(options.given().count(), SearchOptions::FIELDS.len() - 1, "{field:?}");
            assert!(Mode::ALL.iter().any(|&mode| field.unused_reason(mode).is_none()), "{field:?} is never used");
        }
    }

    #[test]
    fn options_survive_json() {
        let json = serde_json::to_string(&every_option()).unwrap();
        assert_eq!(serde_json::from_str::<SearchOptions>(&json).unwrap(), every_option());
        assert!(serde_json::from_str::<SearchOptions>(r#"{"color": 1}"#).is_err());
    }

    #[test]
    fn gaps_are_filled_and_set_values_stay() {
        let none = SearchOptions::default();
        assert_eq!(none.clone().or(&every_option()), every_option());
        assert_eq!(every_option().or(&none), every_option());
        let over = SearchOptions {
            k: Some(1),
            graph: Some(GraphOverrides { linking_top_k: Some(9), ..GraphOverrides::default() }),
            kag: Some(KagOptions::default()),
            ..none
        };
        let both = over.or(&every_option());
        assert_eq!((both.k, both.triples), (Some(1), Some(3)));
        let graph = both.graph.unwrap();
        assert_eq!(
            (graph.variant, graph.linking_top_k, graph.damping),
            (Some(GraphVariant::HippoRag), Some(9), Some(0.25))
        );
        assert_eq!(both.kag.unwrap().chunks, KagOptions::default().chunks, "`kag` is replaced as a whole");
    }

    #[test]
    fn a_query_has_every_option() {
        let query = every_option().query("Who wrote Faust?");
        let graph = GraphOptions { damping: 0.25, ..GraphVariant::HippoRag.into() };
        let expected = Query {
            ranking: Ranking::Bm25,
            graph,
            triples: 3,
            entities: vec!["Faust".into()],
            kag: KagOptions { chunks: 20, ..KagOptions::default() },
            rerank: RerankOptions { wanted: Some(true), depth: 40, cutoff: Some(0.25) },
            only: every_option().filters,
            explain: true,
            ..Query::new("Who wrote Faust?", Mode::Kag, 7)
        };
        assert_eq!(query, expected);
        assert_eq!(SearchOptions::default().query("x"), Query::new("x", Mode::Passage, SearchOptions::DEFAULT_K));
    }

    #[test]
    fn values_out_of_range_are_refused_with_name_value_and_expectation() {
        let refused = |options: SearchOptions| options.check().unwrap_err().to_string();
        let graph = |damping| Some(GraphOverrides { damping: Some(damping), ..GraphOverrides::default() });
        let none = SearchOptions::default;
        for k in [0, MAX_K + 1] {
            assert_eq!(refused(SearchOptions { k: Some(k), ..none() }), format!("`k` must be from 1 to 200, not {k}"));
        }
        assert_eq!(refused(SearchOptions { triples: Some(201), ..none() }), "`triples` must be from 0 to 200, not 201");
        let deep = SearchOptions { rerank_depth: Some(0), ..none() };
        assert_eq!(refused(deep), "`rerank_depth` must be from 1 to 200, not 0");
        let cut = SearchOptions { rerank_cutoff: Some(1.5), ..none() };
        assert_eq!(refused(cut), "`rerank_cutoff` must be from 0 to 1, not 1.5");
        let named = Some(vec![String::new(); 9]);
        assert_eq!(refused(SearchOptions { entities: named, ..none() }), "`entities` must hold at most 8 names, not 9");
        assert_eq!(
            refused(SearchOptions { graph: graph(2.0), ..none() }),
            "`graph.damping` must be from 0 to 0.95, not 2"
        );
        let kag = Some(KagOptions { damping: 1.0, ..KagOptions::default() });
        assert_eq!(refused(SearchOptions { kag, ..none() }), "`kag` needs a `damping` from 0 to below 1, not 1");
        let filters = Some(Arc::new(Condition::All(Vec::new())));
        assert_eq!(refused(SearchOptions { filters, ..none() }), "`filters` needs one of `filters` at least");
        every_option().check().unwrap();
    }

    #[test]
    fn an_ignored_option_is_named_with_the_modes_that_use_it() {
        let options = SearchOptions { mode: None, k: Some(3), ..every_option() };
        let (field, reason) = options.unused(Mode::Kag).unwrap();
        assert_eq!((field.name, reason.as_str()), ("ranking", "is not used in the mode kag, only in: passage, hybrid"));
        let left: Vec<_> = options.used_in(Mode::Passage).given().map(|field| field.name).collect();
        assert_eq!(left, ["k", "ranking", "rerank", "rerank_depth", "rerank_cutoff", "filters", "explain"]);
    }
}
