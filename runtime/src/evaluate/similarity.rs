//! SBERT similarity: cosines between the embeddings of answers and accepted answers.

use std::collections::HashMap;

use waymark_agent::metric::r1_searcher::normalize;
use waymark_index::{Embed, EmbedError};

use super::row::EpisodeRow;

/// Number of texts per call of the embedder, which bounds its memory.
const BATCH: usize = 64;

/// Fills in the similarity of every answer to the most similar accepted answer, both in GraphRAG-R1's normal form
/// (`calc_rule.py`). GraphRAG-R1 embeds with a Chinese model, and this function with that of the index, so the values
/// differ in level.
///
/// # Errors
/// If the embedder fails.
pub(super) fn fill(rows: &mut [EpisodeRow], embed: &dyn Embed) -> Result<(), EmbedError> {
    let mut vectors: HashMap<String, Vec<f32>> = HashMap::new();
    for row in rows.iter().filter(|row| row.has_answer()) {
        for text in row.golds.iter().chain(&row.answer) {
            vectors.entry(normalize(text)).or_default();
        }
    }
    // Sorted, so that batches, and with them rounding, do not depend on the hash map's order.
    let mut texts: Vec<String> = vectors.keys().cloned().collect();
    texts.sort();
    for batch in texts.chunks(BATCH) {
        let embedded = embed.embed(&batch.iter().map(String::as_str).collect::<Vec<_>>())?;
        vectors.extend(batch.iter().cloned().zip(embedded));
    }
    for row in rows.iter_mut().filter(|row| row.has_answer()) {
        let vector = |text: &String| vectors.get(&normalize(text)).map_or(&[][..], Vec::as_slice);
        let own = row.answer.as_ref().map_or(&[][..], vector);
        row.similarity = row.golds.iter().map(|gold| cosine(own, vector(gold))).max_by(f64::total_cmp);
    }
    Ok(())
}

/// Returns the cosine of two vectors; 0 if one of them is zero.
fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let length = (dot(one, one) * dot(other, other)).sqrt();
    if length > 0.0 { dot(one, other) / length } else { 0.0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::embedding::Embedding;

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
