//! A batch, written into the image.

use bytemuck::Pod;

use super::Image;
use crate::ModelError;
use crate::batch::{AdapterSlot, BLOCK, ForwardBatch, Row, Want};
use crate::cuda::kernel::{LoraTile, NONE, SampleRow, lora_tiles, prefill_tiles};
use crate::cuda::plan::{Limits, Place};
use crate::decoder::DecoderConfig;
use crate::sampler::Pick;

/// How much of the image a step fills; what a grid is sized by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// Tokens, padding included.
    pub tokens: usize,
    /// Rows of one token, which come first, padding included.
    pub singles: usize,
    /// Tiles that the other rows are cut into.
    pub tiles: usize,
    /// Rows of logits, padding included.
    pub logits: usize,
    /// Tiles of tokens that have an adapter, without padding; 0 where no row has one.
    pub lora: usize,
    /// True when every row brings one token and wants logits, so that a recorded graph can run it.
    pub decode: bool,
    /// Rows with a block table, padding not included.
    pub rows: usize,
    /// Entries of the tables that are used: those of the longest.
    pub width: usize,
}

/// A tile of no adapter.
const PADDING: LoraTile = LoraTile { adapter: NONE, first: 0, count: 1 };

/// Writes batches into images. Keeps its memory from step to step.
#[derive(Debug)]
pub struct Filler {
    image: Image,
    limits: Limits,
    vocab: usize,
    blocks: usize,
    heads: (u32, u32),
    /// Rows of the batch in the image's order.
    order: Vec<usize>,
    /// Where each row of the batch has its first token in the image.
    starts: Vec<u32>,
    /// Each token's adapter, in the image's order.
    adapters: Vec<u32>,
    /// Tiles with what they cost.
    tiles: Vec<(u64, [u32; 2])>,
}

impl Filler {
    /// For a decoder with `blocks` KV blocks.
    pub fn new(config: &DecoderConfig, limits: Limits, blocks: usize) -> Self {
        Self {
            image: Image::new(config, &limits),
            limits,
            vocab: config.vocab,
            blocks,
            heads: (config.heads as u32, config.kv_heads as u32),
            order: Vec::new(),
            starts: Vec::new(),
            adapters: Vec::new(),
            tiles: Vec::new(),
        }
    }

    /// Where things lie.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Checks a batch and writes it into `bytes`, which hold an image. Where every row brings one token and `bucket` names
    /// a size for that many, the rest up to it is padding.
    ///
    /// # Errors
    /// [`ModelError::Input`], before anything is written, when a token, block, adapter or position does not exist or the
    /// step is larger than its limits.
    pub fn fill(
        &mut self,
        batch: &ForwardBatch,
        picks: &[Option<Pick>],
        loaded: impl Fn(AdapterSlot) -> bool,
        bucket: impl Fn(usize) -> Option<usize>,
        bytes: &mut [u8],
    ) -> Result<Step, ModelError> {
        self.check(batch, loaded)?;
        let decode = batch.rows().iter().all(|row| row.tokens.len() == 1 && row.want != Want::Nothing);
        let rows = batch.rows().len();
        let padded = if decode { bucket(rows).unwrap_or(rows) } else { rows };
        self.arrange(batch);
        let (tokens, singles) = self.rows(batch, padded, bytes);
        let logits = self.wanted(batch, picks, if decode { padded } else { batch.logit_rows() }, bytes);
        let tiles = self.tiles(batch, bytes);
        let lora = self.lora(padded, decode, bytes);
        let width = batch.rows().iter().map(|row| (row.start + row.tokens.len()).div_ceil(BLOCK)).max().unwrap_or(0);
        let singles = if decode { padded } else { singles };
        let tokens = if decode { padded } else { tokens };
        Ok(Step { tokens, singles, tiles, logits, lora, decode, rows, width })
    }

