//! The seam to a text embedder: the index does not know what turns text into vectors.

/// What an embedder says when it fails.
pub type EmbedError = Box<dyn std::error::Error + Send + Sync>;

/// Turns texts into vectors. Called from many threads at once.
pub trait Embed: Send + Sync {
    /// Names the weights, so that an index is never searched with vectors of another model.
    fn id(&self) -> &str;

    /// Length of every vector.
    fn dims(&self) -> usize;

    /// One vector of [`Embed::dims`] finite numbers per text, in order. They need not be normalised.
    ///
    /// # Errors
    /// Whatever keeps the texts from being embedded; the index reports it with what was being embedded.
    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError>;

    /// Whether a text is longer than what is read of it, so that its vector is that of its beginning.
    fn cuts(&self, _text: &str) -> bool {
        false
    }
}

/// Embeds `texts` and holds the embedder to its contract: the vectors come back checked and of length 1 (or all zero).
pub(crate) fn embed_unit(embed: &dyn Embed, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
    let mut vectors = embed.embed(texts)?;
    if vectors.len() != texts.len() {
        return Err(format!("{} gave {} vectors for {} texts", embed.id(), vectors.len(), texts.len()).into());
    }
    for vector in &mut vectors {
        if vector.len() != embed.dims() {
            return Err(format!("{} gave {} numbers instead of {}", embed.id(), vector.len(), embed.dims()).into());
        }
        normalise(vector).map_err(|()| format!("{} gave a vector that is not finite", embed.id()))?;
    }
    Ok(vectors)
}

/// Scales to length 1 in `f64`, so that equal directions give equal vectors. A zero vector stays zero.
fn normalise(vector: &mut [f32]) -> Result<(), ()> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(());
    }
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    Ok(())
}

#[cfg(test)]
#[path = "../tests/corpora/hash.rs"]
pub(crate) mod fake;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    struct Broken(Vec<Vec<f32>>);

    impl Embed for Broken {
        fn id(&self) -> &str {
            "broken"
        }
        fn dims(&self) -> usize {
            2
        }
        fn embed(&self, _: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
            Ok(self.0.clone())
        }
    }

    #[test]
    fn vectors_come_back_with_length_one() {
        let vectors = embed_unit(&Broken(vec![vec![3.0, 4.0], vec![0.0, 0.0]]), &["a", "b"]).unwrap();
        assert_eq!(vectors, [[0.6, 0.8], [0.0, 0.0]]);
    }

    #[test]
    fn an_embedder_that_breaks_its_contract_is_named() {
        for (given, expected) in [
            (vec![], "0 vectors for 1 texts"),
            (vec![vec![1.0]], "1 numbers instead of 2"),
            (vec![vec![f32::NAN, 0.0]], "not finite"),
            (vec![vec![f32::INFINITY, 0.0]], "not finite"),
        ] {
            let error = embed_unit(&Broken(given), &["a"]).unwrap_err().to_string();
            assert!(error.contains("broken") && error.contains(expected), "{error}");
        }
    }
}
