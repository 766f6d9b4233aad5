//! Writing a batch into the step layout.

use bytemuck::Pod;

use super::StepLayout;
use super::adjustments::AdjustmentWriter;
use crate::ModelError;
use crate::batch::{AdapterSlot, BLOCK, BatchRow, ForwardBatch, LogitPositions};
use crate::cuda::kernel::{LoraTile, NONE, SampleRow, lora_tiles, prefill_tiles};
use crate::cuda::plan::{Placement, StepLimits};
use crate::decoder::DecoderConfig;
use crate::sampler::Pick;

/// Size of a step, which determines its grids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepShape {
    /// Number of tokens, padding included.
    pub tokens: usize,
    /// Number of rows with one token, which come first, padding included.
    pub single_token_rows: usize,
    /// Number of attention tiles of the other rows.
    pub tiles: usize,
    /// Number of rows of logits, padding included.
    pub logits: usize,
    /// Number of LoRA tiles, without padding; 0 when no row has an adapter.
    pub lora: usize,
    /// If `true`, every row has one token and wants logits, so a captured graph can run the step.
    pub decode: bool,
    /// Number of rows with a block table, without padding.
    pub rows: usize,
    /// Number of used entries of the longest block table.
    pub width: usize,
    /// Number of words of adjustments.
    pub adjusted: usize,
}

/// LoRA tile without an adapter.
const PADDING: LoraTile = LoraTile { adapter: NONE, first: 0, count: 1 };

/// Writes batches into the step layout, reusing its buffers from step to step.
#[derive(Debug)]
pub struct StepWriter {
    layout: StepLayout,
    limits: StepLimits,
    vocab: usize,
    blocks: usize,
    heads: (u32, u32),
    /// Rows of the batch in the order of the layout.
    order: Vec<usize>,
    /// Index of each row's first token in the layout.
    starts: Vec<u32>,
    /// Adapter of each token, in the order of the layout.
    adapters: Vec<u32>,
    /// Attention tiles with their cost.
    tiles: Vec<(u64, [u32; 2])>,
    /// For each row of logits: if `true`, the device samples the token.
    sampled: Vec<bool>,
}

impl StepWriter {
    /// Creates a writer for a decoder with `blocks` KV blocks.
    pub fn new(config: &DecoderConfig, limits: StepLimits, blocks: usize) -> Self {
        Self {
            layout: StepLayout::new(config, &limits),
            limits,
            vocab: config.vocab,
            blocks,
            heads: (config.heads as u32, config.kv_heads as u32),
            order: Vec::new(),
            starts: Vec::new(),
            adapters: Vec::new(),
            tiles: Vec::new(),
            sampled: Vec::new(),
        }
    }

    /// Returns the layout.
    pub fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// Returns an entry for each row of logits of the last batch: `true` if the device samples the token. It does so
    /// where there is a [`Pick`] whose adjustment, if any, fits the layout.
    pub fn sampled(&self) -> &[bool] {
        &self.sampled
    }

    /// Validates a batch and writes it into `bytes`, the memory of a layout. When every row has one token and wants
    /// logits, the step is padded to the size that `bucket` returns.
    ///
    /// # Errors
    /// [`ModelError::Input`], before anything is written, when a token, block, adapter or position does not exist, or
    /// when the step exceeds its limits.
    pub fn fill(
        &mut self,
        batch: &ForwardBatch,
        picks: &[Option<Pick>],
        loaded: impl Fn(AdapterSlot) -> bool,
        bucket: impl Fn(usize) -> Option<usize>,
        bytes: &mut [u8],
    ) -> Result<StepShape, ModelError> {
        self.check(batch, loaded)?;
        let decode = batch.rows().iter().all(|row| row.tokens.len() == 1 && row.want != LogitPositions::Nothing);
        let rows = batch.rows().len();
        let padded = if decode { bucket(rows).unwrap_or(rows) } else { rows };
        self.order_rows(batch);
        let (tokens, single_token_rows) = self.write_rows(batch, padded, bytes);
        let (logits, adjusted) =
            self.write_logit_rows(batch, picks, if decode { padded } else { batch.logit_rows() }, bytes);
        let tiles = self.write_attention_tiles(batch, bytes);
        let lora = self.write_lora_tiles(padded, decode, bytes);
        let width = batch.rows().iter().map(|row| (row.start + row.tokens.len()).div_ceil(BLOCK)).max().unwrap_or(0);
        let single_token_rows = if decode { padded } else { single_token_rows };
        let tokens = if decode { padded } else { tokens };
        Ok(StepShape { tokens, single_token_rows, tiles, logits, lora, decode, rows, width, adjusted })
    }