    /// Writes a decode step of nothing but padding, `rows` rows of it: it computes something and changes no block.
    pub fn blank(&mut self, rows: usize, bytes: &mut [u8]) -> Step {
        self.arrange(&ForwardBatch::new());
        self.rows(&ForwardBatch::new(), rows, bytes);
        self.wanted(&ForwardBatch::new(), &[], rows, bytes);
        part(bytes, self.image.lora.part(0, rows)).fill(PADDING);
        Step { tokens: rows, singles: rows, logits: rows, decode: true, ..Step::default() }
    }

    fn check(&self, batch: &ForwardBatch, loaded: impl Fn(AdapterSlot) -> bool) -> Result<(), ModelError> {
        let refuse = |reason: String| Err(ModelError::Input(reason));
        let (rows, tokens, logits) = (batch.rows().len(), batch.tokens().len(), batch.logit_rows());
        let Limits { rows: most_rows, tokens: most_tokens, .. } = self.limits;
        if rows > most_rows || tokens > most_tokens || logits > most_rows {
            return refuse(format!(
                "a step of {rows} rows, {tokens} tokens and {logits} rows of logits; {most_rows}, {most_tokens} and \
                 {most_rows} can be computed"
            ));
        }
        if let Some(token) = batch.tokens().iter().find(|token| **token as usize >= self.vocab) {
            return refuse(format!("token {token} is outside the vocabulary of {}", self.vocab));
        }
        for (index, row) in batch.rows().iter().enumerate() {
            let flaw = self.flaw(row, batch.table(row)).or_else(|| {
                let missing = row.adapter.filter(|slot| !loaded(*slot));
                missing.map(|slot| format!("no adapter in slot {}", slot.0))
            });
            if let Some(flaw) = flaw {
                return refuse(format!("row {index}: {flaw}"));
            }
        }
        Ok(())
    }

    fn flaw(&self, row: &Row, table: &[u32]) -> Option<String> {
        let end = row.start + row.tokens.len();
        if row.tokens.is_empty() {
            return Some("no tokens".to_owned());
        }
        if end > self.limits.context {
            return Some(format!("{end} tokens, the context is {}", self.limits.context));
        }
        let Some(table) = table.get(..end.div_ceil(BLOCK)) else {
            return Some(format!("{} blocks for {end} tokens", table.len()));
        };
        let outside = table.iter().find(|block| **block as usize >= self.blocks)?;
        Some(format!("block {outside} is outside the pool of {}", self.blocks))
    }

    /// Puts rows of one token first.
    fn arrange(&mut self, batch: &ForwardBatch) {
        self.order.clear();
        self.order.extend(0..batch.rows().len());
        self.order.sort_by_key(|&row| batch.rows()[row].tokens.len() > 1);
        self.starts.clear();
        self.starts.resize(batch.rows().len(), 0);
    }

    /// Tokens and rows; returns how many tokens there are, and how many rows of one.
    fn rows(&mut self, batch: &ForwardBatch, padded: usize, bytes: &mut [u8]) -> (usize, usize) {
        let Self { image, order, starts, adapters, .. } = self;
        let (mut token, mut singles) = (0, 0);
        adapters.clear();
        for (place, &index) in order.iter().enumerate() {
            let row = &batch.rows()[index];
            let count = row.tokens.len();
            singles += usize::from(count == 1);
            starts[index] = token as u32;
            part(bytes, image.tokens.part(token, count)).copy_from_slice(batch.row_tokens(row));
            let positions = part(bytes, image.positions.part(token, count));
            positions.iter_mut().zip(row.start as u32..).for_each(|(to, position)| *to = position);
            part(bytes, image.rows.part(token, count)).fill(place as u32);
            adapters.extend(std::iter::repeat_n(row.adapter.map_or(NONE, |slot| slot.0), count));
            part(bytes, image.first.part(place, 1))[0] = token as u32;
            part(bytes, image.context.part(place, 1))[0] = (row.start + count) as u32;
            let table = &batch.table(row)[..(row.start + count).div_ceil(BLOCK)];
            part(bytes, image.tables.part(place * image.stride, table.len())).copy_from_slice(table);
            token += count;
        }
        let rows = order.len();
        if padded > rows {
            // A padded row has one token of its own, at its own place.
            part(bytes, image.tokens.part(rows, padded - rows)).fill(NONE);
            part(bytes, image.positions.part(rows, padded - rows)).fill(0);
            part(bytes, image.rows.part(rows, padded - rows)).fill(NONE);
            part(bytes, image.first.part(rows, padded - rows)).fill(NONE);
            part(bytes, image.context.part(rows, padded - rows)).fill(0);
        }
        (token, singles)
    }

