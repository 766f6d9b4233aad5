//! Times of the matrix multiplications of decode steps.

use std::io::{self, Write};

use serde::Serialize;

use super::shape::{Ceilings, ModelShape};

/// Numbers of rows to multiply: decode steps of as many sequences.
pub(super) const ROWS: [usize; 4] = [1, 8, 32, 64];

/// Time of a matrix multiplication.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GemmRow {
    pub(super) shape: String,
    /// Name of the weight matrix.
    pub(super) matrix: &'static str,
    pub(super) rows: usize,
    pub(super) inner: usize,
    pub(super) columns: usize,
    /// Destination: `bf16`, or `f32 sum`.
    pub(super) target: &'static str,
    pub(super) seconds: f64,
    /// Minimum time by the GPU's peak rates, as a share of the measured time. `None` when the peak rates are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_floor: Option<f64>,
}

impl ModelShape {
    /// Returns the weight matrices of a layer and of the output projection: name, summed terms and columns.
    pub(super) fn matrices(&self) -> [(&'static str, usize, usize); 5] {
        let config = &self.config;
        [
            ("qkv", config.hidden, config.q_width() + 2 * config.kv_width()),
            ("o", config.q_width(), config.hidden),
            ("gate_up", config.hidden, 2 * config.ffn),
            ("down", config.ffn, config.hidden),
            ("head", config.hidden, config.vocab),
        ]
    }
}

impl GemmRow {
    /// Sets the share of the floor: all operands are read once, and the result is written once, or, for a sum in `f32`,
    /// read and written.
    pub(super) fn with_floor(self, best: Option<Ceilings>) -> Self {
        let Self { rows, inner, columns, .. } = self;
        let per_value = if self.target == "bf16" { 2 } else { 8 };
        let bytes = 2 * inner * columns + 2 * rows * inner + per_value * rows * columns;
        let operations = 2 * rows * inner * columns;
        let of_floor = best.map(|best| best.seconds(bytes as f64, operations as f64) / self.seconds);
        Self { of_floor, ..self }
    }
}

/// Prints all times as a table.
pub(super) fn print(rows: &[GemmRow], out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "{:14} {:>8} {:>5} {:>7} {:>8} {:>8} {:>9} {:>9}",
        "multiplication", "matrix", "rows", "inner", "columns", "target", "µs", "of floor"
    )?;
    for row in rows {
        let GemmRow { shape, matrix, rows, inner, columns, target, seconds, of_floor } = row;
        let floor = of_floor.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0));
        let micros = seconds * 1e6;
        writeln!(out, "{shape:14} {matrix:>8} {rows:>5} {inner:>7} {columns:>8} {target:>8} {micros:>9.2} {floor:>9}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_matrices_of_a_shape_are_its_parameters() {
        for name in ["smollm2-135m", "qwen2.5-3b", "qwen2.5-7b"] {
            let shape: ModelShape = name.parse().unwrap();
            let sizes = shape.matrices().map(|(_, inner, columns)| inner * columns);
            assert_eq!(shape.config.layers * sizes[..4].iter().sum::<usize>() + sizes[4], shape.parameters());
        }
    }

    #[test]
    fn few_rows_are_bound_by_the_weights_and_a_sum_by_its_result_as_well() {
        let best = Ceilings { bandwidth: 4e12, operations: 8e14 };
        let row = |target, rows| {
            let seconds = 1e-5;
            let shape = "qwen2.5-3b".to_owned();
            let row = GemmRow { shape, matrix: "o", rows, inner: 2048, columns: 2048, target, seconds, of_floor: None };
            row.with_floor(Some(best)).of_floor.unwrap()
        };
        let weights = 2.0 * 2048.0 * 2048.0 / 4e12 / 1e-5;
        assert!((row("bf16", 1) / weights - 1.0).abs() < 0.01);
        assert!(row("f32 sum", 64) > row("bf16", 64));
        // Many rows are bound by arithmetic.
        assert!((row("bf16", 8192) - 2.0 * 8192.0 * 2048.0 * 2048.0 / 8e14 / 1e-5).abs() < 1e-9);
    }
}
