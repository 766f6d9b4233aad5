//! The tool `search`: the same search as `/v1/search`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use waymark_index::{AnswerCut, Hit, Mode, SearchFields, SearchOptions, SearchScope, TripleHit, WithSearch};

use super::{json_schema, message};
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::search::{self, SearchQueryField, SearchRequest, SearchResponse};
use crate::api::state::AppState;

/// Description of the tool for models.
pub(super) const DESCRIPTION: &str = "Finds the passages of the corpus that are most relevant to a query. Ask in plain \
                                      words, for one thing at a time; the passages come best first, each with its id.";

/// Arguments of the tool: a query with the search options that a model is offered.
type SearchArguments = WithSearch<SearchArgument>;

/// Argument of the tool other than the search options.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchArgument {
    /// Query, as plain text.
    query: String,
}

impl SearchFields for SearchArgument {
    const SCOPE: SearchScope = SearchScope::Tool;
}

/// Descriptions of search options for models, where they need other words than programmers.
const FOR_MODELS: [(&str, &str); 3] = [
    (
        "mode",
        "Kind of search; defaults to `passage`. `passage`: by words and by meaning. `graph`: over facts that passages \
         share, for questions that no single passage answers. `hybrid`: both. `triples`, `kag`, `hypergraph`: passages, and \
         single facts from them.",
    ),
    ("k", "Number of passages to return; defaults to 5."),
    (
        "filters",
        "Condition on the metadata of documents; only matching documents are found. `{\"type\": \"eq\", \"key\": \"year\", \
         \"value\": 1901}`, and likewise `ne`, `gt`, `gte`, `lt` and `lte`; `in` and `nin` with a list as `value`; `and` \
         and `or` of several: `{\"type\": \"and\", \"filters\": [...]}`.",
    ),
];

/// Result of the tool.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SearchOutput {
    /// Query, as searched.
    query: String,
    /// Kind of search.
    #[schema(value_type = String)]
    mode: Mode,
    /// Snapshot of the index that was searched.
    snapshot: u64,
    /// Passages, best first.
    hits: Vec<Hit>,
    /// Triples, best first, in modes that return them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<TripleHit>>)]
    triples: Vec<TripleHit>,
    /// Last passages and triples, if they were left out because of the size of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<AnswerCut>,
}

/// Returns the input schema, with the modes that the index supports, and the output schema.
pub(super) fn schemas(state: &AppState) -> Result<[Value; 2], ApiError> {
    let mut takes = json_schema::of::<SearchArguments>()?;
    // The remaining references lead to schemas of conditions, which are recursive. Their form is described in words
    // instead.
    takes.as_object_mut().map(|schema| schema.remove("$defs"));
    for option in SearchScope::Tool.fields() {
        if let Some(Value::Object(property)) = takes.pointer_mut(&format!("/properties/{}", option.name)) {
            for_models(property);
            if let Some((_, words)) = FOR_MODELS.iter().find(|(name, _)| *name == option.name) {
                property.insert("description".to_owned(), json!(words));
            }
        }
    }
    let modes = state.searcher()?.modes();
    if let Some(Value::Object(mode)) = takes.pointer_mut("/properties/mode") {
        mode.insert("enum".to_owned(), json!(modes));
    }
    Ok([takes, json_schema::of::<SearchOutput>()?])
}

/// Simplifies the schema of an option: models leave an option out instead of setting it to `null`, and objects are
/// described in words.
fn for_models(property: &mut Map<String, Value>) {
    if property.remove("oneOf").is_some() {
        property.insert("type".to_owned(), json!("object"));
    }
    // The type itself comes first, then `null`.
    if let Some(Value::Array(kinds)) = property.get_mut("type") {
        let kind = kinds.swap_remove(0);
        property.insert("type".to_owned(), kind);
    }
}

