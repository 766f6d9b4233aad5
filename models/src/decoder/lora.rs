//! Adapters at work: in a mixed batch every group of tokens gets its own.

use crate::adapter::{Adapter, Delta, Site};
use crate::batch::{AdapterSlot, ForwardBatch};
use crate::kernel::team::Base;
use crate::kernel::{Team, axpy, matmul};
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
    input: Vec<f32>,
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

    /// Adds to `y`, at every token with an adapter, what the adapter computes at a site from `x`, which has `width`
    /// values per token; `columns` says where in `y` each of the site's projections lies.
    pub(crate) fn add(
        &mut self,
        team: &Team,
        slots: &Slots,
        (layer, site): (usize, Site),
        (x, width): (&[f32], usize),
        y: &mut [f32],
        columns: &dyn Fn(usize) -> Columns,
    ) {
        let Self { tokens, spans, input, small, .. } = self;
        for (slot, span) in spans.iter() {
            let Some(delta) = slots.get(*slot).and_then(|adapter| adapter.delta(layer, site)) else { continue };
            let tokens = &tokens[span.clone()];
            input.clear();
            for &token in tokens {
                input.extend_from_slice(&x[token * width..(token + 1) * width]);
            }
            let ranks = delta.shrink.out();
            small.resize(tokens.len() * ranks, 0.0);
            matmul(team, input, tokens.len(), &delta.shrink, small);
            expand(team, delta, tokens, small, y, columns);
        }
    }
}

/// Adds the B side of a site for some tokens, of which `small` holds the A side, shape (tokens, ranks).
fn expand(
    team: &Team,
    delta: &Delta,
    tokens: &[usize],
    small: &[f32],
    y: &mut [f32],
    columns: &dyn Fn(usize) -> Columns,
) {
    let places: [Columns; 3] =
        std::array::from_fn(|i| delta.parts.get(i).map_or(Columns::NONE, |p| columns(p.projection)));
    let ranks = delta.shrink.out();
    let (base, len) = (Base(y.as_mut_ptr()), y.len());
    let parts = delta.parts.len();
    team.each(tokens.len() * parts, &|item| {
        let (index, part) = (item / parts, item % parts);
        let (part, place) = (&delta.parts[part], places[part].row(tokens[index]));
        assert!(place.end <= len, "adapter output inside the projection's");
        // SAFETY: in bounds by the assertion; items name disjoint tokens and projections.
        let to = unsafe { std::slice::from_raw_parts_mut(base.at(place.start), place.len()) };
        let weights = &small[index * ranks + part.first..][..part.rank];
        for (&weight, row) in weights.iter().zip(part.expand.chunks_exact(to.len())) {
            axpy(to, weight, row);
        }
    });
}
