//! The documentation of this repository as a corpus: questions about it, and the passage that must come first.

use serde_json::{Value, json};

use super::program::{Serving, waymark};

/// Questions, each with a text of the passage that answers it.
const QUESTIONS: [(&str, &str); 20] = [
    ("Which signal makes the server read keys and certificates again?", "SIGHUP"),
    ("Which file formats can a corpus have?", "DOCX or PDF"),
    ("When does a passage support a claim?", "contains the claim word for word"),
    ("How do I resume a stream of events after a lost connection?", "`Last-Event-ID`"),
    ("How many documents does the rerank route take at most?", "at most 1,000 documents"),
    ("How do I limit the tokens of a client per minute?", "`--tokens-per-minute`"),
    ("What does the demo download and serve?", "`demo` downloads"),
    ("How can a web page of another origin use the server?", "`--cors-origin` names their origin"),
    ("How are answers constrained to a JSON schema?", "`json_schema` constrains the final answer"),
    ("What is promised to stay stable from version 0.1 on?", "stable within a major version"),
    ("How do I connect an MCP client?", "by streamable HTTP"),
    ("How do I replay a recorded episode without one passage?", "\"without\""),
    ("How is an index merged in the background?", "merges both into a new base snapshot in the background"),
    ("Which fields of OpenAI's API are hints without effect?", "`prompt_cache_key`"),
    ("Which Rust version do I need to build it?", "Rust 1.95"),
    ("How do I install shell completions?", "waymark completions bash"),
    ("Can several servers share one PostgreSQL database?", "`postgres://…`"),
    ("How many tokens does max_tokens count?", "bound the completion tokens"),
    ("Who may read my traces?", "key sees its own traces only"),
    ("How is DNS rebinding prevented?", "`--allowed-host`"),
];

/// Returns the passages that a search finds, best first.
fn found(url: &str, query: &str) -> Vec<String> {
    let sent = reqwest::Client::new().post(format!("{url}/v1/search")).json(&json!({"query": query, "k": 3})).send();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer: Value = runtime.block_on(async { sent.await.unwrap().json().await.unwrap() });
    let hits = answer["hits"].as_array().unwrap();
    hits.iter().map(|hit| hit["passage"]["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_documentation_answers_questions_about_itself() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join("docs.index");
    let index = index.to_str().unwrap();
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/docs");
    // Searches of passages need no triples, whose extraction would take as long as the embedding.
    let built = waymark(&["index", "build", "--corpus", docs, "--out", index, "--triples", "none"]);
    assert!(built.ok(), "{}", built.stderr);
    let server = Serving::start(&["--mock", "--index", index]);
    let mut missed = Vec::new();
    for (question, text) in QUESTIONS {
        let passages = found(&server.url, question);
        // Lines of the pages are broken anywhere.
        let words = passages[0].split_whitespace().collect::<Vec<_>>().join(" ");
        if !words.contains(text) {
            missed.push(format!("{question}\n    expected {text:?} first, found {passages:#?}"));
        }
    }
    assert!(
        missed.is_empty(),
        "{} questions are not answered by the first passage:\n{}",
        missed.len(),
        missed.join("\n")
    );
    assert!(server.stop());
}
