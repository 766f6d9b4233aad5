//! A paged KV cache that stores token ids in place of keys and values.

use waymark_models::{AdapterSlot, BLOCK};

use crate::backend::BackendError;

/// Token ids of the pool, one slot per token.
#[derive(Debug)]
pub(crate) struct MockMemory {
    ids: Vec<u32>,
    /// Position and adapter that each slot was written for, as a [`mark`]; 0 if it was never written.
    marks: Vec<u64>,
}

/// Encodes position and adapter of a slot. Marks of neighboring positions are consecutive.
fn mark(position: usize, adapter: Option<AdapterSlot>) -> u64 {
    let adapter = adapter.map_or(0, |slot| u64::from(slot.0) + 1);
    (adapter << 32) + position as u64 + 1
}

impl MockMemory {
    pub(crate) fn new(tokens: usize) -> Self {
        Self { ids: vec![0; tokens], marks: vec![0; tokens] }
    }

    pub(crate) fn write(
        &mut self,
        table: &[u32],
        start: usize,
        ids: &[u32],
        adapter: Option<AdapterSlot>,
    ) -> Result<(), BackendError> {
        for (position, &id) in (start..).zip(ids) {
            let block = table.get(position / BLOCK);
            let place = block.map_or(usize::MAX, |block| *block as usize * BLOCK + position % BLOCK);
            if place >= self.ids.len() {
                return Err(BackendError(format!("position {position} has block {block:?}, which is not in the pool")));
            }
            self.ids[place] = id;
            self.marks[place] = mark(position, adapter);
        }
        Ok(())
    }

    /// Copies the content of a block.
    pub(crate) fn copy(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        let most = self.ids.len() / BLOCK;
        let [from, to] = [from, to].map(|block| block as usize);
        if from.max(to) >= most {
            return Err(BackendError(format!("cannot copy block {from} to {to}: the pool has {most} blocks")));
        }
        let source = from * BLOCK..(from + 1) * BLOCK;
        self.ids.copy_within(source.clone(), to * BLOCK);
        self.marks.copy_within(source, to * BLOCK);
        Ok(())
    }

    /// Reads `len` tokens into `context`. Fails if a slot was never written, or was written for another position or
    /// adapter.
    pub(crate) fn read(
        &self,
        table: &[u32],
        len: usize,
        adapter: Option<AdapterSlot>,
        context: &mut Vec<u32>,
    ) -> Result<(), BackendError> {
        context.clear();
        for (index, &block) in table.iter().enumerate() {
            let position = index * BLOCK;
            let count = len.saturating_sub(position).min(BLOCK);
            let slots = block as usize * BLOCK..block as usize * BLOCK + count;
            let (Some(ids), Some(marks)) = (self.ids.get(slots.clone()), self.marks.get(slots)) else {
                return Err(BackendError(format!("block {block} is not in the pool")));
            };
            let first = mark(position, adapter);
            // Without an early exit the comparison of a block is vectorized.
            if marks.iter().zip(first..).fold(0, |differs, (mark, wanted)| differs | (mark ^ wanted)) != 0 {
                return Err(BackendError(format!("block {block} was not written for positions from {position} on")));
            }
            context.extend_from_slice(ids);
        }
        if context.len() < len {
            Err(BackendError(format!("the block table {table:?} is too short for {len} tokens")))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_paging_fault_is_seen() {
        let mut memory = MockMemory::new(4 * BLOCK);
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
        memory.copy(0, 3).unwrap();
        memory.read(&[2, 3], 20, None, &mut context).unwrap();
        assert_eq!(context, ids);
        assert!(memory.copy(0, 4).is_err() && memory.copy(4, 0).is_err());
    }
}
