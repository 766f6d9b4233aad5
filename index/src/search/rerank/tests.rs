#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use tempfile::TempDir;

use crate::build::{BuildOptions, build};
use crate::corpus::{Corpus, Document};
use crate::embed::fake::HashEmbed;
use crate::error::IndexError;
use crate::evidence::Evidence;
use crate::index::Index;
use crate::mode::Mode;
use crate::query::Query;
use crate::rerank::fake::{FixedReranker, WordReranker};
use crate::rerank::{Rerank, RerankScore};
use crate::triple::Triple;

const QUESTION: &str = "rivers through the capital of France";

/// Index of thirty documents, of which the last answers the question in its own words.
fn index() -> (TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("index");
    let documents = (0..30).map(|number| {
        let text = match number {
            29 => "One of the rivers through the capital of France is the Seine".to_owned(),
            number => format!("rivers capital France {}", "and rivers ".repeat(number % 7)),
        };
        let triples = Some(vec![Triple::new(format!("river {number}"), "flows through", "capital")]);
        Document { id: format!("d{number}"), title: String::new(), text, triples, metadata: None }
    });
    let embed = HashEmbed::default();
    let corpus = Corpus::from_documents("test", documents.collect());
    build(corpus, &embed, &out, &BuildOptions::default(), &()).unwrap();
    let index = Index::open(&out, Arc::new(embed)).unwrap();
    (dir, index)
}

fn ids(evidence: &Evidence) -> Vec<&str> {
    evidence.hits.iter().map(|hit| hit.passage.id.as_str()).collect()
}

#[test]
fn the_best_candidates_are_ordered_by_the_reranker() {
    let (_dir, index) = index();
    let index = index.with_reranker(Arc::new(WordReranker));
    for mode in Mode::RERANKED {
        let query = |k| Query::new(QUESTION, mode, k);
        let plain = index.search(&query(30)).unwrap();
        let mut asked = query(3).reranked();
        asked.rerank.depth = 30;
        let evidence = index.search(&asked).unwrap();
        assert_eq!(evidence.hits.len(), 3, "{mode}");
        assert_eq!(evidence.hits[0].passage.id, "d29", "{mode}");
        for (place, hit) in evidence.hits.iter().enumerate() {
            let rerank = hit.path.rerank.unwrap();
            let expected = WordReranker.rerank(QUESTION, &[&hit.passage.text]).unwrap()[0];
            assert_eq!((hit.rank, hit.score), (place + 1, rerank.relevance));
            assert_eq!((rerank.relevance, rerank.logit), (expected.relevance, expected.logit));
            if mode != Mode::Hybrid {
                // The lists that hybrid search fuses depend on the number of candidates.
                assert_eq!(plain.hits[rerank.rank - 1].passage.id, hit.passage.id, "{mode}");
                assert_eq!(plain.hits[rerank.rank - 1].score, rerank.score, "{mode}");
            }
        }
        let logits: Vec<f32> = evidence.hits.iter().filter_map(|hit| hit.path.rerank?.logit).collect();
        assert!(logits.is_sorted_by(|a, b| a >= b), "{logits:?}");
        // A search that does not ask for it is not reranked.
        assert!(index.search(&query(3)).unwrap().hits.iter().all(|hit| hit.path.rerank.is_none()));
    }
}

#[test]
fn equal_scores_keep_their_order_and_a_cutoff_drops_passages() {
    let (_dir, index) = index();
    let plain = index.search(&Query::new(QUESTION, Mode::Passage, 4)).unwrap();
    let scored = |relevances: [f32; 4]| {
        let scores = relevances.map(|relevance| RerankScore { relevance, logit: None }).to_vec();
        Arc::new(FixedReranker(Ok(scores)))
    };
    let mut query = Query::new(QUESTION, Mode::Passage, 4).reranked();
    query.rerank.depth = 4;
    // Fusion of deeper lists may rank otherwise, so the candidates are as many as the results.
    let index = index.with_reranker(scored([0.5; 4]));
    assert_eq!(ids(&index.search(&query).unwrap()), ids(&plain));
    let index = index.with_reranker(scored([0.1, 0.9, 0.5, 0.9]));
    query.rerank.cutoff = Some(0.5);
    let order = [1, 3, 2].map(|place| plain.hits[place].passage.id.as_str());
    assert_eq!(ids(&index.search(&query).unwrap()), order);
    query.rerank.cutoff = Some(1.0);
    assert!(index.search(&query).unwrap().hits.is_empty());
}

#[test]
fn failures_say_what_is_missing() {
    let (_dir, index) = index();
    let query = Query::new(QUESTION, Mode::Passage, 2).reranked();
    let error = index.search(&query).unwrap_err();
    assert!(matches!(error, IndexError::NoReranker) && error.to_string().contains("--reranker"), "{error}");
    let index = index.with_reranker(Arc::new(FixedReranker(Err("the endpoint is gone"))));
    let error = index.search(&query).unwrap_err();
    assert!(
        matches!(error, IndexError::Rerank { .. }) && error.to_string().contains("the endpoint is gone"),
        "{error}"
    );
    let index = index.with_reranker(Arc::new(FixedReranker(Ok(Vec::new()))));
    assert!(index.search(&query).unwrap_err().to_string().contains("0 scores for"));
    // A mode that does not rerank ignores the option, as a policy sets it for all of its searches.
    index.search(&Query::new(QUESTION, Mode::Triples, 2).reranked()).unwrap();
}
