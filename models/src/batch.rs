//! Input and output of one step: a ragged batch over paged KV blocks, and its logits.

use std::ops::Range;

/// Tokens per KV block.
pub const BLOCK: usize = 16;

/// Identifies a loaded adapter inside one decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterSlot(pub u32);

/// Selects the new positions of a row that get logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitPositions {
    /// No position: a prefill chunk that is not the last one.
    Nothing,
    /// Last position only, as decoding needs.
    Last,
    /// Every position, as scoring and training need.
    All,
}

/// One sequence's share of a step.
#[derive(Debug, Clone)]
pub struct BatchRow {
    /// New tokens, as a range of [`ForwardBatch::tokens`].
    pub tokens: Range<usize>,
    /// Number of tokens that are in the KV cache already; the first new token has this position.
    pub start: usize,
    /// Block table, as a range of the batch's tables; covers `start + tokens.len()` positions.
    pub table: Range<usize>,
    /// Adapter applied to the row. `None` runs the base model.
    pub adapter: Option<AdapterSlot>,
    /// Positions that get logits.
    pub want: LogitPositions,
}

/// A ragged batch: each row has its own number of new tokens. Reusable from step to step without allocating.
#[derive(Debug, Clone, Default)]
pub struct ForwardBatch {
    tokens: Vec<u32>,
    tables: Vec<u32>,
    rows: Vec<BatchRow>,
}

impl ForwardBatch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all rows and keeps the capacity.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.tables.clear();
        self.rows.clear();
    }

    /// Adds a row of new `tokens` that follow `start` cached tokens. `table` lists the KV blocks of the cached and the
    /// new tokens.
    pub fn push(
        &mut self,
        tokens: &[u32],
        start: usize,
        table: &[u32],
        adapter: Option<AdapterSlot>,
        want: LogitPositions,
    ) {
        debug_assert!(table.len() * BLOCK >= start + tokens.len(), "block table too short");
        let first = self.tokens.len();
        let table_first = self.tables.len();
        self.tokens.extend_from_slice(tokens);
        self.tables.extend_from_slice(table);
        self.rows.push(BatchRow {
            tokens: first..self.tokens.len(),
            start,
            table: table_first..self.tables.len(),
            adapter,
            want,
        });
    }

    /// Rows, in the order they were added.
    pub fn rows(&self) -> &[BatchRow] {
        &self.rows
    }

    /// New tokens of all rows, one row after another.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// New tokens of one row.
    pub fn row_tokens(&self, row: &BatchRow) -> &[u32] {
        &self.tokens[row.tokens.clone()]
    }

    /// Block table of one row.
    pub fn table(&self, row: &BatchRow) -> &[u32] {
        &self.tables[row.table.clone()]
    }

    /// Number of logit rows that the batch requests.
    pub fn logit_rows(&self) -> usize {
        self.rows
            .iter()
            .map(|row| match row.want {
                LogitPositions::Nothing => 0,
                LogitPositions::Last => 1,
                LogitPositions::All => row.tokens.len(),
            })
            .sum()
    }

    /// Returns `true` if the batch has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Logits of one step, shape (rows, vocab), in the order of the batch's rows and positions.
#[derive(Debug, Default)]
pub struct Logits {
    vocab: usize,
    data: Vec<f32>,
}

impl Logits {
    /// Creates an empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` rows of `vocab` values. Their content is unspecified until written.
    pub fn reset(&mut self, vocab: usize, rows: usize) {
        self.vocab = vocab;
        self.data.resize(vocab * rows, 0.0);
    }

    /// Number of values per row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.vocab).unwrap_or(0)
    }

    /// Logits of one row.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.vocab..(index + 1) * self.vocab]
    }

    /// Mutable logits of one row.
    pub fn row_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.data[index * self.vocab..(index + 1) * self.vocab]
    }

    /// Mutable logits of all rows as one slice.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data
    }
}
