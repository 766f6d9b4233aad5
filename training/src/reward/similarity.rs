//! Cosine similarity of texts, computed with an embedder.

use std::collections::{HashMap, HashSet};

use waymark_index::{Embed, EmbedError};

/// Batch size of the embedder.
const BATCH: usize = 256;

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
        let mut seen = HashSet::new();
        // Rollouts of a group repeat queries, and embedding dominates the cost of this reward.
        let texts: Vec<String> = texts.into_iter().filter(|text| seen.insert(text.clone())).collect();
        let mut vectors = HashMap::with_capacity(texts.len());
        for batch in texts.chunks(BATCH) {
            let borrowed: Vec<&str> = batch.iter().map(String::as_str).collect();
            let vectors_of_batch = embedder.embed(&borrowed)?;
            if vectors_of_batch.len() != batch.len() {
                return Err(format!(
                    "{} returned {} vectors for {} texts",
                    embedder.id(),
                    vectors_of_batch.len(),
                    batch.len()
                )
                .into());
            }
            vectors.extend(batch.iter().cloned().zip(vectors_of_batch));
        }
        Ok(TextSimilarity { vectors })
    }

    /// Returns the cosine similarity of two texts. 0 if a text was not embedded or its vector has length 0.
    pub fn cosine(&self, one: &str, other: &str) -> f32 {
        let (Some(one), Some(other)) = (self.vectors.get(one), self.vectors.get(other)) else { return 0.0 };
        // Sums in f64, because f32 sums over hundreds of dimensions lose digits.
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let length = (dot(one, one) * dot(other, other)).sqrt();
        if length > 0.0 { (dot(one, other) / length) as f32 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Mock embedder: the text spells out the two numbers of its vector.
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
            texts.iter().map(numbers).collect()
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
}
