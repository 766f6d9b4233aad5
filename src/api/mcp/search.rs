//! The tool `search`: the same search as `/v1/search`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use waymark_index::{Condition, Hit, Mode, TripleHit};

use super::{message, shape};
use crate::api::error::ApiError;
use crate::api::search::{self, SearchRequest, SearchResponse};
use crate::api::state::AppState;
use crate::schema;

/// What a model is told of the tool.
pub(super) const DESCRIPTION: &str = "Finds the passages of the corpus that say most about a query. Ask in plain words, \
                                      for one thing at a time; the passages come best first, each with its id.";

/// What it takes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// What to look for, as plain text.
    query: String,
    /// How to search; `passage` when not given. `passage`: by words and by meaning. `graph`: over what passages say of
    /// the same things, for questions that no passage answers alone. `hybrid`: both. `triples`, `kag`: passages, and
    /// single facts out of them.
    #[schema(value_type = Option<String>, nullable = false)]
    mode: Option<Mode>,
    /// How many passages to find; 5 when not given.
    #[schema(minimum = 1, maximum = 200, nullable = false)]
    k: Option<usize>,
    /// What the metadata of documents must say; no others are found. `{"type": "eq", "key": "year", "value": 1901}`, and
    /// in the same way `ne`, `gt`, `gte`, `lt` and `lte`; `in` and `nin` with a list as `value`; `and` and `or` of several:
    /// `{"type": "and", "filters": [...]}`.
    #[schema(value_type = Option<Object>, nullable = false)]
    filters: Option<Condition>,
}

/// What was found.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Found {
    /// What was looked for.
    query: String,
    /// How.
    #[schema(value_type = String)]
    mode: Mode,
    /// The state of the index that was searched.
    snapshot: u64,
    /// Passages, best first.
    #[schema(value_type = Vec<schema::Hit>)]
    hits: Vec<Hit>,
    /// Triples, best first, in the modes that return any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<schema::TripleHit>>)]
    triples: Vec<TripleHit>,
}

/// What it takes, in the modes that the index offers, and what it gives.
pub(super) fn schemas(state: &AppState) -> Result<[Value; 2], ApiError> {
    let (mut takes, modes) = (shape::of::<Arguments>()?, state.searcher()?.modes());
    if let Some(Value::Object(mode)) = takes.pointer_mut("/properties/mode") {
        mode.insert("enum".to_owned(), json!(modes));
    }
    Ok([takes, shape::of::<Found>()?])
}

/// Searches; what was found as a text, and as it is.
pub(super) async fn call(state: &AppState, arguments: Option<Value>) -> Result<(String, Found), ApiError> {
    let Arguments { query, mode, k, filters } = message::named("arguments", arguments)?;
    // Explained, so that each passage comes with the way to it.
    let request = SearchRequest { query, mode, k, filters, explain: Some(true), ..SearchRequest::default() };
    let SearchResponse { query, mode, snapshot, hits, triples, .. } = search::find(state, request).await?;
    let found = Found { query, mode, snapshot, hits, triples };
    Ok((text(&found), found))
}

/// Numbered passages, and what facts there are.
fn text(found: &Found) -> String {
    if found.hits.is_empty() && found.triples.is_empty() {
        return "Nothing was found.".to_owned();
    }
    let passages = found.hits.iter().enumerate().map(|(index, hit)| {
        let (number, passage) = (index + 1, &hit.passage);
        let head = format!("[{number}] {}", headed(&passage.title, &passage.id));
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

/// How a passage is named in a text: by its title, and by its id.
pub(super) fn headed(title: &str, id: &str) -> String {
    if title.is_empty() { id.to_owned() } else { format!("{title} ({id})") }
}

#[cfg(test)]
mod tests {
    use waymark_index::{Arrival, Passage, Path, Step};

    use super::*;

    #[test]
    fn a_text_has_everything_that_a_model_needs_to_read() {
        let hit = |rank, title: &str, via: &[&str]| {
            let via = via.iter().map(|phrase| Step { phrase: (*phrase).to_owned(), weight: 1.0 }).collect();
            let graph = Some(Arrival { rank, mass: 0.5, reset: 0.5, via });
            let passage = Passage { id: format!("p{rank}"), title: title.to_owned(), text: "A text.".to_owned() };
            Hit { rank, score: 0.5, passage, metadata: None, path: Path { graph, ..Path::default() } }
        };
        let triple = TripleHit {
            rank: 1,
            score: 0.5,
            subject: "goethe".to_owned(),
            relation: "wrote".to_owned(),
            object: "faust".to_owned(),
            passages: vec!["p1".to_owned(), "p2".to_owned()],
        };
        let (query, mode, snapshot) = (String::new(), Mode::Triples, 3);
        let hits = vec![hit(1, "Faust", &["goethe", "faust"]), hit(2, "", &[])];
        let found = Found { query, mode, snapshot, hits, triples: vec![triple] };
        let first = "[1] Faust (p1)\nby way of: goethe → faust\nA text.";
        assert_eq!(text(&found), format!("{first}\n\n[2] p2\nA text.\n\n- goethe, wrote, faust (p1, p2)"));
        assert_eq!(text(&Found { hits: Vec::new(), triples: Vec::new(), ..found }), "Nothing was found.");
    }
}
