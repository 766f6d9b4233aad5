//! Adapters.

/// One projection's factors: A of shape (rank, in), B, scaled, of shape (out, rank).
#[derive(Debug, Clone)]
pub struct Adapter {
    /// Rows of A.
    pub a: Vec<Vec<f64>>,
    /// Rows of B.
    pub b: Vec<Vec<f64>>,
}

/// `B · (A · x)`.
pub fn lora(adapter: &Adapter, x: &[f64]) -> Vec<f64> {
    let product = |rows: &[Vec<f64>], x: &[f64]| -> Vec<f64> {
        rows.iter().map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    };
    product(&adapter.b, &product(&adapter.a, x))
}