    /// Writes a decode step of `rows` padding rows, which computes but changes no KV block.
    pub fn fill_padding(&mut self, rows: usize, bytes: &mut [u8]) -> StepShape {
        self.order_rows(&ForwardBatch::new());
        self.write_rows(&ForwardBatch::new(), rows, bytes);
        self.write_logit_rows(&ForwardBatch::new(), &[], rows, bytes);
        values_at(bytes, self.layout.lora.part(0, rows)).fill(PADDING);
        StepShape { tokens: rows, single_token_rows: rows, logits: rows, decode: true, ..StepShape::default() }
    }

    fn check(&self, batch: &ForwardBatch, loaded: impl Fn(AdapterSlot) -> bool) -> Result<(), ModelError> {
        let refuse = |reason: String| Err(ModelError::Input(reason));
        let rows = batch.rows().len();
        let tokens = batch.tokens().len();
        let logits = batch.logit_rows();
        let StepLimits { rows: most_rows, tokens: most_tokens, .. } = self.limits;
        if rows > most_rows || tokens > most_tokens || logits > most_rows {
            return refuse(format!(
                "a step of {rows} rows, {tokens} tokens and {logits} rows of logits exceeds the limits of {most_rows}, \
                 {most_tokens} and {most_rows}"
            ));
        }
        if let Some(token) = batch.tokens().iter().find(|token| **token as usize >= self.vocab) {
            return refuse(format!("token {token} is outside the vocabulary of {}", self.vocab));
        }
        for (index, row) in batch.rows().iter().enumerate() {
            let error = self.find_row_error(row, batch.table(row)).or_else(|| {
                let missing = row.adapter.filter(|slot| !loaded(*slot));
                missing.map(|slot| format!("no adapter in slot {}", slot.0))
            });
            if let Some(error) = error {
                return refuse(format!("row {index}: {error}"));
            }
        }
        Ok(())
    }

    fn find_row_error(&self, row: &BatchRow, table: &[u32]) -> Option<String> {
        let end = row.start + row.tokens.len();
        if row.tokens.is_empty() {
            return Some("has no tokens".to_owned());
        }
        if end > self.limits.context {
            return Some(format!("{end} tokens exceed the context of {}", self.limits.context));
        }
        let Some(table) = table.get(..end.div_ceil(BLOCK)) else {
            return Some(format!("{} blocks are too few for {end} tokens", table.len()));
        };
        let outside = table.iter().find(|block| **block as usize >= self.blocks)?;
        Some(format!("block {outside} is outside the pool of {}", self.blocks))
    }

    /// Orders rows with one token first.
    fn order_rows(&mut self, batch: &ForwardBatch) {
        self.order.clear();
        self.order.extend(0..batch.rows().len());
        self.order.sort_by_key(|&row| batch.rows()[row].tokens.len() > 1);
        self.starts.clear();
        self.starts.resize(batch.rows().len(), 0);
    }

    /// Writes tokens and rows. Returns the number of tokens and the number of rows with one token.
    fn write_rows(&mut self, batch: &ForwardBatch, padded: usize, bytes: &mut [u8]) -> (usize, usize) {
        let Self { layout, order, starts, adapters, .. } = self;
        let mut token = 0;
        let mut single_token_rows = 0;
        adapters.clear();
        for (place, &index) in order.iter().enumerate() {
            let row = &batch.rows()[index];
            let count = row.tokens.len();
            single_token_rows += usize::from(count == 1);
            starts[index] = token as u32;
            values_at(bytes, layout.tokens.part(token, count)).copy_from_slice(batch.row_tokens(row));
            let positions = values_at(bytes, layout.positions.part(token, count));
            positions.iter_mut().zip(row.start as u32..).for_each(|(to, position)| *to = position);
            values_at(bytes, layout.rows.part(token, count)).fill(place as u32);
            adapters.extend(std::iter::repeat_n(row.adapter.map_or(NONE, |slot| slot.0), count));
            values_at(bytes, layout.first.part(place, 1))[0] = token as u32;
            values_at(bytes, layout.context.part(place, 1))[0] = (row.start + count) as u32;
            let table = &batch.table(row)[..(row.start + count).div_ceil(BLOCK)];
            values_at(bytes, layout.tables.part(place * layout.stride, table.len())).copy_from_slice(table);
            token += count;
        }
        let rows = order.len();
        if padded > rows {
            // Each padding row has one padding token of its own.
            values_at(bytes, layout.tokens.part(rows, padded - rows)).fill(NONE);
            values_at(bytes, layout.positions.part(rows, padded - rows)).fill(0);
            values_at(bytes, layout.rows.part(rows, padded - rows)).fill(NONE);
            values_at(bytes, layout.first.part(rows, padded - rows)).fill(NONE);
            values_at(bytes, layout.context.part(rows, padded - rows)).fill(0);
        }
        (token, single_token_rows)
    }

