//! A paged KV cache whose keys and values are the token ids themselves.

use waymark_models::{AdapterSlot, BLOCK};

use crate::engine::backend::BackendError;

/// What was written for one token.
#[derive(Debug, Clone, Copy)]
struct Slot {
    id: u32,
    position: usize,
    adapter: Option<AdapterSlot>,
}

/// One slot per token of the pool.
#[derive(Debug)]
pub(super) struct Memory {
    slots: Vec<Option<Slot>>,
}

impl Memory {
    pub(super) fn new(tokens: usize) -> Self {
        Self { slots: vec![None; tokens] }
    }

    fn place(table: &[u32], position: usize) -> Result<usize, BackendError> {
        let block = table.get(position / BLOCK);
        let block = block.ok_or_else(|| BackendError(format!("the block table does not reach position {position}")))?;
        Ok(*block as usize * BLOCK + position % BLOCK)
    }

    pub(super) fn write(
        &mut self,
        table: &[u32],
        start: usize,
        ids: &[u32],
        adapter: Option<AdapterSlot>,
    ) -> Result<(), BackendError> {
        for (position, &id) in (start..).zip(ids) {
            let place = Self::place(table, position)?;
            let outside = || BackendError(format!("slot {place} is outside the pool"));
            *self.slots.get_mut(place).ok_or_else(outside)? = Some(Slot { id, position, adapter });
        }
        Ok(())
    }

    /// Reads `len` tokens into `context`; fails where a slot was written for another position or adapter, or never.
    pub(super) fn read(
        &self,
        table: &[u32],
        len: usize,
        adapter: Option<AdapterSlot>,
        context: &mut Vec<u32>,
    ) -> Result<(), BackendError> {
        context.clear();
        for (index, block) in table.iter().enumerate() {
            let (first, end) = (index * BLOCK, ((index + 1) * BLOCK).min(len));
            for position in first..end {
                match self.slots.get(*block as usize * BLOCK + position - first) {
                    Some(Some(slot)) if slot.position == position && slot.adapter == adapter => context.push(slot.id),
                    found => {
                        return Err(BackendError(format!("position {position} is in block {block} as {found:?}")));
                    }
                }
            }
        }
        if context.len() < len { Err(BackendError(format!("{len} tokens, table {table:?}"))) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_paging_fault_is_seen() {
        let mut memory = Memory::new(4 * BLOCK);
        let ids: Vec<u32> = (0..20).collect();
        let mut context = Vec::new();
        memory.write(&[2, 0], 0, &ids, None).unwrap();
        memory.read(&[2, 0], 20, None, &mut context).unwrap();
        assert_eq!(context, ids);
        let mut fails = |table: &[u32], len, adapter| memory.read(table, len, adapter, &mut context).is_err();
        assert!(fails(&[0, 2], 20, None), "blocks in the wrong order");
        assert!(fails(&[2, 0], 21, None), "a slot that was never written");
        assert!(fails(&[2], 20, None), "a table that is too short");
        assert!(fails(&[2, 0], 20, Some(AdapterSlot(0))), "another adapter's cache");
        assert!(memory.write(&[9], 0, &ids[..1], None).is_err(), "a block outside the pool");
    }
}
