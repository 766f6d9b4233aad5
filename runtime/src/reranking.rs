//! Rerankers for searches and the API: a model's, an endpoint's, or a mock.

use std::collections::HashSet;

use waymark_index::{Rerank, RerankError, RerankScore};
use waymark_models::reranker::{Reranker, sigmoid};

use crate::embedding::MOCK;
use crate::remote::RerankEndpoint;

/// A reranker for searches and the API.
#[derive(Debug)]
pub enum Reranking {
    /// A cross-encoder of `waymark-models`.
    Model(Box<Reranker>),
    /// A reranker elsewhere.
    Endpoint(Box<RerankEndpoint>),
    /// The share of the query's words that a document has: deterministic, without weights.
    Mock,
}

impl Reranking {
    /// Counts the tokens of `text`. `None` if only the endpoint can count them.
    pub fn count_tokens(&self, text: &str) -> Option<usize> {
        match self {
            Reranking::Model(reranker) => Some(reranker.count_tokens(text)),
            Reranking::Endpoint(_) => None,
            Reranking::Mock => Some(text.split_whitespace().count()),
        }
    }

    /// Returns `true` if the reranker is an endpoint, which encodes no text here.
    pub fn is_remote(&self) -> bool {
        matches!(self, Reranking::Endpoint(_))
    }
}

impl Rerank for Reranking {
    fn id(&self) -> &str {
        match self {
            Reranking::Model(reranker) => reranker.id(),
            Reranking::Endpoint(endpoint) => endpoint.id(),
            Reranking::Mock => MOCK,
        }
    }

    fn rerank(&self, query: &str, documents: &[&str]) -> Result<Vec<RerankScore>, RerankError> {
        match self {
            Reranking::Model(reranker) => {
                let logits = reranker.score(query, documents)?;
                let score = |logit| RerankScore { relevance: sigmoid(logit), logit: Some(logit) };
                Ok(logits.into_iter().map(score).collect())
            }
            Reranking::Endpoint(endpoint) => endpoint.rerank(query, documents),
            Reranking::Mock => Ok(documents.iter().map(|document| shared_words(query, document)).collect()),
        }
    }
}

/// Returns the share of the query's words that a document has.
fn shared_words(query: &str, document: &str) -> RerankScore {
    let words = |text: &str| -> HashSet<String> {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let query = words(query);
    let document = words(document);
    let shared = query.iter().filter(|word| document.contains(*word)).count();
    RerankScore { relevance: shared as f32 / query.len().max(1) as f32, logit: None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_mock_counts_shared_words() {
        let scores = Reranking::Mock.rerank("Mona Lisa?", &["the mona lisa", "LISA", "radium", ""]).unwrap();
        let relevances: Vec<f32> = scores.iter().map(|score| score.relevance).collect();
        assert_eq!(relevances, [1.0, 0.5, 0.0, 0.0]);
        assert_eq!(Reranking::Mock.rerank("?", &["a"]).unwrap()[0].relevance, 0.0);
        assert_eq!(Reranking::Mock.count_tokens("two words"), Some(2));
    }
}