    /// Writes the tokens that give logits and their sampling settings, in the order of the batch. Returns the number of
    /// rows, padding included, and of words of their adjustments.
    fn write_logit_rows(
        &mut self,
        batch: &ForwardBatch,
        picks: &[Option<Pick>],
        padded: usize,
        bytes: &mut [u8],
    ) -> (usize, usize) {
        let Self { layout, starts, sampled, vocab, .. } = self;
        let mut adjustments = AdjustmentWriter::new(layout, *vocab);
        sampled.clear();
        for (row, &start) in batch.rows().iter().zip(starts.iter()) {
            let count = row.tokens.len() as u32;
            let wanted = match row.want {
                LogitPositions::Nothing => count..count,
                LogitPositions::Last => count - 1..count,
                LogitPositions::All => 0..count,
            };
            for token in wanted {
                let next = sampled.len();
                values_at(bytes, layout.wanted.part(next, 1))[0] = start + token;
                let pick = picks.get(next).and_then(Option::as_ref);
                let settings = pick.and_then(|pick| adjustments.settings(pick, bytes));
                values_at(bytes, layout.samples.part(next, 1))[0] = settings.unwrap_or_default();
                sampled.push(settings.is_some());
            }
        }
        let next = sampled.len();
        let rest = padded.saturating_sub(next);
        values_at(bytes, layout.wanted.part(next, rest)).fill(NONE);
        values_at(bytes, layout.samples.part(next, rest)).fill(SampleRow::default());
        (next + rest, adjustments.used())
    }

    /// Writes the attention tiles of the rows with several tokens, the most expensive first.
    fn write_attention_tiles(&mut self, batch: &ForwardBatch, bytes: &mut [u8]) -> usize {
        let (heads, kv_heads) = self.heads;
        self.tiles.clear();
        for (place, &index) in self.order.iter().enumerate() {
            let row = &batch.rows()[index];
            if row.tokens.len() > 1 {
                let count = prefill_tiles(row.tokens.len() as u32, heads, kv_heads);
                // A tile attends to the row's cached context, and to the row's new tokens up to the end of the tile.
                let cost =
                    |tile: u32| row.start as u64 + row.tokens.len() as u64 * u64::from(tile + 1) / u64::from(count);
                self.tiles.extend((0..count).map(|tile| (cost(tile), [place as u32, tile])));
            }
        }
        self.tiles.sort_unstable_by(|a, b| b.cmp(a));
        for (at, (_, tile)) in self.tiles.iter().enumerate() {
            values_at(bytes, self.layout.tiles.part(2 * at, 2)).copy_from_slice(tile);
        }
        self.tiles.len()
    }

    /// Writes the tiles of tokens with an adapter, grouped by adapter.
    fn write_lora_tiles(&self, padded: usize, decode: bool, bytes: &mut [u8]) -> usize {
        if self.adapters.iter().all(|adapter| *adapter == NONE) {
            return 0;
        }
        let (tiles, order) = lora_tiles(&self.adapters);
        values_at(bytes, self.layout.lora.part(0, tiles.len())).copy_from_slice(&tiles);
        values_at(bytes, self.layout.order.part(0, order.len())).copy_from_slice(&order);
        if decode {
            values_at(bytes, self.layout.lora.part(tiles.len(), padded - tiles.len())).fill(PADDING);
        }
        tiles.len()
    }
}

/// Returns the values at a placement of the layout.
pub(super) fn values_at<T: Pod>(bytes: &mut [u8], place: Placement<T>) -> &mut [T] {
    bytemuck::cast_slice_mut(&mut bytes[place.first()..place.end()])
}
