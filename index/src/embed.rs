//! Interface to a text embedder, which callers supply.

use std::time::Instant;

use crate::prompts::Prompts;

/// Error returned by an embedder.
pub type EmbedError = Box<dyn std::error::Error + Send + Sync>;

/// Announcement of a query to an embedder; see [`Embed::announce_query`]. Dropping it withdraws the query.
pub type QueryAnnouncement = Box<dyn Send + Sync>;

/// Context of the search that embeds a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueryContext {
    /// Separates callers that must not notice each other's queries: an embedder that caches or shares vectors does so
    /// only among queries of the same salt.
    pub cache_salt: u64,
    /// Time at which the search no longer needs the vector. `None` waits without limit.
    pub deadline: Option<Instant>,
}

/// Turns texts into vectors. Called from many threads at once.
pub trait Embed: Send + Sync {
    /// Identifier of the model weights. An index refuses an embedder with another ID than the one it was built with.
    fn id(&self) -> &str;

    /// Name or directory by which the embedder can be opened again. `None` if there is none.
    fn source(&self) -> Option<&str> {
        None
    }

    /// Length of every vector.
    fn dims(&self) -> usize;

    /// Embeds each text into a vector of [`Embed::dims`] finite numbers, in order. Vectors need not be normalized.
    ///
    /// # Errors
    /// Any failure of the model; the index reports it together with the texts concerned.
    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError>;

    /// Embeds the many texts of an index: passages, phrases and facts. May trade a little accuracy for speed; the
    /// vector of a text must not depend on the other texts.
    ///
    /// # Errors
    /// The same as those of [`Embed::embed`].
    fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.embed(texts)
    }

    /// Embeds search queries. May trade a little accuracy for speed; the vector of a text must not depend on the other
    /// texts.
    ///
    /// # Errors
    /// The same as those of [`Embed::embed`].
    fn embed_queries(&self, texts: &[&str], _context: QueryContext) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.embed(texts)
    }

    /// Announces a text that [`Embed::embed_queries`] will be called with soon, so that the embedder can compute the
    /// queries of several searches together. `None` if the embedder computes each call alone.
    #[must_use = "dropping the announcement withdraws the query"]
    fn announce_query(&self, _text: &str, _context: QueryContext) -> Option<QueryAnnouncement> {
        None
    }

    /// Returns the smallest number of texts per call of [`Embed::embed_documents`] that uses the embedder fully. A
    /// build with a smaller batch takes this many.
    fn least_batch(&self) -> usize {
        1
    }

    /// Returns `true` if a text is longer than the model reads, so that its vector covers only its beginning.
    fn cuts(&self, _text: &str) -> bool {
        false
    }

    /// Returns the prompts that the model was trained with, which a build uses unless it is given others. The index
    /// puts them before the texts.
    fn prompts(&self) -> Prompts {
        Prompts::default()
    }
}

/// Embeds queries with `prompt` before each and checks the result: one vector per text, of the right length, finite.
/// Scales each vector to length 1; a zero vector stays zero.
pub(crate) fn embed_unit(
    embed: &dyn Embed,
    prompt: &str,
    texts: &[&str],
    context: QueryContext,
) -> Result<Vec<Vec<f32>>, EmbedError> {
    let vectors = prompted(prompt, texts, &|texts| embed.embed_queries(texts, context))?;
    unit(embed, texts.len(), vectors)
}

/// Announces a query that will be embedded with `prompt` before it.
pub(crate) fn announce_query(
    embed: &dyn Embed,
    prompt: &str,
    text: &str,
    context: QueryContext,
) -> Option<QueryAnnouncement> {
    if prompt.is_empty() {
        return embed.announce_query(text, context);
    }
    embed.announce_query(&format!("{prompt}{text}"), context)
}

/// Embeds texts of an index as [`embed_unit`] does queries.
pub(crate) fn embed_unit_documents(
    embed: &dyn Embed,
    prompt: &str,
    texts: &[&str],
) -> Result<Vec<Vec<f32>>, EmbedError> {
    let vectors = prompted(prompt, texts, &|texts| embed.embed_documents(texts))?;
    unit(embed, texts.len(), vectors)
}

/// Applies `embed` to the texts with `prompt` before each.
fn prompted<T>(prompt: &str, texts: &[&str], embed: &dyn Fn(&[&str]) -> T) -> T {
    if prompt.is_empty() {
        return embed(texts);
    }
    let prompted: Vec<String> = texts.iter().map(|text| format!("{prompt}{text}")).collect();
    embed(&prompted.iter().map(String::as_str).collect::<Vec<&str>>())
}

/// Checks and scales the vectors of `count` texts.
fn unit(embed: &dyn Embed, count: usize, mut vectors: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>, EmbedError> {
    if vectors.len() != count {
        return Err(format!("{} gave {} vectors for {count} texts", embed.id(), vectors.len()).into());
    }
    for vector in &mut vectors {
        if vector.len() != embed.dims() {
            return Err(format!("{} gave {} numbers instead of {}", embed.id(), vector.len(), embed.dims()).into());
        }
        normalize(vector).map_err(|()| format!("{} gave a vector that is not finite", embed.id()))?;
    }
    Ok(vectors)
}

/// Scales a vector to length 1, computing in `f64` so that equal directions give equal vectors. A zero vector stays
/// zero.
fn normalize(vector: &mut [f32]) -> Result<(), ()> {
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

    struct BrokenEmbed(Vec<Vec<f32>>);

    impl Embed for BrokenEmbed {
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
        let broken = BrokenEmbed(vec![vec![3.0, 4.0], vec![0.0, 0.0]]);
        let vectors = embed_unit(&broken, "", &["a", "b"], QueryContext::default()).unwrap();
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
            let embedded = embed_unit(&BrokenEmbed(given), "", &["a"], QueryContext::default());
            let error = embedded.unwrap_err().to_string();
            assert!(error.contains("broken") && error.contains(expected), "{error}");
        }
    }
}
