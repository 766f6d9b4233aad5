//! Parsing of the vectors in an endpoint's reply.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

/// Maximum length of a vector. No embedder has longer ones.
const MAX_DIMS: usize = 1 << 16;

/// Form of requests and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EmbedForm {
    /// `{model, input, encoding_format}` and `{data: [{index, embedding}]}`.
    OpenAi,
    /// `{inputs, normalize, truncate}` and a list of vectors.
    Tei,
}

#[derive(Deserialize)]
struct OpenAiReply {
    data: Vec<IndexedVector>,
}

#[derive(Deserialize)]
struct IndexedVector {
    index: usize,
    embedding: WrittenVector,
}

/// Vector in one of the encodings of OpenAI's interface.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of numbers or base64")]
enum WrittenVector {
    Numbers(Vec<f32>),
    /// Base64 of little-endian 32-bit floats.
    Base64(String),
}

/// Parses a reply to `count` texts, and puts the vectors into their order. `dims` is the length of the vectors; `None`
/// if it is not known yet; all vectors must then have the same length.
///
/// # Errors
/// Description of the fault: a missing or surplus vector, another length, or a number that is not finite.
pub(super) fn vectors(
    form: EmbedForm,
    reply: &str,
    count: usize,
    dims: Option<usize>,
) -> Result<Vec<Vec<f32>>, String> {
    let found = match form {
        EmbedForm::OpenAi => in_order(reply, count)?,
        EmbedForm::Tei => serde_json::from_str(reply).map_err(|error| error.to_string())?,
    };
    if found.len() != count {
        return Err(format!("{} vectors for {count} texts", found.len()));
    }
    let dims = dims.or(found.first().map(Vec::len)).unwrap_or_default();
    if !(1..=MAX_DIMS).contains(&dims) {
        return Err(format!("vectors of {dims} numbers: expected 1 to {MAX_DIMS}"));
    }
    for (index, vector) in found.iter().enumerate() {
        if vector.len() != dims {
            return Err(format!("vector {index} has {} numbers instead of {dims}", vector.len()));
        }
        if !vector.iter().all(|number| number.is_finite()) {
            return Err(format!("vector {index} has a number that is not finite"));
        }
    }
    Ok(found)
}

/// Parses a reply in OpenAI's form, whose vectors may come in any order.
fn in_order(reply: &str, count: usize) -> Result<Vec<Vec<f32>>, String> {
    let OpenAiReply { data } = serde_json::from_str(reply).map_err(|error| error.to_string())?;
    let mut vectors = vec![None; count];
    for IndexedVector { index, embedding } in data {
        let place = vectors.get_mut(index).ok_or_else(|| format!("index {index} of {count} texts"))?;
        let vector = match embedding {
            WrittenVector::Numbers(numbers) => numbers,
            WrittenVector::Base64(text) => decoded(&text).map_err(|reason| format!("vector {index}: {reason}"))?,
        };
        if place.replace(vector).is_some() {
            return Err(format!("index {index} twice"));
        }
    }
    let given = |(index, vector): (usize, Option<_>)| vector.ok_or_else(|| format!("no vector for index {index}"));
    vectors.into_iter().enumerate().map(given).collect()
}

fn decoded(text: &str) -> Result<Vec<f32>, String> {
    let bytes = BASE64.decode(text).map_err(|error| error.to_string())?;
    let (numbers, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(format!("{} bytes, which are no 32-bit numbers", bytes.len()));
    }
    Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn base64(numbers: &[f32]) -> String {
        BASE64.encode(numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
    }

    #[test]
    fn vectors_are_read_in_both_encodings_and_in_any_order() {
        let reply = json!({"object": "list", "data": [
            {"index": 1, "embedding": base64(&[0.1, -2.5])}, {"index": 0, "embedding": [0.1, 3]}
        ]});
        let found = vectors(EmbedForm::OpenAi, &reply.to_string(), 2, None).unwrap();
        assert_eq!(found, [[0.1, 3.0], [0.1, -2.5]]);
        let found = vectors(EmbedForm::Tei, "[[1, 2], [3, 4]]", 2, Some(2)).unwrap();
        assert_eq!(found, [[1.0, 2.0], [3.0, 4.0]]);
    }

    #[test]
    fn replies_that_do_not_give_every_text_one_finite_vector_are_described() {
        let openai = |data: Value| json!({"data": data}).to_string();
        let one = |embedding: Value| openai(json!([{"index": 0, "embedding": embedding}]));
        let first = json!({"index": 0, "embedding": [1, 2]});
        for (form, reply, said) in [
            (EmbedForm::OpenAi, openai(json!([])), "no vector for index 0"),
            (EmbedForm::OpenAi, openai(json!([first, first])), "index 0 twice"),
            (EmbedForm::OpenAi, openai(json!([{"index": 7, "embedding": [1, 2]}])), "index 7 of 1 texts"),
            (EmbedForm::OpenAi, one(json!([1, 2, 3])), "vector 0 has 3 numbers instead of 2"),
            (EmbedForm::OpenAi, one(json!([1e39, 2])), "not finite"),
            (EmbedForm::OpenAi, one(json!(base64(&[f32::NAN, 1.0]))), "not finite"),
            (EmbedForm::OpenAi, one(json!("AAAAAAA=")), "5 bytes, which are no 32-bit numbers"),
            (EmbedForm::OpenAi, one(json!("?")), "vector 0: "),
            (EmbedForm::OpenAi, one(json!(null)), "expected a list of numbers or base64"),
            (EmbedForm::OpenAi, "[[1, 2]]".to_owned(), "invalid type"),
            (EmbedForm::Tei, "[]".to_owned(), "0 vectors for 1 texts"),
            (EmbedForm::Tei, "[[1, 2], [3, 4]]".to_owned(), "2 vectors for 1 texts"),
            (EmbedForm::Tei, "[[1, NaN]]".to_owned(), "expected value"),
            (EmbedForm::Tei, "{\"error\": \"no\"}".to_owned(), "expected a sequence"),
        ] {
            let error = vectors(form, &reply, 1, Some(2)).unwrap_err();
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(vectors(EmbedForm::Tei, "[[]]", 1, None).unwrap_err().contains("vectors of 0 numbers"));
    }
}
