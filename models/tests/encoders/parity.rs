//! Vectors of each family compared with those of sentence-transformers.

use std::sync::Arc;

use waymark_models::kernel::Team;
use waymark_models::reranker::Reranker;

use super::fixture::{cosine, embedder, texts, whole};

/// Compares the vectors of a directory with those of the fixture.
fn agrees(name: &str) {
    let (dir, expected) = whole(name);
    let embedder = embedder(dir.path());
    let texts = texts(&embedder, &expected.cases);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let vectors = embedder.embed(&texts).unwrap();
    for (case, vector) in expected.cases.iter().zip(&vectors) {
        let cosine = cosine(vector, &case.embedding);
        let apart = vector.iter().zip(&case.embedding).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{name}: cosine {cosine:.7}, greatest difference {apart:.1e}: {} {:.40?}", case.kind, case.text);
        assert!(cosine > 0.9999 && apart < 1e-4, "{name}: {:?}: cosine {cosine}, difference {apart}", case.text);
    }
    // The vectors of different texts differ, so the comparison can fail.
    assert!(cosine(&vectors[0], &vectors[1]) < 0.999, "{name}");
    for (text, vector) in texts.iter().zip(&vectors) {
        assert_eq!(&embedder.embed(&[text]).unwrap()[0], vector, "{name}: {text:?} alone");
    }
}

#[test]
fn bert_agrees_with_sentence_transformers_in_every_pooling() {
    for name in ["bert", "bert-cls", "bert-max"] {
        agrees(name);
    }
}

#[test]
fn xlm_roberta_agrees_with_sentence_transformers() {
    agrees("xlm-roberta");
}

#[test]
fn roberta_agrees_with_sentence_transformers() {
    agrees("roberta");
}

#[test]
fn mpnet_agrees_with_sentence_transformers() {
    agrees("mpnet");
}

#[test]
fn distilbert_agrees_with_sentence_transformers() {
    agrees("distilbert");
}

#[test]
fn modernbert_agrees_with_sentence_transformers() {
    agrees("modernbert");
}

#[test]
fn nomic_agrees_with_sentence_transformers() {
    agrees("nomic");
}

#[test]
fn qwen3_agrees_with_sentence_transformers() {
    agrees("qwen3");
}

#[test]
fn gte_agrees_with_sentence_transformers() {
    agrees("gte");
}

/// Compares the scores of a cross-encoder with those of the fixture, whose cases hold the query as their kind.
fn scores_agree(name: &str) {
    let (dir, expected) = whole(name);
    let reranker = Reranker::open(dir.path(), Arc::new(Team::new(2))).unwrap();
    for case in &expected.cases {
        let score = reranker.score(&case.kind, &[&case.text]).unwrap()[0];
        println!("{name}: {score:.5}, expected {:.5}: {:.40?}", case.embedding[0], case.text);
        assert!((score - case.embedding[0]).abs() < 1e-4, "{name}: {:?}: {score}", case.text);
    }
    let [first, second] = [0, 1].map(|case| expected.cases[case].embedding[0]);
    assert!((first - second).abs() > 1e-2, "{name}: the scores of different texts differ");
}

#[test]
fn modernbert_rerankers_agree_with_sentence_transformers() {
    for name in ["modernbert-reranker", "modernbert-reranker-cls"] {
        scores_agree(name);
    }
}