/// Searches the index. Returns the result as text and structured.
pub(super) async fn call(
    state: &AppState,
    caller: &Caller,
    arguments: Option<Value>,
) -> Result<(String, SearchOutput), ApiError> {
    let SearchArguments { search, rest } = message::named("arguments", arguments)?;
    // With `explain`, each passage comes with the path that led to it.
    let search = SearchOptions { explain: Some(true), ..search };
    let request = SearchRequest { search, rest: SearchQueryField { query: rest.query } };
    let SearchResponse { query, mode, snapshot, hits, triples, cut, .. } = search::find(state, caller, request).await?;
    let found = SearchOutput { query, mode, snapshot, hits, triples, cut };
    Ok((text(&found), found))
}

/// Formats the passages, numbered, and the facts.
fn text(found: &SearchOutput) -> String {
    if found.hits.is_empty() && found.triples.is_empty() && found.cut.is_none() {
        return "Nothing was found.".to_owned();
    }
    let passages = found.hits.iter().enumerate().map(|(index, hit)| {
        let number = index + 1;
        let passage = &hit.passage;
        let head = format!("[{number}] {}", title_and_id(&passage.title, &passage.id));
        let via: Vec<&str> =
            hit.path.graph.iter().flat_map(|arrival| &arrival.via).map(|step| step.phrase.as_str()).collect();
        let way = if via.is_empty() { String::new() } else { format!("\nby way of: {}", via.join(" → ")) };
        format!("{head}{way}\n{}", passage.text)
    });
    let triples = found.triples.iter().map(|triple| {
        let TripleHit { subject, relation, object, passages, .. } = triple;
        format!("- {subject}, {relation}, {object} ({})", passages.join(", "))
    });
    let facts = triples.collect::<Vec<_>>().join("\n");
    let cut =
        found.cut.as_ref().map(|cut| format!("{} more results were left out: ask for fewer (`k`).", cut.left_out));
    passages.chain((!facts.is_empty()).then_some(facts)).chain(cut).collect::<Vec<_>>().join("\n\n")
}

/// Formats the title and the ID of a passage.
pub(super) fn title_and_id(title: &str, id: &str) -> String {
    if title.is_empty() { id.to_owned() } else { format!("{title} ({id})") }
}

#[cfg(test)]
mod tests {
    use waymark_index::{GraphRank, HitPath, Passage, PathEdge};

    use super::*;

    #[test]
    fn a_text_has_everything_that_a_model_needs_to_read() {
        let hit = |rank, title: &str, via: &[&str]| {
            let via = via.iter().map(|phrase| PathEdge { phrase: (*phrase).to_owned(), weight: 1.0 }).collect();
            let graph = Some(GraphRank { rank, mass: 0.5, reset: 0.5, via });
            let passage = Passage { id: format!("p{rank}"), title: title.to_owned(), text: "A text.".to_owned() };
            Hit { rank, score: 0.5, passage, metadata: None, path: HitPath { graph, ..HitPath::default() } }
        };
        let triple = TripleHit {
            rank: 1,
            score: 0.5,
            subject: "goethe".to_owned(),
            relation: "wrote".to_owned(),
            object: "faust".to_owned(),
            passages: vec!["p1".to_owned(), "p2".to_owned()],
        };
        let query = String::new();
        let mode = Mode::Triples;
        let snapshot = 3;
        let hits = vec![hit(1, "Faust", &["goethe", "faust"]), hit(2, "", &[])];
        let found = SearchOutput { query, mode, snapshot, hits, triples: vec![triple], cut: None };
        let first = "[1] Faust (p1)\nby way of: goethe → faust\nA text.";
        assert_eq!(text(&found), format!("{first}\n\n[2] p2\nA text.\n\n- goethe, wrote, faust (p1, p2)"));
        let cut = Some(AnswerCut { left_out: 2, limit: 1 });
        let nothing = SearchOutput { hits: Vec::new(), triples: Vec::new(), cut, ..found };
        assert_eq!(text(&nothing), "2 more results were left out: ask for fewer (`k`).");
        let found = SearchOutput { cut: None, ..nothing };
        assert_eq!(text(&SearchOutput { hits: Vec::new(), triples: Vec::new(), ..found }), "Nothing was found.");
    }
}
