//! Adapters at work: in a mixed batch every group of tokens gets its own.

use crate::adapter::{Adapter, Delta, Part, Site};
use crate::batch::{AdapterSlot, ForwardBatch};
use crate::kernel::Team;
use crate::kernel::lowrank::Rows;
use crate::kernel::team::Base;
use std::ops::Range;

use super::fused::Columns;

/// The loaded adapters, by slot; a freed slot is given to the next one.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Option<Adapter>>,
}

impl Slots {
    pub(crate) fn insert(&mut self, adapter: Adapter) -> AdapterSlot {
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

    /// Bytes that the loaded adapters take.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.iter().flatten().map(Adapter::bytes).sum()
    }

    pub(crate) fn get(&self, slot: AdapterSlot) -> Option<&Adapter> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }
}

/// A step's tokens grouped by adapter, and memory for what is computed on a group.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Rows with an adapter, by slot.
    rows: Vec<(AdapterSlot, usize)>,
    /// Their tokens, group after group.
    tokens: Vec<usize>,
    spans: Vec<(AdapterSlot, Range<usize>)>,
    /// What A matrices give.
    small: Vec<f32>,
}

impl Groups {
    /// Groups a batch's tokens; those without adapter belong to no group.
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

    /// Adds to `y`, at every token with an adapter, what the adapter computes at a site from `x`; `columns` says where in
    /// `y` each of the site's projections lies.
    pub(crate) fn add(
        &mut self,
        team: &Team,
        slots: &Slots,
        (layer, site): (usize, Site),
        x: &[f32],
        y: &mut [f32],
        columns: &(dyn Fn(usize) -> Columns + Sync),
    ) {
        let Self { tokens, spans, small, .. } = self;
        for (slot, span) in spans.iter() {
            let Some(delta) = slots.get(*slot).and_then(|adapter| adapter.delta(layer, site)) else { continue };
            let tokens = &tokens[span.clone()];
            small.resize(tokens.len() * delta.shrink.padded(), 0.0);
            delta.shrink.product(team, Rows { data: x, indices: tokens }, small);
            expand(team, delta, tokens, small, y, columns);
        }
    }
}

/// Adds the B side of a site for some tokens, of which `small` holds the A side.
fn expand(
    team: &Team,
    delta: &Delta,
    tokens: &[usize],
    small: &[f32],
    y: &mut [f32],
    columns: &(dyn Fn(usize) -> Columns + Sync),
) {
    let stride = delta.shrink.padded();
    let (base, len) = (Base(y.as_mut_ptr()), y.len());
    let units = |part: &Part| part.expand.units(tokens.len());
    team.each(delta.parts.iter().map(units).sum(), &|item| {
        let mut unit = item;
        // An item below the sum of all units belongs to one of the parts.
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
