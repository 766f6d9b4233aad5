//! Writing sampling settings, masks, and lists of penalized and biased tokens.

use super::StepLayout;
use super::writer::values_at;
use crate::cuda::kernel::{Adjustment, SampleKind, SampleRow};
use crate::sampler::{LogitAdjustment, Pick};

/// Words of an entry of a list.
const ENTRY: usize = size_of::<Adjustment>() / size_of::<u32>();

/// Returns the maximum number of words of a row's adjustment.
pub(super) fn most_words(vocab: usize) -> usize {
    vocab.div_ceil(32) + ENTRY * LogitAdjustment::MAX_TOKENS
}

/// Writes the adjustments of a step one after the other.
#[derive(Debug)]
pub(super) struct AdjustmentWriter<'a> {
    layout: &'a StepLayout,
    vocab: usize,
    /// Number of words written so far.
    used: usize,
}

impl<'a> AdjustmentWriter<'a> {
    pub(super) fn new(layout: &'a StepLayout, vocab: usize) -> Self {
        Self { layout, vocab, used: 0 }
    }

    /// Returns the number of words written so far.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Writes the adjustment of a row and returns its settings in the kernel's format. `None`, with nothing written, if
    /// the list is too long or names a token outside the vocabulary.
    pub(super) fn settings(&mut self, pick: &Pick, bytes: &mut [u8]) -> Option<SampleRow> {
        let &Pick { temperature, top_k, top_p, min_p, draw, ref adjustment } = pick;
        let kind = SampleKind::Open as u32;
        let row = SampleRow { draw, temperature, top_p, min_p, top_k, kind, ..SampleRow::default() };
        match adjustment {
            Some(adjustment) => self.adjusted(row, adjustment, bytes),
            None => Some(row),
        }
    }

    fn adjusted(&mut self, mut row: SampleRow, adjustment: &LogitAdjustment, bytes: &mut [u8]) -> Option<SampleRow> {
        let LogitAdjustment { penalties, tokens, mask } = adjustment;
        let known = tokens.iter().all(|token| (token.id as usize) < self.vocab);
        if !known || tokens.len() > LogitAdjustment::MAX_TOKENS {
            return None;
        }
        (row.repetition, row.frequency, row.presence) = (penalties.repetition, penalties.frequency, penalties.presence);
        if let Some(mask) = mask {
            row.kind = SampleKind::Masked as u32;
            row.mask = self.used as u32;
            let words = values_at(bytes, self.layout.adjustments.part(self.used, self.vocab.div_ceil(32)));
            words.iter_mut().enumerate().for_each(|(at, word)| *word = mask.word(at));
            self.used += words.len();
        }
        row.list = self.used as u32;
        row.count = tokens.len() as u32;
        let words = values_at(bytes, self.layout.adjustments.part(self.used, ENTRY * tokens.len()));
        for (entry, token) in words.chunks_exact_mut(ENTRY).zip(tokens) {
            let adjustment = Adjustment { id: token.id, count: token.count, bias: token.bias, raw: 0.0 };
            entry.copy_from_slice(bytemuck::cast_slice(bytemuck::bytes_of(&adjustment)));
        }
        self.used += words.len();
        Some(row)
    }
}
