#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::architecture::Architecture;
use crate::batch::{AdapterSlot, ForwardBatch, LogitPositions};
use crate::cuda::bucket::Buckets;
use crate::cuda::kernel::NONE;
use crate::decoder::RopeScaling;
use crate::sampler::{AdjustedToken, LogitAdjustment, Penalties, Pick, TokenMask};

const LIMITS: StepLimits = StepLimits { rows: 20, tokens: 200, context: 100 };
const BLOCKS: usize = 140;

fn config() -> DecoderConfig {
    DecoderConfig {
        vocab: 500,
        hidden: 64,
        layers: 1,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        ffn: 64,
        context: 100,
        rope_base: 1e4,
        rope_scaling: RopeScaling::None,
        rms_eps: 1e-6,
        tied_embeddings: true,
        architecture: Architecture::default(),
    }
}

/// Memory of a layout, aligned as on the GPU.
struct Memory {
    limits: StepLimits,
    writer: StepWriter,
    words: Vec<u64>,
}

impl Memory {
    fn new() -> Self {
        Self::within(LIMITS)
    }

    fn within(limits: StepLimits) -> Self {
        let writer = StepWriter::new(&DecoderConfig { context: limits.context, ..config() }, limits, BLOCKS);
        // Leftovers of an earlier step.
        let words = vec![0xabab_abab_abab_abab; writer.layout().bytes / 8];
        Self { limits, writer, words }
    }

