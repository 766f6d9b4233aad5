//! Application of LoRA adapters in a mixed batch: each group of tokens gets its own adapter.

use std::ops::Range;

use super::fused::OutputColumns;
use super::lora_update::{LoraAdapter, ProjectionUpdate, SiteUpdate};
use crate::adapter::Site;
use crate::batch::{AdapterSlot, ForwardBatch};
use crate::kernel::lowrank::RowSelection;
use crate::kernel::team::Base;
use crate::kernel::{Team, add, matmul};

/// Loaded adapters by slot. A freed slot is reused.
#[derive(Debug, Default)]
pub(crate) struct AdapterSlots {
    slots: Vec<Option<LoraAdapter>>,
}

impl AdapterSlots {
    pub(crate) fn insert(&mut self, adapter: LoraAdapter) -> AdapterSlot {
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[free] = Some(adapter);
        AdapterSlot(free as u32)
    }

    pub(crate) fn remove(&mut self, slot: AdapterSlot) {
        if let Some(adapter) = self.slots.get_mut(slot.0 as usize) {
            *adapter = None;
        }
    }

    /// Size of the loaded adapters, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.iter().flatten().map(LoraAdapter::bytes).sum()
    }

    pub(crate) fn get(&self, slot: AdapterSlot) -> Option<&LoraAdapter> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    /// Returns `true` if some adapter is valid only for the weights that it was loaded with.
    pub(crate) fn any_bound_to_base(&self) -> bool {
        self.slots.iter().flatten().any(LoraAdapter::is_bound_to_base)
    }
}

/// Locations of a site's projections in the output, by index.
type ColumnsOf<'a> = &'a (dyn Fn(usize) -> OutputColumns + Sync);

/// Rows of a step grouped by adapter, with working memory for one group.
#[derive(Debug, Default)]
pub(crate) struct AdapterGroups {
    /// Slot, first row and end row (exclusive) of each sequence with an adapter, sorted by slot.
    sequences: Vec<(AdapterSlot, usize, usize)>,
    /// Rows of `sequences`, group by group.
    rows: Vec<usize>,
    spans: Vec<(AdapterSlot, Range<usize>)>,
    /// Outputs of the A matrices.
    small: Vec<f32>,
    /// Inputs and outputs of one group whose adapter replaces the output projection.
    gathered: [Vec<f32>; 2],
}

impl AdapterGroups {
    /// Groups the tokens of a batch by adapter. Tokens without an adapter belong to no group.
    pub(crate) fn plan(&mut self, batch: &ForwardBatch) {
        self.sequences.clear();
        let adapted = batch.rows().iter().filter_map(|row| Some((row.adapter?, row.tokens.start, row.tokens.end)));
        self.sequences.extend(adapted);
        self.rows.clear();
        self.spans.clear();
        self.sequences.sort_unstable();
        for &(slot, first, end) in self.sequences.iter().filter(|(_, first, end)| first < end) {
            let start = self.rows.len();
            self.rows.extend(first..end);
            match self.spans.last_mut() {
                Some((last, span)) if *last == slot => span.end = self.rows.len(),
                _ => self.spans.push((slot, start..self.rows.len())),
            }
        }
    }

    /// Changes the embeddings of tokens whose adapters change the embedding. `stream` has a row per token.
    pub(crate) fn embed(&self, slots: &AdapterSlots, tokens: &[u32], hidden: usize, stream: &mut [f32]) {
        for (slot, span) in &self.spans {
            let Some(update) = slots.get(*slot).and_then(|adapter| adapter.embedding.as_ref()) else { continue };
            for &row in &self.rows[span.clone()] {
                update.apply(tokens[row] as usize, &mut stream[row * hidden..][..hidden]);
            }
        }
    }

    /// Applies each row's adapter at a site to the base's output `y`, computed from `x`. `columns` locates the site's
    /// projections in `y`.
    pub(crate) fn apply(
        &mut self,
        team: &Team,
        slots: &AdapterSlots,
        at: (usize, Site),
        x: &[f32],
        y: &mut [f32],
        columns: ColumnsOf<'_>,
    ) {
        self.rescale(slots, at, y, columns);
        self.add(team, slots, at, x, y, columns);
    }

    /// Returns `true` if [`rescale`](Self::rescale) changes a row at a site.
    pub(crate) fn rescales(&self, slots: &AdapterSlots, (layer, site): (usize, Site)) -> bool {
        let mut deltas = self.spans.iter().filter_map(|(slot, _)| slots.get(*slot)?.delta(layer, site));
        deltas.any(SiteUpdate::rescales)
    }