    /// Which tokens give logits and how the next ones are chosen, in the batch's order.
    fn wanted(&self, batch: &ForwardBatch, picks: &[Option<Pick>], padded: usize, bytes: &mut [u8]) -> usize {
        let image = &self.image;
        let mut next = 0;
        for (row, &start) in batch.rows().iter().zip(&self.starts) {
            let count = row.tokens.len() as u32;
            let wanted = match row.want {
                Want::Nothing => count..count,
                Want::Last => count - 1..count,
                Want::All => 0..count,
            };
            for token in wanted {
                part(bytes, image.wanted.part(next, 1))[0] = start + token;
                let pick = picks.get(next).copied().flatten();
                part(bytes, image.samples.part(next, 1))[0] = pick.map_or_else(SampleRow::default, settings);
                next += 1;
            }
        }
        let rest = padded.saturating_sub(next);
        part(bytes, image.wanted.part(next, rest)).fill(NONE);
        part(bytes, image.samples.part(next, rest)).fill(SampleRow::default());
        next + rest
    }

    /// Tiles of the rows with several tokens, the longest work first.
    fn tiles(&mut self, batch: &ForwardBatch, bytes: &mut [u8]) -> usize {
        let (heads, kv_heads) = self.heads;
        self.tiles.clear();
        for (place, &index) in self.order.iter().enumerate() {
            let row = &batch.rows()[index];
            if row.tokens.len() > 1 {
                let count = prefill_tiles(row.tokens.len() as u32, heads, kv_heads);
                // A tile sees what came before the row, and its share of the row.
                let cost =
                    |tile: u32| row.start as u64 + row.tokens.len() as u64 * u64::from(tile + 1) / u64::from(count);
                self.tiles.extend((0..count).map(|tile| (cost(tile), [place as u32, tile])));
            }
        }
        self.tiles.sort_unstable_by(|a, b| b.cmp(a));
        for (at, (_, tile)) in self.tiles.iter().enumerate() {
            part(bytes, self.image.tiles.part(2 * at, 2)).copy_from_slice(tile);
        }
        self.tiles.len()
    }

    /// Tokens with an adapter, by adapter.
    fn lora(&self, padded: usize, decode: bool, bytes: &mut [u8]) -> usize {
        if self.adapters.iter().all(|adapter| *adapter == NONE) {
            return 0;
        }
        let (tiles, order) = lora_tiles(&self.adapters);
        part(bytes, self.image.lora.part(0, tiles.len())).copy_from_slice(&tiles);
        part(bytes, self.image.order.part(0, order.len())).copy_from_slice(&order);
        if decode {
            part(bytes, self.image.lora.part(tiles.len(), padded - tiles.len())).fill(PADDING);
        }
        tiles.len()
    }
}

/// The values at a place of the image.
fn part<T: Pod>(bytes: &mut [u8], place: Place<T>) -> &mut [T] {
    bytemuck::cast_slice_mut(&mut bytes[place.first()..place.end()])
}

/// A row that is sampled.
fn settings(pick: Pick) -> SampleRow {
    let Pick { temperature, top_k, top_p, min_p, draw } = pick;
    SampleRow { draw, temperature, top_p, min_p, top_k, kind: 1, padding: 0 }
}
