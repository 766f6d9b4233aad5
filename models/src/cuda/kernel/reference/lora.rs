//! LoRA.

/// LoRA factors of one projection: A of shape (rank, in) and scaled B of shape (out, rank).
#[derive(Debug, Clone)]
pub struct ReferenceAdapter {
    /// Rows of A.
    pub a: Vec<Vec<f64>>,
    /// Rows of B.
    pub b: Vec<Vec<f64>>,
}

/// Computes `B · (A · x)`.
pub fn lora(adapter: &ReferenceAdapter, x: &[f64]) -> Vec<f64> {
    let product = |rows: &[Vec<f64>], x: &[f64]| -> Vec<f64> {
        rows.iter().map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    };
    product(&adapter.b, &product(&adapter.a, x))
}
