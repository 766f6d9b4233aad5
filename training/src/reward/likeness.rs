//! How alike texts are, by the vectors of an embedder.

use std::collections::{HashMap, HashSet};

use waymark_index::{Embed, EmbedError};

/// Texts that are embedded at once.
const BATCH: usize = 256;

/// The vectors of texts, by which they are compared.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Likeness {
    vectors: HashMap<String, Vec<f32>>,
}

impl Likeness {
    /// Embeds `texts`, each of them once.
    ///
    /// # Errors
    /// When the embedder refuses, or does not give a vector for each text.
    pub fn of(embedder: &dyn Embed, texts: impl IntoIterator<Item = String>) -> Result<Self, EmbedError> {
        let mut seen = HashSet::new();
        let texts: Vec<String> = texts.into_iter().filter(|text| seen.insert(text.clone())).collect();
        let mut vectors = HashMap::with_capacity(texts.len());
        for batch in texts.chunks(BATCH) {
            let borrowed: Vec<&str> = batch.iter().map(String::as_str).collect();
            let made = embedder.embed(&borrowed)?;
            if made.len() != batch.len() {
                return Err(format!("{} gave {} vectors for {} texts", embedder.id(), made.len(), batch.len()).into());
            }
            vectors.extend(batch.iter().cloned().zip(made));
        }
        Ok(Likeness { vectors })
    }

    /// The cosine of two texts; 0 where one of them was not embedded, or has a vector of length 0.
    pub fn cosine(&self, one: &str, other: &str) -> f32 {
        let (Some(one), Some(other)) = (self.vectors.get(one), self.vectors.get(other)) else { return 0.0 };
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let length = (dot(one, one) * dot(other, other)).sqrt();
        if length > 0.0 { (dot(one, other) / length) as f32 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Two numbers a text, which stand in it.
    #[derive(Debug)]
    struct Written;

    impl Embed for Written {
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
    fn texts_are_compared_by_the_angle_of_their_vectors() {
        let texts = ["1 0", "3 4", "0 0", "3 4", "-2 0"].map(str::to_owned);
        let likeness = Likeness::of(&Written, texts).unwrap();
        let cosines = [("1 0", "3 4"), ("3 4", "3 4"), ("1 0", "-2 0"), ("1 0", "0 0"), ("1 0", "5 5")];
        for ((one, other), expected) in cosines.into_iter().zip([0.6, 1.0, -1.0, 0.0, 0.0]) {
            assert!((likeness.cosine(one, other) - expected).abs() < 1e-6, "{one} {other}");
        }
        let error = Likeness::of(&Written, ["1 0", "no number"].map(str::to_owned)).unwrap_err().to_string();
        assert!(error.contains("invalid float"), "{error}");
    }

    #[test]
    fn more_texts_than_a_batch_are_all_embedded() {
        let likeness = Likeness::of(&Written, (1..=2 * BATCH + 1).map(|at| format!("{at} 1"))).unwrap();
        assert!(likeness.cosine("1 1", &format!("{} 1", 2 * BATCH + 1)) > 0.5);
    }
}