    fn fill(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Result<StepShape, crate::ModelError> {
        let buckets = Buckets::up_to(LIMITS.rows);
        let bytes = bytemuck::cast_slice_mut(&mut self.words);
        self.writer.fill(batch, picks, |slot| slot.0 < 3, |rows| buckets.fit(rows), bytes)
    }

    /// Device memory after copying a step's pieces over the leftovers of an earlier step.
    fn copied(&self, step: &StepShape) -> Self {
        let layout = *self.writer.layout();
        let from = bytemuck::cast_slice::<u64, u8>(&self.words);
        let mut words = vec![0xcdcd_cdcd_cdcd_cdcd_u64; self.words.len()];
        let to = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
        for CopyRect { first, width, pitch, rows } in layout.pieces(step) {
            for row in 0..rows {
                let part = first + row * pitch..first + row * pitch + width;
                to[part.clone()].copy_from_slice(&from[part]);
            }
        }
        Self { words, ..Self::within(self.limits) }
    }

    fn get<T: bytemuck::Pod>(&self, place: Placement<T>, len: usize) -> Vec<T> {
        let part = place.part(0, len);
        bytemuck::cast_slice(&bytemuck::cast_slice::<u64, u8>(&self.words)[part.first()..part.end()]).to_vec()
    }
}

/// Batch of rows (tokens in the cache, new tokens, adapter, wanted logits), each with its own blocks.
fn batch(rows: &[(usize, usize, Option<u32>, LogitPositions)]) -> ForwardBatch {
    let mut batch = ForwardBatch::new();
    let mut block = 0;
    for (index, &(start, count, adapter, want)) in rows.iter().enumerate() {
        let table: Vec<u32> = (0..(start + count).div_ceil(BLOCK)).map(|_| (block, block += 1).0).collect();
        let tokens: Vec<u32> = (0..count).map(|token| (index * 20 + token) as u32 % 500).collect();
        batch.push(&tokens, start, &table, adapter.map(AdapterSlot), want);
    }
    batch
}

#[test]
fn rows_of_one_token_come_first_and_logits_keep_their_order() {
    let rows = [
        (3, 2, None, LogitPositions::Last),
        (20, 1, None, LogitPositions::Last),
        (0, 3, None, LogitPositions::All),
        (7, 1, None, LogitPositions::Nothing),
    ];
    let batch = batch(&rows);
    let mut memory = Memory::new();
    let step = memory.fill(&batch, &[]).unwrap();
    let layout = *memory.writer.layout();
    assert_eq!((step.tokens, step.single_token_rows, step.logits, step.decode), (7, 2, 5, false));
    assert_eq!(memory.get(layout.tokens, 7), [20, 60, 0, 1, 40, 41, 42]);
    assert_eq!(memory.get(layout.positions, 7), [20, 7, 3, 4, 0, 1, 2]);
    assert_eq!(memory.get(layout.rows, 7), [0, 1, 2, 2, 3, 3, 3]);
    assert_eq!(memory.get(layout.first, 4), [0, 1, 2, 4]);
    assert_eq!(memory.get(layout.context, 4), [21, 8, 5, 3]);
    assert_eq!(memory.get(layout.wanted, 5), [3, 0, 4, 5, 6]);
    assert_eq!(memory.get(layout.tables, 2), [1, 2], "the second row's table is the first of the layout");
    // One tile per row, the row with the longer context first.
    assert_eq!(step.tiles, 2);
    assert_eq!(memory.get(layout.tiles, 4), [2, 0, 3, 0]);
}

#[test]
fn a_decode_step_is_padded_to_its_bucket() {
    let rows: Vec<_> = (0..9).map(|row| (row, 1, (row == 4).then_some(2), LogitPositions::Last)).collect();
    let batch = batch(&rows);
    let mut memory = Memory::new();
    let pick = Pick { temperature: 0.5, top_k: 3, top_p: 0.9, min_p: 0.1, draw: 0.25, adjustment: None };
    let step = memory.fill(&batch, &[None, Some(pick)]).unwrap();
    let layout = *memory.writer.layout();
    assert!(step.decode);
    assert_eq!((step.tokens, step.single_token_rows, step.logits, step.tiles, step.lora), (16, 16, 16, 0, 1));
    assert_eq!(memory.get(layout.tokens, 16)[9..], [NONE; 7]);
    assert_eq!(memory.get(layout.rows, 16)[9..], [NONE; 7]);
    assert_eq!(memory.get(layout.first, 16)[9..], [NONE; 7]);
    assert_eq!(memory.get(layout.context, 16)[8..], [9, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(memory.get(layout.wanted, 16)[9..], [NONE; 7]);
    let samples = memory.get(layout.samples, 16);
    assert_eq!(samples.iter().map(|row| row.kind).sum::<u32>(), 1);
    assert_eq!((samples[1].draw, samples[1].top_k, samples[1].temperature), (0.25, 3, 0.5));
    let tiles = memory.get(layout.lora, 16);
    assert_eq!((tiles[0].adapter, tiles[0].count, tiles[1].adapter, tiles[15].adapter), (2, 1, NONE, NONE));
    assert_eq!(memory.get(layout.order, 1), [4]);
    assert_eq!((step.rows, step.width), (9, 1));
}

#[test]
fn masks_and_lists_follow_each_other_and_only_they_are_copied() {
    let rows: Vec<_> = (0..4).map(|row| (row, 1, None, LogitPositions::Last)).collect();
    let mut memory = Memory::new();
    let penalties = Penalties { repetition: 1.5, frequency: 0.25, presence: 0.5 };
    let tokens = vec![AdjustedToken { id: 7, count: 2, bias: 0.0 }, AdjustedToken { id: 499, count: 0, bias: -1.5 }];
    // The mask is shorter than the vocabulary: tokens beyond it are forbidden.
    let mask = Some(TokenMask::of(&[0, 33], 64));
    let with = |adjustment| Some(Pick { adjustment: Some(Arc::new(adjustment)), ..Pick::GREEDY });
    let beyond = vec![AdjustedToken { id: 500, count: 1, bias: 0.0 }];
    let picks = [
        with(LogitAdjustment { penalties, tokens: tokens.clone(), mask: None }),
        with(LogitAdjustment { penalties, tokens: beyond, mask: mask.clone() }),
        with(LogitAdjustment { penalties, tokens, mask: mask.clone() }),
        with(LogitAdjustment { penalties, tokens: Vec::new(), mask }),
    ];
    let step = memory.fill(&batch(&rows), &picks).unwrap();
    assert_eq!(memory.writer.sampled(), [true, false, true, true], "no token 500 exists");
    let layout = *memory.writer.layout();
    let copied = memory.copied(&step);
    let samples = copied.get(layout.samples, 4);
    assert_eq!(samples.iter().map(|row| row.kind).collect::<Vec<_>>(), [1, 0, 2, 2]);
    assert_eq!(samples.iter().map(|row| row.count).collect::<Vec<_>>(), [2, 0, 2, 0]);
    assert_eq!((samples[2].repetition, samples[2].frequency, samples[2].presence), (1.5, 0.25, 0.5));
    assert_eq!((samples[0].list, samples[2].mask, samples[2].list, samples[3].mask), (0, 8, 24, 32));
    assert_eq!(step.adjusted, 48);
    let words = copied.get(layout.adjustments, 49);
    let list = [7, 2, 0.0f32.to_bits(), 0, 499, 0, (-1.5f32).to_bits(), 0];
    assert_eq!(words[..8], list);
    assert_eq!(words[8..11], [1, 2, 0]);
    assert!(words[11..24].iter().all(|word| *word == 0));
    assert_eq!(words[24..32], list);
    assert_eq!(words[48], 0xcdcd_cdcd, "not copied");
}

#[test]
fn a_blank_step_is_all_padding() {
    let mut memory = Memory::new();
    let layout = *memory.writer.layout();
    let bytes = bytemuck::cast_slice_mut(&mut memory.words);
    let step = memory.writer.fill_padding(8, bytes);
    assert_eq!((step.tokens, step.single_token_rows, step.logits, step.tiles, step.decode), (8, 8, 8, 0, true));
    let copied = memory.copied(&step);
    for place in [layout.tokens, layout.rows, layout.first, layout.wanted] {
        assert_eq!(copied.get(place, 8), [NONE; 8]);
    }
    assert_eq!(copied.get(layout.context, 8), [0; 8]);
    assert!(copied.get(layout.samples, 8).iter().all(|row| row.kind == 0));
    assert!(copied.get(layout.lora, 8).iter().all(|tile| tile.adapter == NONE), "whatever grid a recording has");
}

#[test]
fn of_long_tables_only_what_is_used_is_copied() {
    let long = StepLimits { context: 32_768, ..LIMITS };
    let mut memory = Memory::within(long);
    let rows: Vec<_> = (0..18).map(|row| (row * 10, 1, None, LogitPositions::Last)).collect();
    let step = memory.fill(&batch(&rows), &[]).unwrap();
    let layout = *memory.writer.layout();
    let copied = |step: &StepShape| layout.pieces(step).iter().map(|piece| piece.rows * piece.width).sum::<usize>();
    assert_eq!(step.width, 11);
    let before = layout.tiles.first();
    assert_eq!(copied(&step), before + 18 * 16 * 4, "sixteen entries of 2,048");
    // A single row is copied whole, and so is a full table.
    assert_eq!(layout.pieces(&StepShape { rows: 1, ..step }).len(), 1);
    let full = StepShape { width: layout.stride, ..step };
    assert_eq!((layout.pieces(&full).len(), copied(&full)), (1, layout.tables.first() + 18 * layout.stride * 4));
    let adapted = StepShape { lora: 3, ..step };
    assert_eq!(copied(&adapted), copied(&step) + layout.lora.part(0, step.tokens).end() - layout.order.first());
}

#[test]
fn a_decode_step_within_large_limits_copies_what_it_uses() {
    let large = StepLimits { rows: 256, tokens: 8192, context: 4096 };
    let mut memory = Memory::within(large);
    let rows: Vec<_> = (0..16).map(|row| (row * 4, 1, None, LogitPositions::Last)).collect();
    let batch = batch(&rows);
    let step = memory.fill(&batch, &[]).unwrap();
    let layout = *memory.writer.layout();
    let copied: usize = layout.pieces(&step).iter().map(|piece| piece.rows * piece.width).sum();
    assert!(copied < 64 << 10 && layout.bytes > 350 << 10, "{copied} of {} bytes", layout.bytes);
    let there = memory.copied(&step);
    for place in [layout.tokens, layout.positions, layout.rows] {
        assert_eq!(there.get(place, 16), memory.get(place, 16));
    }
    assert_eq!(there.get(layout.tables, 1), [0]);
    assert_eq!(there.get(layout.context, 16), (0..16).map(|row| row * 4 + 1).collect::<Vec<u32>>());
}

#[test]
fn what_does_not_exist_is_refused_before_anything_is_written() {
    let mut memory = Memory::new();
    let before = memory.words.clone();
    let mut refused = |batch: &ForwardBatch| memory.fill(batch, &[]).unwrap_err().to_string();
    let with = |token: u32, start, table: &[u32], adapter| {
        let mut batch = ForwardBatch::new();
        batch.push(&[token], start, table, adapter, LogitPositions::Last);
        batch
    };
    assert!(refused(&with(500, 0, &[0], None)).contains("token 500"));
    assert!(refused(&with(1, 0, &[140], None)).contains("block 140"));
    assert!(refused(&with(1, 100, &[0; 7], None)).contains("the context of 100"));
    assert!(refused(&with(1, 0, &[0], Some(AdapterSlot(3)))).contains("slot 3"));
    let many: Vec<_> = (0..21).map(|_| (0, 1, None, LogitPositions::Last)).collect();
    assert!(refused(&batch(&many)).contains("21 rows"));
    assert!(memory.words == before);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every token of any batch is found again by its row, with its id, position and block.
    #[test]
    fn a_batch_is_read_back_from_its_image(
        rows in prop::collection::vec((0usize..50, 1usize..10, prop::option::of(0u32..3)), 1..20),
        context in prop::sample::select(vec![100usize, 1024, 32_768]),
        most in prop::sample::select(vec![200usize, 16_384]),
    ) {
        let rows: Vec<_> = rows.into_iter().map(|(start, count, adapter)| (start, count, adapter, LogitPositions::Last)).collect();
        let batch = batch(&rows);
        let mut memory = Memory::within(StepLimits { context, tokens: most, ..LIMITS });
        let step = memory.fill(&batch, &[]).unwrap();
        let memory = memory.copied(&step);
        let layout = *memory.writer.layout();
        let wanted = memory.get(layout.wanted, step.logits);
        let tokens = memory.get(layout.tokens, step.tokens);
        let positions = memory.get(layout.positions, step.tokens);
        let owners = memory.get(layout.rows, step.tokens);
        let tables = memory.get(layout.tables, LIMITS.rows * layout.stride);
        for (row, last) in batch.rows().iter().zip(wanted) {
            let last = last as usize;
            let count = row.tokens.len();
            let first = last + 1 - count;
            prop_assert_eq!(&tokens[first..=last], batch.row_tokens(row));
            prop_assert_eq!(positions[first] as usize, row.start);
            let owner = owners[last] as usize;
            prop_assert!(owners[first..=last].iter().all(|place| *place as usize == owner));
            prop_assert_eq!(&tables[owner * layout.stride..][..batch.table(row).len()], batch.table(row));
        }
        let adapted: usize = rows.iter().filter(|row| row.2.is_some()).map(|row| row.1).sum();
        let tiles = memory.get(layout.lora, step.lora);
        prop_assert_eq!(tiles.iter().map(|tile| tile.count as usize).sum::<usize>(), adapted);
        prop_assert!(step.single_token_rows >= rows.iter().filter(|row| row.1 == 1).count());
    }
}