    /// Multiplies the base's output at a site by the factors of each row's adapter.
    pub(crate) fn rescale(
        &self,
        slots: &AdapterSlots,
        (layer, site): (usize, Site),
        y: &mut [f32],
        columns: ColumnsOf<'_>,
    ) {
        for (slot, span) in &self.spans {
            if let Some(delta) = slots.get(*slot).and_then(|adapter| adapter.delta(layer, site)) {
                rescale_rows(delta, &self.rows[span.clone()], y, columns);
            }
        }
    }

    /// Adds the output of each row's adapter at a site to `y`, computed from `x`.
    pub(crate) fn add(
        &mut self,
        team: &Team,
        slots: &AdapterSlots,
        (layer, site): (usize, Site),
        x: &[f32],
        y: &mut [f32],
        columns: ColumnsOf<'_>,
    ) {
        let Self { rows, spans, small, .. } = self;
        for (slot, span) in spans.iter() {
            let Some(delta) = slots.get(*slot).and_then(|adapter| adapter.delta(layer, site)) else { continue };
            add_update(team, delta, &rows[span.clone()], x, small, y, columns);
        }
    }

    /// Applies each row's adapter to the logits, computed from the hidden states `x`.
    pub(crate) fn project(&mut self, team: &Team, slots: &AdapterSlots, x: &[f32], vocab: usize, logits: &mut [f32]) {
        let Self { rows, spans, small, gathered: [inputs, outputs], .. } = self;
        for (slot, span) in spans.iter() {
            let Some(head) = slots.get(*slot).and_then(|adapter| adapter.head.as_ref()) else { continue };
            let rows = &rows[span.clone()];
            if let Some(weight) = &head.weight {
                let width = weight.inn();
                inputs.clear();
                rows.iter().for_each(|row| inputs.extend_from_slice(&x[row * width..][..width]));
                outputs.resize(rows.len() * vocab, 0.0);
                matmul(team, inputs, rows.len(), weight, outputs);
                for (row, values) in rows.iter().zip(outputs.chunks_exact(vocab)) {
                    logits[row * vocab..][..vocab].copy_from_slice(values);
                }
            }
            if let Some(update) = &head.update {
                let whole = OutputColumns::all(vocab);
                rescale_rows(update, rows, logits, &|_| whole);
                add_update(team, update, rows, x, small, logits, &|_| whole);
            }
        }
    }
}

/// Multiplies the outputs of the base by the factors of an update.
fn rescale_rows(delta: &SiteUpdate, rows: &[usize], y: &mut [f32], columns: ColumnsOf<'_>) {
    for part in &delta.parts {
        let Some(gain) = &part.gain else { continue };
        let place = columns(part.projection);
        for &row in rows {
            y[place.row(row)].iter_mut().zip(gain).for_each(|(value, gain)| *value *= gain);
        }
    }
}

/// Adds the output of an update to `y`.
fn add_update(
    team: &Team,
    delta: &SiteUpdate,
    rows: &[usize],
    x: &[f32],
    small: &mut Vec<f32>,
    y: &mut [f32],
    columns: ColumnsOf<'_>,
) {
    small.resize(rows.len() * delta.shrink.padded(), 0.0);
    delta.shrink.product(team, RowSelection { data: x, indices: rows }, small);
    expand(team, delta, rows, small, y, columns);
    for part in &delta.parts {
        let Some(offset) = &part.offset else { continue };
        let place = columns(part.projection);
        rows.iter().for_each(|&row| add(&mut y[place.row(row)], offset));
    }
}

/// Applies the B matrices of a site to some rows; `small` holds the outputs of the A matrices.
fn expand(team: &Team, delta: &SiteUpdate, rows: &[usize], small: &[f32], y: &mut [f32], columns: ColumnsOf<'_>) {
    let stride = delta.shrink.padded();
    let base = Base(y.as_mut_ptr());
    let len = y.len();
    let units = |part: &ProjectionUpdate| part.expand.as_ref().map_or(0, |expand| expand.units(rows.len()));
    team.each(delta.parts.iter().map(units).sum(), &|item| {
        let mut unit = item;
        // An item below the total number of units belongs to exactly one projection.
        for part in &delta.parts {
            let Some(expand) = part.expand.as_ref().filter(|_| unit < units(part)) else {
                unit -= units(part);
                continue;
            };
            let place = columns(part.projection);
            let at = |index: usize| {
                let range = place.row(rows[index]);
                assert!(range.end <= len && range.len() == expand.out(), "inside the projection's output");
                range.start
            };
            // SAFETY: in bounds by the assertion; units, rows and projections are disjoint.
            unsafe { expand.add(unit, &small[part.first..], stride, rows.len(), &base, &at) };
            break;
        }
    });
}
