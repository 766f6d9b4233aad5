//! The tool `search`: the same search as `/v1/search`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use waymark_agent::schema;
use waymark_index::{Condition, Hit, Mode, TripleHit};

use super::{json_schema, message};
use crate::api::error::ApiError;
use crate::api::search::{self, SearchRequest, SearchResponse};
use crate::api::state::AppState;

/// Description of the tool for models.
pub(super) const DESCRIPTION: &str = "Finds the passages of the corpus that are most relevant to a query. Ask in plain \
                                      words, for one thing at a time; the passages come best first, each with its id.";

/// Arguments of the tool.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchArguments {
    /// Query, as plain text.
    query: String,
    /// Kind of search; defaults to `passage`. `passage`: by words and by meaning. `graph`: over facts that passages
    /// share, for questions that no single passage answers. `hybrid`: both. `triples`, `kag`: passages, and single
    /// facts from them.
    #[schema(value_type = Option<String>, nullable = false)]
    mode: Option<Mode>,
    /// Number of passages to return; defaults to 5.
    #[schema(minimum = 1, maximum = 200, nullable = false)]
    k: Option<usize>,
    /// Condition on the metadata of documents; only matching documents are found. `{"type": "eq", "key": "year",
    /// "value": 1901}`, and likewise `ne`, `gt`, `gte`, `lt` and `lte`; `in` and `nin` with a list as `value`; `and`
    /// and `or` of several: `{"type": "and", "filters": [...]}`.
    #[schema(value_type = Option<Object>, nullable = false)]
    filters: Option<Condition>,
}

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
    #[schema(value_type = Vec<schema::HitSchema>)]
    hits: Vec<Hit>,
    /// Triples, best first, in modes that return them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<schema::TripleHitSchema>>)]
    triples: Vec<TripleHit>,
}

/// Returns the input schema, with the modes that the index supports, and the output schema.
pub(super) fn schemas(state: &AppState) -> Result<[Value; 2], ApiError> {
    let mut takes = json_schema::of::<SearchArguments>()?;
    let modes = state.searcher()?.modes();
    if let Some(Value::Object(mode)) = takes.pointer_mut("/properties/mode") {
        mode.insert("enum".to_owned(), json!(modes));
    }
    Ok([takes, json_schema::of::<SearchOutput>()?])
}

/// Searches the index. Returns the result as text and structured.
pub(super) async fn call(state: &AppState, arguments: Option<Value>) -> Result<(String, SearchOutput), ApiError> {
    let SearchArguments { query, mode, k, filters } = message::named("arguments", arguments)?;
    // With `explain`, each passage comes with the path that led to it.
    let request = SearchRequest { query, mode, k, filters, explain: Some(true), ..SearchRequest::default() };
    let SearchResponse { query, mode, snapshot, hits, triples, .. } = search::find(state, request).await?;
    let found = SearchOutput { query, mode, snapshot, hits, triples };
    Ok((text(&found), found))
}

/// Formats the passages, numbered, and the facts.
fn text(found: &SearchOutput) -> String {
    if found.hits.is_empty() && found.triples.is_empty() {
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
    passages.chain((!facts.is_empty()).then_some(facts)).collect::<Vec<_>>().join("\n\n")
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
        let found = SearchOutput { query, mode, snapshot, hits, triples: vec![triple] };
        let first = "[1] Faust (p1)\nby way of: goethe → faust\nA text.";
        assert_eq!(text(&found), format!("{first}\n\n[2] p2\nA text.\n\n- goethe, wrote, faust (p1, p2)"));
        assert_eq!(text(&SearchOutput { hits: Vec::new(), triples: Vec::new(), ..found }), "Nothing was found.");
    }
}
