//! A few blocks of a panel, unpacked to pairs of integers and `f32` scales, for many rows of activations.

use std::mem::MaybeUninit;

use super::{BlockAt, GROUPS, IntLanes, Lanes, PAIRS, QuantForm, STEPS};
use crate::kernel::layout::PANEL;

/// Maximum number of blocks unpacked at once: 20 KiB, which fit the first-level cache with the rows of a tile.
pub(super) const CHUNK: usize = 8;

/// One block for all outputs of a panel.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Block {
    pairs: [u32; PAIRS * PANEL],
    scales: [f32; 2 * PANEL],
    minima: [f32; 2 * PANEL],
}

/// Working memory for unpacked blocks, written before it is read and too large to clear in every region.
pub(super) struct Scratch(MaybeUninit<[Block; CHUNK]>);

/// The form of unpacked blocks.
#[derive(Clone, Copy)]
pub(super) struct Unpacked<const HALVES: bool, const MIN: bool>;

impl Scratch {
    pub(super) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Address of the blocks, as [`Unpacked`] reads them.
    pub(super) fn from(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }

    /// Unpacks `count` blocks, the first of which is block `first` behind `from`.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`, `count` must be at most [`CHUNK`], and the blocks must lie in
    /// a panel of form `W`.
    #[inline(always)]
    pub(super) unsafe fn fill<L: IntLanes, W: QuantForm>(&mut self, from: *const u8, first: usize, count: usize) {
        for block in 0..count {
            let index = first + block;
            let at = BlockAt { from: from.wrapping_add(index / W::SUPER * W::BYTES), index: index % W::SUPER };
            for vector in 0..2 {
                // SAFETY: guaranteed by the caller; a block has room for two vectors per pair and half. The memory
                // may be uninitialized, so that no reference to it is created.
                unsafe {
                    let to = self.0.as_mut_ptr().cast::<Block>().add(block);
                    for group in 0..GROUPS {
                        for step in 0..STEPS {
                            let pairs = (&raw mut (*to).pairs).cast::<u32>();
                            let offset = (group * STEPS + step) * PANEL + vector * 16;
                            W::pairs::<L>(at, vector, group, step as u32).store(pairs.add(offset));
                        }
                    }
                    for half in 0..if W::HALVES { 2 } else { 1 } {
                        let offset = half * PANEL + vector * 16;
                        let scales = (&raw mut (*to).scales).cast::<f32>();
                        W::scale::<L>(at, vector, half).store(scales.add(offset));
                        if W::MIN {
                            let minima = (&raw mut (*to).minima).cast::<f32>();
                            W::minimum::<L>(at, vector, half).store(minima.add(offset));
                        }
                    }
                }
            }
        }
    }
}

impl<const HALVES: bool, const MIN: bool> QuantForm for Unpacked<HALVES, MIN> {
    const SUPER: usize = 1;
    const BYTES: usize = size_of::<Block>();
    const HALVES: bool = HALVES;
    const MIN: bool = MIN;

    #[inline(always)]
    unsafe fn pairs<L: IntLanes>(at: BlockAt, vector: usize, group: usize, step: u32) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::load(at.word(0, PAIRS, group * STEPS + step as usize, vector)) }
    }

    #[inline(always)]
    unsafe fn scale<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { L::Floats::load(at.word(std::mem::offset_of!(Block, scales), 2, half, vector).cast()) }
    }

    #[inline(always)]
    unsafe fn minimum<L: IntLanes>(at: BlockAt, vector: usize, half: usize) -> L::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if MIN {
                L::Floats::load(at.word(std::mem::offset_of!(Block, minima), 2, half, vector).cast())
            } else {
                L::Floats::splat(0.0)
            }
        }
    }
}
