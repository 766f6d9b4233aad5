//! Interface to a reranker, which callers supply.

use std::cmp::Ordering;
use std::fmt;

/// Error returned by a reranker.
pub type RerankError = Box<dyn std::error::Error + Send + Sync>;

/// Maximum size of a text that is given to a reranker, in bytes. Rerankers read a few hundred tokens of a text.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// Relevance of a document for a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RerankScore {
    /// Relevance from 0 to 1.
    pub relevance: f32,
    /// Score before it was mapped to \[0, 1\], which tells apart documents of relevance 1. `None` if the reranker does
    /// not tell it.
    pub logit: Option<f32>,
}

impl RerankScore {
    /// Compares two scores of one call, the better one first.
    pub fn best_first(&self, other: &RerankScore) -> Ordering {
        // Logits and relevances have one order, but relevances near 1 are rounded to the same number.
        let logit = |score: &RerankScore| score.logit.unwrap_or(f32::MIN);
        other.relevance.total_cmp(&self.relevance).then_with(|| logit(other).total_cmp(&logit(self)))
    }
}

/// Scores documents by reading each together with the query. Installed by
/// [`Index::with_reranker`](crate::Index::with_reranker), and called from many threads at once.
pub trait Rerank: fmt::Debug + Send + Sync {
    /// Identifier of the model.
    fn id(&self) -> &str;

    /// Scores each document for `query`, in order. Text beyond the length that the model reads does not count.
    ///
    /// # Errors
    /// Any failure of the model; the search then fails.
    fn rerank(&self, query: &str, documents: &[&str]) -> Result<Vec<RerankScore>, RerankError>;
}

/// Scores `documents` and checks the result: one finite score per document. Cuts texts that no reranker reads to the
/// end.
pub(crate) fn rerank_checked(
    reranker: &dyn Rerank,
    query: &str,
    documents: &[String],
) -> Result<Vec<RerankScore>, RerankError> {
    if documents.is_empty() {
        return Ok(Vec::new());
    }
    let cut: Vec<&str> = documents.iter().map(|text| beginning(text)).collect();
    let scores = reranker.rerank(beginning(query), &cut)?;
    if scores.len() != documents.len() {
        let counts = format!("{} scores for {} documents", scores.len(), documents.len());
        return Err(format!("the reranker {} gave {counts}", reranker.id()).into());
    }
    let finite = |score: &RerankScore| score.relevance.is_finite() && score.logit.is_none_or(f32::is_finite);
    match scores.iter().position(|score| !finite(score)) {
        Some(place) => Err(format!("the reranker {} gave document {place} no finite score", reranker.id()).into()),
        None => Ok(scores),
    }
}

/// Cuts a text to what a reranker is given. The rest takes no memory while other candidates are read.
pub(crate) fn cut_to_beginning(text: String) -> String {
    if text.len() <= MAX_TEXT_BYTES { text } else { beginning(&text).to_owned() }
}

/// Returns at most [`MAX_TEXT_BYTES`] of a text.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

#[cfg(test)]
pub(crate) mod fake {
    use super::{Rerank, RerankError, RerankScore};

    /// Reranker whose logit is the number of words of the query that a document has, less the number of others over
    /// 100.
    #[derive(Debug)]
    pub(crate) struct WordReranker;

    impl Rerank for WordReranker {
        fn id(&self) -> &str {
            "words"
        }

        fn rerank(&self, query: &str, documents: &[&str]) -> Result<Vec<RerankScore>, RerankError> {
            let words = |text: &str| -> Vec<String> {
                text.to_lowercase().split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect()
            };
            let query = words(query);
            let score = |document: &&str| {
                let words = words(document);
                let shared = query.iter().filter(|word| words.contains(word)).count() as f32;
                let logit = shared - words.len() as f32 / 100.0;
                RerankScore { relevance: 1.0 / (1.0 + (-logit).exp()), logit: Some(logit) }
            };
            Ok(documents.iter().map(score).collect())
        }
    }

    /// Reranker that returns these scores, or else this error.
    #[derive(Debug)]
    pub(crate) struct FixedReranker(pub(crate) Result<Vec<RerankScore>, &'static str>);

    impl Rerank for FixedReranker {
        fn id(&self) -> &str {
            "fixed"
        }

        fn rerank(&self, _: &str, _: &[&str]) -> Result<Vec<RerankScore>, RerankError> {
            self.0.clone().map_err(Into::into)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::fake::FixedReranker;
    use super::*;

    #[test]
    fn a_reranker_that_breaks_its_contract_is_named() {
        let score = |relevance, logit| RerankScore { relevance, logit };
        let documents = ["a".to_owned(), "b".to_owned()];
        for (given, expected) in [
            (vec![score(0.5, None)], "1 scores for 2 documents"),
            (vec![score(0.5, None), score(f32::NAN, None)], "document 1 no finite score"),
            (vec![score(0.5, Some(f32::INFINITY)), score(0.5, None)], "document 0 no finite score"),
        ] {
            let error = rerank_checked(&FixedReranker(Ok(given)), "q", &documents).unwrap_err().to_string();
            assert!(error.contains("fixed") && error.contains(expected), "{error}");
        }
        assert!(rerank_checked(&FixedReranker(Err("gone")), "q", &documents).is_err());
        assert!(rerank_checked(&FixedReranker(Err("gone")), "q", &[]).unwrap().is_empty(), "not asked for nothing");
    }

    #[test]
    fn logits_decide_where_relevances_are_alike() {
        let score = |relevance, logit| RerankScore { relevance, logit };
        assert_eq!(score(1.0, Some(20.0)).best_first(&score(1.0, Some(30.0))), Ordering::Greater);
        assert_eq!(score(0.9, None).best_first(&score(0.8, None)), Ordering::Less);
        assert_eq!(beginning(&"ü".repeat(40_000)).len(), MAX_TEXT_BYTES);
    }

    #[test]
    fn of_a_long_text_only_the_beginning_stays_in_memory() {
        let start = "x".repeat(MAX_TEXT_BYTES - 1);
        // The limit falls into the middle of `ü`.
        let cut = cut_to_beginning(format!("{start}ü{}", "y".repeat(4 << 20)));
        assert!(cut == start && cut.capacity() <= MAX_TEXT_BYTES, "{} of {}", cut.len(), cut.capacity());
        assert_eq!(cut_to_beginning("short".to_owned()), "short");
    }
}
