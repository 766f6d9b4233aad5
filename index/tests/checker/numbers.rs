//! Plain arithmetic.

/// `Σ a·b`.
pub fn dot(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * f64::from(*y)).sum()
}

/// Scales a vector to length 1.
pub fn unit(vector: &[f32]) -> Vec<f64> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    vector.iter().map(|x| if length > 0.0 { f64::from(*x) / length } else { 0.0 }).collect()
}

/// Scales numbers to [0, 1]; all become 1 if all are equal.
pub fn min_max(numbers: &[f64]) -> Vec<f64> {
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // The search has these numbers in single precision only.
    let equal = high - low < 1e-7;
    numbers.iter().map(|x| if equal { 1.0 } else { (x - low) / (high - low) }).collect()
}

/// Returns `true` if two numbers agree within single precision.
pub fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2e-5
}

/// Returns `true` if a value has this rank, from 1, among all values in descending order, allowing for ties within
/// `off`.
pub fn has_rank(values: &[f64], value: f64, rank: usize, off: f64) -> bool {
    let above = values.iter().filter(|other| **other > value + off).count();
    let level = values.iter().filter(|other| **other >= value - off).count();
    (above + 1..=level).contains(&rank)
}
