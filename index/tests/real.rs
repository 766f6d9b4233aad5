//! Searches over real passages and questions, if available.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;
#[path = "../../tests/outside/mod.rs"]
mod outside;

use std::time::{Duration, Instant};

use corpora::{HashEmbed, open};
use serde::Deserialize;
use waymark_index::{BuildOptions, Corpus, CorpusOptions, Mode, Query, Ranking, build};

#[derive(Deserialize)]
struct Question {
    question: String,
    supporting: Vec<String>,
    #[serde(default)]
    supporting_complete: bool,
}

/// Share of the supporting passages among the first five results, over questions with known support.
#[test]
fn bm25_finds_the_support_of_real_questions() {
    let Some(data) = outside::data(&["2wiki/corpus.jsonl", "2wiki/questions.jsonl"]) else { return };
    let data = data.join("2wiki");
    let temp = tempfile::tempdir().unwrap();
    let corpus = Corpus::open(&data.join("corpus.jsonl"), &CorpusOptions::default()).unwrap();
    let start = Instant::now();
    let report = build(corpus, &HashEmbed::default(), temp.path(), &BuildOptions::default(), &()).unwrap();
    println!("{} passages built in {:.2?}", report.manifest.passages, start.elapsed());
    let index = open(temp.path()).unwrap();

    let questions = std::fs::read_to_string(data.join("questions.jsonl")).unwrap();
    let questions: Vec<Question> = questions.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut recall = 0.0;
    let mut counted = 0.0;
    let mut spent = Duration::ZERO;
    for question in questions.iter().filter(|question| question.supporting_complete) {
        let query = Query::new(&question.question, Mode::Passage, 5).ranking(Ranking::Bm25);
        let start = Instant::now();
        let hits = index.search(&query).unwrap().hits;
        spent += start.elapsed();
        let found = question.supporting.iter().filter(|id| hits.iter().any(|hit| hit.passage.id == **id)).count();
        recall += found as f64 / question.supporting.len() as f64;
        counted += 1.0;
    }
    println!("BM25 recall@5 {:.4} over {counted} questions, {:.3?} each", recall / counted, spent / counted as u32);
    assert!(counted >= 100.0 && recall / counted > 0.6);
}
