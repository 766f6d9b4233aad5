#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;
use crate::condition::Comparison;
use crate::mode::GraphVariant;
use crate::options::GraphOptions;

/// Fields of a policy's table next to its search options.
#[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFields {
    format: Option<String>,
}

impl SearchFields for PolicyFields {
    const SCOPE: SearchScope = Policy;
}

/// Fields of a request for one search.
#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestFields {
    query: String,
}

impl SearchFields for RequestFields {
    const SCOPE: SearchScope = Search;
}

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
    assert!(serde_json::from_str::<SearchOptions>(r#"{"colour": 1}"#).is_err());
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
    assert_eq!((graph.variant, graph.linking_top_k, graph.damping), (Some(GraphVariant::HippoRag), Some(9), Some(0.25)));
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
    let named = Some(vec![String::new(); 9]);
    assert_eq!(refused(SearchOptions { entities: named, ..none() }), "`entities` must hold at most 8 names, not 9");
    assert_eq!(refused(SearchOptions { graph: graph(2.0), ..none() }), "`graph.damping` must be from 0 to 0.95, not 2");
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
    assert_eq!(left, ["k", "ranking", "filters", "explain"]);
}

#[test]
fn a_scope_takes_its_options_and_refuses_the_others() {
    let read = |json: &str| serde_json::from_str::<WithSearch<PolicyFields>>(json);
    let table = read(r#"{"k": 5, "format": "training", "graph": "hippo_rag", "mode": null}"#).unwrap();
    let graph = Some(GraphVariant::HippoRag.into());
    assert_eq!(table.search, SearchOptions { k: Some(5), graph, ..SearchOptions::default() });
    assert_eq!(table.rest.format.as_deref(), Some("training"));
    for (json, words) in [
        (r#"{"explain": true}"#, "unknown field `explain`, expected one of `mode`"),
        (r#"{"kk": 5}"#, "`kag`, `format`"),
        (r#"{"graph": {"variant": "hippo_rag"}}"#, "invalid type: map"),
        (r#"{"k": "five"}"#, "invalid type: string \"five\", expected usize"),
        ("3", "expected an object"),
    ] {
        let error = read(json).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    let read = |json: &str| serde_json::from_str::<WithSearch<RequestFields>>(json);
    let request = read(r#"{"query": "x", "graph": {"damping": 0.5}, "explain": true}"#).unwrap();
    assert_eq!((request.rest.query.as_str(), request.search.graph.unwrap().damping), ("x", Some(0.5)));
    assert!(read(r#"{"query": "x", "graph": "hippo_rag"}"#).unwrap_err().to_string().contains("hippo_rag"));
    assert!(read(r#"{"k": 1}"#).unwrap_err().to_string().contains("missing field `query`"));
}

#[test]
fn a_record_has_every_option_of_its_scope() {
    let search = SearchOptions { graph: Some(GraphVariant::GraphR1.into()), k: Some(2), ..SearchOptions::default() };
    let rest = PolicyFields { format: Some("training".into()) };
    let written = serde_json::to_value(WithSearch { search, rest }).unwrap();
    let expected = serde_json::json!({
        "format": "training", "mode": null, "k": 2, "ranking": null, "graph": "graph_r1", "triples": null, "kag": null,
    });
    assert_eq!(written, expected);
}
