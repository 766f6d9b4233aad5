//! Golden vectors of the reference systems, for tests of the modules that reproduce them.

#![allow(clippy::unwrap_used)]

#[path = "../../tests/outside/mod.rs"]
mod outside;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub(crate) use outside::{by_parameter, data, require};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::openie::valid_triples;
use crate::{BuildOptions, Corpus, CorpusOptions, Embed, EmbedError, build};

/// Stem of the files with graphs.
const GRAPHS: &str = "hipporag_graph_search";

/// Reads all cases of a section from the files of a stem. Graphs that [`built`] cannot build are left out. Only a
/// folder named by the environment may have such graphs.
pub(crate) fn cases<T: DeserializeOwned>(stem: &str, section: &str) -> Vec<T> {
    let mut cases: Vec<Value> = outside::cases(stem, section);
    if stem == GRAPHS {
        cases.retain(|graph| {
            require(has_titles(graph), format_args!("graph {}: a passage has no title", graph["name"]));
            has_titles(graph)
        });
    }
    let parsed = |case| serde_json::from_value(case).unwrap_or_else(|error| panic!("{stem}, {section}: {error}"));
    cases.into_iter().map(parsed).collect()
}

/// Returns `true` if every passage of a graph is a title, a line break, and a text.
fn has_titles(graph: &Value) -> bool {
    let has_title = |passage: &Value| passage.as_str().is_some_and(|passage| passage.contains('\n'));
    graph["passages"].as_array().is_some_and(|passages| passages.iter().all(has_title))
}

/// Embedder that looks up vectors in a corpus of `hipporag_graph_search.json`.
pub(crate) struct Given(HashMap<String, Vec<f32>>);

impl Given {
    /// Vectors of these `kinds` of texts: `chunk`, `entity`, `fact`, `query`.
    pub(crate) fn of(corpus: &Value, kinds: &[&str]) -> Given {
        let vectors = kinds.iter().flat_map(|kind| corpus["embeddings"][kind].as_object().unwrap());
        let numbers = |vector: &Value| vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        Given(vectors.map(|(text, vector)| (text.clone(), numbers(vector))).collect())
    }
}

impl Embed for Given {
    fn id(&self) -> &str {
        "given"
    }

    fn dims(&self) -> usize {
        self.0.values().next().map_or(1, Vec::len)
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let vector = |&text: &&str| self.0.get(text).cloned().ok_or_else(|| format!("no vector of {text:?}").into());
        texts.iter().map(vector).collect()
    }
}

/// Builds an index of a corpus of `hipporag_graph_search.json` in `dir`, with the options of the reference run, and
/// returns its path.
pub(crate) fn built(corpus: &Value, dir: &Path) -> PathBuf {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let docs = corpus["openie"]["docs"].as_array().unwrap().iter();
    let triples: HashMap<String, _> =
        docs.map(|doc| (text(&doc["passage"]), valid_triples(doc["extracted_triples"].as_array().unwrap()))).collect();
    let documents = corpus["passages"].as_array().unwrap().iter().map(|passage| {
        let passage = text(passage);
        let (title, body) = passage.split_once('\n').unwrap();
        json!({"title": title, "text": body, "triples": triples.get(&passage).cloned().unwrap_or_default()})
    });
    let path = dir.join("corpus.json");
    std::fs::write(&path, json!(documents.collect::<Vec<_>>()).to_string()).unwrap();
    let out = dir.join("index");
    let embed = Given::of(corpus, &["chunk", "entity", "fact"]);
    build(Corpus::open(&path, &CorpusOptions::default()).unwrap(), &embed, &out, &BuildOptions::default(), &())
        .unwrap();
    out
}

#[test]
fn a_graph_with_an_untitled_passage_is_recognized() {
    assert!(has_titles(&json!({"passages": ["Title\ntext", "Other\ntext"]})));
    assert!(!has_titles(&json!({"passages": ["Title\ntext", "text"]})));
}
