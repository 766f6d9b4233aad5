//! SBERT similarity: cosines between the embeddings of texts.

use std::collections::{BTreeSet, HashMap};

use waymark_agent::metric::r1_searcher::normalize;
use waymark_index::{Embed, EmbedError};

use super::row::EpisodeRow;

/// Number of texts per call of the embedder, which bounds its memory.
const BATCH: usize = 64;

/// Embedding vectors of texts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TextSimilarity {
    vectors: HashMap<String, Vec<f32>>,
}

impl TextSimilarity {
    /// Embeds `texts`, each distinct one once.
    ///
    /// # Errors
    /// If the embedder fails or does not return one vector per text.
    pub fn of(embedder: &dyn Embed, texts: impl IntoIterator<Item = String>) -> Result<Self, EmbedError> {
        // Sorted, so that batches, and with them rounding, do not depend on the order of the texts.
        let texts: BTreeSet<String> = texts.into_iter().collect();
        let texts: Vec<String> = texts.into_iter().collect();
        let mut vectors = HashMap::with_capacity(texts.len());
        for batch in texts.chunks(BATCH) {
            let borrowed: Vec<&str> = batch.iter().map(String::as_str).collect();
            let embedded = embedder.embed(&borrowed)?;
            let found = embedded.len();
            if found != batch.len() {
                return Err(format!("{} returned {found} vectors for {} texts", embedder.id(), batch.len()).into());
            }
            vectors.extend(batch.iter().cloned().zip(embedded));
        }
        Ok(TextSimilarity { vectors })
    }

    /// Returns the cosine similarity of two texts. 0 if a text was not embedded or its vector has length 0.
    pub fn cosine(&self, one: &str, other: &str) -> f64 {
        let (Some(one), Some(other)) = (self.vectors.get(one), self.vectors.get(other)) else { return 0.0 };
        // Sums in f64, because f32 sums over hundreds of dimensions lose digits.
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let length = (dot(one, one) * dot(other, other)).sqrt();
        if length > 0.0 { dot(one, other) / length } else { 0.0 }
    }
}

/// Fills in the similarity of every answer to the most similar accepted answer, both in GraphRAG-R1's normal form
/// (`calc_rule.py`). GraphRAG-R1 embeds with a Chinese model, and this function with that of the index, so the values
/// differ in level.
///
/// # Errors
/// Same as [`TextSimilarity::of`].
pub(super) fn fill(rows: &mut [EpisodeRow], embed: &dyn Embed) -> Result<(), EmbedError> {
    let answered = rows.iter().filter(|row| row.has_answer());
    let texts = answered.flat_map(|row| row.golds.iter().chain(&row.answer)).map(|text| normalize(text));
    let similarity = TextSimilarity::of(embed, texts)?;
    for row in rows {
        let Some(answer) = row.answer.as_deref().filter(|_| row.has_answer()).map(normalize) else { continue };
        let golds = row.golds.iter().map(|gold| similarity.cosine(&answer, &normalize(gold)));
        row.similarity = golds.max_by(f64::total_cmp);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::embedding::Embedding;

    /// Mock embedder: the text spells out the two numbers of its vector. The text "missing" gets none.
    #[derive(Debug)]
    struct WrittenVectors;

    impl Embed for WrittenVectors {
        fn id(&self) -> &'static str {
            "written"
        }

        fn dims(&self) -> usize {
            2
        }

        fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
            let numbers = |text: &&str| text.split(' ').map(|word| Ok(word.parse::<f32>()?)).collect();
            texts.iter().filter(|text| **text != "missing").map(numbers).collect()
        }
    }

    #[test]
    fn similarity_is_the_cosine_of_vectors() {
        let texts = ["1 0", "3 4", "0 0", "3 4", "-2 0"].map(str::to_owned);
        let similarity = TextSimilarity::of(&WrittenVectors, texts).unwrap();
        let cosines = [("1 0", "3 4"), ("3 4", "3 4"), ("1 0", "-2 0"), ("1 0", "0 0"), ("1 0", "5 5")];
        for ((one, other), expected) in cosines.into_iter().zip([0.6, 1.0, -1.0, 0.0, 0.0]) {
            assert!((similarity.cosine(one, other) - expected).abs() < 1e-6, "{one} {other}");
        }
        let error =
            TextSimilarity::of(&WrittenVectors, ["1 0", "no number"].map(str::to_owned)).unwrap_err().to_string();
        assert!(error.contains("invalid float"), "{error}");
    }

    #[test]
    fn more_texts_than_a_batch_are_all_embedded() {
        let similarity = TextSimilarity::of(&WrittenVectors, (1..=2 * BATCH + 1).map(|at| format!("{at} 1"))).unwrap();
        assert!(similarity.cosine("1 1", &format!("{} 1", 2 * BATCH + 1)) > 0.5);
    }

    #[test]
    fn a_missing_vector_is_an_error() {
        let row = EpisodeRow { answer: Some("missing".into()), golds: vec!["1 0".to_owned()], ..EpisodeRow::default() };
        let mut rows = [row];
        let error = fill(&mut rows, &WrittenVectors).unwrap_err().to_string();
        assert_eq!(error, "written returned 1 vectors for 2 texts");
        assert_eq!(rows[0].similarity, None);
    }

    #[test]
    fn the_most_similar_accepted_answer_counts() {
        let row = |answer: Option<&str>| EpisodeRow {
            answer: answer.map(str::to_owned),
            golds: vec!["The river Seine".to_owned(), "Loire".to_owned()],
            ..EpisodeRow::default()
        };
        let mut rows = [row(Some("Loire.")), row(Some("Seine")), row(Some(" ")), row(None)];
        fill(&mut rows, &Embedding::Mock).unwrap();
        let values: Vec<Option<f64>> = rows.iter().map(|row| row.similarity).collect();
        assert!((values[0].unwrap() - 1.0).abs() < 1e-9, "{values:?}");
        assert!(values[1].unwrap() < 0.99 && values[2..] == [None, None], "{values:?}");
    }
}
