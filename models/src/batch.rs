//! One step's input and output: a ragged batch over paged KV, and the logits it gives.

use std::ops::Range;

/// Tokens per KV block.
pub const BLOCK: usize = 16;

/// Names a loaded adapter inside one decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterSlot(pub u32);

/// For which of a row's new positions logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// For none: a prefill chunk that is not the last one.
    Nothing,
    /// For the last position: what decoding needs.
    Last,
    /// For every position: scoring and training.
    All,
}

/// One sequence's share of a step.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its new tokens, as a range of [`ForwardBatch::tokens`].
    pub tokens: Range<usize>,
    /// How many of its tokens are in the KV cache already; the first new token has this position.
    pub start: usize,
    /// Its block table, as a range of the batch's tables; covers `start + tokens.len()` positions.
    pub table: Range<usize>,
    /// The adapter applied to it, if any.
    pub adapter: Option<AdapterSlot>,
    /// Which logits it needs.
    pub want: Want,
}

/// A ragged batch: each row brings its own number of new tokens. Reused from step to step without allocating.
#[derive(Debug, Default)]
pub struct ForwardBatch {
    tokens: Vec<u32>,
    tables: Vec<u32>,
    rows: Vec<Row>,
}

impl ForwardBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes every row and keeps the capacity.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.tables.clear();
        self.rows.clear();
    }

    /// Adds a row: `tokens` follow the `start` tokens that are in the cache, both laid out by `table`.
    pub fn push(&mut self, tokens: &[u32], start: usize, table: &[u32], adapter: Option<AdapterSlot>, want: Want) {
        debug_assert!(table.len() * BLOCK >= start + tokens.len(), "block table too short");
        let first = self.tokens.len();
        let table_first = self.tables.len();
        self.tokens.extend_from_slice(tokens);
        self.tables.extend_from_slice(table);
        self.rows.push(Row {
            tokens: first..self.tokens.len(),
            start,
            table: table_first..self.tables.len(),
            adapter,
            want,
        });
    }

    /// The rows, in the order they were added.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// All new tokens, row after row.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The new tokens of one row.
    pub fn row_tokens(&self, row: &Row) -> &[u32] {
        &self.tokens[row.tokens.clone()]
    }

    /// The block table of one row.
    pub fn table(&self, row: &Row) -> &[u32] {
        &self.tables[row.table.clone()]
    }

    /// How many rows of logits the batch asks for.
    pub fn logit_rows(&self) -> usize {
        self.rows
            .iter()
            .map(|row| match row.want {
                Want::Nothing => 0,
                Want::Last => 1,
                Want::All => row.tokens.len(),
            })
            .sum()
    }

    /// True when no row was added.
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
    /// No logits yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` rows of `vocab` values; what they hold is unspecified until written.
    pub fn reset(&mut self, vocab: usize, rows: usize) {
        self.vocab = vocab;
        self.data.resize(vocab * rows, 0.0);
    }

    /// Values per row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.vocab).unwrap_or(0)
    }

    /// One row.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.vocab..(index + 1) * self.vocab]
    }

    /// One row, to be changed in place.
    pub fn row_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.data[index * self.vocab..(index + 1) * self.vocab]
    }

    /// All rows as one slice.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data
    }
}
