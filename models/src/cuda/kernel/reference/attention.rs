//! Causal attention.

/// Keys and values of one sequence and one head, by position.
#[derive(Debug, Clone, Default)]
pub struct ReferenceSequence {
    /// Keys.
    pub keys: Vec<Vec<f64>>,
    /// Values.
    pub values: Vec<Vec<f64>>,
}

/// Computes `softmax(q · kᵀ / √dim) · v` of one query over the positions up to and including `position`.
pub fn attend(query: &[f64], sequence: &ReferenceSequence, position: usize) -> Vec<f64> {
    let dot = |key: &Vec<f64>| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() / (query.len() as f64).sqrt();
    let scores: Vec<f64> = sequence.keys[..=position].iter().map(dot).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; query.len()];
    for (weight, value) in weights.iter().zip(&sequence.values) {
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / total * value);
    }
    out
}
