//! Application of LoRA adapters in a mixed batch: each group of tokens gets its own adapter.

use crate::adapter::{LoraAdapter, ProjectionUpdate, Site, SiteUpdate};
use crate::batch::{AdapterSlot, ForwardBatch};
use crate::kernel::Team;
use crate::kernel::lowrank::RowSelection;
use crate::kernel::team::Base;
use std::ops::Range;

use super::fused::OutputColumns;

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
}

/// Tokens of a step grouped by adapter, with working memory for one group.
#[derive(Debug, Default)]
pub(crate) struct AdapterGroups {
    /// Rows with an adapter, sorted by slot.
    rows: Vec<(AdapterSlot, usize)>,
    /// Tokens of these rows, group by group.
    tokens: Vec<usize>,
    spans: Vec<(AdapterSlot, Range<usize>)>,
    /// Outputs of the A matrices.
    small: Vec<f32>,
}

impl AdapterGroups {
    /// Groups the tokens of a batch by adapter. Tokens without an adapter belong to no group.
    pub(crate) fn plan(&mut self, batch: &ForwardBatch) {
        self.rows.clear();
        self.tokens.clear();
        self.spans.clear();
        self.rows.extend(batch.rows().iter().enumerate().filter_map(|(i, row)| Some((row.adapter?, i))));
        self.rows.sort_unstable();
        for &(slot, row) in &self.rows {
            let first = self.tokens.len();
            self.tokens.extend(batch.rows()[row].tokens.clone());
            match self.spans.last_mut() {
                Some((last, span)) if *last == slot => span.end = self.tokens.len(),
                _ => self.spans.push((slot, first..self.tokens.len())),
            }
        }
    }

    /// Adds the output of each token's adapter at a site to `y`, computed from `x`. `columns` locates the site's
    /// projections in `y`.
    pub(crate) fn add(
        &mut self,
        team: &Team,
        slots: &AdapterSlots,
        (layer, site): (usize, Site),
        x: &[f32],
        y: &mut [f32],
        columns: &(dyn Fn(usize) -> OutputColumns + Sync),
    ) {
        let Self { tokens, spans, small, .. } = self;
        for (slot, span) in spans.iter() {
            let Some(delta) = slots.get(*slot).and_then(|adapter| adapter.delta(layer, site)) else { continue };
            let tokens = &tokens[span.clone()];
            small.resize(tokens.len() * delta.shrink.padded(), 0.0);
            delta.shrink.product(team, RowSelection { data: x, indices: tokens }, small);
            expand(team, delta, tokens, small, y, columns);
        }
    }
}

/// Applies the B matrices of a site to some tokens; `small` holds the outputs of the A matrices.
fn expand(
    team: &Team,
    delta: &SiteUpdate,
    tokens: &[usize],
    small: &[f32],
    y: &mut [f32],
    columns: &(dyn Fn(usize) -> OutputColumns + Sync),
) {
    let stride = delta.shrink.padded();
    let base = Base(y.as_mut_ptr());
    let len = y.len();
    let units = |part: &ProjectionUpdate| part.expand.units(tokens.len());
    team.each(delta.parts.iter().map(units).sum(), &|item| {
        let mut unit = item;
        // An item below the total number of units belongs to exactly one projection.
        for part in &delta.parts {
            if unit < units(part) {
                let place = columns(part.projection);
                let at = |row: usize| {
                    let range = place.row(tokens[row]);
                    assert!(range.end <= len && range.len() == part.expand.out(), "inside the projection's output");
                    range.start
                };
                // SAFETY: in bounds by the assertion; units, tokens and projections are disjoint.
                unsafe { part.expand.add(unit, (&small[part.first..], stride), tokens.len(), &base, &at) };
                break;
            }
            unit -= units(part);
        }
    });
}
