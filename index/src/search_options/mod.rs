//! Options of a search, as requests, policies, tools and the command line set them.
//!
//! [`SearchOptions`] is the one list of them. A new option is a field here, with its row in [`SearchOptions::FIELDS`] and its
//! line in [`SearchOptions::or`] and [`SearchOptions::query`]; every route, policy and flag then takes it.

mod embedded;
mod field;
mod graph_overrides;
mod invalid;
#[cfg(feature = "openapi")]
mod schema;
mod shared_condition;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::mode::{Mode, Ranking};
use crate::options::KagOptions;
use crate::query::{Query, TRIPLES};

pub use embedded::{SearchFields, WithSearch};
pub use field::{SearchField, SearchScope};
pub use graph_overrides::GraphOverrides;
pub use invalid::InvalidOption;

use SearchScope::{Episode, Policy, Recorded, Search, Tool};

/// Maximum number of passages, and of triples, that requests and policies may ask for in one search.
pub const MAX_K: usize = 200;

/// Options of a search. `None` leaves the choice to the options beneath, or else to [`query`](SearchOptions::query).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct SearchOptions {
    /// Kind of search: `passage` (by words and by meaning), `graph` (over facts that passages share, for questions that
    /// no single passage answers), `hybrid` (both), `triples` or `kag` (passages, and single facts from them). All but
    /// `passage` need an index with a graph.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[cfg_attr(feature = "clap", arg(long))]
    pub mode: Option<Mode>,
    /// Number of passages to return; in the mode `kag`, of passages and triples together.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 200))]
    #[cfg_attr(feature = "clap", arg(long, short))]
    pub k: Option<usize>,
    /// Ranking of passages in the modes `passage` and `hybrid`: `fused`, `dense` or `bm25`. By default `fused` in the
    /// mode `passage`, and `dense` in `hybrid`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[cfg_attr(feature = "clap", arg(long))]
    pub ranking: Option<Ranking>,
    /// Options of graph search, in the modes `graph`, `hybrid` and `triples`.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub graph: Option<GraphOverrides>,
    /// Number of triples to return in the mode `triples`; defaults to 10.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 200))]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Graph search"))]
    pub triples: Option<usize>,
    /// Names of entities that the query is about, for the mode `kag`; at most 8.
    #[cfg_attr(feature = "openapi", schema(max_items = 8))]
    #[cfg_attr(feature = "clap", arg(long = "entity", value_name = "NAME", help_heading = "Graph search"))]
    pub entities: Option<Vec<String>>,
    /// Joint ranking of passages and triples in the mode `kag`, as JSON with any of these fields: `{"chunks": 10,
    /// "entities": 5, "triples": 10, "damping": 0.5, "threshold": 0.5, "iterations": 20, "relevance": {"kind":
    /// "sigmoid", "slope": 10, "centre": 0.4}}`.
    #[cfg_attr(feature = "clap", arg(long, value_name = "JSON", help_heading = "Graph search"))]
    pub kag: Option<KagOptions>,
    /// Condition on the metadata of documents; only matching documents are found. Graph search still walks the whole
    /// graph and drops other passages at the end.
    #[serde(default, with = "shared_condition")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Condition>))]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub filters: Option<Arc<Condition>>,
    /// If `true`, explains the results: the facts linked to the query, the phrases where the walk over the graph began,
    /// and the path to each passage.
    #[cfg_attr(feature = "clap", arg(long, action = clap::ArgAction::SetTrue))]
    pub explain: Option<bool>,
}

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
    /// Number of passages where nothing else is said.
    pub const DEFAULT_K: usize = 5;

    /// All options, in the order in which they are checked.
    pub const FIELDS: [SearchField; 9] = [
        field!(mode, &Mode::ALL, &[Search, Episode, Recorded, Policy, Tool]),
        field!(k, &Mode::ALL, &[Search, Episode, Recorded, Policy, Tool]),
        field!(ranking, &[Mode::Passage, Mode::Hybrid], &[Search, Episode, Recorded, Policy]),
        field!(graph, WALKING, &[Search, Episode, Recorded, Policy]),
        field!(triples, &[Mode::Triples], &[Search, Policy]),
        field!(entities, &[Mode::Kag], &[Search]),
        field!(kag, &[Mode::Kag], &[Search, Policy]),
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
            filters: self.filters.or_else(|| under.filters.clone()),
            explain: self.explain.or(under.explain),
        }
    }

    /// Builds the query for `text`, with the defaults for what is not set.
    pub fn query(&self, text: impl Into<String>) -> Query {
        let mode = self.mode();
        Query {
            ranking: self.ranking.unwrap_or(mode.ranking()),
            graph: self.graph.unwrap_or_default().options(),
            triples: self.triples(),
            entities: self.entities.clone().unwrap_or_default(),
            kag: self.kag.unwrap_or_default(),
            only: self.filters.clone(),
            explain: self.explain.unwrap_or(false),
            ..Query::new(text, mode, self.k())
        }
    }

    /// Checks that every value is in the range that requests and policies may use.
    ///
    /// # Errors
    /// The first option that is not.
    pub fn check(&self) -> Result<(), InvalidOption> {
        for (name, count, least, expected) in [
            ("k", self.k, 1, "must be from 1 to 200"),
            ("triples", self.triples, 0, "must be from 0 to 200"),
        ] {
            if let Some(count) = count
                && !(least..=MAX_K).contains(&count)
            {
                return Err(InvalidOption::new(name, count, expected));
            }
        }
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

    /// Number of triples in [`Mode::Triples`].
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
mod tests;
